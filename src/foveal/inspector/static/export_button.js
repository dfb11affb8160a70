/**
 * Menu "Export": the session as one HTML file, and the current request as curl or JSON.
 *
 * @module
 */

import { problemText } from "./data_source.js";
import { copyText, el, on } from "./dom.js";
import { formatBytes, formatNumber } from "./format.js";
import { requestJson } from "./request_json.js";

/** @typedef {import("./types.js").App} App */
/** @typedef {import("./types.js").SentRequest} SentRequest */

/**
 * Return the button with its menu.
 * @param {App} app
 * @returns {HTMLElement}
 */
export function createExportButton(app) {
  const menu = el("div", { class: "export-menu" }, exportItems(app));
  const details = el("details", { class: "export-button" }, el("summary", { class: "button" }, "Export"), menu);
  on(details, "keydown", (event) => {
    if (event.key !== "Escape" || !details.open) return;
    event.stopPropagation();
    closeMenu(details);
  });
  on(menu, "click", () => closeMenu(details));
  on(document, "pointerdown", (event) => {
    if (details.open && !details.contains(/** @type {Node} */ (event.target))) details.open = false;
  });
  return details;
}

/**
 * @param {App} app
 * @returns {HTMLElement[]}
 */
function exportItems(app) {
  const curl = () => copyRequest(app, "curl command", (sent) => sent.curl ?? "");
  const items = [
    el("button", { type: "button", onclick: curl }, "Copy request as curl"),
    el(
      "button",
      { type: "button", onclick: () => copyRequest(app, "request", requestJson) },
      "Copy request as JSON",
    ),
  ];
  if (app.data.isOffline) return items;
  const file = el("a", { href: app.data.exportUrl(), download: true }, "Save as one HTML file");
  return [file, ...items];
}

/**
 * @param {HTMLDetailsElement} details
 * @returns {void}
 */
function closeMenu(details) {
  details.open = false;
  details.querySelector("summary")?.focus();
}

/**
 * Copy the request at the current point.
 * @param {App} app
 * @param {string} noun
 * @param {(sent: SentRequest) => string} write
 * @returns {Promise<void>}
 */
async function copyRequest(app, noun, write) {
  const at = requestPoint(app);
  try {
    const text = write(await app.data.request(at));
    const isCopied = text !== "" && (await copyText(text));
    const size = formatBytes(new TextEncoder().encode(text).length);
    const done = `Copied the ${noun} of the view after e${formatNumber(at)} (${size}).`;
    app.announce(isCopied ? done : `The browser did not copy the ${noun}. Allow this page to use the clipboard.`);
  } catch (error) {
    app.announce(problemText(error));
  }
}

/**
 * Return the event whose view is copied: that of the chosen request, or the current point.
 * @param {App} app
 * @returns {number}
 */
function requestPoint(app) {
  const { request, point } = app.state.current;
  return app.timeline.requests[request]?.at ?? point;
}
