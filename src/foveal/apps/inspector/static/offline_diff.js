/**
 * Diff of two requests by the texts of their messages, for a page without a server. All functions here are pure.
 *
 * @module
 */

import { diffLines, diffLists } from "./text_diff.js";

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
  const before = timeline.at(a).items();
  const after = timeline.at(b).items();
  const steps = diffLists(
    before.map((change) => change.key),
    after.map((change) => change.key),
  );
  const rows = steps.map(({ a: from, b: to }) => diffMessage(from, before[from], to, after[to], textOf));
  const joined = joinEqualRows(rows);
  const isSame = joined[0]?.op === "same";
  const same = isSame ? (joined[0].count ?? 1) : 0;
  const first = joined[isSame ? 1 : 0];
  // A request that only adds messages at its end keeps the whole prefix.
  const isExtended = same === before.length;
  const causes = isExtended ? [] : reductionsBetween(timeline, a, b);
  return {
    a,
    b,
    dialect: "",
    first: isExtended || !first ? null : { message: same, byte: -1, key: first.key ?? "" },
    same,
    moved_by: causes.map((card) => `e${card.seq}: ${card.text}`).join("; "),
    by: causes.map((card) => card.seq),
    rows: joined,
  };
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
