/**
 * Branches of a log as lanes that fold: which rows belong to which branch. All functions here are pure.
 *
 * 1. A lane begins with its `branched` row and ends with the fold of the branch, with a rewind to before it, or not yet.
 * 2. A branch that has ended can be folded. A folded lane hides the rows that requests do not show: what is kept stays.
 *
 * @module
 */

/** @typedef {import("./types.js").TimelineRow} TimelineRow */
/** @typedef {import("./timeline_state.js").TimelineState} TimelineState */

/**
 * A branch.
 * @typedef {object} BranchLane
 * @property {number} seq the event with which it began
 * @property {BranchLane | null} parent the branch that it is inside of
 * @property {number} depth branches that it is inside of
 * @property {number} end the event that folded it; Infinity while it has not ended
 */

/** @type {WeakMap<TimelineState, {version: number, lanes: (BranchLane | null)[] | null}>} */
const KNOWN_LANES = new WeakMap();

/**
 * Return the innermost branch of each row, with its first row; null if the log has no branch.
 * @param {TimelineState} timeline
 * @returns {(BranchLane | null)[] | null}
 */
export function branchLanes(timeline) {
  let known = KNOWN_LANES.get(timeline);
  if (!known || known.version !== timeline.version) {
    const hasBranch = timeline.rows.some((row) => row.kind === "branched");
    known = { version: timeline.version, lanes: hasBranch ? readLanes(timeline.rows) : null };
    KNOWN_LANES.set(timeline, known);
  }
  return known.lanes;
}

/**
 * Return the branches that a row is in, the innermost first. The row that begins a branch is not in it.
 * @param {BranchLane | null} lane the lane of the row
 * @param {number} seq the event of the row; -1 for what is only in the view
 * @returns {BranchLane[]}
 */
export function lanesAround(lane, seq) {
  const found = [];
  for (let next = lane; next; next = next.parent) if (next.seq !== seq) found.push(next);
  return found;
}

/**
 * @param {TimelineRow[]} rows
 * @returns {(BranchLane | null)[]}
 */
function readLanes(rows) {
  /** @type {Map<number, BranchLane>} by the event that began it */
  const all = new Map();
  /** @type {BranchLane[]} those that are open, the outermost first */
  let open = [];
  return rows.map((row) => {
    const target = all.get(row.target) ?? null;
    if (row.kind === "branched") {
      const lane = { seq: row.seq, parent: open.at(-1) ?? null, depth: open.length, end: Infinity };
      all.set(row.seq, lane);
      open.push(lane);
    } else if (row.kind === "branch_ended" && target && open.includes(target)) {
      for (const lane of open.slice(open.indexOf(target))) lane.end = row.seq;
      open = open.slice(0, open.indexOf(target));
      return target;
    } else if (row.kind === "compacted" && target?.end === row.seq - 1) {
      for (const lane of all.values()) if (lane.end === row.seq - 1) lane.end = row.seq;
      return target;
    } else if (row.kind === "rewound") {
      // The end of a branch can be taken back too: the branch is open again.
      const left = [...all.values()].filter((lane) => lane.seq <= row.target);
      open = left.filter((lane) => open.includes(lane) || lane.end > row.target);
      for (const lane of all.values()) if (lane.end > row.target) lane.end = Infinity;
    }
    return open.at(-1) ?? null;
  });
}
