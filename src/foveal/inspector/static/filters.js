/**
 * Filters of the log view: text, role, tool and level.
 *
 * @module
 */

import { clear, debounce, el, on, setText } from "./dom.js";
import { LEVELS, ROLES, levelMark } from "./event_kinds.js";
import { formatNumber, oneLine } from "./format.js";
import { countRolesAndTools } from "./log_entries.js";
import { term } from "./words.js";

/** @typedef {import("./types.js").App} App */
/** @typedef {import("./types.js").PageState} PageState */
/** @typedef {import("./types.js").Filters} Filters */
/** @typedef {"roles" | "tools" | "levels"} FilterField */

const TYPING_MS = 120;
/** Tools that get a chip; the text filter finds the rarer ones. */
const MAX_TOOL_CHIPS = 40;

/**
 * The bar above the log view.
 */
export class FilterBar {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    /** @type {Map<string, {chip: HTMLButtonElement, count: HTMLElement}>} */
    this.chips = new Map();
    this.version = -1;
    this.input = el("input", {
      type: "search",
      class: "filter-text",
      placeholder: "Filter by text",
      "aria-label": "Filter the log by text",
      spellcheck: "false",
      autocomplete: "off",
    });
    this.reset = el("button", { type: "button", class: "quiet", hidden: true }, "Clear filters");
    this.roles = el("div", { class: "chips", role: "group", "aria-label": "Roles" });
    this.tools = el("div", { class: "chips", role: "group", "aria-label": "Tools" });
    this.levels = el("div", { class: "chips", role: "group", "aria-label": "Levels" });
    this.more = el("details", { class: "filter-more" }, el("summary", null, "Roles and tools"), this.roles, this.tools);
    this.element = el("div", { class: "filter-bar" }, this.input, term("level", "Levels"), this.levels, this.reset, this.more);
    const typed = debounce(() => this.change({ text: this.input.value }), TYPING_MS);
    on(this.input, "input", typed);
    on(this.reset, "click", () => this.change({ roles: [], tools: [], levels: [], text: "" }));
  }

  /**
   * Render the chips with their counts.
   * @param {PageState} state
   * @param {Record<string, number>} levels messages by level at the current point
   * @returns {void}
   */
  render(state, levels) {
    const { filters } = state;
    if (this.version !== this.app.timeline.version) this.build();
    if (document.activeElement !== this.input && this.input.value !== filters.text) this.input.value = filters.text;
    for (const level of Object.keys(LEVELS)) this.setCount(`levels:${level}`, levels[level] ?? 0);
    for (const [name, { chip }] of this.chips) {
      const [field, value] = splitName(name);
      chip.setAttribute("aria-pressed", String(filters[field].includes(value)));
    }
    const chosen = filters.roles.length + filters.tools.length;
    setText(/** @type {Node} */ (this.more.firstChild), chosen ? `Roles and tools (${chosen})` : "Roles and tools");
    this.reset.hidden = !chosen && !filters.levels.length && !filters.text;
  }

  /** @returns {void} */
  build() {
    this.version = this.app.timeline.version;
    this.chips.clear();
    const { roles, tools } = countRolesAndTools(this.app.timeline);
    const known = ROLES.filter(([role]) => roles.has(role));
    clear(this.roles, known.map(([role, name]) => this.chip("roles", role, name, roles.get(role) ?? 0)));
    const common = [...tools].sort((a, b) => b[1] - a[1]).slice(0, MAX_TOOL_CHIPS);
    clear(this.tools, common.map(([tool, count]) => this.chip("tools", tool, oneLine(tool), count)));
    const marks = Object.entries(LEVELS);
    clear(this.levels, marks.map(([level, { name }]) => this.chip("levels", level, name, 0)));
  }

  /**
   * @param {FilterField} field
   * @param {string} value
   * @param {string} label
   * @param {number} count
   * @returns {HTMLButtonElement}
   */
  chip(field, value, label, count) {
    const number = el("span", { class: "chip-count" }, formatNumber(count));
    const mark = field === "levels" && el("span", { class: `chip-mark level-${value}`, "aria-hidden": "true" }, levelMark(value));
    const title = field === "levels" ? LEVELS[value].meaning : null;
    const attributes = { type: "button", class: `chip chip-${field}`, "aria-pressed": "false", title };
    const chip = el("button", attributes, mark, el("span", { class: "chip-label" }, label), " ", number);
    on(chip, "click", () => this.toggle(field, value));
    this.chips.set(`${field}:${value}`, { chip, count: number });
    return chip;
  }

  /**
   * @param {string} name
   * @param {number} count
   * @returns {void}
   */
  setCount(name, count) {
    const known = this.chips.get(name);
    if (!known) return;
    setText(known.count, formatNumber(count));
    known.chip.classList.toggle("chip-zero", count === 0);
  }

  /**
   * @param {FilterField} field
   * @param {string} value
   * @returns {void}
   */
  toggle(field, value) {
    const chosen = this.app.state.current.filters[field];
    const others = chosen.filter((other) => other !== value);
    this.change({ [field]: others.length === chosen.length ? [...chosen, value] : others });
  }

  /**
   * @param {Partial<Filters>} partial
   * @returns {void}
   */
  change(partial) {
    this.app.state.set({ filters: { ...this.app.state.current.filters, ...partial } });
    if (partial.text === "") this.input.value = "";
  }
}

/**
 * @param {string} name
 * @returns {[FilterField, string]}
 */
function splitName(name) {
  const colon = name.indexOf(":");
  return [/** @type {FilterField} */ (name.slice(0, colon)), name.slice(colon + 1)];
}
