/**
 * Scrubber over events and requests: chart, slider, step buttons and play.
 *
 * @module
 */

import { clear, debounce, el, on, setText, svg } from "./dom.js";
import { kindName } from "./event_kinds.js";
import { formatCount, formatDollars, formatNumber, formatPercent } from "./format.js";
import { CHART_INSET_PX, UsageChart } from "./usage_chart.js";

/** @typedef {import("./types.js").App} App */
/** @typedef {import("./types.js").PageState} PageState */
/** @typedef {import("./types.js").RequestRow} RequestRow */
/** @typedef {"event" | "request"} StepUnit */

/** Steps a second. */
const PLAY_SPEEDS = [2, 5, 15, 60];
const DEFAULT_SPEED = 5;
/** Steps a second for people who want less motion. */
const MAX_REDUCED_SPEED = 2;
const RESIZE_MS = 60;
/** @type {Record<string, string>} */
const STEP_ICONS = {
  first: "M3 3h2v10H3zM13 3v10L6 8z",
  previous: "M11 3v10L4 8z",
  play: "M4 2.5v11L13 8z",
  pause: "M4 3h3v10H4zM9 3h3v10H9z",
  next: "M5 3v10l7-5z",
  last: "M11 3h2v10h-2zM3 3v10l7-5z",
};

/**
 * The scrubber's elements and behaviour.
 */
export class Scrubber {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    /** @type {StepUnit} */
    this.unit = "event";
    this.speed = DEFAULT_SPEED;
    this.timer = 0;
    this.chart = new UsageChart();
    this.slider = el("input", { type: "range", class: "event-slider", "aria-label": "Event", step: 1 });
    this.needle = el("div", { class: "chart-needle", "aria-hidden": "true" });
    this.tip = el("div", { class: "chart-tip", "aria-hidden": "true", hidden: true });
    this.where = el("output", { class: "scrubber-where" });
    this.play = el("button", { type: "button", class: "icon-button play", title: "Play (space)" });
    this.empty = el("p", { class: "chart-empty" }, "No request was answered yet. Each one gets a bar here.");
    this.stage = el("div", { class: "chart-stage" }, this.chart.element, this.empty, this.needle, this.tip);
    this.element = this.build();
    this.listen();
  }

  /**
   * Render the state; the chart is drawn only if its data has changed.
   * @param {PageState} state
   * @param {PageState | null} before
   * @returns {void}
   */
  render(state, before) {
    const { timeline } = this.app;
    if (!before || before.version !== state.version || before.whatIf !== state.whatIf) {
      this.slider.min = String(timeline.first);
      this.slider.max = String(Math.max(timeline.first, timeline.last));
      this.chart.draw(timeline, state.whatIf);
      this.empty.hidden = timeline.isOutline || timeline.requests.length > 0;
      this.slider.disabled = timeline.isOutline;
      this.element.classList.toggle("has-replay", state.whatIf !== null);
    }
    this.slider.value = String(state.point);
    this.slider.setAttribute("aria-valuetext", this.describe(state));
    this.moveNeedle(state.point);
    setText(this.where, this.describe(state));
    if (state.follow && this.timer && !before?.follow) this.stop();
  }

  /**
   * Draw the chart anew, such as after a change of the theme.
   * @returns {void}
   */
  redraw() {
    this.chart.draw(this.app.timeline, this.app.state.current.whatIf);
    this.moveNeedle(this.app.state.current.point);
  }

  /**
   * Go forwards or backwards by a number of events or requests.
   * @param {number} steps
   * @param {StepUnit} [unit]
   * @returns {void}
   */
  step(steps, unit = this.unit) {
    const { timeline } = this.app;
    const { point } = this.app.state.current;
    if (unit === "event") {
      this.app.goTo(Math.max(timeline.first, Math.min(timeline.last, point + steps)));
      return;
    }
    const current = timeline.requestAt(point);
    // Backwards from an event after a request, the request itself comes first.
    const isBetween = current >= 0 && timeline.requests[current].at < point;
    const index = current + steps + (steps < 0 && isBetween ? 1 : 0);
    if (index >= timeline.requests.length) this.app.goTo(timeline.last);
    else this.app.goToRequest(Math.max(0, index));
  }

  /** @returns {void} */
  goToFirst() {
    this.app.goTo(this.app.timeline.first);
  }

  /** @returns {void} */
  goToLast() {
    this.app.goTo(this.app.timeline.last);
  }

  /** @returns {void} */
  togglePlay() {
    if (this.timer) this.stop();
    else this.start();
  }

  /** @returns {void} */
  start() {
    const { timeline, state } = this.app;
    if (timeline.last <= timeline.first) return;
    if (state.current.point >= timeline.last) this.goToFirst();
    const isCalm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const speed = isCalm ? Math.min(MAX_REDUCED_SPEED, this.speed) : this.speed;
    this.timer = window.setInterval(() => this.playStep(), 1000 / speed);
    this.showPlaying();
  }

  /** @returns {void} */
  stop() {
    clearInterval(this.timer);
    this.timer = 0;
    this.showPlaying();
  }

  /** @returns {void} */
  playStep() {
    if (this.app.state.current.point >= this.app.timeline.last) this.stop();
    else this.step(1);
  }

  /** @returns {void} */
  showPlaying() {
    const isPlaying = this.timer !== 0;
    clear(this.play, stepIcon(isPlaying ? "pause" : "play"));
    this.play.setAttribute("aria-label", isPlaying ? "Pause" : "Play");
    this.play.setAttribute("aria-pressed", String(isPlaying));
  }

  /** @returns {HTMLElement} */
  build() {
    this.showPlaying();
    const buttons = [
      stepButton("first", "First event (Home)", () => this.goToFirst()),
      stepButton("previous", "Previous step (←, with shift by request)", () => this.step(-1)),
      this.play,
      stepButton("next", "Next step (→, with shift by request)", () => this.step(1)),
      stepButton("last", "Newest event (End)", () => this.goToLast()),
    ];
    const controls = el(
      "div",
      { class: "scrubber-controls" },
      el("div", { class: "step-buttons", role: "group", "aria-label": "Steps" }, buttons),
      this.unitSelect(),
      this.speedSelect(),
      this.where,
      chartLegend(),
    );
    return el("div", { class: "scrubber" }, this.stage, this.slider, controls);
  }

  /** @returns {HTMLElement} */
  unitSelect() {
    const select = el("select", { "aria-label": "Step by" }, el("option", { value: "event" }, "by event"), el("option", { value: "request" }, "by request"));
    on(select, "change", () => {
      this.unit = select.value === "request" ? "request" : "event";
    });
    return select;
  }

  /** @returns {HTMLElement} */
  speedSelect() {
    const options = PLAY_SPEEDS.map((speed) =>
      el("option", { value: speed, selected: speed === DEFAULT_SPEED }, `${speed} a second`),
    );
    const select = el("select", { "aria-label": "Speed of play" }, options);
    on(select, "change", () => {
      this.speed = Number(select.value);
      if (this.timer) {
        this.stop();
        this.start();
      }
    });
    return select;
  }

  /** @returns {void} */
  listen() {
    on(this.slider, "input", () => this.app.goTo(Number(this.slider.value)));
    on(this.play, "click", () => this.togglePlay());
    on(this.stage, "pointerdown", (event) => this.handlePointer(event));
    on(this.stage, "pointermove", (event) => this.handlePointer(event));
    on(this.stage, "pointerleave", () => {
      this.tip.hidden = true;
    });
    new ResizeObserver(debounce(() => this.redraw(), RESIZE_MS)).observe(this.stage);
    on(matchMedia("(prefers-color-scheme: dark)"), "change", () => this.redraw());
  }

  /**
   * @param {PointerEvent} event
   * @returns {void}
   */
  handlePointer(event) {
    const box = this.stage.getBoundingClientRect();
    const seq = this.chart.seqAt(this.app.timeline, event.clientX - box.left);
    if (event.buttons === 1) {
      if (event.type === "pointerdown") this.stage.setPointerCapture(event.pointerId);
      this.app.goTo(seq);
    }
    this.showTip(seq, event.clientX - box.left, box.width);
  }

  /**
   * @param {number} seq
   * @param {number} x
   * @param {number} width
   * @returns {void}
   */
  showTip(seq, x, width) {
    const request = this.app.timeline.requests[this.app.timeline.requestAt(seq)];
    const row = this.app.timeline.row(seq);
    setText(this.tip, `e${seq} ${row ? kindName(row.kind) : ""}${request ? ` · ${requestText(request)}` : ""}`);
    this.tip.hidden = false;
    const room = Math.max(0, width - this.tip.offsetWidth);
    this.tip.style.setProperty("transform", `translateX(${Math.max(0, Math.min(room, x - this.tip.offsetWidth / 2))}px)`);
  }

  /**
   * @param {number} seq
   * @returns {void}
   */
  moveNeedle(seq) {
    const x = this.chart.width ? this.chart.x(this.app.timeline, seq) : CHART_INSET_PX;
    this.needle.style.setProperty("transform", `translateX(${x}px)`);
  }

  /**
   * Say where the point is: "event 412 of 1,500, request 37, 61.2 % of the window".
   * @param {PageState} state
   * @returns {string}
   */
  describe(state) {
    const { timeline } = this.app;
    if (timeline.last < 0) return "no events yet";
    if (timeline.isOutline) return `event ${formatNumber(state.point)}, the newest; loading the others`;
    const request = timeline.requests[timeline.requestAt(state.point)];
    const event = `event ${formatNumber(state.point)} of ${formatNumber(timeline.last)}`;
    if (!request) return `${event}, before the first request`;
    const window = request.window || timeline.window;
    const share = window ? `${formatPercent(request.tokens / window)} of the window` : formatCount(request.tokens, "token");
    return `${event}, request ${formatNumber(request.number)}, ${share}`;
  }
}

/**
 * @param {RequestRow} request
 * @returns {string}
 */
function requestText(request) {
  const cached = request.read && request.tokens ? ` · ${formatPercent(request.read / request.tokens)} from the cache` : "";
  const cost = request.cost === null ? "" : ` · ${formatDollars(request.cost)}`;
  return `request ${formatNumber(request.number)} · ${formatCount(request.tokens, "token")}${cached}${cost}`;
}

/**
 * @param {string} icon
 * @param {string} title
 * @param {() => void} onclick
 * @returns {HTMLButtonElement}
 */
function stepButton(icon, title, onclick) {
  const name = title.replace(/ \(.*/, "");
  return el("button", { type: "button", class: "icon-button", title, "aria-label": name, onclick }, stepIcon(icon));
}

/**
 * @param {string} name a key of `STEP_ICONS`
 * @returns {SVGElement}
 */
function stepIcon(name) {
  return svg("svg", { viewBox: "0 0 16 16", class: "step-icon", "aria-hidden": "true" }, svg("path", { d: STEP_ICONS[name] }));
}

/** @returns {HTMLElement} */
function chartLegend() {
  const names = [
    ["read", "from the cache"],
    ["written", "written to the cache"],
    ["uncached", "uncached"],
    ["reduction", "reduction"],
    ["replay", "replay"],
  ];
  const items = names.map(([name, label]) =>
    el("span", { class: `legend-item legend-${name}` }, el("i", { class: `swatch swatch-${name}`, "aria-hidden": "true" }), label),
  );
  return el("div", { class: "chart-legend" }, items);
}
