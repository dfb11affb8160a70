/**
 * A narrow picture of the whole log view, coloured by level, beside its scroll bar.
 *
 * It repeats what the rows say, so it is hidden from screen readers.
 *
 * @module
 */

import { el, on } from "./dom.js";
import { LEVEL_ORDER } from "./event_kinds.js";

/**
 * The picture. A click on it scrolls the list.
 */
export class LevelMap {
  /** @param {(share: number) => void} onJump called with the place of a click: 0 is the top, 1 the bottom */
  constructor(onJump) {
    this.canvas = el("canvas");
    this.frame = el("div", { class: "level-map-frame" });
    this.height = 0;
    /** @type {string[]} in the order of `LEVEL_ORDER` */
    this.colours = [];
    this.element = el("div", { class: "level-map", "aria-hidden": "true" }, this.canvas, this.frame);
    on(this.element, "pointerdown", (event) => this.jump(event, onJump));
    on(this.element, "pointermove", (event) => event.buttons === 1 && this.jump(event, onJump));
  }

  /**
   * Read size and colours from the page; to be called when one of them has changed.
   * @returns {void}
   */
  measure() {
    const scale = window.devicePixelRatio || 1;
    this.height = this.element.clientHeight;
    this.canvas.width = Math.round(this.element.clientWidth * scale);
    this.canvas.height = Math.round(this.height * scale);
    this.colours = levelColours(this.element);
  }

  /**
   * Draw the levels of all entries.
   * @param {number} count
   * @param {Uint8Array} ranks index in `LEVEL_ORDER` of each entry
   * @returns {void}
   */
  draw(count, ranks) {
    const context = this.canvas.getContext("2d");
    const { width, height } = this.canvas;
    if (!context || !this.height) return;
    context.clearRect(0, 0, width, height);
    const { colours } = this;
    const lines = Math.min(height, count);
    let shown = LEVEL_ORDER.length - 1;
    let start = 0;
    // One rectangle for all lines of one colour: most neighbours are alike.
    const flush = (/** @type {number} */ end) => {
      const y = Math.floor((start * height) / lines);
      context.fillStyle = colours[shown];
      context.fillRect(0, y, width, Math.ceil((end * height) / lines) - y);
      start = end;
    };
    for (let line = 0; line < lines; line++) {
      const first = Math.floor((line * count) / lines);
      const last = Math.max(first + 1, Math.floor(((line + 1) * count) / lines));
      const found = foremost(first, last, ranks);
      // An event that is no message continues the colour above it; stripes would say nothing.
      if (!LEVEL_ORDER[found] || found === shown) continue;
      if (line > start) flush(line);
      shown = found;
    }
    if (lines) flush(lines);
  }

  /**
   * Show which part of the list is visible.
   * @param {number} top share above the visible part
   * @param {number} height visible share
   * @returns {void}
   */
  setFrame(top, height) {
    const whole = this.height;
    this.frame.style.setProperty("transform", `translateY(${top * whole}px)`);
    this.frame.style.setProperty("height", `${Math.max(4, Math.min(1, height) * whole)}px`);
  }

  /**
   * @param {PointerEvent} event
   * @param {(share: number) => void} onJump
   * @returns {void}
   */
  jump(event, onJump) {
    const box = this.element.getBoundingClientRect();
    onJump(Math.min(1, Math.max(0, (event.clientY - box.top) / Math.max(1, box.height))));
  }
}

/**
 * @param {number} first
 * @param {number} last
 * @param {Uint8Array} ranks
 * @returns {number} the least of some ranks
 */
function foremost(first, last, ranks) {
  let found = LEVEL_ORDER.length - 1;
  for (let index = first; index < last; index++) if (ranks[index] < found) found = ranks[index];
  return found;
}

/**
 * @param {Element} element
 * @returns {string[]} in the order of `LEVEL_ORDER`
 */
function levelColours(element) {
  const style = getComputedStyle(element);
  return LEVEL_ORDER.map((level) => style.getPropertyValue(`--map-${level || "later"}`).trim() || "transparent");
}
