/**
 * The log beside the view: every event, and what the model sees of it at the current point.
 *
 * @module
 */

import { clear, el, on, setText } from "./dom.js";
import { kindName } from "./event_kinds.js";
import { formatCount } from "./format.js";
import { LevelMap } from "./level_map.js";
import { LogEntries } from "./log_entries.js";
import { createLogRow, renderLogRow } from "./log_row.js";
import { VirtualList } from "./virtual_list.js";

/** @typedef {import("./types.js").App} App */
/** @typedef {import("./types.js").PageState} PageState */
/** @typedef {import("./timeline_state.js").TimelineState} TimelineState */

/** Height of a row in CSS pixels; `--row-height` of the style sheet is the same. */
const LOG_ROW_HEIGHT = 46;

/**
 * The element of the log view and its behaviour.
 */
export class LogView {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    /** @type {LogEntries | null} */
    this.entries = null;
    this.point = -1;
    /** Whether the row of the point was the last one that was brought into view. */
    this.isPointShown = false;
    /** The selected row that is shown as soon as its branch is unfolded. */
    this.awaited = "";
    this.list = new VirtualList({
      label: "Events of the log, and how the request shows them",
      id: "log-row",
      rowHeight: LOG_ROW_HEIGHT,
      createRow: createLogRow,
      renderRow: (row, index) => this.renderRow(row, index),
      onScroll: () => this.showFrame(),
    });
    this.map = new LevelMap((share) => this.scrollToShare(share));
    this.saidHead = el("span", { class: "column-head" });
    this.seenHead = el("span", { class: "column-head" });
    this.effect = el("button", { type: "button", class: "effect" });
    this.empty = el("p", { class: "empty-state", hidden: true });
    this.switch = columnSwitch(app);
    this.element = this.build();
    this.listen();
  }

  /**
   * Render the state; `before` is the state that was rendered last.
   * @param {PageState} state
   * @param {PageState | null} before
   * @returns {void}
   */
  render(state, before) {
    const timeline = this.app.shown();
    if (!before) this.measure();
    const isNewLane = !before || before.lane !== state.lane || before.whatIf !== state.whatIf;
    const isNewPoint = isNewLane || before.point !== state.point;
    const isNewList = isNewPoint || before.version !== state.version || before.filters !== state.filters || before.unfolded !== state.unfolded;
    if (isNewList) this.rebuild(state, timeline, isNewPoint);
    if (!before || before.columns !== state.columns) {
      this.element.dataset.columns = state.columns;
      this.switch.render(state.columns);
    }
    if (!before || before.selected !== state.selected || isNewList) this.followSelection(state, before);
  }

  /**
   * Move the selection by a number of rows.
   * @param {number} rows
   * @returns {void}
   */
  moveSelection(rows) {
    if (!this.entries?.count) return;
    // Without a selection, the row of the current point comes first.
    const wanted = this.list.active >= 0 ? this.list.active + rows : this.entries.lastUpTo(this.point);
    const index = Math.max(0, Math.min(this.entries.count - 1, wanted));
    this.list.reveal(index);
    this.list.setActive(index);
    // The keys that follow are meant for the row, and screen readers announce the row of a focused list only.
    this.list.element.focus({ preventScroll: true });
    this.app.select(this.entries.entry(index).key);
  }

  /**
   * Open the text of the selected row.
   * @returns {void}
   */
  openSelected() {
    if (this.list.active >= 0 && this.entries) this.openEntry(this.list.active);
  }

  /**
   * Fold or unfold a branch.
   * @param {number} [branch] the event that began it; that of the selected row by default
   * @returns {void}
   */
  toggleBranch(branch = this.selectedBranch()) {
    if (branch < 0) return this.app.announce("The selected row is in no branch that has ended.");
    const { unfolded, selected } = this.app.state.current;
    const isFolded = !unfolded.includes(branch);
    this.app.state.set({ unfolded: isFolded ? [...unfolded, branch] : unfolded.filter((other) => other !== branch) });
    // The selection does not disappear into the fold.
    if (!isFolded && this.entries?.isInside(selected, branch)) this.app.select(`e${branch}`);
  }

  /** @returns {number} */
  selectedBranch() {
    const { selected } = this.app.state.current;
    return this.entries?.branchOf(selected || `e${this.point}`) ?? -1;
  }

  /** The messages by level at the current point, for the filters. */
  get levels() {
    return this.entries?.levels ?? {};
  }

  /** @returns {HTMLElement} */
  build() {
    const heads = el("div", { class: "column-heads" }, this.saidHead, this.seenHead);
    const body = el("div", { class: "log-body" }, this.list.element, this.map.element, this.empty);
    return el("div", { class: "log-view" }, this.switch.element, heads, this.effect, body);
  }

  /** @returns {void} */
  listen() {
    on(this.list.element, "click", (event) => this.handleClick(event));
    on(this.list.element, "wheel", () => this.leavePoint(), { passive: true });
    on(this.list.element, "pointerdown", () => this.leavePoint());
    on(this.list.element, "keydown", (event) => this.handleKey(event));
    on(this.effect, "click", () => this.showFirstChange());
    new ResizeObserver(() => this.handleResize()).observe(this.map.element);
  }

  /**
   * @param {PageState} state
   * @param {TimelineState} timeline
   * @param {boolean} isNewPoint
   * @returns {void}
   */
  rebuild(state, timeline, isNewPoint) {
    this.point = shownPoint(this.app, state);
    const view = timeline.at(this.point);
    const kept = this.anchor();
    this.entries = new LogEntries(timeline, view, state.filters, state.unfolded);
    const anchored = this.anchoredPosition(kept);
    const position = isNewPoint ? this.pointPosition(state, anchored) : anchored;
    this.list.setCount(this.entries.count, position);
    this.renderHeads(state, timeline);
    this.renderEffect(timeline);
    this.renderEmpty(timeline);
    this.drawMap();
  }

  /**
   * @param {HTMLElement} row
   * @param {number} index
   * @returns {void}
   */
  renderRow(row, index) {
    if (this.entries && index < this.entries.count) {
      renderLogRow(row, this.entries.entry(index), this.entries.timeline, this.point);
    }
  }

  /**
   * Return the first visible entry and its offset, so that rows which come and go above it do not move it.
   * @returns {{key: string, isPlaced: boolean, offset: number} | null}
   */
  anchor() {
    const top = this.list.top;
    if (!this.entries || top >= this.entries.count) return null;
    const { key, isPlaced } = this.entries.entry(top);
    return { key, isPlaced, offset: this.list.scrollTop - top * LOG_ROW_HEIGHT };
  }

  /**
   * Return the scroll position at which the kept entry is where it was.
   * @param {{key: string, isPlaced: boolean, offset: number} | null} kept
   * @returns {number}
   */
  anchoredPosition(kept) {
    const index = kept && this.entries ? this.entries.indexOf(kept.key, { placed: kept.isPlaced }) : -1;
    return kept && index >= 0 ? index * LOG_ROW_HEIGHT + kept.offset : this.list.scrollTop;
  }

  /**
   * Return the scroll position at which the row of the current point is visible.
   * @param {PageState} state
   * @param {number} from the position without it
   * @returns {number}
   */
  pointPosition(state, from) {
    const index = this.entries ? this.entries.lastUpTo(this.point) : -1;
    this.isPointShown = index >= 0;
    return index < 0 ? from : this.list.positionOf(index, state.follow ? 1 : undefined, from);
  }

  /**
   * @param {PageState} state
   * @param {PageState | null} before
   * @returns {void}
   */
  followSelection(state, before) {
    if (!this.entries) return;
    const active = this.list.active;
    const isActive = active >= 0 && active < this.entries.count && this.entries.entry(active).key === state.selected;
    const index = isActive ? active : state.selected ? this.entries.indexOf(state.selected) : -1;
    this.list.setActive(index);
    const folds = index < 0 && before?.selected !== state.selected ? this.entries.foldsOver(state.selected) : [];
    if (folds.length > 0) {
      this.awaited = state.selected;
      this.app.state.set({ unfolded: [...state.unfolded, ...folds] });
    }
    const isAwaited = this.awaited !== "" && this.awaited === state.selected;
    if (index < 0 || isActive || (before?.selected === state.selected && !isAwaited)) return;
    this.awaited = "";
    this.isPointShown = false;
    this.list.reveal(index);
  }

  /**
   * @param {PageState} state
   * @param {TimelineState} timeline
   * @returns {void}
   */
  renderHeads(state, timeline) {
    const said = formatCount(timeline.rows.length, "event");
    const isFiltered = this.entries?.folds === false;
    const isReplay = state.lane === "whatIf";
    clear(this.saidHead, el("b", null, isReplay ? "Log of the replay" : "Log"), isReplay ? ` · ${said}` : ` everything that was said · ${said}`);
    if (isFiltered) this.saidHead.append(` · the filters show ${formatCount(this.entries?.count ?? 0, "row")}`);
    const lane = isReplay ? "the model would see" : "the model sees";
    const items = timeline.at(this.point).items().length;
    const where = this.point >= 0 ? ` after e${this.point}` : "";
    clear(this.seenHead, el("b", null, "View"), ` what ${lane}${where} · ${formatCount(items, "message")}`);
  }

  /**
   * Say what the event at the current point changed, since the rows may be far away. The line is always there: rows
   * that move at every step could not be followed.
   * @param {TimelineState} timeline
   * @returns {void}
   */
  renderEffect(timeline) {
    const own = `e${this.point}`;
    const row = timeline.row(this.point);
    const changes = timeline.changesAt(this.point).filter((change) => change.key !== own);
    const name = row ? `${own} ${kindName(row.kind)}` : "no events yet";
    if (timeline.isOutline) {
      this.effect.disabled = true;
      setText(this.effect, name);
      return;
    }
    const effect = changes.length ? `changes ${formatCount(changes.length, "other message")}; show the first, ${changes[0].key}` : "";
    this.effect.disabled = changes.length === 0;
    this.effect.dataset.key = changes[0]?.key ?? "";
    setText(this.effect, effect ? `${name} · ${effect}` : `${name}${row ? " · changes no other message" : ""}`);
  }

  /**
   * @param {TimelineState} timeline
   * @returns {void}
   */
  renderEmpty(timeline) {
    this.empty.hidden = (this.entries?.count ?? 0) > 0;
    const text = timeline.rows.length
      ? "No event passes the filters. Clear a filter to see more."
      : "Nothing was said yet in this session. Events appear here as they are recorded.";
    setText(this.empty, text);
  }

  /** @returns {void} */
  leavePoint() {
    this.isPointShown = false;
  }

  /**
   * Draw the map in the colours of the present theme.
   * @returns {void}
   */
  redraw() {
    this.map.measure();
    this.drawMap();
  }

  /** @returns {void} */
  measure() {
    this.list.measure();
    this.map.measure();
  }

  /** @returns {void} */
  handleResize() {
    this.measure();
    if (this.isPointShown) {
      this.list.scrollTo(this.pointPosition(this.app.state.current, this.list.scrollTop));
      this.list.render();
    }
    this.drawMap();
  }

  /** @returns {void} */
  drawMap() {
    const entries = this.entries;
    if (!entries) return;
    this.map.draw(entries.count, entries.ranks);
    this.showFrame();
  }

  /** @returns {void} */
  showFrame() {
    const whole = Math.max(1, this.list.count * LOG_ROW_HEIGHT);
    this.map.setFrame(this.list.scrollTop / whole, this.list.height / whole);
  }

  /**
   * @param {number} share
   * @returns {void}
   */
  scrollToShare(share) {
    this.list.scrollTo(share * this.list.count * LOG_ROW_HEIGHT - this.list.height / 2);
    this.list.handleScroll();
  }

  /** @returns {void} */
  showFirstChange() {
    const key = this.effect.dataset.key ?? "";
    const index = this.entries ? this.entries.indexOf(key) : -1;
    if (index >= 0) this.list.reveal(index, 0.3);
    this.app.select(key);
  }

  /**
   * @param {MouseEvent} event
   * @returns {void}
   */
  handleClick(event) {
    const fold = event.target instanceof Element ? event.target.closest("[data-branch]") : null;
    if (fold instanceof HTMLElement && fold.dataset.branch) return this.toggleBranch(Number(fold.dataset.branch));
    const link = event.target instanceof Element ? event.target.closest("[data-goto]") : null;
    const seq = link instanceof HTMLElement ? link.dataset.goto : "";
    if (seq && this.app.state.current.lane === "recorded") this.app.goTo(Number(seq));
    else this.openEntry(this.list.indexOf(event.target));
  }

  /**
   * @param {number} index
   * @returns {void}
   */
  openEntry(index) {
    if (!this.entries || index < 0) return;
    if (this.app.state.current.lane !== "recorded") {
      this.app.announce("The replay has no texts of its own. Switch back to the recorded session to open one.");
      return;
    }
    this.list.setActive(index);
    this.app.openText(this.entries.entry(index).key);
  }

  /**
   * @param {KeyboardEvent} event
   * @returns {void}
   */
  handleKey(event) {
    const page = this.list.pageRows - 1;
    const steps = new Map([["PageUp", -page], ["PageDown", page]]);
    const rows = steps.get(event.key);
    if (rows === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    this.moveSelection(rows);
  }
}

/**
 * Return the event of the shown timeline that corresponds to the current point: in the replay, the one whose view the
 * same request has sent.
 * @param {App} app
 * @param {PageState} state
 * @returns {number}
 */
export function shownPoint(app, state) {
  const timeline = app.shown();
  if (timeline === app.timeline) return state.point;
  const request = timeline.requests[app.timeline.requestAt(state.point)];
  return request ? request.at : timeline.last;
}

/**
 * The switch between the two columns on a narrow screen.
 * @param {App} app
 * @returns {{element: HTMLElement, render: (columns: string) => void}}
 */
function columnSwitch(app) {
  /** @type {["log" | "view", string][]} */
  const choices = [["log", "Log"], ["view", "View"]];
  const buttons = choices.map(([name, label]) =>
    el("button", { type: "button", "data-columns": name, onclick: () => app.state.set({ columns: name }) }, label),
  );
  return {
    element: el("div", { class: "column-switch segmented", role: "group", "aria-label": "Columns" }, buttons),
    render(columns) {
      const shown = columns === "view" ? "view" : "log";
      for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.columns === shown));
    },
  };
}
