/**
 * Keys of the session's page. Keys that a focused control uses itself are left to it.
 *
 * @module
 */

import { on } from "./dom.js";

/**
 * What the keys do.
 * @typedef {object} KeyActions
 * @property {(steps: number, unit: "event" | "request") => void} step
 * @property {() => void} first
 * @property {() => void} last
 * @property {() => void} play
 * @property {(rows: number) => void} moveRows
 * @property {() => void} openRow
 * @property {() => void} foldBranch
 * @property {() => void} search
 * @property {() => void} filter
 * @property {(index: number) => void} panel
 * @property {() => void} theme
 * @property {() => void} help
 * @property {() => void} escape
 */

/**
 * Listen to the keys; returns a function that stops.
 * @param {KeyActions} actions
 * @returns {() => void}
 */
export function connectKeys(actions) {
  return on(document, "keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (document.querySelector("dialog[open], :popover-open") || usesKey(event.target, event)) return;
    const action = actionOf(event, actions);
    if (!action) return;
    event.preventDefault();
    action();
  });
}

/**
 * @param {KeyboardEvent} event
 * @param {KeyActions} actions
 * @returns {(() => void) | undefined}
 */
function actionOf(event, actions) {
  const unit = event.shiftKey ? "request" : "event";
  /** @type {Record<string, () => void>} */
  const keys = {
    ArrowLeft: () => actions.step(-1, unit),
    ArrowRight: () => actions.step(1, unit),
    Home: actions.first,
    End: actions.last,
    " ": actions.play,
    j: () => actions.moveRows(1),
    k: () => actions.moveRows(-1),
    ArrowDown: () => actions.moveRows(1),
    ArrowUp: () => actions.moveRows(-1),
    Enter: actions.openRow,
    b: actions.foldBranch,
    "/": actions.search,
    f: actions.filter,
    t: actions.theme,
    "?": actions.help,
    Escape: actions.escape,
  };
  if (/^[1-9]$/.test(event.key)) return () => actions.panel(Number(event.key) - 1);
  return Object.hasOwn(keys, event.key) ? keys[event.key] : undefined;
}

/**
 * Whether the focused control needs the key itself.
 * @param {EventTarget | null} target
 * @param {KeyboardEvent} event
 * @returns {boolean}
 */
function usesKey(target, event) {
  if (!(target instanceof Element)) return false;
  if (target instanceof HTMLInputElement && target.type === "range") {
    return !event.shiftKey && /^(Arrow|Home|End|Page)/.test(event.key);
  }
  if (target.matches("input, textarea, select, [contenteditable]")) return event.key !== "Escape" || target.matches("select");
  if (target.matches("button, a, summary") && (event.key === "Enter" || event.key === " ")) return true;
  // A scrolled area uses the keys that scroll it.
  const isScrollKey = /^(ArrowUp|ArrowDown|Home|End| )$/.test(event.key);
  return isScrollKey && target.closest("#panels") !== null;
}
