/**
 * Live updates: a connection that comes back by itself, and the control that shows its state.
 *
 * 1. The browser resumes a connection that breaks. Where it gives up, the feed connects again, later each time, until
 *    it succeeds. Meanwhile a notice says since when the server has not answered, and how to start it again.
 * 2. A page in the background closes its connection after a while, because a browser opens only a few connections to
 *    a server; it catches up when it is shown again.
 * 3. New events are announced together, not one by one.
 *
 * @module
 */

import { clear, el, on, setText } from "./dom.js";
import { formatCount, formatTime } from "./format.js";
import { seqOfKey } from "./timeline_state.js";

/** @typedef {import("./types.js").App} App */
/** @typedef {import("./types.js").Timeline} Timeline */
/** @typedef {import("./data_source.js").StreamState} StreamState */
/** @typedef {"connecting" | "live" | "paused" | "reconnecting" | "refused" | "loggedOut"} LiveStatus */
/** @typedef {(onData: (data: any) => void, onState: (state: StreamState) => void) => () => void} Connect */

/** Milliseconds before each attempt to connect again; the last one is repeated. */
export const RECONNECT_DELAYS_MS = [1_000, 2_000, 4_000, 8_000, 15_000];
/** Milliseconds that a hidden page keeps its connection. */
const HIDDEN_MS = 30_000;
/** Milliseconds between two announcements. */
const ANNOUNCE_MS = 5_000;

/** @type {Record<LiveStatus, [string, string]>} the word and the explanation of each state */
const STATUS_WORDS = {
  connecting: ["Connecting", "The page connects to the session."],
  live: ["Live", "New events appear as they are written."],
  paused: ["Paused", "New events wait until you resume."],
  reconnecting: ["Reconnecting", "The connection broke off. The page tries again."],
  refused: ["Login needed", "The server answers again, but does not know this browser any more."],
  loggedOut: ["Your login has ended", "The token was revoked, or you have logged out. The page shows what it has."],
};

/** A stream of updates with its state. */
export class LiveFeed {
  /**
   * @param {Connect} connect opens the stream where the page left off; returns a function that closes it
   * @param {(data: any) => void} onData
   * @param {(status: LiveStatus) => void} onStatus
   */
  constructor(connect, onData, onStatus) {
    /** @type {LiveStatus} */
    this.status = "connecting";
    this._connect = connect;
    this._onData = onData;
    this._onStatus = onStatus;
    this._attempts = 0;
    /** When the connection was lost, in seconds since 1970; 0 while there is one, or there was none yet. */
    this.lostAt = 0;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this._timer = undefined;
    /** @type {(() => void) | null} */
    this._close = null;
  }

  /**
   * Connect, also after a pause.
   * @returns {void}
   */
  start() {
    this._attempts = 0;
    this._open("connecting");
  }

  /**
   * Close the connection until `start`.
   * @returns {void}
   */
  pause() {
    this._disconnect();
    this._setStatus("paused");
  }

  /**
   * @param {LiveStatus} status
   * @returns {void}
   */
  _open(status) {
    this._disconnect();
    this._setStatus(status);
    let isCurrent = true;
    const close = this._connect(
      (data) => {
        if (isCurrent) this._onData(data);
      },
      (state) => {
        if (isCurrent) this._onState(state);
      },
    );
    this._close = () => {
      isCurrent = false;
      close();
    };
  }

  /**
   * @param {StreamState} state
   * @returns {void}
   */
  _onState(state) {
    if (state === "live") {
      this._attempts = 0;
      this._setStatus("live");
    } else if (state === "reconnecting") {
      this._setStatus("reconnecting");
    } else if (state === "loggedOut") {
      this._disconnect();
      this._setStatus("loggedOut");
    } else {
      this._retry(state === "refused" ? "refused" : "reconnecting");
    }
  }

  /**
   * Connect again after a delay.
   * @param {"refused" | "reconnecting"} status what is known of the server until then
   */
  _retry(status) {
    const delay = RECONNECT_DELAYS_MS[Math.min(this._attempts, RECONNECT_DELAYS_MS.length - 1)];
    this._attempts += 1;
    this._disconnect();
    this._setStatus(status);
    this._timer = setTimeout(() => this._open(status), delay);
  }

  /** Close the stream and forget a planned attempt. */
  _disconnect() {
    clearTimeout(this._timer);
    this._close?.();
    this._close = null;
  }

  /**
   * @param {LiveStatus} status
   * @returns {void}
   */
  _setStatus(status) {
    if (this.status === status) return;
    const isLost = status === "reconnecting" || status === "refused";
    this.lostAt = isLost ? this.lostAt || Date.now() / 1000 : 0;
    this.status = status;
    this._onStatus(status);
  }
}

/**
 * The page that asks for a token and then leads back to this session.
 * @returns {string}
 */
function loginAddress() {
  const { id = "" } = document.body.dataset;
  return id ? `login?id=${encodeURIComponent(id)}` : "login";
}

/**
 * Return what a page says while its server does not answer, or refuses it; "" while there is nothing to say.
 * @param {LiveStatus} status
 * @param {string} since the time at which the connection was lost
 * @param {string} command the command that started the server
 * @returns {string}
 */
export function lostServerText(status, since, command) {
  const shown = "This page shows the last state that it had, and goes on by itself";
  if (status === "reconnecting") {
    return `The server has not answered since ${since}. ${shown} once the server runs again: start it with \`${command}\`.`;
  }
  if (status !== "refused") return "";
  const login = command === "foveal serve" ? "log in" : "open the address that it has printed";
  return `The server was started again. ${shown} once this browser has logged in: ${login} in another tab.`;
}

/** A line with the state of a feed and a button that pauses or resumes it, and a notice while there is no server. */
export class LiveStatusLine {
  /** @param {LiveFeed} feed */
  constructor(feed) {
    this._feed = feed;
    this._word = el("span", { class: "live-word" });
    this._button = el("button", { type: "button", class: "live-button", onclick: () => this._press() });
    /** The element of the line. */
    this._login = el("a", { class: "live-button", href: loginAddress() }, "Log in again");
    this.element = el("span", { class: "live-line" }, this._word, this._button, this._login);
    this._notice = el("p", { class: "server-notice", role: "status", hidden: true });
    document.getElementById("head")?.append(this._notice);
    this.show(feed.status);
  }

  /**
   * @param {LiveStatus} status
   * @returns {void}
   */
  show(status) {
    const [word, explanation] = STATUS_WORDS[status];
    this.element.dataset.status = status;
    setText(this._word, word);
    this._word.title = explanation;
    setText(this._button, status === "paused" ? "Resume" : "Pause");
    this._button.title = explanation;
    this._button.hidden = status === "loggedOut";
    this._login.hidden = status !== "loggedOut";
    const { command = "foveal inspect" } = document.body.dataset;
    const notice = lostServerText(status, formatTime(this._feed.lostAt), command);
    this._notice.hidden = notice === "";
    setText(this._notice, notice);
  }

  /** Pause a feed that runs, and start one that does not. */
  _press() {
    if (this._feed.status === "paused") this._feed.start();
    else this._feed.pause();
  }
}

/**
 * Close the connection of a hidden page after a while, and open it when the page is shown again. Returns a function
 * that stops watching.
 * @param {LiveFeed} feed
 * @returns {() => void}
 */
export function pauseWhileHidden(feed) {
  let timer = 0;
  let isAsleep = false;
  return on(document, "visibilitychange", () => {
    clearTimeout(timer);
    if (document.hidden) {
      timer = window.setTimeout(() => {
        isAsleep = !["paused", "loggedOut"].includes(feed.status);
        if (isAsleep) feed.pause();
      }, HIDDEN_MS);
    } else if (isAsleep) {
      isAsleep = false;
      feed.start();
    }
  });
}

/**
 * Return a function that collects numbers and announces their sum, at most once in a while.
 * @param {import("./types.js").Announce} announce
 * @param {(count: number) => string} sentence
 * @returns {(count: number) => void}
 */
export function announceTogether(announce, sentence) {
  let waiting = 0;
  let isPlanned = false;
  return (count) => {
    waiting += count;
    if (isPlanned || waiting === 0) return;
    isPlanned = true;
    setTimeout(() => {
      isPlanned = false;
      announce(sentence(waiting), "news");
      waiting = 0;
    }, ANNOUNCE_MS);
  };
}

/**
 * Follow the session of a page: new events are appended, and the point stays at the end while `follow` is on.
 * @param {App} app
 * @returns {{element: HTMLElement, feed: LiveFeed | null, start: () => void}}
 */
export function createLiveControl(app) {
  const element = el("div", { class: "live-control", role: "group", "aria-label": "Live updates" });
  if (app.data.isOffline) {
    element.append(el("span", { class: "live-word" }, "Exported file"));
    return { element, feed: null, start: () => {} };
  }
  const announce = announceTogether(app.announce, (count) => `${formatCount(count, "new event")}.`);
  const feed = new LiveFeed(
    (onData, onState) => app.data.follow(app.timeline, onData, onState),
    (timeline) => appendLive(app, timeline, announce),
    (status) => {
      line.show(status);
      if (status === "loggedOut") app.announce("Your login has ended. Log in again to go on.");
    },
  );
  const line = new LiveStatusLine(feed);
  const follow = createFollowButton(app);
  clear(element, line.element, follow);
  pauseWhileHidden(feed);
  return { element, feed, start: () => feed.start() };
}

/**
 * Add what a live session has sent. A part that begins at event 0 replaces everything: the log was read again.
 * @param {App} app
 * @param {Timeline} timeline
 * @param {(count: number) => void} announce
 * @returns {void}
 */
export function appendLive(app, timeline, announce) {
  const before = app.timeline.last;
  const { follow, point } = app.state.current;
  app.append(timeline);
  const { last } = app.timeline;
  if ((timeline.first ?? 0) === 0 && before >= 0) forgetReplaced(app);
  // A log that was read again can be shorter.
  if (follow || point > last) app.state.set({ point: last, request: -1, follow: true });
  announce(Math.max(0, last - before));
}

/**
 * Forget what the page has chosen of a timeline that was replaced: numbers of requests can be those of others now, and
 * a message may not exist any more.
 * @param {App} app
 * @returns {void}
 */
function forgetReplaced(app) {
  const { selected } = app.state.current;
  const isThere = selected === "" || app.timeline.row(seqOfKey(selected)) !== undefined;
  app.state.set({ request: -1, compare: { a: -1, b: -1 }, selected: isThere ? selected : "" });
}

/**
 * The switch that keeps the page at the newest event. Scrubbing turns it off.
 * @param {App} app
 * @returns {HTMLButtonElement}
 */
function createFollowButton(app) {
  const button = el("button", { type: "button", class: "follow-button" }, "Follow");
  const show = () => {
    const { follow, point } = app.state.current;
    const behind = app.timeline.last - point;
    button.setAttribute("aria-pressed", String(follow));
    setText(button, follow || behind <= 0 ? "Follow" : `Follow (${formatCount(behind, "event")} behind)`);
    button.title = follow
      ? "The page stays at the newest event. Scrubbing turns this off."
      : "Go to the newest event and stay there.";
  };
  on(button, "click", () => {
    const follow = !app.state.current.follow;
    app.state.set(follow ? { follow, point: app.timeline.last, request: -1 } : { follow });
  });
  app.state.subscribe(show);
  show();
  return button;
}
