/**
 * Reductions that hide messages: drops and compactions, with the events that they cover.
 *
 * A message that several of them hide is hidden by the newest one, as `foveal why` says. Its change is of the first
 * one, and `ranges` of the others have it.
 *
 * @module
 */

/** @typedef {import("./types.js").ViewChange} ViewChange */
/** @typedef {import("./types.js").ReductionCard} ReductionCard */
/** @typedef {import("./timeline_state.js").TimelineState} TimelineState */

/** Rule of a result that no reduction has hidden: the server's words. */
const ORPHAN_RULE = "a result that no call waits for";

/**
 * Whether ranges of reductions say what hides a message. A result without a call and a replaced summary are hidden
 * otherwise.
 * @param {ViewChange} change
 * @returns {boolean}
 */
export function isCovered(change) {
  if (change.level !== "dropped" && change.level !== "summarised") return false;
  return change.key.startsWith("e") && change.category !== "summaries" && change.rule !== ORPHAN_RULE;
}

/**
 * Return the reductions that hide a message after an event, the newest first; none for what is hidden otherwise.
 * @param {TimelineState} timeline
 * @param {ViewChange} change
 * @param {number} at
 * @returns {ReductionCard[]}
 */
export function coversOf(timeline, change, at) {
  if (!isCovered(change)) return [];
  const seq = Number.parseInt(change.key.slice(1), 10);
  const hides = timeline.covers.filter(
    (card) => isInForce(card, at) && card.ranges.some(([first, last]) => first <= seq && seq <= last),
  );
  return hides.reverse();
}

/**
 * Return a change with the newest reduction that hides its message.
 * @param {TimelineState} timeline
 * @param {ViewChange} change
 * @param {number} at
 * @returns {ViewChange}
 */
export function withNewestCover(timeline, change, at) {
  const [newest] = coversOf(timeline, change, at);
  return newest ? { ...change, level: coverLevel(newest), by: newest.seq, rule: newest.rule } : change;
}

/**
 * Return the level of each row that some reduction hides, "" for any other; null if all reductions hide alike.
 * @param {TimelineState} timeline
 * @param {number} at
 * @returns {string[] | null}
 */
export function coverLevels(timeline, at) {
  const cards = timeline.covers.filter((card) => isInForce(card, at));
  if (new Set(cards.map((card) => card.kind)).size < 2) return null;
  const levels = new Array(timeline.rows.length).fill("");
  for (const card of cards) {
    for (const [first, last] of card.ranges) {
      levels.fill(coverLevel(card), timeline.firstRowFrom(first), timeline.firstRowFrom(last + 1));
    }
  }
  return levels;
}

/**
 * @param {ReductionCard} card
 * @param {number} seq
 * @returns {boolean}
 */
function isInForce(card, seq) {
  return card.seq <= seq && (card.undone < 0 || card.undone > seq);
}

/**
 * @param {ReductionCard} card
 * @returns {"dropped" | "summarised"}
 */
function coverLevel(card) {
  return card.kind === "dropped" ? "dropped" : "summarised";
}
