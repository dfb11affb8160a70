/**
 * The state of the session's page: one observable object.
 *
 * Data flows one way: a control calls `set`, and every subscriber renders from the new state in the next frame.
 *
 * @module
 */

/** @typedef {import("./types.js").PageState} PageState */

/**
 * Return the state of a page that has just been opened.
 * @returns {PageState}
 */
export function initialState() {
  return {
    point: -1,
    request: -1,
    follow: true,
    selected: "",
    panel: "happened",
    filters: { roles: [], tools: [], levels: [], text: "" },
    unfolded: [],
    compare: { a: -1, b: -1 },
    columns: "log",
    version: 0,
    whatIf: null,
    lane: "recorded",
  };
}

/**
 * Holds the state and tells subscribers about changes, at most once a frame.
 */
export class AppState {
  /** @param {PageState} state */
  constructor(state) {
    /** @type {PageState} */
    this.current = state;
    /** @type {((state: PageState, before: PageState) => void)[]} */
    this.listeners = [];
    /** @type {PageState | null} the state that the subscribers have seen; null if they are up to date */
    this.before = null;
  }

  /**
   * Call `listener(state, before)` after changes; returns a function that ends the subscription.
   * @param {(state: PageState, before: PageState) => void} listener
   * @returns {() => void}
   */
  subscribe(listener) {
    this.listeners.push(listener);
    return () => {
      this.listeners = this.listeners.filter((other) => other !== listener);
    };
  }

  /**
   * Change some fields. Subscribers are called before the next frame.
   * @param {Partial<PageState>} partial
   * @returns {void}
   */
  set(partial) {
    const before = this.current;
    const isSame = Object.entries(partial).every(
      ([name, value]) => before[/** @type {keyof PageState} */ (name)] === value,
    );
    if (isSame) return;
    this.current = { ...before, ...partial };
    if (this.before) return;
    this.before = before;
    requestAnimationFrame(() => this.publish());
  }

  /**
   * Call the subscribers now if something has changed.
   * @returns {void}
   */
  publish() {
    const before = this.before;
    if (!before) return;
    this.before = null;
    const state = this.current;
    for (const listener of this.listeners) {
      // One part of the page that fails must not stop the others.
      try {
        listener(state, before);
      } catch (error) {
        console.error(error);
      }
    }
  }
}
