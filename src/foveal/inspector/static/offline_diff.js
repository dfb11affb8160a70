/**
 * Diff of two requests by the texts of their messages, for a page without a server. All functions here are pure.
 *
 * @module
 */

import { diffLines, diffLists } from "./text_diff.js";
import { seqOfKey } from "./timeline_state.js";

/** @typedef {import("./types.js").DiffRow} DiffRow */
/** @typedef {import("./types.js").RequestDiff} RequestDiff */
/** @typedef {import("./types.js").ViewChange} ViewChange */
/** @typedef {import("./timeline_state.js").TimelineState} TimelineState */

/** Reductions that are named as the cause of a difference. */
const MAX_CAUSES = 3;

/**
 * Compare the views after events `a` and `b`. A message is equal if the same change is in force in both.
 * @param {TimelineState} timeline
 * @param {number} a
 * @param {number} b
 * @param {(change: ViewChange) => string} textOf the text of a message as a change shows it
 * @returns {RequestDiff}
 */
export function diffShownMessages(timeline, a, b, textOf) {
  const [opening, before] = splitOpening(timeline, a);
  const [newOpening, after] = splitOpening(timeline, b);
  const steps = diffLists(
    before.map((change) => change.key),
    after.map((change) => change.key),
  );
  const rows = steps.map(({ a: from, b: to }) => diffMessage(from, before[from], to, after[to], textOf));
  const beside = openingRow(opening, newOpening, textOf);
  const joined = joinEqualRows(rows);
  const same = joined[0]?.op === "same" ? (joined[0].count ?? 1) : 0;
  // A request that only adds messages at its end keeps the whole prefix.
  const isExtended = !beside && same === before.length;
  const causes = isExtended ? [] : reductionsBetween(timeline, a, b);
  const key = beside ? "" : ((after[same] ?? before[same])?.key ?? "");
  return {
    a,
    b,
    dialect: "",
    first: isExtended ? null : { message: beside ? -1 : same, byte: -1, key },
    same,
    moved_by: causes.map((card) => `e${card.seq}: ${card.text}`).join("; "),
    by: causes.map((card) => card.seq),
    rows: beside ? [beside, ...joined] : joined,
  };
}

/**
 * Return the instructions in front of the first other message, and the other messages. Both pages count messages from
 * there, because a request has a system text beside them or as the first of them.
 * @param {TimelineState} timeline
 * @param {number} at
 * @returns {[ViewChange[], ViewChange[]]}
 */
function splitOpening(timeline, at) {
  const items = timeline.at(at).items();
  const start = items.findIndex((change) => timeline.row(seqOfKey(change.key))?.kind !== "instructed" || !change.key.startsWith("e"));
  return start < 0 ? [items, []] : [items.slice(0, start), items.slice(start)];
}

/**
 * @param {ViewChange[]} before
 * @param {ViewChange[]} after
 * @param {(change: ViewChange) => string} textOf
 * @returns {DiffRow | null} null if both begin with the same instructions
 */
function openingRow(before, after, textOf) {
  const [old, now] = [before, after].map((changes) => changes.map(textOf).join("\n\n"));
  return old === now ? null : { op: "changed", a: -1, b: -1, key: "", label: "system", lines: diffLines(old, now) };
}

/**
 * @param {number} from
 * @param {ViewChange | undefined} before
 * @param {number} to
 * @param {ViewChange | undefined} after
 * @param {(change: ViewChange) => string} textOf
 * @returns {DiffRow}
 */
function diffMessage(from, before, to, after, textOf) {
  const key = (after ?? before)?.key ?? "";
  if (before && after) {
    const lines = before === after ? [] : diffLines(textOf(before), textOf(after));
    const isEqual = lines.every(([mark]) => mark === " " || mark === "…");
    if (isEqual) return { op: "same", a: from, b: to, key, count: 1, lines: [] };
    return { op: "changed", a: from, b: to, key, label: `${before.level} → ${after.level}`, lines };
  }
  const shown = /** @type {ViewChange} */ (before ?? after);
  const mark = before ? "-" : "+";
  /** @type {[string, string][]} */
  const lines = textOf(shown)
    .split("\n")
    .map((line) => [mark, line]);
  return { op: before ? "removed" : "added", a: from, b: to, key, label: shown.category, lines };
}

/**
 * Return the rows with each run of equal messages as one row.
 * @param {DiffRow[]} rows
 * @returns {DiffRow[]}
 */
function joinEqualRows(rows) {
  /** @type {DiffRow[]} */
  const joined = [];
  for (const row of rows) {
    const last = joined[joined.length - 1];
    if (row.op === "same" && last?.op === "same") last.count = (last.count ?? 1) + 1;
    else joined.push(row);
  }
  return joined;
}

/**
 * Return the newest reductions between two events, in words.
 * @param {TimelineState} timeline
 * @param {number} a
 * @param {number} b
 * @returns {{seq: number, text: string}[]}
 */
function reductionsBetween(timeline, a, b) {
  const [from, to] = [Math.min(a, b), Math.max(a, b)];
  const cards = timeline.reductions.filter((card) => card.seq > from && card.seq <= to);
  return cards.slice(-MAX_CAUSES).map((card) => {
    const count = `${card.count} ${card.count === 1 ? "message" : "messages"}`;
    return { seq: card.seq, text: [`${card.kind} ${count}`, card.why || card.reason].filter(Boolean).join(", ") };
  });
}
