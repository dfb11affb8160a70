/**
 * Tabs with the panels of the session's page.
 *
 * @module
 */

import { createCompositionPanel } from "./composition_panel.js";
import { createDiffPanel } from "./diff_panel.js";
import { el, on } from "./dom.js";
import { createMessagePanel } from "./message_panel.js";
import { createReductionsPanel } from "./reductions_panel.js";
import { createRequestsPanel } from "./requests_panel.js";
import { createSearchPanel } from "./search_panel.js";
import { createStatementsPanel } from "./statements_panel.js";
import { createWhatHappenedPanel } from "./what_happened_panel.js";
import { createWhatIfPanel } from "./what_if_panel.js";

/** @typedef {import("./types.js").App} App */
/** @typedef {import("./types.js").Panel} Panel */
/** @typedef {import("./types.js").PageState} PageState */

/**
 * The panels in the order of their tabs.
 * @type {((app: App) => Panel)[]}
 */
const PANELS = [
  createWhatHappenedPanel,
  createMessagePanel,
  createReductionsPanel,
  createRequestsPanel,
  createDiffPanel,
  createCompositionPanel,
  createStatementsPanel,
  createSearchPanel,
  createWhatIfPanel,
];

/**
 * The tab list and the open panel.
 */
export class PanelTabs {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    this.shown = -1;
    this.panels = PANELS.map((create) => create(app));
    this.tabs = this.panels.map((panel, index) => this.tab(panel, index));
    const bodies = this.panels.map((panel) => this.body(panel));
    this.bodies = bodies;
    const list = el("div", { class: "panel-tabs", role: "tablist", "aria-label": "Panels" }, this.tabs);
    on(list, "keydown", (event) => this.handleKey(event));
    const loading = el("p", { class: "empty-state panels-loading" }, "Loading the history of the session…");
    this.list = list;
    this.element = el("div", { class: "panel-frame" }, list, loading, bodies);
  }

  /**
   * Show the panel that the state names, and let it render.
   * @param {PageState} state
   * @returns {void}
   */
  render(state) {
    const index = Math.max(0, this.panels.findIndex((panel) => panel.id === state.panel));
    this.panels.forEach((panel, other) => {
      const isOpen = other === index;
      this.tabs[other].setAttribute("aria-selected", String(isOpen));
      this.tabs[other].tabIndex = isOpen ? 0 : -1;
      this.bodies[other].hidden = !isOpen;
    });
    if (index !== this.shown) this.reveal(this.tabs[index]);
    this.shown = index;
    // Panels say what there is of a session, so they wait until all of it is known.
    const { isOutline } = this.app.timeline;
    this.element.classList.toggle("is-loading", isOutline);
    if (!isOutline) this.panels[index].render(state);
  }

  /**
   * Scroll the list of tabs, and nothing else, so that a tab can be seen.
   * @param {HTMLElement} tab
   * @returns {void}
   */
  reveal(tab) {
    const frame = this.list.getBoundingClientRect();
    const { left, right } = tab.getBoundingClientRect();
    this.list.scrollLeft += Math.max(0, right - frame.right) - Math.max(0, frame.left - left);
  }

  /**
   * Open a panel by its place.
   * @param {number} index
   * @returns {void}
   */
  open(index) {
    const panel = this.panels[index];
    if (panel) this.app.state.set({ panel: panel.id });
  }

  /**
   * Open a panel and focus its first field.
   * @param {string} id
   * @returns {void}
   */
  openAndFocus(id) {
    const index = this.panels.findIndex((panel) => panel.id === id);
    if (index < 0) return;
    this.open(index);
    this.app.state.publish();
    const field = this.bodies[index].querySelector("input, button");
    if (field instanceof HTMLElement) field.focus();
  }

  /**
   * @param {Panel} panel
   * @param {number} index
   * @returns {HTMLButtonElement}
   */
  tab(panel, index) {
    const attributes = {
      type: "button",
      role: "tab",
      id: `tab-${panel.id}`,
      "aria-controls": `panel-${panel.id}`,
      title: `${panel.title} (${index + 1})`,
      onclick: () => this.open(index),
    };
    return el("button", attributes, panel.title);
  }

  /**
   * @param {Panel} panel
   * @returns {HTMLElement}
   */
  body(panel) {
    const attributes = { class: "panel-pane", role: "tabpanel", id: `panel-${panel.id}`, "aria-labelledby": `tab-${panel.id}`, hidden: true };
    // Headings of a panel are of the third level; this one lets a screen reader step from panel to panel.
    return el("div", attributes, el("h2", { class: "visually-hidden" }, panel.title), panel.element);
  }

  /**
   * @param {KeyboardEvent} event
   * @returns {void}
   */
  handleKey(event) {
    const steps = new Map([["ArrowLeft", -1], ["ArrowRight", 1]]);
    const step = steps.get(event.key);
    const current = this.tabs.findIndex((tab) => tab === event.target);
    if (step === undefined || current < 0) return;
    event.preventDefault();
    const next = (current + step + this.tabs.length) % this.tabs.length;
    this.open(next);
    this.tabs[next].focus();
  }
}
