/**
 * Spans of requests in which a text was visible.
 *
 * A text is found in the whole of a message, in a version of it that a reduction made (a clip, a placeholder), or in
 * both. The changes of the timeline say which of them a request shows. All functions here are pure.
 */

import { lowerBound } from "./timeline_state.js";

/** @typedef {import("./types.js").ViewChange} ViewChange */
/** @typedef {import("./types.js").RequestRow} RequestRow */

/**
 * One message that contains the text.
 * @typedef {object} FoundMessage
 * @property {string} key
 * @property {Set<number>} owners  Versions with the text: -1 is the whole message, else the event that made the version.
 */

/**
 * Where a found message was visible.
 * @typedef {object} Visibility
 * @property {Array<[number, number]>} spans  Indices of requests, both ends included, oldest first.
 * @property {number} last  Index of the last request that showed the text; -1 if none did.
 * @property {ViewChange | null} removal  The change that hid the text after it was last visible; null if it still is.
 * @property {boolean} isVisible  Whether the next request shows it.
 */

/**
 * Joins the hits of a search by message, in the order of the answer.
 * @param {Array<[string, number]>} hits
 * @returns {FoundMessage[]}
 */
export function joinHits(hits) {
  /** @type {Map<string, FoundMessage>} */
  const found = new Map();
  for (const [key, owner] of hits) {
    const message = found.get(key) ?? { key, owners: new Set() };
    message.owners.add(owner);
    found.set(key, message);
  }
  return [...found.values()];
}

/**
 * Whether a request shows the text while `change` is in force.
 * @param {ViewChange} change
 * @param {Set<number>} owners
 * @returns {boolean}
 */
export function showsText(change, owners) {
  if (change.level === "full") return owners.has(-1);
  if (change.level === "clipped" || change.level === "masked") return owners.has(change.by ?? -1);
  return false;
}

/**
 * The requests that showed the text of one message.
 * @param {ViewChange[]} changes  All changes of this message, oldest first.
 * @param {RequestRow[]} requests
 * @param {Set<number>} owners
 * @returns {Visibility}
 */
export function visibleSpans(changes, requests, owners) {
  /** @type {Array<[number, number]>} */
  const spans = [];
  /** @type {ViewChange | null} */
  let removal = null;
  let isVisible = false;
  changes.forEach((change, index) => {
    const shows = showsText(change, owners);
    if (isVisible && !shows) removal = change;
    if (shows) removal = null;
    isVisible = shows;
    if (!shows) return;
    const next = changes[index + 1]?.at ?? Infinity;
    const begin = lowerBound(requests, (request) => request.at < change.at);
    const end = lowerBound(requests, (request) => request.at < next);
    addSpan(spans, begin, end - 1);
  });
  return { spans, last: spans.length > 0 ? spans[spans.length - 1][1] : -1, removal, isVisible };
}

/**
 * Appends a span, or extends the last one if they touch.
 * @param {Array<[number, number]>} spans
 * @param {number} first
 * @param {number} last
 */
function addSpan(spans, first, last) {
  if (last < first) return;
  const previous = spans[spans.length - 1];
  if (previous && previous[1] >= first - 1) previous[1] = Math.max(previous[1], last);
  else spans.push([first, last]);
}

/**
 * How many requests the spans contain.
 * @param {Array<[number, number]>} spans
 * @returns {number}
 */
export function countRequests(spans) {
  return spans.reduce((sum, [first, last]) => sum + last - first + 1, 0);
}
