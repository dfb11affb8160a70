/**
 * Entry of the inspector's pages: the overview, the page of a session, and the exported file.
 *
 * @module
 */

import { DataSource } from "./data_source.js";
import { setText } from "./dom.js";
import { openMemories } from "./memory_view.js";
import { OfflineData, embeddedData } from "./offline_data.js";
import { openOverview } from "./overview_view.js";
import { openSession } from "./session_view.js";
import { StatusLine } from "./status_line.js";
import { applyStoredTheme } from "./theme.js";

/**
 * Return the data of this page: embedded in an exported file, or from the server.
 * @returns {DataSource}
 */
function pageData() {
  const embedded = embeddedData();
  if (embedded) return new OfflineData(embedded);
  const { id = "", readOnly = "", policies = "[]" } = document.body.dataset;
  const data = new DataSource(id);
  data.policies = JSON.parse(policies);
  data.isWritable = readOnly === "";
  data.whyReadOnly = readOnly;
  return data;
}

/**
 * Return the function that says a sentence in the status line; screen readers read it out.
 * @returns {import("./types.js").Announce}
 */
function createAnnounce() {
  const element = document.getElementById("status");
  const line = new StatusLine((text) => {
    if (element) setText(element, text);
  });
  return (text, kind = "answer") => line[kind](text);
}

/**
 * Start the page that the server has rendered.
 * @returns {void}
 */
function startPage() {
  applyStoredTheme();
  const page = document.body.dataset.page;
  const announce = createAnnounce();
  if (page === "session") void openSession(pageData(), announce);
  if (page === "memory") openMemories();
  if (page === "overview") openOverview(pageData(), announce);
}

startPage();
