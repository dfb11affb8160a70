/**
 * Chart of window use over the events: what each request read, wrote and sent anew, and where reductions were made.
 *
 * The slider below it and the requests panel say the same in words.
 *
 * @module
 */

import { el } from "./dom.js";

/** @typedef {import("./timeline_state.js").TimelineState} TimelineState */
/** @typedef {import("./types.js").RequestRow} RequestRow */

/** Half of the width of the slider's thumb, so that chart and slider have the same scale. */
export const CHART_INSET_PX = 8;
const TICK_HEIGHT_PX = 6;

/**
 * One column of pixels: the largest request that falls into it.
 * @typedef {{index: number, request: RequestRow}} ChartColumn
 */

/**
 * The canvas and what is drawn on it.
 */
export class UsageChart {
  constructor() {
    this.canvas = el("canvas", { class: "usage-canvas" });
    this.element = this.canvas;
    this.width = 0;
    this.height = 0;
  }

  /**
   * Draw a session, and the outline of a replay if there is one.
   * @param {TimelineState} timeline
   * @param {TimelineState | null} replay
   * @returns {void}
   */
  draw(timeline, replay) {
    const context = this.prepare();
    if (!context) return;
    const colours = chartColours(this.canvas);
    const top = chartTop(timeline, replay);
    this.drawBars(context, timeline, top, colours);
    this.drawLimit(context, timeline, top, colours);
    if (replay) this.drawReplay(context, timeline, replay, top, colours);
    this.drawTicks(context, timeline, colours);
  }

  /**
   * Return where an event is, in pixels from the left edge.
   * @param {TimelineState} timeline
   * @param {number} seq
   * @returns {number}
   */
  x(timeline, seq) {
    const span = Math.max(1, timeline.last - timeline.first);
    return CHART_INSET_PX + ((seq - timeline.first) / span) * (this.width - 2 * CHART_INSET_PX);
  }

  /**
   * Return the event at a place.
   * @param {TimelineState} timeline
   * @param {number} x pixels from the left edge
   * @returns {number}
   */
  seqAt(timeline, x) {
    const share = (x - CHART_INSET_PX) / Math.max(1, this.width - 2 * CHART_INSET_PX);
    const seq = timeline.first + Math.round(share * (timeline.last - timeline.first));
    return Math.min(timeline.last, Math.max(timeline.first, seq));
  }

  /** @returns {CanvasRenderingContext2D | null} */
  prepare() {
    const context = this.canvas.getContext("2d");
    this.width = this.canvas.clientWidth;
    this.height = this.canvas.clientHeight;
    if (!context || !this.width || !this.height) return null;
    const scale = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(this.width * scale);
    this.canvas.height = Math.round(this.height * scale);
    context.scale(scale, scale);
    return context;
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {TimelineState} timeline
   * @param {number} top tokens at the upper edge
   * @param {Record<string, string>} colours
   * @returns {void}
   */
  drawBars(context, timeline, top, colours) {
    const columns = this.columns(timeline);
    columns.forEach(({ x, request }, index) => {
      const next = index + 1 < columns.length ? columns[index + 1].x : this.width - CHART_INSET_PX;
      const width = Math.max(1, next - x - (next - x > 4 ? 1 : 0));
      let y = this.height;
      for (const [name, tokens] of requestParts(request)) {
        const height = (tokens / top) * (this.height - TICK_HEIGHT_PX - 2);
        context.fillStyle = colours[name];
        context.fillRect(x, y - height, width, height);
        y -= height;
      }
    });
  }

  /**
   * Return one request for each pixel that has some: the largest, since a peak must not vanish.
   * @param {TimelineState} timeline
   * @returns {{x: number, request: RequestRow}[]}
   */
  columns(timeline) {
    /** @type {{x: number, request: RequestRow}[]} */
    const columns = [];
    for (const request of timeline.requests) {
      const x = Math.round(this.x(timeline, request.at));
      const last = columns[columns.length - 1];
      if (!last || last.x !== x) columns.push({ x, request });
      else if (request.tokens > last.request.tokens) last.request = request;
    }
    return columns;
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {TimelineState} timeline
   * @param {number} top
   * @param {Record<string, string>} colours
   * @returns {void}
   */
  drawLimit(context, timeline, top, colours) {
    if (!timeline.limit) return;
    const y = this.y(timeline.limit, top);
    context.strokeStyle = colours.limit;
    context.setLineDash([4, 3]);
    context.beginPath();
    context.moveTo(0, y);
    context.lineTo(this.width, y);
    context.stroke();
    context.setLineDash([]);
  }

  /**
   * Draw the requests of the replay at the places of the recorded ones with the same number.
   * @param {CanvasRenderingContext2D} context
   * @param {TimelineState} timeline
   * @param {TimelineState} replay
   * @param {number} top
   * @param {Record<string, string>} colours
   * @returns {void}
   */
  drawReplay(context, timeline, replay, top, colours) {
    context.strokeStyle = colours.replay;
    context.lineWidth = 1.5;
    context.beginPath();
    replay.requests.slice(0, timeline.requests.length).forEach((request, index) => {
      const x = this.x(timeline, timeline.requests[index].at);
      const y = this.y(request.tokens, top);
      if (index) context.lineTo(x, y);
      else context.moveTo(x, y);
    });
    context.stroke();
    context.lineWidth = 1;
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {TimelineState} timeline
   * @param {Record<string, string>} colours
   * @returns {void}
   */
  drawTicks(context, timeline, colours) {
    for (const card of timeline.reductions) {
      context.fillStyle = card.undone >= 0 ? colours.undone : colours.reduction;
      context.fillRect(Math.round(this.x(timeline, card.seq)) - 1, 0, 2, TICK_HEIGHT_PX);
    }
  }

  /**
   * @param {number} tokens
   * @param {number} top
   * @returns {number}
   */
  y(tokens, top) {
    return this.height - (tokens / top) * (this.height - TICK_HEIGHT_PX - 2);
  }
}

/**
 * Return the parts of a request from the bottom up: name of the colour and tokens.
 * @param {RequestRow} request
 * @returns {[string, number][]}
 */
function requestParts(request) {
  const known = request.read + request.written + request.uncached;
  if (!known) return [["estimated", request.tokens]];
  return [["read", request.read], ["written", request.written], ["uncached", request.uncached]];
}

/**
 * Return the tokens at the upper edge: the window, unless no request comes near it.
 * @param {TimelineState} timeline
 * @param {TimelineState | null} replay
 * @returns {number}
 */
function chartTop(timeline, replay) {
  let largest = 1;
  for (const request of timeline.requests) largest = Math.max(largest, request.tokens);
  for (const request of replay?.requests ?? []) largest = Math.max(largest, request.tokens);
  const window = timeline.window || largest;
  return largest < window / 8 ? largest * 1.25 : Math.max(window, largest);
}

/**
 * @param {Element} element
 * @returns {Record<string, string>}
 */
function chartColours(element) {
  const style = getComputedStyle(element);
  const names = ["read", "written", "uncached", "estimated", "limit", "reduction", "undone", "replay"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--chart-${name}`).trim() || "#888"]));
}
