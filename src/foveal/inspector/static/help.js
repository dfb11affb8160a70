/**
 * Dialog with the keys of the inspector and the meanings of its words.
 *
 * @module
 */

import { el, on } from "./dom.js";
import { WORDS } from "./words.js";

/** @type {[string, string][]} */
const KEYS_HELP = [
  ["← →", "previous, next event"],
  ["shift ← →", "previous, next request"],
  ["Home, End", "first, newest event"],
  ["space", "play and pause"],
  ["j k, ↓ ↑", "next, previous row"],
  ["Page Up, Page Down", "a page of rows (in the log)"],
  ["Enter", "open the text of the row"],
  ["b", "fold, unfold the branch of the row"],
  ["/", "search: when did the model last see X"],
  ["f", "filter the log"],
  ["1 – 9", "panels"],
  ["t", "colours: system, light, dark"],
  ["?", "this list"],
  ["Esc", "close, or clear the selection"],
];

/**
 * Return the dialog and the button that opens it.
 * @returns {{element: HTMLElement, button: HTMLButtonElement, open: () => void}}
 */
export function createHelp() {
  const rows = KEYS_HELP.map(([keys, meaning]) => el("tr", null, el("th", { scope: "row" }, el("kbd", null, keys)), el("td", null, meaning)));
  const close = el("button", { type: "button", class: "button", autofocus: true }, "Close");
  const dialog = el(
    "dialog",
    { class: "help", "aria-labelledby": "help-title" },
    el("h2", { id: "help-title" }, "Keys"),
    el("table", null, el("tbody", null, rows)),
    el("h2", null, "Words"),
    el("dl", { class: "help-words" }, Object.values(WORDS).map(wordEntry)),
    close,
  );
  on(close, "click", () => dialog.close());
  const open = () => dialog.showModal();
  const button = el("button", { type: "button", class: "quiet", title: "Keys and words (?)", "aria-label": "Keys and words", onclick: open }, "?");
  return { element: dialog, button, open };
}

/**
 * @param {{name: string, mark?: string, meaning: string}} word
 * @returns {HTMLElement}
 */
function wordEntry({ name, mark = "", meaning }) {
  const shown = mark && el("span", { class: "level-mark", "aria-hidden": "true" }, mark);
  return el("div", null, el("dt", null, shown, shown ? " " : "", name), el("dd", null, meaning));
}
