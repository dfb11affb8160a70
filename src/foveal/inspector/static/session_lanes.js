/**
 * Lanes on the page of a session: the sessions that belong to it, with a line at the current point.
 *
 * The lanes are open where one session is related to this one and the rows of the log have room enough beside them.
 * Sessions that only were active at the same time stay folded.
 *
 * @module
 */

import { Problem } from "./data_source.js";
import { el } from "./dom.js";
import { relatedKeys } from "./lane_layout.js";
import { Lanes } from "./lanes.js";

/** @typedef {import("./types.js").App} App */
/** @typedef {import("./types.js").SessionRow} SessionRow */
/** @typedef {import("./timeline_state.js").TimelineState} TimelineState */
/** @typedef {import("./lane_layout.js").LaneTick} LaneTick */

/** Newest sessions among which related and parallel ones are looked for. */
const LANE_CANDIDATES = 100;
/** Milliseconds between two loads of the list while the session grows. */
const LANES_REFRESH_MS = 15_000;
/** Milliseconds after which a list that the server could not complete in time is loaded again; twice as many each
 * further time, because a busy server needs longer, and rows of very long sessions may stay incomplete. */
const LANES_AGAIN_MS = 1_000;
/** How often. */
const MAX_LANES_AGAIN = 8;
/** Height of the page from which on the related sessions are shown at once. */
const MIN_LANES_HEIGHT_PX = 900;

/**
 * Return the lanes of a session's page. They stay hidden while no other session belongs to it.
 * @param {App} app
 * @returns {{element: HTMLElement, load: () => Promise<void>}}
 */
export function createSessionLanes(app) {
  const lanes = new Lanes();
  const title = el("summary", null, "Sessions at the same time");
  const box = el("details", { class: "lanes-box" }, title, lanes.element);
  let isRelated = false;
  /** @type {SessionRow[]} */
  let rows = [];
  let loadedAt = -Infinity;
  let tries = 0;
  let newest = 0;
  const show = () => {
    const known = rows.find((row) => row.key === app.data.id);
    const others = rows.filter((row) => row.key !== app.data.id);
    const all = [sessionRowOf(app.timeline, app.data.id, known), ...others];
    lanes.show(all, app.data.id, requestTicks(app.timeline));
    lanes.setPoint(timeNear(app.timeline, app.state.current.point));
    const family = isRelated ? new Set() : relatedKeys(all, app.data.id);
    if (!others.some((row) => family.has(row.key))) return;
    isRelated = true;
    title.textContent = "Related sessions";
    box.open ||= window.innerHeight >= MIN_LANES_HEIGHT_PX;
  };
  const load = async () => {
    loadedAt = performance.now();
    newest += 1;
    const own = newest;
    /** @type {SessionRow[] | null} */
    let loaded = null;
    try {
      loaded = (await app.data.sessions({ limit: LANE_CANDIDATES })).sessions;
    } catch (error) {
      // The page is complete without the lanes.
      if (!(error instanceof Problem)) throw error;
    }
    // A load that was started later has the say: this answer may be older, and less complete.
    if (own !== newest) return;
    rows = loaded ?? rows;
    show();
    if (tries < MAX_LANES_AGAIN && (rows.length === 0 || rows.some((row) => row.partial))) {
      setTimeout(() => void load(), LANES_AGAIN_MS * 2 ** tries);
      tries += 1;
    }
  };
  app.state.subscribe((state, before) => {
    if (state.version !== before.version && performance.now() - loadedAt > LANES_REFRESH_MS) void load();
    else if (state.version !== before.version) show();
    else if (state.point !== before.point) lanes.setPoint(timeNear(app.timeline, state.point));
  });
  return { element: box, load };
}

/**
 * Return the row of the session itself, with what its timeline knows better than the list.
 * @param {TimelineState} timeline
 * @param {string} key
 * @param {SessionRow | undefined} known
 * @returns {SessionRow}
 */
function sessionRowOf(timeline, key, known) {
  const first = timeline.rows.find((row) => row.at !== null)?.at ?? null;
  const last = timeNear(timeline, timeline.last);
  const row = { key, title: timeline.title, origin: timeline.origin, ...known, requests: timeline.requests.length };
  return first !== null && last !== null ? { ...row, times: [first, last] } : row;
}

/**
 * @param {TimelineState} timeline
 * @returns {LaneTick[]}
 */
function requestTicks(timeline) {
  return timeline.requests.flatMap((request) => {
    const time = request.time ?? timeNear(timeline, request.at);
    return time === null ? [] : [{ time, share: request.window ? request.tokens / request.window : 0 }];
  });
}

/**
 * Return the time of an event, or of the newest event before it that has one; null if none has.
 * @param {TimelineState} timeline
 * @param {number} seq
 * @returns {number | null}
 */
export function timeNear(timeline, seq) {
  for (let index = timeline.rowIndex(seq); index >= 0; index -= 1) {
    const { at } = timeline.rows[index];
    if (at !== null) return at;
  }
  return null;
}
