/**
 * One row of the log view: the event on the left, what the model sees of it on the right.
 *
 * @module
 */

import { el, setClass, setText } from "./dom.js";
import { kindIcon, kindName, levelMark, levelName, roleOf } from "./event_kinds.js";
import { formatCount, formatNumber, formatShort, formatTime, oneLine } from "./format.js";
import { isElsewhere } from "./log_entries.js";
import { isSent } from "./timeline_state.js";

/** @typedef {import("./log_entries.js").LogEntry} LogEntry */
/** @typedef {import("./types.js").ViewChange} ViewChange */
/** @typedef {import("./types.js").TimelineRow} TimelineRow */
/** @typedef {import("./timeline_state.js").TimelineState} TimelineState */

/** Characters of a preview that a row can show. */
const MAX_PREVIEW_CHARS = 400;
/** Branches inside each other beyond these are not indented further. */
const MAX_SHOWN_DEPTH = 5;

/**
 * The parts of a row that change.
 * @typedef {object} RowParts
 * @property {HTMLElement} fold folds a branch, or shows what it hides
 * @property {HTMLElement} handle
 * @property {HTMLElement} icon
 * @property {HTMLElement} kind
 * @property {HTMLElement} tool
 * @property {HTMLElement} size
 * @property {HTMLElement} said
 * @property {HTMLElement} who names the event where the left cell is hidden
 * @property {HTMLElement} mark
 * @property {HTMLElement} level
 * @property {HTMLElement} rule
 * @property {HTMLElement} by
 * @property {HTMLElement} sizes
 * @property {HTMLElement} seen
 * @property {HTMLElement} left
 * @property {HTMLElement} right
 */

/** @type {WeakMap<HTMLElement, RowParts>} */
const PARTS = new WeakMap();

/**
 * Return a row without content.
 * @returns {HTMLElement}
 */
export function createLogRow() {
  const parts = {
    fold: el("button", { type: "button", class: "fold", tabindex: -1 }),
    handle: el("button", { type: "button", class: "handle", tabindex: -1 }),
    icon: el("span", { class: "kind-icon", "aria-hidden": "true" }),
    kind: el("span", { class: "kind" }),
    tool: el("span", { class: "tool" }),
    size: el("span", { class: "size" }),
    said: el("div", { class: "preview" }),
    who: el("span", { class: "who", "aria-hidden": "true" }),
    mark: el("span", { class: "level-mark", "aria-hidden": "true" }),
    level: el("span", { class: "level-name" }),
    rule: el("span", { class: "rule" }),
    by: el("button", { type: "button", class: "by", tabindex: -1 }),
    sizes: el("span", { class: "size" }),
    seen: el("div", { class: "preview" }),
    left: el("div", { class: "cell said", role: "gridcell", "aria-colindex": 1 }),
    right: el("div", { class: "cell seen", role: "gridcell", "aria-colindex": 2 }),
  };
  const saidFacts = [parts.fold, parts.handle, parts.icon, parts.kind, parts.tool, parts.size];
  const seenFacts = [parts.who, parts.mark, parts.level, parts.rule, parts.by, parts.sizes];
  parts.left.append(el("div", { class: "row-facts" }, saidFacts), parts.said);
  parts.right.append(el("div", { class: "row-facts" }, seenFacts), parts.seen);
  const row = el("div", { class: "log-row", role: "row" }, parts.left, parts.right);
  PARTS.set(row, parts);
  return row;
}

/**
 * Fill a row with an entry.
 * @param {HTMLElement} node a row from `createLogRow`
 * @param {LogEntry} entry
 * @param {TimelineState} timeline
 * @param {number} point the view after this event is shown
 * @returns {void}
 */
export function renderLogRow(node, entry, timeline, point) {
  const parts = PARTS.get(node);
  if (!parts) return;
  node.style.setProperty("--depth", String(Math.min(entry.depth, MAX_SHOWN_DEPTH)));
  renderFold(parts.fold, entry);
  renderSaid(parts, entry, timeline, point);
  if (entry.row && entry.row.seq > point) renderLater(parts);
  else if (entry.change && (entry.isPlaced || !isElsewhere(entry.change))) {
    renderSeen(parts, entry, entry.change, timeline, point);
  } else renderNoMessage(parts, entry, timeline);
  setClass(node, rowClasses(entry, point));
}

/**
 * @param {LogEntry} entry
 * @param {number} point
 * @returns {string}
 */
function rowClasses(entry, point) {
  const names = ["log-row"];
  if (entry.isPlaced) names.push("placed");
  if (entry.depth > 0) names.push("in-branch");
  if (entry.row) {
    names.push(`role-${roleOf(entry.row.kind)}`);
    if (entry.row.seq > point) names.push("later");
    if (entry.row.seq === point) names.push("point");
    if (entry.row.failed) names.push("failed");
  }
  if (entry.change && entry.change.at === point && entry.row?.seq !== point) names.push("changed");
  return names.join(" ");
}

/**
 * @param {HTMLElement} button
 * @param {LogEntry} entry
 * @returns {void}
 */
function renderFold(button, { fold, row }) {
  button.hidden = !fold;
  button.dataset.branch = fold && row ? String(row.seq) : "";
  setText(button, fold ? (fold.isFolded ? `▸ ${formatNumber(fold.count)}` : "▾") : "");
  if (!fold || !row) return;
  const rows = formatCount(fold.count, "row");
  const label = fold.isFolded ? `Show ${rows} of branch e${row.seq}` : `Hide ${rows} of branch e${row.seq}`;
  button.setAttribute("aria-expanded", String(!fold.isFolded));
  button.setAttribute("aria-label", label);
  button.title = `${label} (b)`;
}

/**
 * @param {RowParts} parts
 * @param {LogEntry} entry
 * @param {TimelineState} timeline
 * @param {number} point
 * @returns {void}
 */
function renderSaid(parts, entry, timeline, point) {
  const row = entry.row;
  parts.left.toggleAttribute("data-empty", !row);
  setText(parts.handle, row ? `e${row.seq}` : "");
  parts.handle.dataset.goto = row ? String(row.seq) : "";
  parts.handle.hidden = !row;
  setText(parts.icon, row ? kindIcon(row.kind) : "");
  setText(parts.kind, row ? kindName(row.kind) : "");
  setText(parts.tool, row ? toolText(row) : "");
  setText(parts.size, row?.units ? formatShort(timeline.tokens(row.units, point)) : "");
  setText(parts.said, row ? shorten(row.preview) : "");
  setText(parts.who, row ? `e${row.seq} ${kindName(row.kind)}` : "");
  if (!row) return;
  parts.handle.title = [`Show the view after e${row.seq}`, formatTime(row.at)].filter(Boolean).join(" · ");
  parts.size.title = row.units ? formatCount(timeline.tokens(row.units, point), "token") : "";
}

/**
 * @param {RowParts} parts
 * @param {LogEntry} entry
 * @param {ViewChange} change
 * @param {TimelineState} timeline
 * @param {number} point
 * @returns {void}
 */
function renderSeen(parts, entry, change, timeline, point) {
  const isGhost = !isSent(change.level);
  setClass(parts.right, `cell seen level-${change.level} category-${change.category || "none"}${isGhost ? " ghost" : ""}`);
  setText(parts.mark, entry.isPlaced ? placedMark(change) : levelMark(change.level));
  setText(parts.level, entry.isPlaced ? placedName(change) : levelName(change.level));
  setText(parts.rule, change.rule);
  setLink(parts.by, change.by >= 0 && `e${change.by}` !== entry.key ? change.by : -1);
  renderSizes(parts, entry, change, timeline, point);
  setText(parts.seen, isGhost ? ghostText(change) : shorten(change.preview || entry.row?.preview || ""));
}

/**
 * @param {RowParts} parts
 * @param {LogEntry} entry
 * @param {ViewChange} change
 * @param {TimelineState} timeline
 * @param {number} point
 * @returns {void}
 */
function renderSizes(parts, entry, change, timeline, point) {
  const now = timeline.tokens(change.units, point);
  const before = entry.row?.units ? timeline.tokens(entry.row.units, point) : now;
  const isSame = before === now;
  const [short, whole] = isSame
    ? [formatShort(now), formatCount(now, "token")]
    : [`${formatShort(before)} → ${formatShort(now)}`, `${formatNumber(before)} → ${formatCount(now, "token")}`];
  setText(parts.sizes, timeline.isOutline ? "" : short);
  parts.sizes.title = timeline.isOutline ? "" : whole;
}

/**
 * @param {RowParts} parts
 * @returns {void}
 */
function renderLater(parts) {
  setEmpty(parts, "cell seen later-cell", "not yet said");
}

/**
 * @param {RowParts} parts
 * @param {LogEntry} entry
 * @param {TimelineState} timeline
 * @returns {void}
 */
function renderNoMessage(parts, entry, timeline) {
  setEmpty(parts, "cell seen no-message", entry.row ? effectText(entry, timeline) : "");
}

/**
 * @param {RowParts} parts
 * @param {string} name
 * @param {string} text
 * @returns {void}
 */
function setEmpty(parts, name, text) {
  setClass(parts.right, name);
  for (const part of [parts.mark, parts.level, parts.rule, parts.sizes]) setText(part, "");
  parts.sizes.title = "";
  setLink(parts.by, -1);
  setText(parts.seen, text);
}

/**
 * What an event that is no message does to the request.
 * @param {LogEntry} entry
 * @param {TimelineState} timeline
 * @returns {string}
 */
function effectText(entry, timeline) {
  const row = /** @type {TimelineRow} */ (entry.row);
  if (entry.change && isElsewhere(entry.change)) {
    return isSent(entry.change.level) ? `stands after e${entry.change.place} in the request` : ghostText(entry.change);
  }
  const count = timeline.changesAt(row.seq).filter((change) => change.key !== entry.key).length;
  return count ? `changes ${formatCount(count, "message")} of the request` : "";
}

/**
 * Return what happened to a message that is not in the request.
 * @param {ViewChange} change
 * @returns {string}
 */
export function ghostText(change) {
  const by = change.by >= 0 ? `e${change.by}` : "";
  if (change.level === "summarised") return by ? `summarised into ${by}` : "summarised";
  if (change.level === "dropped") return by ? `dropped by ${by}` : "dropped";
  return by ? `removed by ${by}` : "removed from the conversation";
}

/**
 * @param {ViewChange} change
 * @returns {string}
 */
function placedName(change) {
  const names = new Map([
    ["summaries", "Summary"],
    ["pinned", "Pinned rule"],
    ["instructions", "Instructions"],
    ["system", "System text"],
    ["placeholders", "Notice"],
  ]);
  const name = names.get(change.category) ?? (change.key.startsWith("m") ? "Synthetic result" : "Notice");
  return change.key.startsWith("e") ? `${name} ${change.key}` : name;
}

/**
 * @param {ViewChange} change
 * @returns {string}
 */
function placedMark(change) {
  const kinds = new Map([["summaries", "compacted"], ["pinned", "pinned"], ["instructions", "instructed"], ["system", "instructed"]]);
  return kindIcon(kinds.get(change.category) ?? (change.key.startsWith("m") ? "tool_returned" : "dropped"));
}

/**
 * @param {HTMLElement} button
 * @param {number} seq -1 for none
 * @returns {void}
 */
function setLink(button, seq) {
  button.hidden = seq < 0;
  button.dataset.goto = seq < 0 ? "" : String(seq);
  setText(button, seq < 0 ? "" : `by e${seq}`);
  button.title = seq < 0 ? "" : `Go to e${seq}`;
}

/**
 * @param {TimelineRow} row
 * @returns {string}
 */
function toolText(row) {
  return oneLine(row.path && row.tool ? `${row.tool} ${row.path}` : row.tool || row.path);
}

/**
 * @param {string} text
 * @returns {string}
 */
function shorten(text) {
  return oneLine(text.length > MAX_PREVIEW_CHARS ? `${text.slice(0, MAX_PREVIEW_CHARS)}…` : text);
}
