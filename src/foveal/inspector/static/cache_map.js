/**
 * The cache map: one row for each request, with its prefix as read, written and uncached.
 *
 * @module
 */

import { clear, el, on } from "./dom.js";
import { formatCount, formatDollars, formatNumber, formatPercent, formatShort } from "./format.js";
import { segmentBar } from "./panel_parts.js";
import { VirtualList } from "./virtual_list.js";

/** @typedef {import("./types.js").App} App */
/** @typedef {import("./types.js").CacheMiss} CacheMiss */
/** @typedef {import("./types.js").RequestRow} RequestRow */
/** @typedef {import("./timeline_state.js").TimelineState} TimelineState */

const CACHE_ROW_PX = 52;
/** Milliseconds that one pass may spend on the places of cache marks. */
const MARKS_BUDGET_MS = 6;

/** Causes of a miss in words. @type {Record<string, string>} */
export const MISS_CAUSES = {
  first: "first request",
  expired: "cache expired",
  tools: "tools changed",
  model: "model changed",
  system: "system text changed",
  reduction: "reduction",
  edit: "history edited",
  provider: "provider's reason",
  unknown: "unknown cause",
};

/** The parts of a request: class, name, meaning. */
export const CACHE_PARTS = /** @type {const} */ ([
  ["read", "Read", "from the cache"],
  ["written", "Written", "to the cache"],
  ["uncached", "Uncached", "at the full price"],
  ["estimated", "Estimated", "without a report"],
]);

/**
 * The virtual list of requests.
 */
export class CacheMap {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    this.timeline = app.timeline;
    /** @type {"number" | "loss"} */
    this.order = "number";
    /** @type {"window" | "largest"} */
    this.scale = "window";
    /** @type {number[]} indices of requests in the order of the list */
    this.indices = [];
    /** Tokens of a full bar if it is not the window. */
    this.largest = 1;
    /** @type {Map<number, number[]>} tokens in front of each cache mark, by request */
    this.marks = new Map();
    /** @type {number[]} requests whose marks are not known yet */
    this.waiting = [];
    this.list = new VirtualList({
      label: "Requests and their cache",
      id: "cache-row",
      rowHeight: CACHE_ROW_PX,
      createRow: () => el("div", { class: "virtual-row cache-row", role: "row" }),
      renderRow: (row, index) => this.renderRow(row, this.indices[index]),
    });
    this.list.element.classList.add("cache-map");
    this.list.element.setAttribute("aria-colcount", "1");
    on(this.list.element, "click", (event) => this.handleClick(event));
    on(this.list.element, "keydown", (event) => this.handleKey(event));
  }

  /**
   * @param {TimelineState} timeline
   * @param {boolean} isNew
   */
  show(timeline, isNew) {
    if (!isNew) return this.list.render();
    this.marks.clear();
    this.timeline = timeline;
    this.sortRequests();
  }

  /** @param {"number" | "loss"} order */
  setOrder(order) {
    this.order = order;
    this.sortRequests();
    this.list.element.scrollTop = 0;
  }

  /** @param {"window" | "largest"} scale */
  setScale(scale) {
    this.scale = scale;
    this.list.refresh();
  }

  /**
   * @param {number} index of the request
   * @param {boolean} isMoved whether to scroll there
   */
  setCurrent(index, isMoved) {
    const place = this.indices.indexOf(index);
    this.list.setActive(place);
    if (place < 0 || !isMoved) return;
    // The list of a panel that has just been opened learns its height after the next frame.
    if (this.list.height > 0) this.list.reveal(place);
    else requestAnimationFrame(() => requestAnimationFrame(() => this.list.reveal(place, 0.3)));
  }

  sortRequests() {
    const { requests } = this.timeline;
    this.largest = requests.reduce((most, request) => Math.max(most, request.tokens), 1);
    this.indices = requests.map((_, index) => index);
    if (this.order === "loss") this.indices.sort((a, b) => compareLoss(requests[a], requests[b]));
    this.list.element.style.setProperty("--rows-height", `${this.indices.length * CACHE_ROW_PX + 2}px`);
    this.list.setCount(this.indices.length);
  }

  /**
   * @param {HTMLElement} row
   * @param {number} index
   */
  renderRow(row, index) {
    const request = this.timeline.requests[index];
    const scale = this.scale === "window" ? request.window || this.timeline.window || this.largest : this.largest;
    const bar = segmentBar(cacheSegments(request, scale));
    this.addMarks(bar, index, scale);
    clear(
      row,
      el(
        "div",
        { role: "gridcell", class: "cache-cell" },
        el("span", { class: "visually-hidden" }, spokenRequest(request)),
        el("span", { class: "cache-number", "aria-hidden": "true" }, formatNumber(request.number)),
        bar,
        el("span", { class: "cache-tokens", "aria-hidden": "true" }, formatShort(request.tokens)),
        missLine(request),
      ),
    );
  }

  /**
   * Draw the cache marks of a request, or note that their places have to be found first.
   * @param {HTMLElement} bar
   * @param {number} index
   * @param {number} scale
   */
  addMarks(bar, index, scale) {
    const places = this.marks.get(index);
    if (places) {
      for (const tokens of places) {
        const mark = el("span", { class: "cache-mark", title: `Cache mark after ${formatNumber(tokens)} tokens` });
        mark.style.setProperty("left", `${Math.min(100, (tokens / scale) * 100).toFixed(3)}%`);
        bar.append(mark);
      }
    } else if (this.timeline.requests[index].breakpoints.length > 0) {
      if (this.waiting.length === 0) setTimeout(() => this.findMarks());
      this.waiting.push(index);
    }
  }

  /** Find the places of marks for a few milliseconds; the rest follows in the next pass. */
  findMarks() {
    const end = performance.now() + MARKS_BUDGET_MS;
    while (this.waiting.length > 0 && performance.now() < end) {
      const index = /** @type {number} */ (this.waiting.pop());
      if (!this.timeline.requests[index]) continue;
      this.marks.set(index, markPlaces(this.timeline, index));
      const slot = this.list.slots.find((other) => this.indices[other.index] === index);
      if (slot) this.renderRow(slot.row, index);
    }
    if (this.waiting.length > 0) setTimeout(() => this.findMarks());
  }

  /** @param {MouseEvent} event */
  handleClick(event) {
    if (event.target instanceof Element && event.target.closest("button")) return;
    const place = this.list.indexOf(event.target);
    if (place >= 0) this.app.goToRequest(this.indices[place]);
  }

  /** @param {KeyboardEvent} event */
  handleKey(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: this.list.pageRows, PageUp: -this.list.pageRows };
    const step = steps[/** @type {keyof typeof steps} */ (event.key)];
    if (step === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    event.stopPropagation();
    const place = Math.min(Math.max(this.list.active + step, 0), this.indices.length - 1);
    if (place >= 0) this.app.goToRequest(this.indices[place]);
  }
}

/**
 * Largest loss first, then the most tokens.
 * @param {RequestRow} a
 * @param {RequestRow} b
 * @returns {number}
 */
function compareLoss(a, b) {
  return (b.miss?.lost ?? 0) - (a.miss?.lost ?? 0) || (b.miss?.tokens ?? 0) - (a.miss?.tokens ?? 0) || a.number - b.number;
}

/**
 * @param {RequestRow} request
 * @param {number} scale
 * @returns {Array<{name: string, share: number, title: string}>}
 */
function cacheSegments(request, scale) {
  const reported = request.read + request.written + request.uncached;
  const amounts = { read: request.read, written: request.written, uncached: request.uncached, estimated: 0 };
  if (reported === 0) amounts.estimated = request.tokens;
  return CACHE_PARTS.map(([name, word, meaning]) => ({
    name,
    share: amounts[name] / scale,
    title: `${word} ${meaning}: ${formatNumber(amounts[name])} tokens`,
  }));
}

/**
 * Tokens of the request up to the end of each message with a cache mark.
 * @param {TimelineState} timeline
 * @param {number} index
 * @returns {number[]}
 */
function markPlaces(timeline, index) {
  const request = timeline.requests[index];
  const marked = new Set(request.breakpoints);
  /** @type {number[]} */
  const places = [];
  let units = request.tools;
  for (const change of timeline.at(request.at).items()) {
    units += change.units;
    if (marked.has(change.key)) places.push(units * request.ratio);
  }
  return places;
}

/**
 * @param {RequestRow} request
 * @returns {HTMLElement}
 */
function missLine(request) {
  const { miss } = request;
  if (!miss) return el("span", { class: "cache-miss is-none", "aria-hidden": "true" }, hitText(request));
  return el(
    "span",
    { class: "cache-miss", "aria-hidden": "true", title: miss.text },
    el("span", { class: "badge is-miss" }, MISS_CAUSES[miss.cause] ?? miss.cause),
    el("span", { class: "cache-lost" }, lostText(miss)),
    el("span", { class: "cache-why" }, miss.text),
  );
}

/**
 * @param {RequestRow} request
 * @returns {string}
 */
function hitText(request) {
  const reported = request.read + request.written + request.uncached;
  if (reported === 0) return "no usage reported";
  return `read ${formatPercent(request.read / reported)}`;
}

/**
 * Return what a miss cost, in tokens and dollars.
 * @param {CacheMiss} miss
 * @returns {string}
 */
export function lostText(miss) {
  const tokens = formatCount(miss.tokens, "token");
  return miss.lost === null ? tokens : `${tokens}, ${formatDollars(miss.lost)}`;
}

/**
 * @param {RequestRow} request
 * @returns {string}
 */
function spokenRequest(request) {
  const parts = [`Request ${request.number}: ${formatCount(request.tokens, "token")}`];
  if (request.used >= 0) {
    parts.push(`read ${formatNumber(request.read)}, written ${formatNumber(request.written)}`);
    parts.push(`uncached ${formatNumber(request.uncached)}`);
  }
  const { miss } = request;
  if (miss) parts.push(`missed: ${MISS_CAUSES[miss.cause] ?? miss.cause}, lost ${lostText(miss)}, ${miss.text}`);
  return parts.join("; ");
}
