/**
 * Entry of the inspector's pages: the overview, the page of a session, and the exported file.
 *
 * @module
 */

import { DataSource } from "./data_source.js";
import { setText } from "./dom.js";
import { OfflineData, embeddedData } from "./offline_data.js";
import { openOverview } from "./overview_view.js";
import { openSession } from "./session_view.js";
import { applyStoredTheme } from "./theme.js";

/**
 * Return the data of this page: embedded in an exported file, or from the server.
 * @returns {DataSource}
 */
function pageData() {
  const embedded = embeddedData();
  if (embedded) return new OfflineData(embedded);
  const { id = "", readOnly = "" } = document.body.dataset;
  const data = new DataSource(id);
  data.isWritable = readOnly === "";
  data.whyReadOnly = readOnly;
  return data;
}

/**
 * Say a sentence in the status line; screen readers read it out.
 * @param {string} text
 * @returns {void}
 */
function sayStatus(text) {
  const status = document.getElementById("status");
  if (status) setText(status, text);
}

/**
 * Start the page that the server has rendered.
 * @returns {void}
 */
function startPage() {
  applyStoredTheme();
  const page = document.body.dataset.page;
  if (page === "session") void openSession(pageData(), sayStatus);
  if (page === "overview") openOverview(pageData(), sayStatus);
}

startPage();
