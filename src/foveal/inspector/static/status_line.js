/**
 * Texts of the status line: answers to the user stay, news wait.
 *
 * @module
 */

/** Milliseconds for which news do not replace an answer. */
export const ANSWER_MS = 10_000;

/** Decides which text the status line shows. */
export class StatusLine {
  /** @param {(text: string) => void} show */
  constructor(show) {
    this._show = show;
    /** The time until which an answer stays. */
    this._until = 0;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this._timer = undefined;
  }

  /**
   * Show a text at once: the answer to what the user did. News that wait are dropped.
   * @param {string} text
   * @returns {void}
   */
  answer(text) {
    clearTimeout(this._timer);
    this._until = text ? Date.now() + ANSWER_MS : 0;
    this._show(text);
  }

  /**
   * Show what happened without the user, after the answer that is shown now.
   * @param {string} text
   * @returns {void}
   */
  news(text) {
    clearTimeout(this._timer);
    const wait = this._until - Date.now();
    if (wait <= 0) this._show(text);
    else this._timer = setTimeout(() => this._show(text), wait);
  }
}
