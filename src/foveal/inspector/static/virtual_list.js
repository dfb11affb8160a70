/**
 * A list of rows of one height, of which only the visible ones have elements.
 *
 * 1. Row `i` uses element `i` modulo the number of elements, so scrolling by a row renders one row.
 * 2. Height and scroll position are remembered: reading them between two changes would cost a layout each time.
 * 3. After a jump, the frame shows the visible rows only. The spare rows follow when the list rests.
 *
 * @module
 */

import { debounce, el, on } from "./dom.js";

/** Rows beyond the visible ones on each side, so that a fast scroll does not show gaps. */
const SPARE_ROWS = 4;
/** Time without a jump after which the spare rows are rendered. */
const REST_MS = 200;

/**
 * @typedef {object} VirtualListOptions
 * @property {string} label name of the list for screen readers
 * @property {string} id prefix of the ids of the rows
 * @property {number} rowHeight in CSS pixels
 * @property {() => HTMLElement} createRow returns a row without content
 * @property {(row: HTMLElement, index: number) => void} renderRow fills a row
 * @property {() => void} [onScroll]
 */

/**
 * The list. `element` is the part that scrolls.
 */
export class VirtualList {
  /** @param {VirtualListOptions} options */
  constructor(options) {
    this.options = options;
    this.count = 0;
    this.active = -1;
    this.height = 0;
    this.scrollTop = 0;
    /** Whether the spare rows wait until the list rests. */
    this.isSpareLate = false;
    /** @type {{row: HTMLElement, index: number}[]} */
    this.slots = [];
    this.body = el("div", { class: "virtual-body", role: "rowgroup" });
    this.element = el(
      "div",
      { class: "virtual-list", role: "grid", tabindex: 0, "aria-label": options.label, "aria-colcount": 2 },
      this.body,
    );
    this.renderSpareLater = debounce(() => this.renderSpare(), REST_MS);
    on(this.element, "scroll", () => this.handleScroll(), { passive: true });
    new ResizeObserver(() => this.measure()).observe(this.element);
  }

  /** Rows that fit into the visible part, at least one. */
  get pageRows() {
    return Math.max(1, Math.floor(this.height / this.options.rowHeight));
  }

  /** The first row that is visible at least in part. */
  get top() {
    return Math.floor(this.scrollTop / this.options.rowHeight);
  }

  /**
   * Set the number of rows, scroll if asked to, and render all visible rows anew.
   * @param {number} count
   * @param {number} [scrollTop]
   * @returns {void}
   */
  setCount(count, scrollTop = this.scrollTop) {
    if (count !== this.count) {
      this.count = count;
      this.body.style.setProperty("height", `${count * this.options.rowHeight}px`);
      this.element.setAttribute("aria-rowcount", String(count));
    }
    this.scrollTo(scrollTop);
    this.refresh();
  }

  /**
   * Render all visible rows anew.
   * @returns {void}
   */
  refresh() {
    for (const slot of this.slots) slot.index = -1;
    this.render();
  }

  /**
   * Mark a row as the active one; screen readers announce it.
   * @param {number} index -1 for none
   * @returns {void}
   */
  setActive(index) {
    this.active = index;
    for (const slot of this.slots) this.markActive(slot);
    const isShown = this.slots.some((slot) => slot.index === index);
    if (index >= 0 && isShown) this.element.setAttribute("aria-activedescendant", this.rowId(index));
    else this.element.removeAttribute("aria-activedescendant");
  }

  /**
   * Scroll as little as needed to show a row, or so that it stands at a share of the height.
   * @param {number} index
   * @param {number} [share] 0 is the top, 1 the bottom; undefined scrolls only if the row is not visible
   * @returns {void}
   */
  reveal(index, share) {
    this.scrollTo(this.positionOf(index, share));
    this.render();
  }

  /**
   * Return the scroll position that shows a row, see `reveal`.
   * @param {number} index
   * @param {number} [share]
   * @param {number} [from] the present position
   * @returns {number}
   */
  positionOf(index, share, from = this.scrollTop) {
    const { rowHeight } = this.options;
    const y = index * rowHeight;
    if (share !== undefined) return y - (this.height - rowHeight) * share;
    if (y >= from && y + rowHeight <= from + this.height) return from;
    return y < from ? y : y + rowHeight - this.height;
  }

  /**
   * @param {number} wanted
   * @returns {void}
   */
  scrollTo(wanted) {
    const most = Math.max(0, this.count * this.options.rowHeight - this.height);
    const top = Math.round(Math.max(0, Math.min(most, wanted)));
    if (top === this.scrollTop) return;
    this.scrollTop = top;
    this.element.scrollTop = top;
  }

  /**
   * Create the elements that the height needs, and render the rows that came into view.
   * @returns {void}
   */
  render() {
    const visible = Math.ceil(this.height / this.options.rowHeight) + 1;
    const needed = Math.min(this.count, visible + 2 * SPARE_ROWS);
    if (needed !== this.slots.length) this.resizePool(needed);
    const first = Math.max(0, Math.min(this.top, this.count - visible));
    const end = Math.min(this.count, first + visible);
    const rendered = this.renderRows(first, end);
    if (rendered === end - first) {
      this.isSpareLate = true;
      this.renderSpareLater();
    } else if (rendered > 0 || !this.isSpareLate) {
      // Nothing to render after a jump is the scroll event of that jump: the list does not rest yet.
      this.renderSpare();
    }
  }

  /**
   * Render the rows on both sides of the visible ones.
   * @returns {void}
   */
  renderSpare() {
    this.isSpareLate = false;
    const start = Math.max(0, Math.min(this.top - SPARE_ROWS, this.count - this.slots.length));
    this.renderRows(start, start + this.slots.length);
  }

  /**
   * Render those of some rows that have no element yet, and return how many these were.
   * @param {number} start
   * @param {number} end the row behind the last one
   * @returns {number}
   */
  renderRows(start, end) {
    let rendered = 0;
    for (let index = start; index < end; index++) {
      const slot = this.slots[index % this.slots.length];
      if (slot.index === index) continue;
      rendered += 1;
      slot.index = index;
      slot.row.id = this.rowId(index);
      slot.row.setAttribute("aria-rowindex", String(index + 1));
      slot.row.style.setProperty("transform", `translateY(${index * this.options.rowHeight}px)`);
      this.options.renderRow(slot.row, index);
      this.markActive(slot);
    }
    return rendered;
  }

  /**
   * Return the index of the row that an element belongs to; -1 if it is in none.
   * @param {EventTarget | null} target
   * @returns {number}
   */
  indexOf(target) {
    const slot = this.slots.find(({ row }) => target instanceof Node && row.contains(target));
    return slot ? slot.index : -1;
  }

  /** @returns {void} */
  measure() {
    this.height = this.element.clientHeight;
    this.scrollTop = this.element.scrollTop;
    this.render();
  }

  /** @returns {void} */
  handleScroll() {
    this.scrollTop = this.element.scrollTop;
    this.render();
    this.options.onScroll?.();
  }

  /**
   * @param {number} size
   * @returns {void}
   */
  resizePool(size) {
    while (this.slots.length > size) this.slots.pop()?.row.remove();
    while (this.slots.length < size) {
      const row = this.options.createRow();
      this.slots.push({ row, index: -1 });
      this.body.append(row);
    }
    // The number of elements decides which one shows which row.
    for (const slot of this.slots) slot.index = -1;
  }

  /**
   * @param {{row: HTMLElement, index: number}} slot
   * @returns {void}
   */
  markActive(slot) {
    const isActive = slot.index === this.active && slot.index >= 0;
    slot.row.classList.toggle("active", isActive);
    slot.row.setAttribute("aria-selected", String(isActive));
  }

  /**
   * @param {number} index
   * @returns {string}
   */
  rowId(index) {
    return `${this.options.id}-${index}`;
  }
}
