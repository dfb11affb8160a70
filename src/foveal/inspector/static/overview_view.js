/**
 * Start of the overview page.
 *
 * @module
 */

import { el } from "./dom.js";
import { Overview } from "./overview.js";
import { createThemeButton } from "./theme.js";

/**
 * Show the overview in the page that the server has rendered.
 * @param {import("./data_source.js").DataSource} data
 * @param {import("./types.js").Announce} announce
 * @returns {void}
 */
export function openOverview(data, announce) {
  const main = document.getElementById("main");
  if (!main) return;
  const theme = createThemeButton(() => {});
  document.getElementById("head")?.append(el("div", { class: "head-tools" }, theme.element));
  new Overview(data, main, announce, () => theme.next()).start();
}
