/**
 * A session's timeline and the view at any of its events.
 *
 * 1. The view after event `e` is the result of all changes with `at` ≤ `e`; the last change of a key counts.
 * 2. `at` starts from a keyframe, so its cost follows the number of messages, not the length of the history.
 * 3. Rows, changes, requests and reductions have all their fields; the server leaves out defaults.
 *
 * @module
 */

import { withNewestCover } from "./covers.js";
import { completeChange, completeReduction, completeRequest, completeRow } from "./timeline_defaults.js";

/** @typedef {import("./types.js").Timeline} Timeline */
/** @typedef {import("./types.js").TimelineRow} TimelineRow */
/** @typedef {import("./types.js").ViewChange} ViewChange */
/** @typedef {import("./types.js").RequestRow} RequestRow */
/** @typedef {import("./types.js").ReductionCard} ReductionCard */

const KEYFRAME_EVENTS = 512;

/** Views that are kept, so that panels which ask for the same event share one. */
const KEPT_VIEWS = 8;

/**
 * Return the seq that a key stands for: 12 for `e12`, `n12` and `m12.0`; -1 if it is no key.
 * @param {string} key
 * @returns {number}
 */
export function seqOfKey(key) {
  // No regular expression: this runs for every message at every step of the scrubber.
  const kind = key.charCodeAt(0);
  if (kind !== 101 && kind !== 109 && kind !== 110) return -1;
  const seq = Number.parseInt(key.slice(1), 10);
  return seq >= 0 ? seq : -1;
}

/**
 * Whether a message at this level is in the request.
 * @param {string} level
 * @returns {boolean}
 */
export function isSent(level) {
  return level === "full" || level === "clipped" || level === "masked";
}

/**
 * How requests show the messages after one event.
 */
export class ViewState {
  /**
   * @param {TimelineState} timeline
   * @param {number} seq
   * @param {Int32Array} latest index of the last change for each key; -1 if there is none
   */
  constructor(timeline, seq, latest) {
    this.timeline = timeline;
    this.seq = seq;
    /** @type {Int32Array} */
    this.latest = latest;
    /** @type {ViewChange[] | null} */
    this.sent = null;
    /** @type {{units: number, byCategory: Record<string, number>, byLevel: Record<string, number>} | null} */
    this.sums = null;
  }

  /**
   * Return how a message is shown; undefined if it was not yet said.
   * @param {string} key
   * @returns {ViewChange | undefined}
   */
  get(key) {
    const index = this.timeline.keyIndex.get(key);
    const change = index === undefined ? undefined : this.byIndex(index);
    return change && withNewestCover(this.timeline, change, this.seq);
  }

  /**
   * Return the change that is in force for the key with this index.
   * @param {number} index -1 for none
   * @returns {ViewChange | undefined}
   */
  byIndex(index) {
    const change = index >= 0 && index < this.latest.length ? this.latest[index] : -1;
    return change < 0 ? undefined : this.timeline.changes[change];
  }

  /**
   * Return the changes of all messages that are in the request, in the order of the request.
   * @returns {ViewChange[]}
   */
  items() {
    this.sent ??= this.inOrder();
    return this.sent;
  }

  /** Units by category and messages by level; `units` is everything that is sent. */
  get totals() {
    this.sums ??= this.sumUp();
    return this.sums;
  }

  /** @returns {ViewChange[]} */
  inOrder() {
    /** @type {ViewChange[]} */
    const own = [];
    /** @type {ViewChange[]} */
    const placed = [];
    for (const index of this.timeline.orderedKeys()) {
      const change = this.byIndex(index);
      if (!change || !isSent(change.level)) continue;
      (change.place < 0 ? own : placed).push(change);
    }
    placed.sort((a, b) => a.place - b.place || seqOfKey(a.key) - seqOfKey(b.key));
    return mergePlaced(own, placed);
  }

  /** @returns {{units: number, byCategory: Record<string, number>, byLevel: Record<string, number>}} */
  sumUp() {
    /** @type {{units: number, byCategory: Record<string, number>, byLevel: Record<string, number>}} */
    const sums = { units: 0, byCategory: {}, byLevel: {} };
    for (let index = 0; index < this.latest.length; index++) {
      const change = this.byIndex(index);
      if (!change) continue;
      sums.byLevel[change.level] = (sums.byLevel[change.level] ?? 0) + 1;
      if (!isSent(change.level)) continue;
      sums.units += change.units;
      sums.byCategory[change.category] = (sums.byCategory[change.category] ?? 0) + change.units;
    }
    return sums;
  }
}

/**
 * A timeline that grows as a session goes on.
 */
export class TimelineState {
  /** @param {Timeline} timeline from event 0 on */
  constructor(timeline) {
    /** @type {TimelineRow[]} */
    this.rows = [];
    /** @type {ViewChange[]} */
    this.changes = [];
    /** @type {RequestRow[]} */
    this.requests = [];
    /** @type {ReductionCard[]} */
    this.reductions = [];
    /** @type {ReductionCard[]} those that hide events, oldest first */
    this.covers = [];
    /** @type {string[]} */
    this.keys = [];
    /** @type {Map<string, number>} */
    this.keyIndex = new Map();
    /** @type {number[][]} indices of the changes of each key, oldest first */
    this.keyChanges = [];
    /** @type {{seq: number, changes: number, latest: Int32Array}[]} */
    this.keyframes = [];
    /** @type {Map<number, ViewState>} */
    this.views = new Map();
    /** @type {number[] | null} */
    this.order = null;
    this.version = 0;
    this.generation = 0;
    /** Whether only the newest view is known yet, without sizes and requests. */
    this.isOutline = false;
    this.id = timeline.id;
    this.title = "";
    this.format = "";
    this.model = "";
    this.policy = "";
    this.window = 0;
    this.limit = 0;
    /** @type {import("./types.js").Prices} */
    this.prices = {};
    /** @type {number | null} */
    this.cacheTtl = null;
    this.origin = "";
    /** @type {number | null} */
    this.spent = null;
    /** Calls with reported usage whose price is unknown. */
    this.unpriced = 0;
    /** @type {number | null} */
    this.saved = null;
    /** @type {string[]} */
    this.problems = [];
    this.append(timeline);
  }

  /** The newest event; -1 for an empty session. */
  get last() {
    return this.rows.length ? this.rows[this.rows.length - 1].seq : -1;
  }

  /** The oldest event; 0 for an empty session. */
  get first() {
    return this.rows.length ? this.rows[0].seq : 0;
  }

  /**
   * Add a part that begins at `timeline.first`; what was known from there on is replaced. A part without a new event
   * changes nothing: the live stream was faster, and may have brought later events too.
   * @param {Timeline} timeline
   * @returns {void}
   */
  append(timeline) {
    if (this.isOvertaken(timeline)) return;
    const first = timeline.first ?? 0;
    this.cutAt(first, timeline.first_request ?? 0);
    for (const row of timeline.rows ?? []) this.rows.push(completeRow(row));
    for (const change of timeline.changes ?? []) this.addChange(completeChange(change));
    for (const request of timeline.requests ?? []) this.requests.push(completeRequest(request));
    this.reductions = (timeline.reductions ?? []).map(completeReduction);
    this.covers = this.reductions.filter((card) => card.ranges.length > 0);
    this.views.clear();
    this.order = null;
    this.version += 1;
    this.describe(timeline);
  }

  /**
   * Return whether a part of the log has no event that is not known.
   * @param {Timeline} timeline
   * @returns {boolean}
   */
  isOvertaken({ first = 0, rows = [], generation = 0 }) {
    const isKnown = rows.every((row) => (row.seq ?? 0) <= this.last);
    return first > 0 && generation === this.generation && isKnown;
  }

  /**
   * Return the row of an event.
   * @param {number} seq
   * @returns {TimelineRow | undefined}
   */
  row(seq) {
    const index = this.rowIndex(seq);
    return index < 0 ? undefined : this.rows[index];
  }

  /**
   * Return the index of an event in `rows`; -1 if it is not there.
   * @param {number} seq
   * @returns {number}
   */
  rowIndex(seq) {
    const index = this.firstRowFrom(seq);
    return index < this.rows.length && this.rows[index].seq === seq ? index : -1;
  }

  /**
   * Return the index of the first event from `seq` on.
   * @param {number} seq
   * @returns {number}
   */
  firstRowFrom(seq) {
    return lowerBound(this.rows, (row) => row.seq < seq);
  }

  /**
   * Return the view after an event.
   * @param {number} seq
   * @returns {ViewState}
   */
  at(seq) {
    const known = this.views.get(seq);
    if (known) return known;
    const view = this.fold(seq);
    if (this.views.size >= KEPT_VIEWS) this.views.delete(/** @type {number} */ (this.views.keys().next().value));
    this.views.set(seq, view);
    return view;
  }

  /**
   * Return all changes of a message, oldest first.
   * @param {string} key
   * @returns {ViewChange[]}
   */
  history(key) {
    const index = this.keyIndex.get(key);
    return index === undefined ? [] : this.keyChanges[index].map((change) => this.changes[change]);
  }

  /**
   * Return the changes that an event made.
   * @param {number} seq
   * @returns {ViewChange[]}
   */
  changesAt(seq) {
    const start = lowerBound(this.changes, (change) => change.at < seq);
    let end = start;
    while (end < this.changes.length && this.changes[end].at === seq) end += 1;
    return this.changes.slice(start, end);
  }

  /**
   * Return the index of the newest request that was sent with the view after `seq` or an earlier event; -1 if none.
   * @param {number} seq
   * @returns {number}
   */
  requestAt(seq) {
    return lowerBound(this.requests, (request) => request.at <= seq) - 1;
  }

  /**
   * Return how many requests were sent while a reduction was in force.
   * @param {ReductionCard} card
   * @returns {number}
   */
  callsWhileInForce(card) {
    const end = card.undone >= 0 ? card.undone : Infinity;
    const until = (/** @type {number} */ seq) => lowerBound(this.requests, (request) => request.at < seq);
    return until(end) - until(card.seq);
  }

  /**
   * Return the tokens of a number of units, by the ratio of the request at an event.
   * @param {number} units
   * @param {number} seq
   * @returns {number}
   */
  tokens(units, seq) {
    const request = this.requests[Math.max(0, this.requestAt(seq))];
    return Math.round(units * (request ? request.ratio : 1));
  }

  /**
   * Return the indices of all keys in the order of the log: a message, then what stands for it.
   * @returns {number[]}
   */
  orderedKeys() {
    if (!this.order) {
      const seqs = this.keys.map(seqOfKey);
      this.order = this.keys.map((_, index) => index).sort((a, b) => seqs[a] - seqs[b] || a - b);
    }
    return this.order;
  }

  /**
   * @param {Timeline} timeline
   * @returns {void}
   */
  describe(timeline) {
    this.id = timeline.id;
    this.generation = timeline.generation ?? 0;
    this.isOutline = timeline.outline ?? false;
    this.title = timeline.title ?? "";
    this.format = timeline.format ?? "foveal";
    this.model = timeline.model ?? "";
    this.policy = timeline.policy ?? "";
    this.window = timeline.window ?? 0;
    this.limit = timeline.limit ?? 0;
    this.prices = timeline.prices ?? {};
    this.cacheTtl = timeline.cache_ttl ?? null;
    this.origin = timeline.origin ?? "";
    this.spent = timeline.spent ?? null;
    this.unpriced = timeline.unpriced ?? 0;
    this.saved = timeline.saved ?? null;
    this.problems = timeline.problems ?? [];
  }

  /**
   * Forget everything from an event and from a request on.
   * @param {number} first
   * @param {number} firstRequest
   * @returns {void}
   */
  cutAt(first, firstRequest) {
    this.rows.length = lowerBound(this.rows, (row) => row.seq < first);
    this.requests.length = Math.min(this.requests.length, firstRequest);
    const kept = lowerBound(this.changes, (change) => change.at < first);
    if (kept < this.changes.length) {
      this.changes.length = kept;
      for (const indices of this.keyChanges) {
        while (indices.length && indices[indices.length - 1] >= kept) indices.pop();
      }
      this.keyframes = this.keyframes.filter((frame) => frame.changes <= kept);
    }
  }

  /**
   * @param {ViewChange} change
   * @returns {void}
   */
  addChange(change) {
    let index = this.keyIndex.get(change.key);
    if (index === undefined) {
      index = this.keys.length;
      this.keys.push(change.key);
      this.keyIndex.set(change.key, index);
      this.keyChanges.push([]);
    }
    this.keyChanges[index].push(this.changes.length);
    this.changes.push(change);
  }

  /**
   * @param {number} seq
   * @returns {ViewState}
   */
  fold(seq) {
    const end = lowerBound(this.changes, (change) => change.at <= seq);
    const frame = this.keyframeBefore(seq);
    const latest = this.grown(frame.latest);
    for (let index = frame.changes; index < end; index++) {
      latest[/** @type {number} */ (this.keyIndex.get(this.changes[index].key))] = index;
    }
    return new ViewState(this, seq, latest);
  }

  /**
   * Return the keyframe at or before an event, making those that are missing.
   * @param {number} seq
   * @returns {{seq: number, changes: number, latest: Int32Array}}
   */
  keyframeBefore(seq) {
    const wanted = Math.floor((Math.min(seq, this.last) - this.first + 1) / KEYFRAME_EVENTS);
    if (!this.keyframes.length) this.keyframes.push({ seq: -1, changes: 0, latest: new Int32Array(0) });
    while (this.keyframes.length <= wanted) {
      const before = this.keyframes[this.keyframes.length - 1];
      const at = this.first + this.keyframes.length * KEYFRAME_EVENTS - 1;
      const latest = this.grown(before.latest);
      let index = before.changes;
      for (; index < this.changes.length && this.changes[index].at <= at; index++) {
        latest[/** @type {number} */ (this.keyIndex.get(this.changes[index].key))] = index;
      }
      this.keyframes.push({ seq: at, changes: index, latest });
    }
    return this.keyframes[Math.max(0, wanted)];
  }

  /**
   * Return a copy with room for all keys.
   * @param {Int32Array} latest
   * @returns {Int32Array}
   */
  grown(latest) {
    const copy = new Int32Array(this.keys.length).fill(-1, latest.length);
    copy.set(latest);
    return copy;
  }
}

/**
 * Return the number of leading items for which `isBefore` holds; the items must be sorted by it.
 * @template Item
 * @param {Item[]} items
 * @param {(item: Item) => boolean} isBefore
 * @returns {number}
 */
export function lowerBound(items, isBefore) {
  let low = 0;
  let high = items.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (isBefore(items[middle])) low = middle + 1;
    else high = middle;
  }
  return low;
}

/**
 * Return the messages at their own place, with each moved one after the event that it stands behind.
 * @param {ViewChange[]} own
 * @param {ViewChange[]} placed
 * @returns {ViewChange[]}
 */
function mergePlaced(own, placed) {
  if (!placed.length) return own;
  const merged = [];
  let next = 0;
  for (const change of own) {
    const seq = seqOfKey(change.key);
    while (next < placed.length && placed[next].place < seq) merged.push(placed[next++]);
    merged.push(change);
  }
  return merged.concat(placed.slice(next));
}
