/**
 * Lanes: related and parallel sessions under each other over a common time axis.
 *
 * Each lane shows its requests as marks, as high as they filled the window, and where another session began from it.
 *
 * @module
 */

import { clear, el, svg } from "./dom.js";
import { formatCount, formatDuration, formatNumber, formatTime } from "./format.js";
import { MAX_LANES, axisShare, layOutLanes } from "./lane_layout.js";
import { sessionAddress, sessionTitle } from "./session_table.js";
import { clampShare, describeShares } from "./sparkline.js";

/** @typedef {import("./types.js").SessionRow} SessionRow */
/** @typedef {import("./lane_layout.js").Lane} Lane */
/** @typedef {import("./lane_layout.js").LaneLayout} LaneLayout */
/** @typedef {import("./lane_layout.js").LaneTick} LaneTick */

const LANE_WIDTH = 1000;
const LANE_HEIGHT = 24;
/** Most lanes above the table of the overview. */
const OVERVIEW_LANES = 6;
/** Most marks of requests in one lane; more are not told apart. */
const MAX_LANE_TICKS = 400;

/** The lanes of a list of sessions. */
export class Lanes {
  constructor() {
    this._list = el("ol", { class: "lanes-list" });
    this._axis = el("p", { class: "lanes-axis" });
    this._note = el("p", { class: "lanes-note" });
    /** The element of the lanes; hidden while there is nothing to compare. */
    this.element = el(
      "section",
      { class: "lanes", "aria-label": "Sessions over time" },
      this._list,
      this._axis,
      this._note,
    );
    this.element.hidden = true;
    /** @type {LaneLayout | null} */
    this._layout = null;
  }

  /**
   * Show the sessions that belong to `key`, or the newest ones; returns how many lanes there are.
   * @param {readonly SessionRow[]} rows
   * @param {string} [key]
   * @param {readonly LaneTick[]} [ticks] the requests of the session `key`, if their times are known
   * @returns {number}
   */
  show(rows, key = "", ticks = []) {
    const layout = layOutLanes(rows, key, key ? MAX_LANES : OVERVIEW_LANES);
    for (const lane of layout.lanes) if (lane.relation === "this" && ticks.length > 0) lane.ticks = [...ticks];
    this._layout = layout;
    this.element.hidden = layout.lanes.length < 2;
    if (!this.element.hidden) this._draw(layout);
    return layout.lanes.length;
  }

  /**
   * Draw a line through all lanes at a moment; null removes it.
   * @param {number | null} time
   * @returns {void}
   */
  setPoint(time) {
    this._list.classList.toggle("has-point", time !== null && this._layout !== null);
    if (time !== null && this._layout)
      this._list.style.setProperty("--point", String(axisShare(this._layout, time)));
  }

  /**
   * @param {LaneLayout} layout
   * @returns {void}
   */
  _draw(layout) {
    const focused = document.activeElement;
    const address = this._list.contains(focused) ? focused?.getAttribute("href") : null;
    clear(
      this._list,
      layout.lanes.map((lane) => laneRow(layout, lane)),
    );
    const links = /** @type {HTMLElement[]} */ ([...this._list.querySelectorAll("a")]);
    if (address) links.find((link) => link.getAttribute("href") === address)?.focus({ preventScroll: true });
    clear(
      this._axis,
      el("span", null, formatTime(layout.from)),
      el("span", null, formatDuration(layout.to - layout.from)),
      el("span", null, formatTime(layout.to)),
    );
    const legend = "Bars are requests, as high as they filled the window.";
    const starts = layout.lanes.some((lane) => lane.starts.length > 0) ? "▾ Another session began here." : "";
    const more = layout.leftOut > 0 ? `${formatCount(layout.leftOut, "further session")} not shown.` : "";
    this._note.textContent = [legend, starts, more].filter(Boolean).join(" ");
  }
}

/**
 * @param {LaneLayout} layout
 * @param {Lane} lane
 * @returns {HTMLElement}
 */
function laneRow(layout, lane) {
  const isThis = lane.relation === "this";
  const name = el(
    "a",
    {
      class: "lane-name",
      href: sessionAddress(lane.row.key),
      title: sessionTitle(lane.row),
      "aria-current": isThis ? "true" : null,
    },
    sessionTitle(lane.row),
  );
  const row = el(
    "li",
    { class: `lane is-${lane.relation}` },
    el("div", { class: "lane-head" }, lane.depth > 0 && childMark(), name, relationNote(layout, lane)),
    el(
      "div",
      { class: "lane-box" },
      laneChart(layout, lane),
      lane.starts.map((start) => startMark(layout, start)),
    ),
  );
  row.style.setProperty("--depth", String(Math.min(lane.depth, 6)));
  return row;
}

/**
 * The mark of a session that began from the one above it.
 * @returns {HTMLElement}
 */
function childMark() {
  const words = el("span", { class: "visually-hidden" }, "began from the one above: ");
  return el("span", { class: "lane-child" }, el("span", { "aria-hidden": "true" }, "↳ "), words);
}

/**
 * How a session belongs to the one of the page; nothing on the overview.
 * @param {LaneLayout} layout
 * @param {Lane} lane
 * @returns {HTMLElement | null}
 */
function relationNote(layout, lane) {
  if (!layout.lanes.some((one) => one.relation === "this")) return null;
  const words = { this: "this session", related: "related", parallel: "same time" };
  return el("span", { class: "lane-relation" }, words[lane.relation]);
}

/**
 * @param {LaneLayout} layout
 * @param {Lane} lane
 * @returns {SVGSVGElement}
 */
function laneChart(layout, lane) {
  const x = (/** @type {number} */ time) => Math.round(axisShare(layout, time) * LANE_WIDTH * 10) / 10;
  const step = Math.max(1, Math.ceil(lane.ticks.length / MAX_LANE_TICKS));
  const ticks = lane.ticks.filter((_, index) => index % step === 0);
  const path = ticks.map((tick) => {
    const height = 3 + clampShare(tick.share) * (LANE_HEIGHT - 4);
    return `M${x(tick.time)} ${LANE_HEIGHT}V${Math.round((LANE_HEIGHT - height) * 10) / 10}`;
  });
  const times = `from ${formatTime(lane.begin)} to ${formatTime(lane.end)}`;
  const shares = lane.ticks.map((tick) => tick.share);
  const requests = Math.max(lane.row.requests ?? 0, shares.length);
  const reported = Math.max(lane.row.reported ?? 0, shares.length);
  const use = describeShares({ ...lane.row, shares, requests, reported });
  const label = `${times}; ${use}; ${formatNumber(lane.starts.length)} began from it`;
  return svg(
    "svg",
    {
      class: "lane-chart",
      viewBox: `0 0 ${LANE_WIDTH} ${LANE_HEIGHT}`,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": label,
    },
    svg("rect", {
      class: "lane-span",
      x: x(lane.begin),
      y: LANE_HEIGHT - 3,
      width: Math.max(2, x(lane.end) - x(lane.begin)),
      height: 3,
    }),
    svg("path", { class: "lane-ticks", d: path.join("") }),
  );
}

/**
 * A link to a session that began from this one, at the moment it began.
 * @param {LaneLayout} layout
 * @param {{time: number, row: SessionRow}} start
 * @returns {HTMLElement}
 */
function startMark(layout, start) {
  const label = `${sessionTitle(start.row)} began here, ${formatTime(start.time)}`;
  const mark = el(
    "a",
    { class: "lane-start", href: sessionAddress(start.row.key), "aria-label": label, title: label },
    "▾",
  );
  mark.style.setProperty("--at", String(axisShare(layout, start.time)));
  return mark;
}
