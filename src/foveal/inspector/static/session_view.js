/**
 * The page of one session: loads the timeline, builds the parts, and connects them by the state.
 *
 * @module
 */

import { AppState, initialState } from "./app_state.js";
import { problemText } from "./data_source.js";
import { clear, el, on } from "./dom.js";
import { createExportButton } from "./export_button.js";
import { FilterBar } from "./filters.js";
import { formatNumber, oneLine, savedText, sessionCost } from "./format.js";
import { createHelp } from "./help.js";
import { connectKeys } from "./keyboard.js";
import { appendLive, createLiveControl } from "./live.js";
import { LogView } from "./log_view.js";
import { PanelTabs } from "./panels.js";
import { connectAddress } from "./router.js";
import { Scrubber } from "./scrubber.js";
import { createSessionLanes } from "./session_lanes.js";
import { createThemeButton } from "./theme.js";
import { TimelineState } from "./timeline_state.js";

/** @typedef {import("./types.js").App} App */
/** @typedef {import("./types.js").Timeline} Timeline */
/** @typedef {import("./data_source.js").DataSource} DataSource */

/** Where the panels stand below the log; the style sheets have the same width. */
const NARROW = "(max-width: 1000px)";

/**
 * The parts of the page that the server has rendered.
 * @typedef {object} PageParts
 * @property {HTMLElement} head
 * @property {HTMLElement} scrubber
 * @property {HTMLElement} log
 * @property {HTMLElement} panels
 * @property {HTMLElement} status
 */

/**
 * Load a session and show it; an error replaces nothing but is said with a way to repeat.
 * @param {DataSource} data
 * @param {import("./types.js").Announce} announce
 * @returns {Promise<App | null>}
 */
export async function openSession(data, announce) {
  const parts = pageParts();
  announce("Loading the session…");
  const notice = el("div", { class: "load-notice" }, el("p", { class: "loading" }, "Loading the session…"));
  parts.scrubber.append(notice);
  try {
    // An address that names a point needs the view of that point, which an outline does not have.
    const app = createApp(data, await (location.hash ? data.timeline(0) : data.outline()), announce);
    notice.remove();
    const complete = showSession(app, parts);
    announce("");
    await retryUntilDone(complete, notice, parts.scrubber, announce);
    return app;
  } catch (error) {
    showLoadProblem(notice, error, () => {
      notice.remove();
      void openSession(data, announce);
    });
    announce(problemText(error));
    return null;
  }
}

/**
 * Do what can fail; a failure is said with a way to repeat.
 * @param {() => Promise<void>} work
 * @param {HTMLElement} notice
 * @param {HTMLElement} place where the notice stands
 * @param {import("./types.js").Announce} announce
 * @returns {Promise<void>}
 */
async function retryUntilDone(work, notice, place, announce) {
  try {
    await work();
  } catch (error) {
    place.append(notice);
    announce(problemText(error));
    showLoadProblem(notice, error, () => {
      notice.remove();
      void retryUntilDone(work, notice, place, announce);
    });
  }
}

/**
 * Return the object that connects the parts of the page.
 * @param {DataSource} data
 * @param {Timeline} loaded
 * @param {import("./types.js").Announce} announce
 * @returns {App}
 */
export function createApp(data, loaded, announce) {
  const timeline = new TimelineState(loaded);
  const state = new AppState({ ...initialState(), point: timeline.last });
  /** @type {App} */
  const app = {
    data,
    timeline,
    state,
    announce,
    shown: () => (state.current.lane === "whatIf" && state.current.whatIf ? state.current.whatIf : timeline),
    select: (key) => state.set({ selected: key }),
    openText: (key) => state.set({ selected: key, panel: "message" }),
    goTo(seq) {
      if (timeline.isOutline) announce("The history of this session is still loading.");
      else state.set({ point: clampSeq(timeline, seq), request: -1, follow: seq >= timeline.last });
    },
    goToRequest(index) {
      const request = timeline.requests[index];
      if (request) state.set({ point: request.at, request: index, follow: false });
    },
    append(part) {
      timeline.append(part);
      state.set({ version: timeline.version });
    },
    async refresh() {
      const { follow } = state.current;
      app.append(await data.timeline(timeline.last + 1));
      if (follow) state.set({ point: timeline.last, request: -1, follow: true });
    },
  };
  return app;
}

/**
 * @param {App} app
 * @param {PageParts} parts
 * @returns {() => Promise<void>} loads what an outline does not have, and follows the session from then on
 */
function showSession(app, parts) {
  connectAddress(app);
  const scrubber = new Scrubber(app);
  const log = new LogView(app);
  const filters = new FilterBar(app);
  const tabs = new PanelTabs(app);
  const lanes = createSessionLanes(app);
  const live = createLiveControl(app);
  const help = createHelp();
  const theme = createThemeButton(() => redrawAll());
  const redrawAll = () => {
    scrubber.redraw();
    log.redraw();
  };
  clear(parts.scrubber, scrubber.element, lanes.element);
  clear(parts.log, problemNotes(app), filters.element, log.element);
  clear(parts.panels, tabs.element);
  addHeadTools(parts.head, [live.element, createExportButton(app), help.button, theme.element]);
  document.body.append(help.element);
  const render = renderer({ scrubber, log, filters, tabs });
  // The first rendering must show the point and the selection of the address as one step.
  app.state.publish();
  app.state.subscribe(render);
  render(app.state.current, null);
  connectSessionKeys(app, { scrubber, log, filters, tabs, help, theme });
  on(matchMedia("(prefers-color-scheme: dark)"), "change", redrawAll);
  void lanes.load();
  return async () => {
    if (app.timeline.isOutline) appendLive(app, await app.data.timeline(0), () => {});
    addHeadFacts(app, parts.head);
    live.start();
  };
}

/**
 * Return the subscriber that renders all parts.
 * @param {{scrubber: Scrubber, log: LogView, filters: FilterBar, tabs: PanelTabs}} views
 * @returns {(state: import("./types.js").PageState, before: import("./types.js").PageState | null) => void}
 */
function renderer(views) {
  return (state, before) => {
    document.body.dataset.lane = state.lane;
    document.body.dataset.panel = state.panel;
    views.scrubber.render(state, before);
    views.log.render(state, before);
    views.filters.render(state, views.log.levels);
    views.tabs.render(state);
    // On a narrow screen the log moves above the panels again, and what a line leads to would be far below.
    const isLeft = before?.panel === "happened" && state.panel !== "happened";
    if (isLeft && matchMedia(NARROW).matches) views.tabs.element.scrollIntoView({ block: "start" });
  };
}

/**
 * @param {App} app
 * @param {{scrubber: Scrubber, log: LogView, filters: FilterBar, tabs: PanelTabs, help: {open: () => void}, theme: {next: () => void}}} views
 * @returns {void}
 */
function connectSessionKeys(app, { scrubber, log, filters, tabs, help, theme }) {
  connectKeys({
    step: (steps, unit) => scrubber.step(steps, unit),
    first: () => scrubber.goToFirst(),
    last: () => scrubber.goToLast(),
    play: () => scrubber.togglePlay(),
    moveRows: (rows) => log.moveSelection(rows),
    openRow: () => log.openSelected(),
    foldBranch: () => log.toggleBranch(),
    search: () => tabs.openAndFocus("search"),
    filter: () => filters.input.focus(),
    panel: (index) => tabs.open(index),
    theme: () => theme.next(),
    help: () => help.open(),
    escape: () => leave(app, log),
  });
}

/**
 * Leave a text field, or clear the selection.
 * @param {App} app
 * @param {LogView} log
 * @returns {void}
 */
function leave(app, log) {
  const focused = document.activeElement;
  if (focused instanceof HTMLElement && focused.matches("input, textarea")) log.list.element.focus();
  else if (app.state.current.lane === "whatIf") app.state.set({ lane: "recorded" });
  else app.state.set({ selected: "" });
}

/**
 * Add the tools to the head, in place of the links that need no script.
 * @param {HTMLElement} head
 * @param {HTMLElement[]} tools
 * @returns {void}
 */
function addHeadTools(head, tools) {
  // The menu replaces the plain link to the exported file.
  for (const link of head.querySelectorAll('nav a[href^="api/export"]')) link.remove();
  head.append(el("div", { class: "head-tools" }, tools));
}

/**
 * Add what the timeline knows of the model and the costs to the head.
 * @param {App} app
 * @param {HTMLElement} head
 * @returns {void}
 */
function addHeadFacts({ timeline }, head) {
  const facts = [
    timeline.window ? `window ${formatNumber(timeline.window)}` : "",
    sessionCost(timeline),
    savedText(timeline.saved),
  ];
  const about = head.querySelector(".about");
  const known = facts.filter(Boolean).join(" · ");
  if (about && known) about.append(about.textContent ? ` · ${known}` : known);
}

/**
 * @param {App} app
 * @returns {HTMLElement[]}
 */
function problemNotes(app) {
  return app.timeline.problems.map((problem) => el("p", { class: "muted" }, oneLine(problem)));
}

/**
 * @param {HTMLElement} notice
 * @param {unknown} error
 * @param {() => void} retry
 * @returns {void}
 */
function showLoadProblem(notice, error, retry) {
  console.error(error);
  clear(
    notice,
    el("p", { class: "problem", role: "alert" }, problemText(error)),
    el("button", { type: "button", class: "button", onclick: retry }, "Try again"),
  );
}

/** @returns {PageParts} */
function pageParts() {
  return {
    head: pagePart("head", "header"),
    scrubber: pagePart("scrubber", "section"),
    log: pagePart("log-view", "section"),
    panels: pagePart("panels", "aside"),
    status: pagePart("status", "div"),
  };
}

/**
 * Return a part of the page by its id; one that is missing is added.
 * @param {string} id
 * @param {"header" | "section" | "aside" | "div"} tag
 * @returns {HTMLElement}
 */
function pagePart(id, tag) {
  const found = document.getElementById(id);
  if (found) return found;
  const part = el(tag, { id });
  document.body.append(part);
  return part;
}

/**
 * @param {TimelineState} timeline
 * @param {number} seq
 * @returns {number}
 */
function clampSeq(timeline, seq) {
  return Math.max(Math.min(timeline.first, timeline.last), Math.min(timeline.last, seq));
}
