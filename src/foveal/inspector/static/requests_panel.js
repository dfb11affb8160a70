/**
 * Panel "Requests": the cache map. Each request's prefix as read, written and uncached, and why the cache missed.
 *
 * @module
 */

import { CACHE_PARTS, CacheMap, MISS_CAUSES, lostText } from "./cache_map.js";
import { clear, el } from "./dom.js";
import { formatCount, formatDollars, formatNumber, formatPercent, formatTime, sessionCost } from "./format.js";
import { actionButton, calmRender, eventLink, factList, linkEvents, messageLink, stateNote } from "./panel_parts.js";
import { term } from "./words.js";

/** @typedef {import("./types.js").App} App */
/** @typedef {import("./types.js").CacheMiss} CacheMiss */
/** @typedef {import("./types.js").Panel} Panel */
/** @typedef {import("./types.js").RequestRow} RequestRow */
/** @typedef {import("./timeline_state.js").TimelineState} TimelineState */

/**
 * Return the panel with the cache map.
 * @param {App} app
 * @returns {Panel}
 */
export function createRequestsPanel(app) {
  const totals = el("div");
  const current = el("section", { class: "request-current", "aria-label": "Current request" });
  const map = new CacheMap(app);
  const sort = sortSelect((order) => map.setOrder(order));
  const scale = scaleSelect((name) => map.setScale(name));
  const tools = el("div", { class: "toolbar" }, el("label", null, "Order ", sort), el("label", null, "Scale ", scale));
  const element = el("div", { class: "panel-body" }, totals, tools, map.list.element, legend(), current);
  /** @type {TimelineState | null} */
  let known = null;
  let version = -1;
  let request = -2;
  return {
    id: "requests",
    title: "Requests",
    element,
    render: calmRender((state) => {
      const timeline = app.shown();
      const isNew = timeline !== known || timeline.version !== version;
      if (isNew) clear(totals, totalsContent(timeline));
      [known, version] = [timeline, timeline.version];
      map.show(timeline, isNew);
      const index = state.request >= 0 ? state.request : app.timeline.requestAt(state.point);
      if (index === request && !isNew) return;
      map.setCurrent(index, index !== request);
      request = index;
      clear(current, requestDetail(app, timeline, index));
    }),
  };
}

// ── Totals, legend and the current request ─────────────────────────────────────────────────────────────

/**
 * @param {TimelineState} timeline
 * @returns {HTMLElement[]}
 */
function totalsContent(timeline) {
  const { requests } = timeline;
  if (requests.length === 0) return [stateNote("The log has no answered request yet. The first answer of the model adds one.")];
  const sum = { read: 0, written: 0, uncached: 0 };
  for (const request of requests) {
    sum.read += request.read;
    sum.written += request.written;
    sum.uncached += request.uncached;
  }
  const all = sum.read + sum.written + sum.uncached;
  const reported = requests.filter((request) => request.used >= 0).length;
  const share = all > 0 ? `${formatPercent(sum.read / all)} of ${formatNumber(all)} input tokens came from the cache` : "";
  const lead = [formatCount(requests.length, "request"), share || "the provider reported no usage"].join("; ");
  const missing = reported < requests.length && all > 0 ? ` Usage is known for ${formatNumber(reported)} of them.` : "";
  const cost = sessionCost(timeline);
  const spent = cost ? ` ${cost[0].toUpperCase()}${cost.slice(1)}.` : "";
  return [el("p", { class: "lead" }, `${lead}.${missing}${spent}`), lossTable(requests)];
}

/**
 * What was lost, by cause.
 * @param {RequestRow[]} requests
 * @returns {HTMLElement}
 */
function lossTable(requests) {
  const causes = lossesByCause(requests);
  if (causes.length === 0) return el("p", null, "No request missed the cache by more than a block.");
  const isPriced = causes.some(({ lost }) => lost !== null);
  return el(
    "table",
    { class: "figures" },
    el("caption", null, term("miss", "Misses"), " by cause"),
    el("thead", null, el("tr", null, ["Cause", "Misses", "Tokens", "Lost"].map((name) => el("th", { scope: "col" }, name)))),
    el(
      "tbody",
      null,
      causes.map(({ cause, count, tokens, lost }) =>
        el(
          "tr",
          null,
          el("th", { scope: "row" }, MISS_CAUSES[cause] ?? cause),
          el("td", null, formatNumber(count)),
          el("td", null, formatNumber(tokens)),
          el("td", null, isPriced || lost !== null ? formatDollars(lost) : "price unknown"),
        ),
      ),
    ),
  );
}

/**
 * @param {RequestRow[]} requests
 * @returns {Array<{cause: string, count: number, tokens: number, lost: number | null}>}
 */
function lossesByCause(requests) {
  /** @type {Map<string, {cause: string, count: number, tokens: number, lost: number | null}>} */
  const causes = new Map();
  for (const { miss } of requests) {
    if (!miss) continue;
    const sum = causes.get(miss.cause) ?? { cause: miss.cause, count: 0, tokens: 0, lost: null };
    sum.count += 1;
    sum.tokens += miss.tokens;
    if (miss.lost !== null) sum.lost = (sum.lost ?? 0) + miss.lost;
    causes.set(miss.cause, sum);
  }
  return [...causes.values()].sort((a, b) => (b.lost ?? 0) - (a.lost ?? 0) || b.tokens - a.tokens);
}

/**
 * @returns {HTMLElement}
 */
function legend() {
  return el(
    "ul",
    { class: "legend", "aria-label": "Legend" },
    CACHE_PARTS.map(([name, word, meaning]) =>
      el("li", null, el("span", { class: `swatch is-${name}`, "aria-hidden": "true" }), term(name, `${word} ${meaning}`)),
    ),
    el("li", null, el("span", { class: "swatch is-mark", "aria-hidden": "true" }), term("mark")),
  );
}

/**
 * @param {App} app
 * @param {TimelineState} timeline
 * @param {number} index
 * @returns {HTMLElement[]}
 */
function requestDetail(app, timeline, index) {
  const request = timeline.requests[index];
  if (!request) return [stateNote("No request was sent up to this point.")];
  const { miss } = request;
  const isReported = request.used >= 0;
  return [
    el("h3", null, `Request ${formatNumber(request.number)}, after `, eventLink(app, request.at)),
    factList([
      [term("miss", "Missed"), miss ? missSentence(app, miss) : ""],
      ["Lost", miss ? lostText(miss) : ""],
      ["Tokens", `${formatNumber(request.tokens)} ${isReported ? "reported" : "estimated"}${shareOfWindow(request)}`],
      ["Cache", isReported ? cacheAmounts(request) : ""],
      ["Same prefix", index > 0 ? `${formatCount(request.prefix, "token")} as in the request before` : ""],
      ["Output", isReported ? formatCount(request.output, "token") : ""],
      ["Cost", isReported ? formatDollars(request.cost) : ""],
      ["Cache marks", request.breakpoints.flatMap((key) => [messageLink(app, key), " "])],
      ["Answer", request.answer >= 0 ? messageLink(app, `e${request.answer}`) : ""],
      ["Model", request.model],
      ["Sent", formatTime(request.time)],
    ]),
    el(
      "div",
      { class: "button-row" },
      actionButton("Diff with the one before", () => app.state.set({ compare: { a: index - 1, b: index }, panel: "diff" }), {
        disabled: index === 0 || timeline !== app.timeline,
      }),
    ),
  ];
}

/**
 * @param {App} app
 * @param {CacheMiss} miss
 * @returns {import("./dom.js").Child[]}
 */
function missSentence(app, miss) {
  const provider = miss.provider && !miss.text.includes(miss.provider) ? ` The provider says: ${miss.provider}` : "";
  return [
    el("span", { class: "badge is-miss" }, MISS_CAUSES[miss.cause] ?? miss.cause),
    " ",
    ...linkEvents(app, miss.text),
    ...(miss.key ? ["; first different message ", messageLink(app, miss.key)] : []),
    provider && `.${provider}`,
  ];
}

/**
 * @param {RequestRow} request
 * @returns {string}
 */
function shareOfWindow(request) {
  return request.window > 0 ? `, ${formatPercent(request.tokens / request.window)} of the window` : "";
}

/**
 * @param {RequestRow} request
 * @returns {string}
 */
function cacheAmounts(request) {
  return `${formatNumber(request.read)} read, ${formatNumber(request.written)} written, ${formatNumber(request.uncached)} uncached`;
}

/**
 * @param {(order: "number" | "loss") => void} choose
 * @returns {HTMLSelectElement}
 */
function sortSelect(choose) {
  const select = el(
    "select",
    { onchange: () => choose(select.value === "loss" ? "loss" : "number") },
    el("option", { value: "number" }, "as sent"),
    el("option", { value: "loss" }, "largest loss first"),
  );
  return select;
}

/**
 * @param {(scale: "window" | "largest") => void} choose
 * @returns {HTMLSelectElement}
 */
function scaleSelect(choose) {
  const select = el(
    "select",
    { onchange: () => choose(select.value === "largest" ? "largest" : "window") },
    el("option", { value: "window" }, "the window"),
    el("option", { value: "largest" }, "the largest request"),
  );
  return select;
}
