/**
 * Panel "What if": the same log replayed under another policy, window or model, without a model call.
 *
 * Request numbers of the replay correspond to those of the recording, so both stand on the same scrubber.
 *
 * @module
 */

import { clear, el, svg } from "./dom.js";
import { CATEGORY_NAMES } from "./composition_tree.js";
import { LEVELS } from "./event_kinds.js";
import { formatCount, formatDollars, formatNumber, formatPercent, formatShort } from "./format.js";
import { actionButton, calmRender, problemBox, segmentBar, stateNote } from "./panel_parts.js";
import { TimelineState } from "./timeline_state.js";

/** @typedef {import("./types.js").App} App */
/** @typedef {import("./types.js").PageState} PageState */
/** @typedef {import("./types.js").Panel} Panel */
/** @typedef {import("./types.js").WhatIf} WhatIf */
/** @typedef {import("./timeline_state.js").ViewState} ViewState */

const SIZE_CHART_WIDTH = 480;
const SIZE_CHART_HEIGHT = 120;
/** Points of a line; more could not be told apart. */
const MAX_CHART_POINTS = 480;
const MIN_WINDOW_TOKENS = 1_000;

/**
 * Return the panel that replays the log under other settings.
 * @param {App} app
 * @returns {Panel}
 */
export function createWhatIfPanel(app) {
  const form = createWhatIfForm(app);
  const progress = el("div", { role: "status" });
  const result = el("div", { class: "what-if-result" });
  /** @type {WhatIf | null} */
  let answer = null;
  /** @type {AbortController | null} */
  let running = null;
  let shown = "";

  /** @type {(parameters: Record<string, string | number>) => Promise<void>} */
  async function replay(parameters) {
    running?.abort();
    const mine = new AbortController();
    running = mine;
    const bar = progressBar(() => mine.abort());
    clear(progress, bar.element);
    try {
      const received = await app.data.whatIf(parameters, bar.update, mine.signal);
      if (running !== mine) return;
      answer = received;
      clear(progress);
      app.announce("The replay is finished.");
      app.state.set({ whatIf: new TimelineState(received.timeline) });
    } catch (error) {
      if (running === mine) clear(progress, problemBox(error));
    } finally {
      if (running === mine) running = null;
    }
  }
  form.onStart = (parameters) => void replay(parameters);
  return {
    id: "what-if",
    title: "What if",
    element: el("div", { class: "panel-body" }, form.element, progress, result),
    render: calmRender((state) => {
      form.update();
      const name = `${state.whatIf?.id}:${answer?.label}:${state.whatIf?.version}:${state.point}:${state.lane}:${state.version}`;
      if (name === shown) return;
      shown = name;
      clear(result, state.whatIf ? resultParts(app, state, answer) : noReplayYet(app));
    }),
  };
}

/**
 * @param {App} app
 * @returns {HTMLElement | null}
 */
function noReplayYet(app) {
  return app.data.isOffline ? null : stateNote("No replay yet. It needs no model and changes nothing.");
}

// ── Form and progress ──────────────────────────────────────────────────────────────────────────────────

/**
 * @param {App} app
 * @returns {{element: HTMLElement, update: () => void, onStart: (parameters: Record<string, string | number>) => void}}
 */
function createWhatIfForm(app) {
  const policy = el(
    "select",
    { id: "what-if-policy" },
    app.data.policies.map(([name, meaning]) => el("option", { value: name }, `${name}: ${meaning}`)),
  );
  const window = el("input", { id: "what-if-window", type: "number", min: MIN_WINDOW_TOKENS, step: 1000 });
  const model = el("input", { id: "what-if-model", type: "text", maxlength: 200, spellcheck: "false" });
  const submit = el("button", { type: "submit", class: "button is-primary" }, "Replay");
  const note = el("p", { class: "action-note" });
  if (app.data.isOffline) return { element: stateNote(whyNoReplay(app)), update() {}, onStart: () => {} };
  const element = el(
    "form",
    { class: "what-if-form" },
    el("label", { for: "what-if-policy" }, "Policy"),
    policy,
    el("label", { for: "what-if-window" }, "Window (tokens)"),
    window,
    el("label", { for: "what-if-model" }, "Model"),
    model,
    submit,
    note,
  );
  const self = {
    element,
    /** @type {(parameters: Record<string, string | number>) => void} */
    onStart: () => {},
    update() {
      const { timeline } = app;
      window.placeholder = timeline.window > 0 ? `${formatNumber(timeline.window)} as recorded` : "as recorded";
      model.placeholder = timeline.model ? `${timeline.model} as recorded` : "as recorded";
      submit.disabled = timeline.requests.length === 0;
      clear(note, whyNoReplay(app));
    },
  };
  element.addEventListener("submit", (event) => {
    event.preventDefault();
    const tokens = window.valueAsNumber;
    self.onStart({ policy: policy.value, window: Number.isFinite(tokens) ? tokens : "", model: model.value.trim() });
  });
  const isPreset = app.data.policies.some(([name]) => name === app.timeline.policy);
  if (isPreset) policy.value = app.timeline.policy;
  return self;
}

/**
 * @param {App} app
 * @returns {string}
 */
function whyNoReplay(app) {
  if (app.data.isOffline) return "This is an exported file. A replay needs `foveal inspect`.";
  if (app.timeline.requests.length === 0) return "The log has no answered request, so there is nothing to replay.";
  return "";
}

/**
 * @param {() => void} stop
 * @returns {{element: HTMLElement, update: (progress: {done: number, total: number}) => void}}
 */
function progressBar(stop) {
  const bar = el("progress", { "aria-label": "Replay", max: 1 });
  const text = el("span", null, "Replaying …");
  return {
    element: el("div", { class: "progress-row" }, bar, text, actionButton("Stop", stop)),
    update({ done, total }) {
      bar.max = Math.max(1, total);
      bar.value = done;
      text.textContent = `${formatNumber(done)} of ${formatCount(total, "request")}`;
    },
  };
}

// ── Result ─────────────────────────────────────────────────────────────────────────────────────────────

/**
 * @param {App} app
 * @param {PageState} state
 * @param {WhatIf | null} answer
 * @returns {HTMLElement[]}
 */
function resultParts(app, state, answer) {
  const replay = /** @type {TimelineState} */ (state.whatIf);
  const index = app.timeline.requestAt(state.point);
  return [
    el("h3", null, answer?.label || "Replay"),
    laneSwitch(app, state),
    ...(answer?.notes ?? []).map((note) => el("p", { class: "action-note" }, note)),
    figuresTable(answer),
    el("p", { class: "action-note" }, "Simulated costs are computed for both with the same prompt cache, so that they differ only in what was sent. The reported cost is what the provider counted in the recorded session."),
    sizeChart(app, replay, index),
    ...sideBySide(app.timeline, replay, index),
    actionButton("Forget the replay", () => app.state.set({ whatIf: null, lane: "recorded" })),
  ];
}

/**
 * The switch between the recording and the replay in the main view.
 * @param {App} app
 * @param {PageState} state
 * @returns {HTMLElement}
 */
function laneSwitch(app, state) {
  /** @type {Array<["recorded" | "whatIf", string]>} */
  const lanes = [["recorded", "Recorded"], ["whatIf", "Replay"]];
  return el(
    "div",
    { class: "segmented", role: "group", "aria-label": "What the main view shows" },
    lanes.map(([lane, name]) =>
      el(
        "button",
        { type: "button", "aria-pressed": String(state.lane === lane), onclick: () => app.state.set({ lane }) },
        `Show the view: ${name.toLowerCase()}`,
      ),
    ),
  );
}

/**
 * @param {WhatIf | null} answer
 * @returns {HTMLElement}
 */
function figuresTable(answer) {
  const figures = answer?.figures ?? [];
  return el(
    "table",
    { class: "figures" },
    el("thead", null, el("tr", null, ["Figure", "Recorded", "Replayed"].map((name) => el("th", { scope: "col" }, name)))),
    el(
      "tbody",
      null,
      figures.map(({ name, unit, recorded, replayed }) =>
        el("tr", null, el("th", { scope: "row" }, name), el("td", null, figureText(recorded, unit)), el("td", null, figureText(replayed, unit))),
      ),
    ),
  );
}

/**
 * @param {number | null | undefined} value
 * @param {string | undefined} unit
 * @returns {string}
 */
function figureText(value, unit) {
  if (value === null || value === undefined) return "unknown";
  if (unit === "dollars") return formatDollars(value);
  return unit === "share" ? formatPercent(value) : formatNumber(value);
}

/**
 * Sizes of the requests of both as lines, with the current request.
 * @param {App} app
 * @param {TimelineState} replay
 * @param {number} index
 * @returns {HTMLElement}
 */
function sizeChart(app, replay, index) {
  const sizes = [app.timeline, replay].map((timeline) => timeline.requests.map((request) => request.tokens));
  const count = Math.max(sizes[0].length, sizes[1].length, 2);
  const most = sizes.flat().reduce((largest, size) => Math.max(largest, size), 1);
  const x = (/** @type {number} */ place) => ((place / (count - 1)) * SIZE_CHART_WIDTH).toFixed(1);
  const picture = svg(
    "svg",
    { viewBox: `0 -4 ${SIZE_CHART_WIDTH} ${SIZE_CHART_HEIGHT + 8}`, role: "img", "aria-label": chartText(sizes, most) },
    svg("line", { class: "axis", x1: 0, x2: SIZE_CHART_WIDTH, y1: SIZE_CHART_HEIGHT, y2: SIZE_CHART_HEIGHT }),
    index >= 0 ? svg("line", { class: "chart-current", x1: x(index), x2: x(index), y1: 0, y2: SIZE_CHART_HEIGHT }) : null,
    sizeLine(sizes[0], x, most, "recorded"),
    sizeLine(sizes[1], x, most, "replayed"),
  );
  return el(
    "figure",
    { class: "size-chart" },
    picture,
    el(
      "figcaption",
      null,
      el("span", { class: "line-key is-recorded", "aria-hidden": "true" }),
      "Recorded ",
      el("span", { class: "line-key is-replayed", "aria-hidden": "true" }),
      `Replayed; tokens of each request, up to ${formatShort(most)}`,
    ),
  );
}

/**
 * @param {number[]} sizes
 * @param {(place: number) => string} x
 * @param {number} most
 * @param {string} name
 * @returns {SVGElement}
 */
function sizeLine(sizes, x, most, name) {
  const step = Math.max(1, Math.ceil(sizes.length / MAX_CHART_POINTS));
  const points = [];
  for (let place = 0; place < sizes.length; place += step) {
    // The largest of a run stays visible when points are left out.
    const size = Math.max(...sizes.slice(place, place + step));
    points.push(`${x(place)},${(SIZE_CHART_HEIGHT * (1 - size / most)).toFixed(1)}`);
  }
  return svg("polyline", { class: `size-line is-${name}`, points: points.join(" ") });
}

/**
 * @param {number[][]} sizes
 * @param {number} most
 * @returns {string}
 */
function chartText(sizes, most) {
  const [recorded, replayed] = sizes.map((list) => formatNumber(list.reduce((largest, size) => Math.max(largest, size), 0)));
  return `Tokens of each request. The largest recorded one has ${recorded}, the largest replayed one ${replayed}; the scale ends at ${formatNumber(most)}.`;
}

/**
 * Both views at the same request: size, categories, levels.
 * @param {TimelineState} recorded
 * @param {TimelineState} replay
 * @param {number} index
 * @returns {HTMLElement[]}
 */
function sideBySide(recorded, replay, index) {
  const [a, b] = [recorded.requests[index], replay.requests[index]];
  if (!a || !b) return [stateNote("Go to a request to compare both views at it.")];
  const views = [recorded.at(a.at), replay.at(b.at)];
  const scale = Math.max(a.tokens, b.tokens, 1);
  return [
    el("h3", null, `Request ${formatNumber(a.number)} in both`),
    el("table", { class: "figures side-by-side" },
      el("thead", null, el("tr", null, ["", "Recorded", "Replayed"].map((name) => el("th", { scope: "col" }, name)))),
      el(
        "tbody",
        null,
        el("tr", null, el("th", { scope: "row" }, "Tokens"), el("td", null, formatNumber(a.tokens)), el("td", null, formatNumber(b.tokens))),
        el("tr", null, el("th", { scope: "row" }, "Parts"), [a, b].map((request, place) => el("td", null, partsBar(views[place], request.ratio / scale)))),
        countRows("Messages ", levelCounts(views), (level) => LEVELS[level]?.name.toLowerCase() ?? level),
        countRows("", categoryTokens(views, [a.ratio, b.ratio]), (category) => CATEGORY_NAMES[category] ?? category),
      ),
    ),
  ];
}

/**
 * @param {ViewState} view
 * @param {number} share of the bar for each unit
 * @returns {HTMLElement}
 */
function partsBar(view, share) {
  return segmentBar(
    Object.entries(view.totals.byCategory).map(([name, units]) => ({ name, share: units * share, title: CATEGORY_NAMES[name] ?? name })),
  );
}

/**
 * @param {ViewState[]} views
 * @returns {Array<[string, number, number]>}
 */
function levelCounts([a, b]) {
  return Object.keys(LEVELS)
    .map((level) => /** @type {[string, number, number]} */ ([level, a.totals.byLevel[level] ?? 0, b.totals.byLevel[level] ?? 0]))
    .filter(([, first, second]) => first > 0 || second > 0);
}

/**
 * @param {ViewState[]} views
 * @param {number[]} ratios
 * @returns {Array<[string, number, number]>}
 */
function categoryTokens([a, b], ratios) {
  return Object.keys(CATEGORY_NAMES)
    .map((name) => {
      const units = [a.totals.byCategory[name] ?? 0, b.totals.byCategory[name] ?? 0];
      return /** @type {[string, number, number]} */ ([name, Math.round(units[0] * ratios[0]), Math.round(units[1] * ratios[1])]);
    })
    .filter(([, first, second]) => first > 0 || second > 0);
}

/**
 * @param {string} prefix
 * @param {Array<[string, number, number]>} rows
 * @param {(name: string) => string} nameOf
 * @returns {HTMLElement[]}
 */
function countRows(prefix, rows, nameOf) {
  return rows.map(([name, first, second]) =>
    el(
      "tr",
      null,
      el("th", { scope: "row" }, `${prefix}${nameOf(name)}`),
      el("td", null, formatNumber(first)),
      el("td", null, formatNumber(second)),
    ),
  );
}
