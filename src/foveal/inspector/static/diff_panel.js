/**
 * Panel "Diff": two requests compared message by message and line by line.
 *
 * Until two requests are chosen, the panel compares the request at the current point with the one before it.
 *
 * @module
 */

import { clear, debounce, el, setText } from "./dom.js";
import { formatBytes, formatCount, formatNumber } from "./format.js";
import { diffRowList } from "./line_diff_view.js";
import { actionButton, createLoader, linkEvents, messageLink, stateNote } from "./panel_parts.js";

/** @typedef {import("./types.js").App} App */
/** @typedef {import("./types.js").PageState} PageState */
/** @typedef {import("./types.js").Panel} Panel */
/** @typedef {import("./types.js").RequestDiff} RequestDiff */
/** @typedef {import("./types.js").RequestRow} RequestRow */

/** Milliseconds without a further step before a diff is asked for: a scrub passes many requests. */
const DIFF_DELAY_MS = 150;
/** Diffs that are kept, so that going back to one is immediate. */
const MAX_KEPT_DIFFS = 12;

/**
 * Return the panel that compares two requests.
 * @param {App} app
 * @returns {Panel}
 */
export function createDiffPanel(app) {
  const picker = createRequestPicker(app);
  const area = el("div", { class: "diff-area" });
  const element = el("div", { class: "panel-body" }, picker.element, area);
  const fill = createLoader(area);
  /** @type {Map<string, RequestDiff>} */
  const kept = new Map();
  let shown = "";
  let wanted = { a: -1, b: -1 };

  const load = debounce(() => {
    const [a, b] = [app.timeline.requests[wanted.a], app.timeline.requests[wanted.b]];
    if (!a || !b) return;
    void fill(
      `Comparing request ${a.number} with request ${b.number} …`,
      () => keptDiff(app, kept, a.at, b.at),
      (diff) => diffContent(app, diff, a, b),
    );
  }, DIFF_DELAY_MS);

  return {
    id: "diff",
    title: "Diff",
    element,
    render(state) {
      wanted = comparedRequests(app, state);
      picker.update(wanted);
      const name = `${wanted.a}:${wanted.b}`;
      if (name === shown) return;
      shown = name;
      if (wanted.a < 0 || wanted.a === wanted.b) clear(area, stateNote(nothingToCompare(app, wanted)));
      else load();
    },
  };
}

/**
 * Indices of the two requests: the chosen ones, or the one at the current point and the one before it.
 * @param {App} app
 * @param {PageState} state
 * @returns {{a: number, b: number}}
 */
function comparedRequests(app, state) {
  const last = app.timeline.requests.length - 1;
  const { a, b } = state.compare;
  if (a >= 0 && b >= 0) return { a: Math.min(a, last), b: Math.min(b, last) };
  const current = state.request >= 0 ? state.request : app.timeline.requestAt(state.point);
  const to = Math.min(Math.max(current, Math.min(1, last)), last);
  return { a: to - 1, b: to };
}

/**
 * @param {App} app
 * @param {{a: number, b: number}} pair
 * @returns {string}
 */
function nothingToCompare(app, pair) {
  const count = app.timeline.requests.length;
  if (count === 0) return "The log has no answered request yet. The diff needs two.";
  if (count === 1) return "The log has one request so far. The diff needs two.";
  if (pair.a === pair.b) return "Both sides are the same request. Choose two different ones.";
  return "Choose two requests.";
}

/**
 * @param {App} app
 * @param {Map<string, RequestDiff>} kept
 * @param {number} a
 * @param {number} b
 * @returns {Promise<RequestDiff>}
 */
async function keptDiff(app, kept, a, b) {
  const name = `${a}:${b}`;
  const known = kept.get(name);
  if (known) return known;
  const diff = await app.data.diff(a, b, "");
  kept.set(name, diff);
  const oldest = kept.keys().next().value;
  if (kept.size > MAX_KEPT_DIFFS && oldest !== undefined) kept.delete(oldest);
  return diff;
}

/**
 * The two numbers and the buttons beside them. A list of thousands of requests would be slow in a select.
 * @param {App} app
 * @returns {{element: HTMLElement, update: (pair: {a: number, b: number}) => void}}
 */
function createRequestPicker(app) {
  let pair = { a: -1, b: -1 };
  /** @type {(a: number, b: number) => void} */
  const choose = (a, b) => app.state.set({ compare: { a, b } });
  /** @type {(distance: number) => void} */
  const move = (distance) => choose(pair.a + distance, pair.b + distance);
  const from = requestField("diff-from", (index) => choose(index, pair.b));
  const to = requestField("diff-to", (index) => choose(pair.a, index));
  const previous = actionButton("‹ Previous", () => move(-1), { label: "Compare the previous two requests" });
  const next = actionButton("Next ›", () => move(1), { label: "Compare the next two requests" });
  const before = actionButton("With the one before", () => choose(pair.b - 1, pair.b));
  const follow = actionButton("Follow the scrubber", () => choose(-1, -1));
  return {
    element: el(
      "div",
      { class: "toolbar" },
      el("label", { for: "diff-from" }, "From request"),
      from.element,
      el("label", { for: "diff-to" }, "to"),
      to.element,
      el("span", { class: "button-row" }, previous, next, before, follow),
    ),
    update(wanted) {
      pair = wanted;
      const { requests } = app.timeline;
      const { a, b } = app.state.current.compare;
      from.update(pair.a, requests);
      to.update(pair.b, requests);
      previous.disabled = Math.min(pair.a, pair.b) <= 0;
      next.disabled = Math.max(pair.a, pair.b) >= requests.length - 1;
      before.disabled = pair.b <= 0 || pair.a === pair.b - 1;
      follow.disabled = a < 0 || b < 0;
    },
  };
}

/**
 * A field with the number of a request, and what that request is.
 * @param {string} id
 * @param {(index: number) => void} choose
 * @returns {{element: HTMLElement, update: (index: number, requests: RequestRow[]) => void}}
 */
function requestField(id, choose) {
  const input = el("input", { id, type: "number", min: 1, class: "request-number", "aria-describedby": `${id}-about` });
  const about = el("span", { id: `${id}-about`, class: "request-about" });
  let count = 0;
  input.addEventListener("change", () => {
    const number = Math.round(input.valueAsNumber);
    if (number >= 1 && count > 0) choose(Math.min(number, count) - 1);
  });
  return {
    element: el("span", null, input, " ", about),
    update(index, requests) {
      count = requests.length;
      const request = requests[index];
      input.max = String(count);
      input.disabled = count === 0;
      if (document.activeElement !== input || input.valueAsNumber !== index + 1) input.value = request ? String(index + 1) : "";
      setText(about, request ? `e${request.at}, ${formatNumber(request.tokens)} tokens` : "");
    },
  };
}

/**
 * @param {App} app
 * @param {RequestDiff} diff
 * @param {RequestRow} a
 * @param {RequestRow} b
 * @returns {HTMLElement[]}
 */
function diffContent(app, diff, a, b) {
  const rows = diff.rows ?? [];
  const lead = el("div", { class: "diff-lead" }, leadSentences(app, diff, a, b));
  return rows.some((row) => row.op !== "same") ? [lead, diffRowList(app, rows)] : [lead];
}

/**
 * Where the requests diverge and which events moved the prefix.
 * @param {App} app
 * @param {RequestDiff} diff
 * @param {RequestRow} a
 * @param {RequestRow} b
 * @returns {HTMLElement[]}
 */
function leadSentences(app, diff, a, b) {
  const [first, same] = [diff.first ?? null, diff.same ?? 0];
  const dialect = diff.dialect ? ` Form: ${diff.dialect}.` : "";
  if (first === null) {
    const added = (diff.rows ?? []).some((row) => row.op === "added");
    const text = added
      ? `Request ${b.number} begins with all of request ${a.number} and adds messages at the end: the cache can hold the whole prefix.`
      : `Requests ${a.number} and ${b.number} are equal, byte for byte.`;
    return [el("p", null, text + dialect)];
  }
  return [
    el("p", null, "The requests diverge ", ...divergence(app, first), "; ", equalBefore(same), dialect),
    diff.moved_by
      ? el("p", { class: "moved-by" }, "Moved by ", linkEvents(app, diff.moved_by), ".")
      : el("p", { class: "moved-by" }, "No reduction lies between them."),
  ];
}

/**
 * The first message and byte that differ. An exported file knows no bytes (-1).
 * @param {App} app
 * @param {{message: number, byte: number, key: string}} first
 * @returns {import("./dom.js").Child[]}
 */
function divergence(app, first) {
  const byte = first.byte >= 0 ? `, byte ${formatNumber(first.byte)} (${formatBytes(first.byte)} from the start)` : "";
  if (first.message < 0) return [`before the first message, in the model, the tools or the system text${byte}`];
  const key = first.key ? [" (", messageLink(app, first.key), ")"] : [];
  return [`at message ${formatNumber(first.message + 1)}`, ...key, byte];
}

/**
 * @param {number} same
 * @returns {string}
 */
function equalBefore(same) {
  return same === 0 ? "no message before it is equal." : `${formatCount(same, "message")} before it ${same === 1 ? "is" : "are"} equal.`;
}
