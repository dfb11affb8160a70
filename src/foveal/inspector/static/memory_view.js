/**
 * Start of the page of the memories. The server renders all of it; only the colours need a script.
 *
 * @module
 */

import { el } from "./dom.js";
import { createThemeButton } from "./theme.js";

/**
 * Add the button that changes the colours.
 * @returns {void}
 */
export function openMemories() {
  const theme = createThemeButton(() => {});
  document.getElementById("head")?.append(el("div", { class: "head-tools" }, theme.element));
}
