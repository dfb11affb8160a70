/**
 * What the user has decided about messages and not taken back: pins and supersessions, read from the rows of the log.
 *
 * @module
 */

/** @typedef {import("./timeline_state.js").TimelineState} TimelineState */

/** Later messages of the user that can be chosen at once, the newest. */
const MAX_LATER_MESSAGES = 500;

/**
 * The newest pin of a message or of its step that was not taken back; a pinned rule is its own. -1 if there is none.
 * @param {TimelineState} timeline
 * @param {number} seq
 * @returns {number}
 */
export function pinOfMessage(timeline, seq) {
  const step = stepOf(timeline, seq);
  /** @type {Set<number>} */
  const undone = new Set();
  for (let index = timeline.rows.length - 1; index >= 0; index -= 1) {
    const { seq: pin, kind, target } = timeline.rows[index];
    if (kind === "reverted") undone.add(target);
    else if (kind === "pinned" && !undone.has(pin) && stepOf(timeline, target >= 0 ? target : pin) === step) return pin;
  }
  return -1;
}

/**
 * The event that begins the step of a message: the answer with its call, or itself.
 * @param {TimelineState} timeline
 * @param {number} seq
 * @returns {number}
 */
function stepOf(timeline, seq) {
  const call = timeline.row(seq)?.call ?? -1;
  return call >= 0 ? call : seq;
}

/**
 * The messages of the user after a message that are part of the conversation, newest first.
 * @param {TimelineState} timeline
 * @param {number} seq
 * @returns {import("./types.js").TimelineRow[]}
 */
export function laterMessages(timeline, seq) {
  const shown = timeline.at(timeline.last);
  const found = timeline.rows.filter((row) => row.kind === "user_said" && row.seq > seq && shown.get(`e${row.seq}`)?.level !== "removed");
  return found.slice(-MAX_LATER_MESSAGES).reverse();
}

/**
 * The newest event, not taken back, that says that a message no longer holds. -1 if there is none.
 * @param {TimelineState} timeline
 * @param {number} seq
 * @returns {number}
 */
export function supersessionOf(timeline, seq) {
  return newestAbout(timeline, seq, "superseded");
}

/**
 * The newest event, not taken back, that gave a message its priority. -1 if there is none.
 * @param {TimelineState} timeline
 * @param {number} seq
 * @returns {number}
 */
export function markOf(timeline, seq) {
  return newestAbout(timeline, seq, "prioritised");
}

/**
 * The newest event of a kind about a message that is not taken back. -1 if there is none.
 * @param {TimelineState} timeline
 * @param {number} seq
 * @param {string} wanted
 * @returns {number}
 */
function newestAbout(timeline, seq, wanted) {
  /** @type {Set<number>} */
  const undone = new Set();
  for (let index = timeline.rows.length - 1; index >= 0; index -= 1) {
    const { seq: at, kind, target } = timeline.rows[index];
    if (kind === "reverted") undone.add(target);
    else if (kind === wanted && target === seq && !undone.has(at)) return at;
  }
  return -1;
}
