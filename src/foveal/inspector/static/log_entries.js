/**
 * The entries of the log view: the events that pass the filters, and what stands for several of them.
 *
 * A summary, a notice or a moved rule is an entry of its own where it stands in the request.
 *
 * @module
 */

import { branchLanes, lanesAround } from "./branch_lanes.js";
import { coverLevels, isCovered, withNewestCover } from "./covers.js";
import { LEVEL_ORDER, roleOf } from "./event_kinds.js";
import { isSent, seqOfKey } from "./timeline_state.js";

/** @typedef {import("./types.js").TimelineRow} TimelineRow */
/** @typedef {import("./types.js").ViewChange} ViewChange */
/** @typedef {import("./types.js").Filters} Filters */
/** @typedef {import("./branch_lanes.js").BranchLane} BranchLane */
/** @typedef {import("./timeline_state.js").TimelineState} TimelineState */
/** @typedef {import("./timeline_state.js").ViewState} ViewState */

/**
 * One line of the log view. `row` is undefined for what is only in the view.
 * @typedef {object} LogEntry
 * @property {string} key
 * @property {TimelineRow | undefined} row
 * @property {ViewChange | undefined} change
 * @property {boolean} isPlaced whether it stands at its place in the request, not at its place in the log
 * @property {number} depth branches that it is in
 * @property {{count: number, isFolded: boolean} | null} fold for the beginning of a branch that has ended: the rows
 *     that folding hides, and whether they are hidden
 */

/**
 * The entries after one event, in order. They are made when they are asked for.
 */
export class LogEntries {
  /**
   * @param {TimelineState} timeline
   * @param {ViewState} view
   * @param {Filters} filters filters look into folded branches
   * @param {readonly number[]} [unfolded] branches that are shown whole after their end
   */
  constructor(timeline, view, filters, unfolded = []) {
    this.timeline = timeline;
    this.view = view;
    /** @type {Record<string, number>} messages by level */
    this.levels = {};
    this.placed = placedItems(view);
    /** Index of a row, or -1 - index of a placed item. */
    this.codes = new Int32Array(timeline.rows.length + this.placed.length);
    /** Index in `LEVEL_ORDER` of each entry, for the map: it reads all of them at every step of the scrubber. */
    this.ranks = new Uint8Array(this.codes.length);
    this.count = 0;
    this.lanes = branchLanes(timeline);
    this.unfolded = new Set(unfolded);
    /** @type {Map<BranchLane, number>} rows that folding a branch hides, for those that have ended */
    this.hideable = new Map();
    const isShown = entryFilter(filters);
    this.folds = isShown === null;
    this.fill(isShown ?? (() => true));
  }

  /**
   * Return an entry.
   * @param {number} index
   * @returns {LogEntry}
   */
  entry(index) {
    const code = this.codes[index];
    if (code < 0) {
      const change = this.placed[-1 - code];
      const depth = lanesAround(this.laneAt(this.timeline.rowIndex(placeOf(change))), -1).length;
      return { key: change.key, row: undefined, change, isPlaced: true, depth, fold: null };
    }
    const row = this.timeline.rows[code];
    const change = this.view.byIndex(keysOfRows(this.timeline)[code]);
    const own = change && withNewestCover(this.timeline, change, this.view.seq);
    const lane = this.laneAt(code);
    const depth = lanesAround(lane, row.seq).length;
    const fold = lane?.seq === row.seq ? this.foldOf(lane) : null;
    return { key: `e${row.seq}`, row, change: own, isPlaced: false, depth, fold };
  }

  /**
   * Return the innermost branch of a row.
   * @param {number} index of the row in the timeline
   * @returns {BranchLane | null}
   */
  laneAt(index) {
    return this.lanes?.[index] ?? null;
  }

  /**
   * Return the innermost branch around an event, or that begins with it, that can be folded or unfolded.
   * @param {string} key
   * @returns {number} the event that begins it; -1 if there is none
   */
  branchOf(key) {
    const lane = this.laneAt(this.timeline.rowIndex(seqOfKey(key)));
    return lanesAround(lane, -1).find((one) => this.foldOf(one))?.seq ?? -1;
  }

  /**
   * Whether an event is in a branch, after its beginning.
   * @param {string} key
   * @param {number} branch
   * @returns {boolean}
   */
  isInside(key, branch) {
    const seq = seqOfKey(key);
    return lanesAround(this.laneAt(this.timeline.rowIndex(seq)), seq).some((lane) => lane.seq === branch);
  }

  /**
   * Return the branches whose folds hide an event.
   * @param {string} key
   * @returns {number[]}
   */
  foldsOver(key) {
    const seq = seqOfKey(key);
    const around = lanesAround(this.laneAt(this.timeline.rowIndex(seq)), seq);
    return around.filter((lane) => this.foldOf(lane)?.isFolded).map((lane) => lane.seq);
  }

  /**
   * @param {BranchLane} lane
   * @returns {{count: number, isFolded: boolean} | null}
   */
  foldOf(lane) {
    const count = this.hideable.get(lane) ?? 0;
    return count && this.folds ? { count, isFolded: !this.unfolded.has(lane.seq) } : null;
  }

  /**
   * Return the level of an entry without making it: "later" if it was not yet said, "" if it is no message.
   * @param {number} index
   * @returns {string}
   */
  level(index) {
    return LEVEL_ORDER[this.ranks[index]];
  }

  /**
   * Return the index of the entry with a key; -1 if the filters hide it.
   * @param {string} key
   * @param {{placed?: boolean}} [options] `placed`: prefer the place in the request
   * @returns {number}
   */
  indexOf(key, { placed = false } = {}) {
    const item = this.placed.findIndex((change) => change.key === key);
    if (item >= 0 && (placed || !key.startsWith("e"))) return this.codes.subarray(0, this.count).indexOf(-1 - item);
    const row = key.startsWith("e") ? this.timeline.rowIndex(seqOfKey(key)) : -1;
    return row < 0 ? -1 : this.codes.subarray(0, this.count).indexOf(row);
  }

  /**
   * Return the index of the newest entry of an event up to `seq`; -1 if there is none.
   * @param {number} seq
   * @returns {number}
   */
  lastUpTo(seq) {
    for (let index = this.count - 1; index >= 0; index--) {
      const code = this.codes[index];
      if (code >= 0 && this.timeline.rows[code].seq <= seq) return index;
    }
    return -1;
  }

  /**
   * @param {(row: TimelineRow | undefined, change: ViewChange | undefined) => boolean} isShown
   * @returns {void}
   */
  fill(isShown) {
    const { timeline, placed, view } = this;
    const keys = keysOfRows(timeline);
    const levels = coverLevels(timeline, view.seq);
    let next = 0;
    for (let index = 0; index <= timeline.rows.length; index++) {
      const seq = index < timeline.rows.length ? timeline.rows[index].seq : Infinity;
      while (next < placed.length && placeOf(placed[next]) < seq) this.add(-1 - next, undefined, placed[next++], isShown);
      if (index === timeline.rows.length) break;
      const change = view.byIndex(keys[index]);
      const level = change && levels?.[index] && isCovered(change) ? levels[index] : change?.level;
      const own = change && level !== change.level ? withNewestCover(timeline, change, view.seq) : change;
      this.add(index, timeline.rows[index], own, isShown);
    }
  }

  /**
   * @param {number} code
   * @param {TimelineRow | undefined} row
   * @param {ViewChange | undefined} change
   * @param {(row: TimelineRow | undefined, change: ViewChange | undefined) => boolean} isShown
   * @returns {void}
   */
  add(code, row, change, isShown) {
    // A message that stands elsewhere is counted there.
    const own = row && change && isElsewhere(change) ? undefined : change;
    if (own) this.levels[own.level] = (this.levels[own.level] ?? 0) + 1;
    if (!isShown(row, own) || (row && this.isFolded(code, row, own))) return;
    this.ranks[this.count] = row && row.seq > this.view.seq ? LATER : levelRank(own?.level ?? "");
    this.codes[this.count++] = code;
  }

  /**
   * Whether a folded branch hides a row: requests do not show it, and it is not the row of the point.
   * @param {number} index
   * @param {TimelineRow} row
   * @param {ViewChange | undefined} change
   * @returns {boolean}
   */
  isFolded(index, row, change) {
    const lane = this.laneAt(index);
    if (!lane || !this.folds || row.seq >= this.view.seq || (change && isSent(change.level))) return false;
    const ended = lanesAround(lane, row.seq).filter((one) => one.end <= this.view.seq);
    for (const one of ended) this.hideable.set(one, (this.hideable.get(one) ?? 0) + 1);
    return ended.some((one) => !this.unfolded.has(one.seq));
  }
}

const LATER = LEVEL_ORDER.indexOf("later");
/** @type {Map<string, number>} */
const RANKS = new Map(LEVEL_ORDER.map((level, rank) => [level, rank]));

/**
 * @param {string} level
 * @returns {number} index in `LEVEL_ORDER`, that of "" for an unknown level
 */
function levelRank(level) {
  return RANKS.get(level) ?? LEVEL_ORDER.length - 1;
}

/**
 * Return how many events have each role and each tool.
 * @param {TimelineState} timeline
 * @returns {{roles: Map<string, number>, tools: Map<string, number>}}
 */
export function countRolesAndTools(timeline) {
  const roles = new Map();
  const tools = new Map();
  for (const row of timeline.rows) {
    const role = roleOf(row.kind);
    roles.set(role, (roles.get(role) ?? 0) + 1);
    if (row.tool) tools.set(row.tool, (tools.get(row.tool) ?? 0) + 1);
  }
  return { roles, tools };
}

/**
 * Whether a message does not stand where its event is in the log.
 * @param {ViewChange} change
 * @returns {boolean}
 */
export function isElsewhere(change) {
  return placeOf(change) >= 0;
}

/**
 * Return the event after which a message stands; -1 if it is at its own place.
 * @param {ViewChange} change
 * @returns {number}
 */
function placeOf(change) {
  if (change.place >= 0) return change.place === seqOfKey(change.key) ? -1 : change.place;
  return change.key.startsWith("e") ? -1 : seqOfKey(change.key);
}

/**
 * @param {ViewState} view
 * @returns {ViewChange[]}
 */
function placedItems(view) {
  const placed = view.items().filter(isElsewhere);
  return placed.sort((a, b) => placeOf(a) - placeOf(b));
}

/** @type {WeakMap<TimelineState, {version: number, indices: Int32Array}>} */
const KEY_INDICES = new WeakMap();

/**
 * Return the index of the key of each row; -1 for an event that is no message.
 * @param {TimelineState} timeline
 * @returns {Int32Array}
 */
function keysOfRows(timeline) {
  let known = KEY_INDICES.get(timeline);
  if (!known || known.version !== timeline.version) {
    const indices = Int32Array.from(timeline.rows, ({ seq }) => timeline.keyIndex.get(`e${seq}`) ?? -1);
    known = { version: timeline.version, indices };
    KEY_INDICES.set(timeline, known);
  }
  return known.indices;
}

/**
 * Return whether an entry passes the filters; null if they are empty and let everything pass.
 * @param {Filters} filters
 * @returns {((row: TimelineRow | undefined, change: ViewChange | undefined) => boolean) | null}
 */
function entryFilter(filters) {
  const [roles, tools, levels] = [new Set(filters.roles), new Set(filters.tools), new Set(filters.levels)];
  const text = filters.text.trim().toLowerCase();
  if (!roles.size && !tools.size && !levels.size && !text) return null;
  return (row, change) => {
    if (roles.size && !roles.has(row ? roleOf(row.kind) : roleOfPlaced(change))) return false;
    if (tools.size && !tools.has(row?.tool ?? "")) return false;
    if (levels.size && !levels.has(change?.level ?? "")) return false;
    return !text || containsText(row, change, text);
  };
}

/**
 * @param {TimelineRow | undefined} row
 * @param {ViewChange | undefined} change
 * @param {string} text in lower case
 * @returns {boolean}
 */
function containsText(row, change, text) {
  const texts = [row?.preview, row?.tool, row?.path, change?.preview, row && `e${row.seq}`];
  return texts.some((part) => part?.toLowerCase().includes(text));
}

/**
 * @param {ViewChange | undefined} change
 * @returns {string}
 */
function roleOfPlaced(change) {
  if (change?.category === "pinned") return "pinned";
  if (change?.category === "instructions" || change?.category === "system") return "instructions";
  return change?.key.startsWith("m") ? "result" : "reduction";
}
