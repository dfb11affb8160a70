/**
 * How much a request grows when hidden messages are shown in full, and whether they fit at all. What else has to be
 * hidden for them, the server finds out.
 *
 * Sizes are those of the newest state of the session, because actions apply to it.
 *
 * @module
 */

import { formatNumber } from "./format.js";
import { isSent, seqOfKey } from "./timeline_state.js";

/** @typedef {import("./types.js").ReductionCard} ReductionCard */
/** @typedef {import("./timeline_state.js").TimelineState} TimelineState */

/** How much larger than the limit an estimate must be before it rules an action out. */
const FIT_TOLERANCE = 1.05;

/**
 * @typedef {object} ExpansionSize
 * @property {number} more  Tokens that the request grows by.
 * @property {number} needed  Tokens of the whole request then.
 * @property {number} limit  Most tokens of a request; 0 if unknown.
 */

/**
 * Return the size of a message and the rest of its step, or of all that a reduction hides.
 * @param {TimelineState} timeline
 * @param {string} key a message, or the event of a reduction
 * @returns {ExpansionSize}
 */
export function expansionSize(timeline, key) {
  const view = timeline.at(timeline.last);
  let units = 0;
  for (const seq of expandedSeqs(timeline, seqOfKey(key))) {
    const row = timeline.row(seq);
    const change = view.get(`e${seq}`);
    if (!row || !change || change.level === "full" || change.level === "removed" || row.kind === "compacted") continue;
    units += Math.max(0, row.units - (isSent(change.level) ? change.units : 0));
  }
  const more = timeline.tokens(units, timeline.last);
  return { more, needed: newestTokens(timeline) + more, limit: timeline.limit };
}

/**
 * Return whether a size surely exceeds the limit whatever else is hidden, in one sentence; "" if it may fit.
 * @param {ExpansionSize} size
 * @returns {string}
 */
export function whyTooLarge({ more, limit }) {
  if (limit <= 0 || more <= limit * FIT_TOLERANCE) return "";
  return `It takes about ${formatNumber(more)} tokens itself, and a request at most ${formatNumber(limit)}. Read it here, or expand single messages of it.`;
}

/**
 * Return how much the request grows, and how much of it is used then.
 * @param {ExpansionSize} size
 * @returns {string}
 */
export function growthSentence({ more, needed, limit }) {
  if (limit > 0 && needed > limit) {
    return `It takes about ${formatNumber(more)} tokens. With all that is shown now, that would be ${formatNumber(needed)} of at most ${formatNumber(limit)}, so other messages give way.`;
  }
  const grows = `The next request grows by about ${formatNumber(more)} tokens, to ${formatNumber(needed)}`;
  return limit > 0 ? `${grows} of at most ${formatNumber(limit)}.` : `${grows}.`;
}

/**
 * The events that are shown in full.
 * @param {TimelineState} timeline
 * @param {number} seq
 * @returns {number[]}
 */
function expandedSeqs(timeline, seq) {
  const card = timeline.reductions.find((other) => other.seq === seq);
  if (!card) return stepSeqs(timeline, seq);
  if (card.kind === "compacted") return rowSeqs(timeline, card.first, card.last);
  // A masked result is shown with the rest of its step.
  const seqs = card.keys.filter((key) => key.startsWith("e")).flatMap((key) => stepSeqs(timeline, seqOfKey(key)));
  return [...new Set(seqs)];
}

/**
 * The step of a message: an answer with the results of its calls, or the message alone.
 * @param {TimelineState} timeline
 * @param {number} seq
 * @returns {number[]}
 */
function stepSeqs(timeline, seq) {
  const call = timeline.row(seq)?.call ?? -1;
  const start = call >= 0 ? call : seq;
  const seqs = [start];
  if (timeline.row(start)?.kind !== "model_said") return seqs;
  for (let index = timeline.rowIndex(start) + 1; index < timeline.rows.length; index += 1) {
    const row = timeline.rows[index];
    if (row.call === start) seqs.push(row.seq);
    else if (row.kind === "model_said") break;
  }
  return seqs.includes(seq) ? seqs : [...seqs, seq];
}

/**
 * @param {TimelineState} timeline
 * @param {number} first
 * @param {number} last
 * @returns {number[]}
 */
function rowSeqs(timeline, first, last) {
  const seqs = [];
  for (let index = Math.max(0, timeline.rowIndex(Math.max(first, timeline.first))); index < timeline.rows.length; index += 1) {
    const { seq } = timeline.rows[index];
    if (seq > last) break;
    seqs.push(seq);
  }
  return seqs;
}

/**
 * Tokens of a request at the newest event.
 * @param {TimelineState} timeline
 * @returns {number}
 */
function newestTokens(timeline) {
  const { last } = timeline;
  const request = timeline.requests[Math.max(0, timeline.requestAt(last))];
  const units = Object.values(timeline.at(last).totals.byCategory).reduce((sum, one) => sum + one, 0);
  return timeline.tokens(units + (request?.tools ?? 0), last) + (request?.overhead ?? 0);
}
