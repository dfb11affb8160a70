/**
 * What a compaction lost: sentences of the user, open errors, names and paths that the request after it does not have.
 *
 * @module
 */

import { clear, el } from "./dom.js";
import { formatNumber, oneLine } from "./format.js";
import { restoreAction, whyReadOnly } from "./message_actions.js";
import { actionButton, createLoader, eventLink, messageLink, stateNote } from "./panel_parts.js";

/** @typedef {import("./types.js").App} App */
/** @typedef {import("./types.js").LostDetail} LostDetail */
/** @typedef {import("./types.js").LostDetails} LostDetails */
/** @typedef {import("./types.js").ReductionCard} ReductionCard */

/** Details of one group that are listed at once. */
const LOST_PER_PAGE = 8;
/** Milliseconds that a card must stay open before the server compares: the scrubber passes many cards. */
const LOST_DELAY_MS = 400;

/**
 * The groups in their order: a title, and which details belong to it.
 * @type {Array<[string, (detail: LostDetail) => boolean]>}
 */
const LOST_GROUPS = [
  ["Rules of the user", (detail) => detail.kind === "rule"],
  ["Other sentences of the user", (detail) => detail.kind === "request"],
  ["Errors that were open", (detail) => detail.kind === "error"],
  ["Names and paths that are used again later", (detail) => isName(detail) && isUsedAgain(detail)],
  ["Other paths", (detail) => isName(detail) && !isUsedAgain(detail)],
];

/**
 * @param {LostDetail} detail
 * @returns {boolean}
 */
function isName(detail) {
  return detail.kind === "path" || detail.kind === "name";
}

/**
 * @param {LostDetail} detail
 * @returns {boolean}
 */
function isUsedAgain(detail) {
  return (detail.again ?? -1) >= 0;
}

/**
 * Return the part of a card with what its reduction lost; null for reductions without such a list.
 * @param {App} app
 * @param {ReductionCard} card
 * @param {string} place where the card stands, because it can be open in two places
 * @returns {HTMLElement | null}
 */
export function lostSection(app, card, place) {
  const isSummary = card.kind === "compacted";
  if ((!isSummary && card.kind !== "dropped") || app.state.current.lane === "whatIf" || app.data.isOffline) return null;
  const area = el("div", { class: "lost-area" });
  const load = () =>
    void createLoader(area)("Comparing the messages with the request after it …", () => app.data.lost(card.seq), (found) =>
      lostContent(app, found, place),
    );
  if (isSummary) {
    clear(area, stateNote("Comparing the messages with the request after it …", "loading"));
    setTimeout(() => area.isConnected && load(), LOST_DELAY_MS);
  } else {
    clear(area, actionButton("Compare with the request after it", load));
  }
  const title = isSummary ? "Not in the summary" : "No longer in the request";
  return el("section", { class: "card-section", "aria-label": title }, el("h4", null, title), area);
}

/**
 * @param {App} app
 * @param {LostDetails} found
 * @param {string} place
 * @returns {import("./dom.js").Child[]}
 */
function lostContent(app, found, place) {
  const details = found.details ?? [];
  if (details.length === 0) {
    return [stateNote("The request after it has all that was looked for: sentences of the user, open errors, paths, and names that are used again.")];
  }
  const readOnly = whyReadOnly(app);
  return [
    el("p", { class: "action-note" }, "Neither the summary nor the rest of the request after it has these. They are compared by their words, so a paraphrase can be listed too."),
    ...LOST_GROUPS.map(([title, belongs]) => lostGroup(app, title, details.filter(belongs), `${found.event} ${place}`)),
    found.left_out ? stateNote(`${formatNumber(found.left_out)} more are not listed.`) : null,
    readOnly ? el("p", { class: "action-note" }, `Restore: ${readOnly}`) : null,
  ];
}

/**
 * @param {App} app
 * @param {string} title
 * @param {LostDetail[]} details
 * @param {string} place
 * @returns {HTMLElement | null}
 */
function lostGroup(app, title, details, place) {
  if (details.length === 0) return null;
  const list = el("ul", { class: "lost-list" });
  const more = el("div");
  /** @type {(first: number) => void} */
  function show(first) {
    const end = first + LOST_PER_PAGE * (first > 0 ? 5 : 1);
    list.append(...details.slice(first, end).map((detail, index) => lostItem(app, detail, `${place} ${title} ${first + index}`)));
    const rest = details.length - end;
    clear(more, rest > 0 ? actionButton(`Show more (${formatNumber(rest)})`, () => show(end)) : null);
  }
  show(0);
  return el("div", { class: "lost-group" }, el("h5", null, `${title} (${formatNumber(details.length)})`), list, more);
}

/**
 * @param {App} app
 * @param {LostDetail} detail
 * @param {string} place
 * @returns {HTMLElement}
 */
function lostItem(app, detail, place) {
  const again = detail.again ?? -1;
  return el(
    "li",
    null,
    messageLink(app, detail.key),
    " ",
    el("span", { class: isName(detail) ? "lost-name" : "lost-text" }, oneLine(detail.text)),
    again >= 0 ? el("span", { class: "lost-again" }, " used again in ", eventLink(app, again)) : null,
    whyReadOnly(app) ? null : restoreAction(app, detail.key, place),
  );
}
