/**
 * Overview of sessions: search, table, lanes and live updates.
 *
 * 1. The list grows by pages: at its end, or with the button.
 * 2. The search asks the server, so it covers all sessions and not only the loaded ones.
 * 3. A session that changes is updated in place and moves to its position; the focus stays where it is.
 *
 * @module
 */

import { Problem, problemText } from "./data_source.js";
import { clear, debounce, el, on, setText } from "./dom.js";
import { formatCount, oneLine } from "./format.js";
import { Lanes } from "./lanes.js";
import { LiveFeed, LiveStatusLine, announceTogether, pauseWhileHidden } from "./live.js";
import { SessionTable } from "./session_table.js";

/** @typedef {import("./types.js").SessionRow} SessionRow */
/** @typedef {import("./data_source.js").DataSource} DataSource */

/** Sessions that are loaded at once. */
const PAGE_ROWS = 50;
/** Milliseconds without a key before the search asks the server. */
const SEARCH_PAUSE_MS = 200;
/** Milliseconds after which a search that was not complete is repeated. */
const SEARCH_AGAIN_MS = 1_000;
/** Most sessions that the server returns at once. */
const MAX_SEARCH_ROWS = 200;
/** Milliseconds after which "5 min ago" is written anew. */
const AGE_REFRESH_MS = 30_000;

/** The overview page. */
export class Overview {
  /**
   * @param {DataSource} data
   * @param {HTMLElement} main the element to fill
   * @param {import("./types.js").Announce} announce
   * @param {() => void} [onTheme] changes the colours
   */
  constructor(data, main, announce, onTheme = () => {}) {
    this._data = data;
    this._announce = announce;
    this._onTheme = onTheme;
    /** @type {Map<string, SessionRow>} the loaded sessions */
    this._rows = new Map();
    this._query = queryOfFragment();
    this._next = "";
    /** @type {string[]} what the server could not read */
    this._problems = [];
    this._isLoading = false;
    /** Sessions that the server still indexes for the current search. */
    this._searching = 0;
    this._retry = 0;
    /** Counts searches, so that an answer to an older one is dropped. */
    this._search = 0;
    this._table = new SessionTable(() => this._show());
    this._table.element.hidden = true;
    if (this._query) this._table.setOrder("relevance", true);
    this._scroll = el("div", { class: "session-scroll" }, this._table.element);
    this._lanes = new Lanes();
    this._count = el("p", { class: "overview-count" });
    this._message = el("div", { class: "overview-message", role: "status" });
    this._more = el(
      "button",
      { type: "button", class: "overview-more", hidden: true, onclick: () => this._load() },
      "Load more sessions",
    );
    this._field = this._searchField();
    this._announceNew = announceTogether(announce, (count) => `${formatCount(count, "session")} changed.`);
    this._feed = new LiveFeed(
      (onData, onState) => this._data.followSessions(onData, onState),
      (rows) => this._update(rows),
      (status) => this._onStatus(status),
    );
    this._line = new LiveStatusLine(this._feed);
    /** Whether the feed was live before: what changed while it was not has to be loaded. */
    this._wasLive = false;
    /** The table that the server has rendered: it stays until the first page is loaded. */
    this._rendered = [...main.childNodes];
    main.prepend(this._layOut());
    this._observer = new IntersectionObserver((entries) => {
      if (entries.some((entry) => entry.isIntersecting) && !this._more.hidden) void this._load();
    });
  }

  /**
   * Load the first page and follow changes.
   * @returns {void}
   */
  start() {
    void this._load();
    pauseWhileHidden(this._feed);
    this._feed.start();
    on(document, "keydown", (event) => this._onKey(event));
    on(window, "hashchange", () => this._find(queryOfFragment()));
    window.setInterval(() => this._show(), AGE_REFRESH_MS);
  }

  /** @returns {HTMLElement} */
  _layOut() {
    return el(
      "div",
      { class: "overview" },
      el(
        "div",
        { class: "overview-bar", role: "search" },
        el("label", { class: "visually-hidden", for: this._field.id }, "Search all sessions"),
        this._field,
        this._count,
        this._line.element,
      ),
      this._lanes.element,
      this._scroll,
      this._message,
      this._more,
    );
  }

  /** @returns {HTMLInputElement} */
  _searchField() {
    const field = el("input", {
      id: "session-search",
      class: "overview-search",
      type: "search",
      placeholder: "Search all sessions  /",
      autocomplete: "off",
      spellcheck: "false",
    });
    field.value = this._query;
    on(
      field,
      "input",
      debounce(() => this._find(field.value.trim()), SEARCH_PAUSE_MS),
    );
    return field;
  }

  /**
   * Show the sessions that match a text.
   * @param {string} query
   * @returns {void}
   */
  _find(query) {
    if (query === this._query) return;
    this._query = query;
    if (this._field.value.trim() !== query) this._field.value = query;
    history.replaceState(null, "", query ? `#q=${encodeURIComponent(query)}` : "#");
    this._rows.clear();
    this._next = "";
    // The server answers a search with the best matches first.
    this._table.setOrder(query ? "relevance" : "active", true);
    this._search += 1;
    this._isLoading = false;
    this._setSearching(0);
    setText(this._count, query ? "searching …" : "");
    void this._load();
  }

  /**
   * Load the next page of the current search.
   * @returns {Promise<void>}
   */
  async _load() {
    if (this._isLoading) return;
    const search = this._search;
    this._isLoading = true;
    this._showMessage();
    try {
      const page = await this._data.sessions({ after: this._next, limit: PAGE_ROWS, q: this._query });
      if (search !== this._search) return;
      for (const row of page.sessions) this._rows.set(row.key, row);
      this._next = page.next;
      this._problems = page.problems ?? [];
      this._isLoading = false;
      this._setSearching(page.searching ?? 0);
      this._show();
      // Observing anew reports a button that is still in view.
      this._observer.disconnect();
      this._observer.observe(this._more);
      if (this._query) this._announce(`${this._countText()}.`);
    } catch (error) {
      if (search !== this._search) return;
      this._isLoading = false;
      this._showProblem(error);
    }
  }

  /**
   * Remember how many sessions the server still indexes, and ask again while there are any.
   * @param {number} count
   * @returns {void}
   */
  _setSearching(count) {
    this._searching = count;
    clearTimeout(this._retry);
    if (count > 0) this._retry = window.setTimeout(() => void this._searchAgain(), SEARCH_AGAIN_MS);
  }

  /**
   * Replace what the search has found by what it finds now.
   * @returns {Promise<void>}
   */
  async _searchAgain() {
    const search = this._search;
    const limit = Math.min(MAX_SEARCH_ROWS, Math.max(PAGE_ROWS, this._rows.size));
    try {
      const page = await this._data.sessions({ limit, q: this._query });
      if (search !== this._search || this._isLoading) return;
      this._rows = new Map(page.sessions.map((row) => [row.key, row]));
      this._next = page.next;
      this._setSearching(page.searching ?? 0);
      this._show();
      if (this._searching === 0) this._announce(`${this._countText()}.`);
    } catch (error) {
      if (search === this._search) this._showProblem(error);
    }
  }

  /**
   * @param {import("./live.js").LiveStatus} status
   * @returns {void}
   */
  _onStatus(status) {
    this._line.show(status);
    if (status === "loggedOut") this._announce("Your login has ended. Log in again to go on.");
    if (status !== "live") return;
    if (this._wasLive) void this._catchUp();
    this._wasLive = true;
  }

  /**
   * Load what may have changed while the feed was paused or broken.
   * @returns {Promise<void>}
   */
  async _catchUp() {
    if (this._query) return;
    try {
      const { sessions } = await this._data.sessions({ limit: PAGE_ROWS });
      if (!this._query) this._update(sessions.filter((row) => this._isNews(row)));
    } catch (error) {
      this._announce(problemText(error));
    }
  }

  /**
   * @param {SessionRow} row
   * @returns {boolean}
   */
  _isNews(row) {
    const known = this._rows.get(row.key);
    return !known || known.active !== row.active || known.events !== row.events;
  }

  /**
   * Take over sessions that have changed. A search shows no further sessions by itself.
   * @param {SessionRow[]} rows
   * @returns {void}
   */
  _update(rows) {
    const relevant = rows.filter((row) => !this._query || this._rows.has(row.key));
    for (const row of relevant) this._rows.set(row.key, row);
    this._show(new Set(relevant.map((row) => row.key)));
    this._announceNew(relevant.length);
  }

  /**
   * @param {ReadonlySet<string>} [changed]
   * @returns {void}
   */
  _show(changed) {
    this._dropRendered();
    const rows = [...this._rows.values()];
    this._table.set(rows, changed);
    this._table.element.hidden = rows.length === 0;
    this._lanes.show(this._query ? [] : rows);
    setText(this._count, rows.length > 0 ? this._countText() : "");
    this._more.hidden = this._next === "";
    this._showMessage();
  }

  /** Remove what the server has rendered. */
  _dropRendered() {
    for (const node of this._rendered) node.remove();
    this._rendered = [];
  }

  /** @returns {string} */
  _countText() {
    const count = formatCount(this._rows.size, "session");
    return this._next ? `first ${count}` : this._query ? `${count} found` : count;
  }

  /** Show that the page loads, that there is nothing to show, or what the server could not read. */
  _showMessage() {
    const isEmpty = this._rows.size === 0 && this._rendered.length === 0;
    const rest = this._searching > 0 ? `Still searching ${formatCount(this._searching, "session")} …` : "";
    // The rows of the search before stay until the answer is there, so that the page does not jump.
    this._scroll.setAttribute("aria-busy", String(this._isLoading && isEmpty));
    const loading = this._query ? "Searching all sessions …" : "Loading sessions …";
    if (this._isLoading) clear(this._message, isEmpty ? el("p", null, loading) : "");
    else if (rest) clear(this._message, el("p", null, rest), this._problemNotes());
    else clear(this._message, isEmpty ? this._emptyNote() : "", this._problemNotes());
  }

  /** @returns {HTMLElement} */
  _emptyNote() {
    return this._query ? noMatch(this._query, () => this._find("")) : noSessions();
  }

  /** @returns {HTMLElement[]} */
  _problemNotes() {
    return this._problems.map((problem) => el("p", { class: "overview-note" }, oneLine(problem)));
  }

  /**
   * @param {unknown} error
   * @returns {void}
   */
  _showProblem(error) {
    if (!(error instanceof Problem)) console.error(error);
    this._show();
    const retry = el("button", { type: "button", onclick: () => this._load() }, "Try again");
    clear(this._message, el("p", { class: "overview-problem" }, problemText(error)), retry);
  }

  /**
   * @param {KeyboardEvent} event
   * @returns {void}
   */
  _onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    const isTyping = event.target instanceof HTMLInputElement || event.target instanceof HTMLTextAreaElement;
    if (event.key === "Escape" && event.target === this._field) this._table.move(0);
    else if (isTyping && event.key === "ArrowDown" && event.target === this._field) this._table.move(0);
    else if (isTyping) return;
    else if (event.key === "j" || event.key === "ArrowDown") this._table.move(1);
    else if (event.key === "k" || event.key === "ArrowUp") this._table.move(-1);
    else if (event.key === "/") this._field.select();
    else if (event.key === "t") this._onTheme();
    else return;
    event.preventDefault();
  }
}

/**
 * Return the search text of the address, such as `#q=parser`.
 * @returns {string}
 */
function queryOfFragment() {
  return new URLSearchParams(location.hash.slice(1)).get("q") ?? "";
}

/**
 * @param {string} query
 * @param {() => void} onClear
 * @returns {HTMLElement}
 */
function noMatch(query, onClear) {
  return el(
    "div",
    { class: "overview-empty" },
    el("p", null, `No session matches “${oneLine(query)}”.`),
    el("button", { type: "button", onclick: onClear }, "Show all sessions"),
  );
}

/** @returns {HTMLElement} */
function noSessions() {
  return el(
    "div",
    { class: "overview-empty" },
    el("h2", null, "There are no sessions yet"),
    el("p", null, "A session appears here as soon as it is written. To get one:"),
    el("ul", null, document.body.dataset.command === "foveal serve" ? waysOnServer() : waysOnOwnMachine()),
  );
}

/** @returns {HTMLElement[]} */
function waysOnServer() {
  return [
    el("li", null, "Let an agent use this server as its API: ", el("code", null, "foveal wrap claude"), "."),
    el("li", null, "Create one with ", el("code", null, "POST /api/sessions"), "."),
    el("li", null, "Write to the bot of this server on Telegram or Discord."),
  ];
}

/** @returns {HTMLElement[]} */
function waysOnOwnMachine() {
  return [
    el("li", null, el("code", null, "foveal chat"), " starts a session in the terminal."),
    el("li", null, el("code", null, "foveal serve"), " records the sessions of agents that use it as their API."),
    el(
      "li",
      null,
      el("code", null, "foveal inspect FILE"),
      " opens a transcript of Claude Code, Codex or pi, or a store.",
    ),
  ];
}
