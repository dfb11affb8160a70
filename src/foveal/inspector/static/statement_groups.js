/**
 * The user's statements in the groups and the order in which the panel lists them.
 *
 * @module
 */

import { formatCount, formatNumber } from "./format.js";
import { lowerBound } from "./timeline_state.js";

/** @typedef {import("./types.js").UserStatement} UserStatement */
/** @typedef {import("./timeline_state.js").TimelineState} TimelineState */

/**
 * The statements of one message that belong to the same group.
 * @typedef {object} StatedMessage
 * @property {string} key
 * @property {UserStatement[]} statements in the order of the message
 */

/**
 * The messages of each group, newest first: of two statements the later one counts.
 * @typedef {object} StatementGroups
 * @property {StatedMessage[]} unseen what holds and is shown nowhere
 * @property {StatedMessage[]} holding what holds and is shown
 * @property {StatedMessage[]} replaced what a later message replaces
 */

/** Where a request shows a statement, in words. */
const PLACES = new Map([
  ["verbatim", "in its message"],
  ["record", "in a record"],
  ["nowhere", "shown nowhere"],
]);

/** Events that say nothing of the user and change no message of theirs. */
const QUIET_KINDS = new Set([
  "model_said",
  "tool_returned",
  "used",
  "noted",
  "equipped",
  "snapshot_taken",
  "compaction_failed",
  "overflowed",
]);

/**
 * Return where a statement is shown, in words.
 * @param {UserStatement} statement
 * @returns {string}
 */
export function placeOfStatement(statement) {
  return PLACES.get(statement.shown) ?? statement.shown;
}

/**
 * Return the newest event up to `point` that can have changed the statements or where they are shown; -1 if there is
 * none. Between two of them there is nothing to ask for.
 * @param {TimelineState} timeline
 * @param {number} point
 * @returns {number}
 */
export function statementsPoint(timeline, point) {
  for (let index = lowerBound(timeline.rows, (row) => row.seq <= point) - 1; index >= 0; index -= 1) {
    if (!QUIET_KINDS.has(timeline.rows[index].kind)) return timeline.rows[index].seq;
  }
  return -1;
}

/**
 * Return the groups of statements.
 * @param {UserStatement[]} statements oldest first
 * @returns {StatementGroups}
 */
export function groupStatements(statements) {
  const holding = statements.filter((one) => !one.replaced_by);
  return {
    unseen: byMessage(holding.filter((one) => one.shown === "nowhere")),
    holding: byMessage(holding.filter((one) => one.shown !== "nowhere")),
    replaced: byMessage(statements.filter((one) => one.replaced_by)),
  };
}

/**
 * @param {UserStatement[]} statements
 * @returns {StatedMessage[]}
 */
function byMessage(statements) {
  /** @type {Map<string, StatedMessage>} */
  const messages = new Map();
  for (const one of statements) {
    const known = messages.get(one.handle);
    if (known) known.statements.push(one);
    else messages.set(one.handle, { key: one.handle, statements: [one] });
  }
  return [...messages.values()].reverse();
}

/**
 * Return how many statements there are, and where they are shown.
 * @param {UserStatement[]} statements
 * @returns {string}
 */
export function statementsSentence(statements) {
  if (statements.length === 0) return "The user has stated no rule, correction or fact up to this point.";
  const holding = statements.filter((one) => !one.replaced_by);
  const replaced = statements.length - holding.length;
  const places = [...PLACES].map(([shown, place]) => {
    const count = holding.filter((one) => one.shown === shown).length;
    return count > 0 ? `${formatNumber(count)} ${count > 1 && shown === "verbatim" ? "in their messages" : place}` : "";
  });
  const verb = holding.length === 1 ? "holds" : "hold";
  const list = places.filter(Boolean).join(", ");
  const first = `${formatCount(holding.length, "statement")} ${verb}${list ? `: ${list}` : ""}.`;
  return replaced > 0 ? `${first} ${formatNumber(replaced)} ${replaced === 1 ? "was" : "were"} replaced later.` : first;
}
