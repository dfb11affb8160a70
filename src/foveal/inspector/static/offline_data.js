/**
 * Data of an exported file: everything comes from the page itself, and nothing is asked of a server.
 *
 * 1. `texts` holds messages as they were said, `shown` the versions that reductions made, each under the key of its
 *    message and the event from which on requests show it, such as `e12@40`.
 * 2. A diff compares the texts of messages. The bytes of a request are not in the file, so it gives no byte offset.
 * 3. What needs the log says so: replays, live updates and changes of the session.
 *
 * @module
 */

import { DataSource, Problem } from "./data_source.js";
import { diffShownMessages } from "./offline_diff.js";
import { TimelineState } from "./timeline_state.js";

/** @typedef {import("./types.js").Timeline} Timeline */
/** @typedef {import("./types.js").MessageText} MessageText */
/** @typedef {import("./types.js").SentRequest} SentRequest */
/** @typedef {import("./types.js").RequestDiff} RequestDiff */
/** @typedef {import("./types.js").TextHits} TextHits */

/**
 * What the exporter writes into the page.
 * @typedef {object} EmbeddedData
 * @property {Timeline} timeline
 * @property {Record<string, MessageText>} [texts]
 * @property {Record<string, MessageText>} [shown]
 * @property {SentRequest[]} [requests]
 * @property {import("./types.js").ShownStatements} [statements] those at the newest event
 * @property {import("./types.js").StepSurprises} [surprises]
 */

/** Shortest text that can be searched for. */
const MIN_OFFLINE_SEARCH_CHARS = 2;
/** Most hits of a search. */
const MAX_OFFLINE_HITS = 500;
const NEEDS_SERVER = "An exported file cannot do that. Open the session with `foveal inspect` instead.";

/**
 * Return the data that the exporter has written into the page; null if the page comes from a server.
 * @returns {EmbeddedData | null}
 */
export function embeddedData() {
  const script = document.getElementById("foveal-data");
  return script ? JSON.parse(script.textContent ?? "null") : null;
}

/**
 * Return all text of a message.
 * @param {MessageText | undefined} message
 * @returns {string}
 */
export function textOfParts(message) {
  return (message?.parts ?? []).map((part) => [part.name, part.text].filter(Boolean).join("\n")).join("\n");
}

/** The data source of an exported file. */
export class OfflineData extends DataSource {
  /** @param {EmbeddedData} embedded */
  constructor(embedded) {
    super(embedded.timeline.id);
    this.isOffline = true;
    this.isWritable = false;
    this.whyReadOnly = "This page is an exported file. Open the session with `foveal inspect` to change it.";
    this._embedded = embedded;
    this._texts = new Map(Object.entries(embedded.texts ?? {}));
    this._versions = new Map(Object.entries(embedded.shown ?? {}));
    /** @type {TimelineState | null} */
    this._state = null;
  }

  /** The timeline as a state, made when it is first needed. */
  get state() {
    this._state ??= new TimelineState(this._embedded.timeline);
    return this._state;
  }

  /**
   * @override
   * @returns {Promise<Timeline>}
   */
  async timeline() {
    return this._embedded.timeline;
  }

  /**
   * @override
   * @returns {Promise<Timeline>}
   */
  outline() {
    return this.timeline();
  }

  /**
   * @override
   * @param {string} key
   * @param {number} [from]
   * @returns {Promise<MessageText>}
   */
  async text(key, from = 0) {
    const found = this._texts.get(key);
    if (!found) throw new Problem(`The exported file does not hold the text of ${key}. ${NEEDS_SERVER}`);
    if (from > 0) throw new Problem(`The exported file holds only the beginning of ${key}. ${NEEDS_SERVER}`);
    return found;
  }

  /**
   * @override
   * @param {string} key
   * @param {number} at
   * @returns {Promise<MessageText>}
   */
  async shown(key, at) {
    const change = this.state.at(at).get(key);
    if (!change) throw new Problem(`${key} was not yet said at e${at}.`);
    const { level, rule, by } = change;
    if (level !== "full" && level !== "clipped" && level !== "masked") return { key, level, rule, by, parts: [] };
    const version =
      this._versions.get(`${key}@${change.at}`) ?? (level === "full" ? this._texts.get(key) : undefined);
    if (version) return { ...version, level, rule, by };
    throw new Problem(`The exported file does not hold this version of ${key}. ${NEEDS_SERVER}`);
  }

  /**
   * @override
   * @param {number} at
   * @param {string} [dialect]
   * @returns {Promise<SentRequest>}
   */
  async request(at, dialect = "") {
    const requests = this._embedded.requests ?? [];
    const found = requests.find((one) => one.at === at && (!dialect || one.dialect === dialect));
    if (found)
      return { ...found, dialects: requests.filter((one) => one.at === at).map((one) => one.dialect ?? "") };
    const points = [...new Set(requests.map((one) => `e${one.at}`))].join(", ");
    const held = points ? `only the request after ${points}` : "no request as it was sent";
    throw new Problem(`The exported file holds ${held}. ${NEEDS_SERVER}`);
  }

  /**
   * @override
   * @param {number} a
   * @param {number} b
   * @returns {Promise<RequestDiff>}
   */
  async diff(a, b) {
    return diffShownMessages(this.state, a, b, (change) => {
      const version = this._versions.get(`${change.key}@${change.at}`) ?? this._texts.get(change.key);
      return textOfParts(version) || change.preview;
    });
  }

  /**
   * @override
   * @param {string} q
   * @returns {Promise<TextHits>}
   */
  async search(q) {
    const wanted = q.trim().toLowerCase();
    if (wanted.length < MIN_OFFLINE_SEARCH_CHARS) throw new Problem(`Type at least ${MIN_OFFLINE_SEARCH_CHARS} characters.`);
    /** @type {[string, number][]} */
    const hits = [];
    for (const [key, message] of this._texts) {
      if (textOfParts(message).toLowerCase().includes(wanted)) hits.push([key, -1]);
    }
    for (const [name, message] of this._versions) {
      if (textOfParts(message).toLowerCase().includes(wanted)) hits.push(this._versionHit(name));
    }
    hits.sort((one, other) => Number(other[0].slice(1).split(".")[0]) - Number(one[0].slice(1).split(".")[0]));
    return { q, hits: hits.slice(0, MAX_OFFLINE_HITS), truncated: hits.length > MAX_OFFLINE_HITS };
  }

  /**
   * @override
   * @returns {Promise<import("./types.js").ShownStatements>}
   */
  async statements() {
    const { statements } = this._embedded;
    if (!statements) throw new Problem(`The exported file does not hold the statements of the user. ${NEEDS_SERVER}`);
    return statements;
  }

  /**
   * @override
   * @returns {Promise<import("./types.js").StepSurprises>}
   */
  async surprises() {
    const { surprises } = this._embedded;
    if (!surprises) throw new Problem(`The exported file does not hold the surprise of the steps. ${NEEDS_SERVER}`);
    return surprises;
  }

  /**
   * Return the key of a version such as `e12@40`, and the event that made it.
   * @param {string} name
   * @returns {[string, number]}
   */
  _versionHit(name) {
    const [key, at] = name.split("@");
    const change = this.state.history(key).find((one) => one.at === Number(at));
    return [key, change?.by ?? -1];
  }

  /**
   * @override
   * @returns {Promise<any>}
   */
  async whatIf() {
    throw new Problem(`A replay needs the log. ${NEEDS_SERVER}`);
  }

  /**
   * @override
   * @returns {Promise<any>}
   */
  async sessions() {
    return { sessions: [], next: "" };
  }

  /**
   * @override
   * @returns {() => void}
   */
  follow() {
    return () => {};
  }

  /**
   * @override
   * @returns {() => void}
   */
  followSessions() {
    return () => {};
  }
}
