/**
 * Panel "Search": when did the model last see a text?
 *
 * The server finds the messages and versions that contain the text; the changes of the timeline say which requests showed
 * them, which event removed them, and so how to bring them back.
 *
 * @module
 */

import { clear, debounce, el, svg } from "./dom.js";
import { kindName, levelName } from "./event_kinds.js";
import { formatCount, formatNumber, oneLine } from "./format.js";
import { restoreActions } from "./message_actions.js";
import { actionButton, createLoader, eventLink, messageLink, stateNote } from "./panel_parts.js";
import { seqOfKey } from "./timeline_state.js";
import { countRequests, joinHits, visibleSpans } from "./visible_spans.js";

/** @typedef {import("./types.js").App} App */
/** @typedef {import("./types.js").Panel} Panel */
/** @typedef {import("./types.js").TextHits} TextHits */
/** @typedef {import("./types.js").ViewChange} ViewChange */
/** @typedef {import("./visible_spans.js").FoundMessage} FoundMessage */
/** @typedef {import("./visible_spans.js").Visibility} Visibility */
/** @typedef {import("./dom.js").Child} Child */
/** @typedef {FoundMessage & Visibility} SearchHit */

const MIN_SEARCH_CHARS = 2;
/** Milliseconds without a further key before the search begins. */
const SEARCH_DELAY_MS = 500;
/** Hits that are drawn at once. */
const HITS_PER_PAGE = 40;

/**
 * Return the panel that searches the log and what requests showed of it.
 * @param {App} app
 * @returns {Panel}
 */
export function createSearchPanel(app) {
  const field = el("input", { type: "search", id: "search-text", placeholder: "a name, a path, an error message", maxlength: 500 });
  const area = el("div", { class: "search-results" });
  const fill = createLoader(area);
  /** @type {TextHits | null} */
  let found = null;
  let asked = "";
  let version = -1;
  let limit = HITS_PER_PAGE;

  function draw() {
    version = app.timeline.version;
    return found ? resultContent(app, found, limit, showMore) : [];
  }
  function showMore() {
    limit += HITS_PER_PAGE;
    redraw(area, draw);
  }
  function search() {
    const q = field.value.trim();
    if (q === asked) return;
    asked = q;
    found = null;
    limit = HITS_PER_PAGE;
    if (q.length < MIN_SEARCH_CHARS) return clear(area, searchHint());
    void fill(`Searching for “${q}” …`, () => app.data.search(q), (hits) => {
      if (q !== asked) return [];
      found = hits;
      const content = draw();
      app.announce(content[0] instanceof HTMLElement ? (content[0].textContent ?? "") : "");
      return content;
    });
  }
  field.addEventListener("input", debounce(search, SEARCH_DELAY_MS));
  const form = el(
    "form",
    { class: "toolbar search-form", role: "search" },
    el("label", { for: "search-text" }, "When did the model last see "),
    field,
    el("button", { type: "submit", class: "button" }, "Search"),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    search();
  });
  clear(area, searchHint());
  return {
    id: "search",
    title: "Search",
    element: el("div", { class: "panel-body" }, form, area),
    render(state) {
      const index = state.lane === "recorded" ? app.timeline.requestAt(state.point) : -1;
      const share = (index + 0.5) / Math.max(1, app.timeline.requests.length);
      area.style.setProperty("--current-share", index < 0 ? "-1" : share.toFixed(4));
      if (found && version !== app.timeline.version) redraw(area, draw);
    },
  };
}

/**
 * Draw the results again and keep the focus at the same hit.
 * @param {HTMLElement} area
 * @param {() => Child[]} draw
 */
function redraw(area, draw) {
  const focused = document.activeElement?.closest("[data-hit]")?.getAttribute("data-hit");
  clear(area, draw());
  const hit = [...area.querySelectorAll("[data-hit]")].find((other) => other.getAttribute("data-hit") === focused);
  hit?.querySelector("button")?.focus();
}

/**
 * @returns {HTMLElement}
 */
function searchHint() {
  return stateNote("Enter at least two characters. The search covers the whole log and every shown version of it.");
}

/**
 * @param {App} app
 * @param {TextHits} found
 * @param {number} limit
 * @param {() => void} showMore
 * @returns {Child[]}
 */
function resultContent(app, found, limit, showMore) {
  const { timeline } = app;
  const hits = joinHits(found.hits ?? []).map((message) => ({
    ...message,
    ...visibleSpans(timeline.history(message.key), timeline.requests, message.owners),
  }));
  hits.sort((a, b) => Number(b.isVisible) - Number(a.isVisible) || b.last - a.last || seqOfKey(b.key) - seqOfKey(a.key));
  const rest = hits.length - limit;
  // What was said comes before the summaries that repeat it; the order is otherwise the same.
  const listed = [...hits.filter((hit) => !isSummary(app, hit)), ...hits.filter((hit) => isSummary(app, hit))];
  return [
    el("p", { class: "lead search-answer" }, answerSentence(app, found.q, hits)),
    found.truncated ? stateNote("There are more hits than the search returns; the newest are listed.") : null,
    el("ol", { class: "hits" }, listed.slice(0, limit).map((hit) => hitItem(app, hit))),
    rest > 0 ? actionButton(`Show more (${formatNumber(rest)})`, showMore) : null,
  ];
}

/**
 * @param {App} app
 * @param {FoundMessage} hit
 * @returns {boolean}
 */
function isSummary(app, hit) {
  return app.timeline.row(seqOfKey(hit.key))?.kind === "compacted";
}

/**
 * The answer to the question, for the whole session.
 * @param {App} app
 * @param {string} q
 * @param {SearchHit[]} hits visible ones first, then by the last request that showed them
 * @returns {Child[]}
 */
function answerSentence(app, q, hits) {
  const name = `“${oneLine(q)}”`;
  if (hits.length === 0) return [`Neither the log nor any request contains ${name}. The search ignores case and matches literally.`];
  const [hit] = hits;
  const visible = hits.filter((other) => other.isVisible).length;
  const others = visible > 1 ? ` and ${formatCount(visible - 1, "other message")}` : "";
  if (hit.isVisible) return [`The model sees ${name} now, in `, messageLink(app, hit.key), `${others}.`];
  if (hit.last < 0) return [`${formatCount(hits.length, "message")} of the log contain ${name}, but no request has shown it.`];
  return [`The model last saw ${name} in `, ...lastSeen(app, hit), ", in ", messageLink(app, hit.key), "; ", ...removalText(app, hit.removal), "."];
}

/**
 * @param {App} app
 * @param {SearchHit} hit
 * @returns {Child[]}
 */
function lastSeen(app, hit) {
  const request = app.timeline.requests[hit.last];
  const text = `request ${formatNumber(request.number)}`;
  return [
    el("button", { type: "button", class: "link", onclick: () => app.goToRequest(hit.last) }, text),
    " (",
    eventLink(app, request.at),
    ")",
  ];
}

/**
 * @param {App} app
 * @param {ViewChange | null} removal
 * @returns {Child[]}
 */
function removalText(app, removal) {
  if (!removal) return ["no event removed it"];
  const event = eventLink(app, removal.by >= 0 ? removal.by : removal.at);
  return ["removed by ", event, `: ${levelName(removal.level).toLowerCase()}`, removal.rule ? `, rule ${removal.rule}` : ""];
}

// ── One hit ────────────────────────────────────────────────────────────────────────────────────────────

/**
 * @param {App} app
 * @param {SearchHit} hit
 * @returns {HTMLElement}
 */
function hitItem(app, hit) {
  const row = app.timeline.row(seqOfKey(hit.key));
  const what = [row ? kindName(row.kind) : "Notice", row?.path || row?.tool].filter(Boolean).join(" · ");
  return el(
    "li",
    { class: "hit", "data-hit": hit.key },
    el(
      "p",
      { class: "hit-head" },
      messageLink(app, hit.key),
      el("span", { class: "hit-kind" }, what),
      el("span", { class: "hit-preview" }, oneLine(row?.preview ?? "")),
    ),
    hit.spans.length > 0 ? spanStrip(app, hit) : null,
    el("p", { class: "hit-fate" }, fateText(app, hit)),
    hit.isVisible ? null : restoreActions(app, hit.key),
  );
}

/**
 * @param {App} app
 * @param {SearchHit} hit
 * @returns {Child[]}
 */
function fateText(app, hit) {
  if (hit.isVisible) return [hit.last < 0 ? "Not sent yet; the next request shows it." : `In the view now; visible in ${spansText(app, hit)}.`];
  if (hit.last < 0) return ["No request has shown it."];
  return ["Last seen in ", ...lastSeen(app, hit), "; ", ...removalText(app, hit.removal), `. Visible in ${spansText(app, hit)}.`];
}

/**
 * @param {App} app
 * @param {SearchHit} hit
 * @returns {string}
 */
function spansText(app, hit) {
  const shown = hit.spans.slice(0, 4).map(([first, last]) => (first === last ? `${first + 1}` : `${first + 1}–${last + 1}`));
  const more = hit.spans.length > shown.length ? " …" : "";
  const count = formatNumber(countRequests(hit.spans));
  return `${count} of ${formatCount(app.timeline.requests.length, "request")}: ${shown.join(", ")}${more}`;
}

/**
 * The requests as a strip, filled where the text was visible. The sentence below it says the same.
 * @param {App} app
 * @param {SearchHit} hit
 * @returns {HTMLElement}
 */
function spanStrip(app, hit) {
  const count = app.timeline.requests.length;
  const picture = svg("svg", { viewBox: `0 0 ${count} 1`, preserveAspectRatio: "none" });
  // A span narrower than 1/200 of the strip would not be visible.
  const least = count / 200;
  for (const [first, last] of hit.spans) {
    const width = Math.max(least, last - first + 1);
    picture.append(svg("rect", { x: Math.min(first, count - width), y: 0, width, height: 1 }));
  }
  const strip = el("div", { class: "span-strip", "aria-hidden": "true", title: "Click to go to a request" }, picture, el("span", { class: "strip-current" }));
  strip.addEventListener("click", (event) => {
    const box = strip.getBoundingClientRect();
    const index = Math.floor(((event.clientX - box.left) / box.width) * count);
    app.goToRequest(Math.min(Math.max(index, 0), count - 1));
  });
  return strip;
}
