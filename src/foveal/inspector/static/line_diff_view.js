/**
 * The rows of a request diff: messages side by side in one list, with their changed lines.
 *
 * @module
 */

import { el } from "./dom.js";
import { formatCount, visibleText } from "./format.js";
import { messageLink } from "./panel_parts.js";

/** @typedef {import("./types.js").App} App */
/** @typedef {import("./types.js").DiffRow} DiffRow */

/** Lines that are drawn of one message at once; a button shows the next ones. */
const MAX_DRAWN_LINES = 400;
/** Lines that are drawn first of a message that is whole in one request and missing in the other. */
const WHOLE_MESSAGE_LINES = 12;

/** What happened to a message, as a mark and in words. */
const ROW_WORDS = {
  same: { mark: "=", word: "equal" },
  changed: { mark: "±", word: "changed" },
  removed: { mark: "−", word: "removed" },
  added: { mark: "+", word: "added" },
};

/**
 * Return the list of messages of a diff. Runs of equal messages are one line; others have their lines under a head that
 * stays visible while they scroll.
 * @param {App} app
 * @param {DiffRow[]} rows
 * @returns {HTMLElement}
 */
export function diffRowList(app, rows) {
  return el(
    "ol",
    { class: "diff-rows" },
    rows.map((row) => (row.op === "same" ? equalRun(row) : changedMessage(app, row))),
  );
}

/**
 * @param {DiffRow} row
 * @returns {HTMLElement}
 */
function equalRun(row) {
  const from = (row.a ?? -1) + 1;
  const count = row.count ?? 1;
  const range = count > 1 ? `messages ${from}–${from + count - 1}` : `message ${from}`;
  return el("li", { class: "diff-equal" }, `${formatCount(count, "equal message")} (${range} of the first request)`);
}

/**
 * @param {App} app
 * @param {DiffRow} row
 * @returns {HTMLElement}
 */
function changedMessage(app, row) {
  const { mark, word } = ROW_WORDS[row.op];
  const lines = row.lines ?? [];
  const added = lines.filter(([sign]) => sign === "+").length;
  const removed = lines.filter(([sign]) => sign === "-").length;
  return el(
    "li",
    { class: `diff-message is-${row.op}` },
    el(
      "h3",
      { class: "diff-head" },
      el("span", { class: "diff-mark", "aria-hidden": "true" }, mark),
      el("span", { class: "diff-word" }, word),
      row.key ? messageLink(app, row.key) : null,
      el("span", { class: "diff-label" }, row.label ?? ""),
      el("span", { class: "diff-counts" }, `+${added} −${removed}`),
    ),
    lineBlock(lines, row.op === "changed" ? MAX_DRAWN_LINES : WHOLE_MESSAGE_LINES, `${word} lines of ${row.key || "the request"}`),
  );
}

/**
 * @param {Array<[string, string]>} lines
 * @param {number} begin lines that are drawn at first
 * @param {string} label
 * @returns {HTMLElement}
 */
function lineBlock(lines, begin, label) {
  const block = el("div", { class: "diff-lines", role: "region", tabindex: 0, "aria-label": label });
  let drawn = 0;
  const drawMore = () => {
    const part = lines.slice(drawn, drawn === 0 ? begin : drawn + MAX_DRAWN_LINES);
    drawn += part.length;
    block.append(...part.map(diffLine));
    if (drawn < lines.length) block.append(moreLines(lines.length - drawn, drawMore));
  };
  drawMore();
  return block;
}

/**
 * @param {number} count
 * @param {() => void} drawMore
 * @returns {HTMLElement}
 */
function moreLines(count, drawMore) {
  const button = el("button", { type: "button", class: "button" }, `Show more (${formatCount(count, "line")})`);
  button.addEventListener("click", () => {
    button.remove();
    drawMore();
  });
  return button;
}

/**
 * @param {[string, string]} line
 * @returns {HTMLElement}
 */
function diffLine([sign, text]) {
  if (sign === "…") return el("div", { class: "diff-fold" }, text || "…");
  const name = sign === "+" ? "is-added" : sign === "-" ? "is-removed" : "is-equal";
  const spoken = sign === "+" ? "added: " : sign === "-" ? "removed: " : "";
  return el(
    "div",
    { class: `diff-line ${name}` },
    el("span", { class: "diff-sign", "aria-hidden": "true" }, sign === "-" ? "−" : sign),
    spoken && el("span", { class: "visually-hidden" }, spoken),
    el("code", null, visibleText(text)),
  );
}
