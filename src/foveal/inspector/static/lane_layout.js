/**
 * Layout of sessions as lanes over a common time axis. All functions here are pure.
 *
 * 1. Sessions are related if one is the origin of the other, directly or through further sessions.
 * 2. A lane lasts from the first to the last activity of its session. The overview knows no times of single requests,
 *    so their marks are spread evenly over the lane.
 * 3. Titles, keys and times are data: keys may name each other in a circle, and times may be missing or reversed.
 *
 * @module
 */

/** @typedef {import("./types.js").SessionRow} SessionRow */

/** Most lanes that are shown together. */
export const MAX_LANES = 12;
/** Seconds below which there is nothing to compare: recordings without times have that of their file. */
const MIN_AXIS_S = 1;
/** Seconds between two sessions that still count as one period of work. */
const MAX_PAUSE_S = 1_800;

/**
 * A request in a lane.
 * @typedef {{time: number, share: number}} LaneTick
 */

/**
 * One session.
 * @typedef {object} Lane
 * @property {SessionRow} row
 * @property {"this" | "related" | "parallel"} relation
 * @property {number} depth how many shown sessions are above it
 * @property {number} begin seconds since 1970
 * @property {number} end
 * @property {LaneTick[]} ticks
 * @property {{time: number, row: SessionRow}[]} starts the shown sessions that began from this one
 */

/**
 * @typedef {object} LaneLayout
 * @property {number} from seconds since 1970
 * @property {number} to
 * @property {Lane[]} lanes
 * @property {number} leftOut how many further sessions belong here
 */

/**
 * Return the lanes of the sessions that are related to `key` or were active at the same time. Without a key: the
 * newest session and those that were active shortly before it.
 * @param {readonly SessionRow[]} rows
 * @param {string} [key]
 * @param {number} [most] lanes that are shown
 * @returns {LaneLayout}
 */
export function layOutLanes(rows, key = "", most = MAX_LANES) {
  const timed = rows.filter((row) => laneExtent(row) !== null);
  const current = timed.find((row) => row.key === key);
  const family = current ? relatedKeys(timed, key) : new Set();
  const chosen = current ? chooseBeside(timed, current, family) : choosePeriod(timed);
  const shown = chosen.slice(0, most);
  const extents = shown.map((row) => extentOf(row));
  const from = Math.min(...extents.map((extent) => extent[0]));
  const to = Math.max(...extents.map((extent) => extent[1]));
  if (to - from < MIN_AXIS_S) return { from, to, lanes: [], leftOut: 0 };
  return {
    from,
    to,
    lanes: treeOrder(shown, key).map(([row, depth]) => makeLane(row, depth, shown, key, family)),
    leftOut: chosen.length - shown.length,
  };
}

/**
 * Return a moment as a share of the axis, from 0 to 1.
 * @param {LaneLayout} layout
 * @param {number} time
 * @returns {number}
 */
export function axisShare(layout, time) {
  const length = layout.to - layout.from;
  return length > 0 ? Math.min(1, Math.max(0, (time - layout.from) / length)) : 0;
}

/**
 * Return the keys of all sessions that are related to one, with its own.
 * @param {readonly SessionRow[]} rows
 * @param {string} key
 * @returns {Set<string>}
 */
export function relatedKeys(rows, key) {
  /** @type {Map<string, string[]>} */
  const beside = new Map();
  for (const row of rows) {
    if (!row.origin) continue;
    beside.set(row.key, [...(beside.get(row.key) ?? []), row.origin]);
    beside.set(row.origin, [...(beside.get(row.origin) ?? []), row.key]);
  }
  const found = new Set([key]);
  for (const one of found) for (const other of beside.get(one) ?? []) found.add(other);
  return found;
}

/**
 * Return the first and the last moment of a session; null if it has no times.
 * @param {SessionRow} row
 * @returns {[number, number] | null}
 */
export function laneExtent(row) {
  const times = [...(row.times ?? []), row.created, row.active].filter((time) => isMoment(time));
  if (times.length === 0) return null;
  const known = (row.times ?? []).filter((time) => isMoment(time));
  const used = /** @type {number[]} */ (known.length > 0 ? known : times);
  return [Math.min(...used), Math.max(...used)];
}

/**
 * @param {number | null | undefined} time
 * @returns {boolean}
 */
function isMoment(time) {
  return typeof time === "number" && Number.isFinite(time) && time > 0;
}

/**
 * @param {SessionRow} row
 * @returns {[number, number]}
 */
function extentOf(row) {
  return laneExtent(row) ?? [0, 0];
}

/**
 * The session itself, its family, then all that overlap with it, the nearest beginning first.
 * @param {readonly SessionRow[]} rows
 * @param {SessionRow} current
 * @param {Set<string>} family
 * @returns {SessionRow[]}
 */
function chooseBeside(rows, current, family) {
  const [begin, end] = extentOf(current);
  const distance = (/** @type {SessionRow} */ row) => Math.abs(extentOf(row)[0] - begin);
  const others = rows.filter((row) => row !== current).sort((one, other) => distance(one) - distance(other));
  const related = others.filter((row) => family.has(row.key));
  const parallel = others.filter((row) => {
    const [first, last] = extentOf(row);
    return !family.has(row.key) && first <= end && last >= begin;
  });
  return [current, ...related, ...parallel];
}

/**
 * The newest sessions without a long pause between them, newest first.
 * @param {readonly SessionRow[]} rows
 * @returns {SessionRow[]}
 */
function choosePeriod(rows) {
  const newest = [...rows].sort((one, other) => extentOf(other)[1] - extentOf(one)[1]);
  /** @type {SessionRow[]} */
  const period = [];
  let begin = Infinity;
  for (const row of newest) {
    const [first, last] = extentOf(row);
    if (period.length > 0 && last < begin - MAX_PAUSE_S) break;
    period.push(row);
    begin = Math.min(begin, first);
  }
  return period;
}

/**
 * Return the sessions with their depth: each below its origin, the family of `key` first, then by their beginning.
 * @param {readonly SessionRow[]} rows
 * @param {string} key
 * @returns {[SessionRow, number][]}
 */
function treeOrder(rows, key) {
  const byBeginning = [...rows].sort((one, other) => extentOf(one)[0] - extentOf(other)[0]);
  const keys = new Set(rows.map((row) => row.key));
  const family = relatedKeys(rows, key);
  const roots = byBeginning.filter((row) => !row.origin || !keys.has(row.origin));
  const first = [...roots.filter((row) => family.has(row.key)), ...roots.filter((row) => !family.has(row.key))];
  /** @type {Map<SessionRow, number>} */
  const placed = new Map();
  const place = (/** @type {SessionRow} */ row, /** @type {number} */ depth) => {
    if (placed.has(row)) return;
    placed.set(row, depth);
    for (const child of byBeginning) if (child.origin === row.key) place(child, depth + 1);
  };
  // Sessions that name each other in a circle have no root: they follow at the end.
  for (const row of [...first, ...byBeginning]) place(row, 0);
  return [...placed];
}

/**
 * @param {SessionRow} row
 * @param {number} depth
 * @param {readonly SessionRow[]} shown
 * @param {string} key
 * @param {Set<unknown>} family
 * @returns {Lane}
 */
function makeLane(row, depth, shown, key, family) {
  const [begin, end] = extentOf(row);
  const shares = row.shares ?? [];
  const step = shares.length > 1 ? (end - begin) / (shares.length - 1) : 0;
  return {
    row,
    relation: row.key === key ? "this" : family.has(row.key) ? "related" : "parallel",
    depth,
    begin,
    end,
    ticks: shares.map((share, index) => ({ time: begin + step * index, share })),
    starts: shown
      .filter((other) => other.origin === row.key && other !== row)
      .map((other) => ({ time: Math.min(end, Math.max(begin, extentOf(other)[0])), row: other })),
  };
}
