/**
 * Access to the server of the inspector. The exported file uses the class in `offline_data.js` instead.
 *
 * Addresses are relative to the page, so a reverse proxy can add a prefix.
 *
 * @module
 */

/** @typedef {import("./types.js").Timeline} Timeline */
/** @typedef {import("./types.js").MessageText} MessageText */
/** @typedef {import("./types.js").SentRequest} SentRequest */
/** @typedef {import("./types.js").RequestDiff} RequestDiff */
/** @typedef {import("./types.js").TextHits} TextHits */
/** @typedef {import("./types.js").WhatIf} WhatIf */
/** @typedef {import("./types.js").SessionRow} SessionRow */
/** @typedef {import("./types.js").SessionPage} SessionPage */
/** @typedef {import("./types.js").ActionBody} ActionBody */
/** @typedef {import("./types.js").ActionResult} ActionResult */
/** @typedef {"live" | "reconnecting" | "closed" | "refused" | "loggedOut"} StreamState */

/** Characters of a message that are loaded at once. */
export const TEXT_WINDOW_CHARS = 200_000;

/**
 * A failure in words that people can read.
 */
export class Problem extends Error {
  /**
   * @param {string} message
   * @param {string} [code]
   * @param {number} [status]
   */
  constructor(message, code = "", status = 0) {
    super(message);
    this.name = "Problem";
    this.code = code;
    this.status = status;
  }
}

/**
 * Return the message of anything that was thrown.
 * @param {unknown} error
 * @returns {string}
 */
export function problemText(error) {
  if (error instanceof Problem) return error.message;
  return `The page failed: ${error instanceof Error ? error.message : String(error)}. Reload the page.`;
}

/**
 * Data of one session, or of the overview (`id` is "").
 */
export class DataSource {
  /** @param {string} id key of the session */
  constructor(id) {
    this.id = id;
    /** Whether the page is an exported file without a server. */
    this.isOffline = false;
    /** Whether actions can change the session. */
    this.isWritable = true;
    /** Why they cannot; "" if they can. */
    this.whyReadOnly = "";
    /**
     * Names of the preset policies, each with what it does.
     * @type {[string, string][]}
     */
    this.policies = [];
  }

  /**
   * Return the timeline from an event on.
   * @param {number} [first]
   * @returns {Promise<Timeline>}
   */
  timeline(first = 0) {
    return this.get("timeline", { id: this.id, first });
  }

  /**
   * Return the outline of a long session, which is ready sooner; the whole timeline of any other.
   * @returns {Promise<Timeline>}
   */
  outline() {
    return this.get("timeline", { id: this.id, outline: "true" });
  }

  /**
   * Return the original text of a message, or a window of it.
   * @param {string} key such as `e12`
   * @param {number} [from] the first character
   * @returns {Promise<MessageText>}
   */
  text(key, from = 0) {
    return this.get("text", { id: this.id, event: key.replace(/^e/, ""), from, chars: TEXT_WINDOW_CHARS });
  }

  /**
   * Return a message as the request after event `at` shows it.
   * @param {string} key
   * @param {number} at
   * @returns {Promise<MessageText>}
   */
  shown(key, at) {
    return this.get("shown", { id: this.id, key, at });
  }

  /**
   * Return the request after event `at` as it is sent.
   * @param {number} at
   * @param {string} [dialect]
   * @returns {Promise<SentRequest>}
   */
  request(at, dialect = "") {
    return this.get("request", { id: this.id, at, dialect });
  }

  /**
   * Compare the requests after two events.
   * @param {number} a
   * @param {number} b
   * @param {string} [dialect]
   * @returns {Promise<RequestDiff>}
   */
  diff(a, b, dialect = "") {
    return this.get("diff", { id: this.id, a, b, dialect });
  }

  /**
   * Return the messages whose text, or a shown version of it, contains `q`.
   * @param {string} q
   * @returns {Promise<TextHits>}
   */
  search(q) {
    return this.get("search", { id: this.id, q });
  }

  /**
   * Return what a compaction lost.
   * @param {number} event
   * @returns {Promise<import("./types.js").LostDetails>}
   */
  lost(event) {
    return this.get("lost", { id: this.id, event });
  }

  /**
   * Return what other messages give way if a hidden one is shown again.
   * @param {number} event a message, or a reduction
   * @param {boolean} pins whether it stays for good
   * @returns {Promise<import("./types.js").ExpansionRoom>}
   */
  room(event, pins) {
    return this.get("room", { id: this.id, event, pins: String(pins) });
  }

  /**
   * Return what the user has said up to event `at`, and where the request after it shows that.
   * @param {number} at
   * @returns {Promise<import("./types.js").ShownStatements>}
   */
  statements(at) {
    return this.get("statements", { id: this.id, at });
  }

  /**
   * Return a page of sessions, the newest first.
   * @param {{after?: string, limit?: number, q?: string}} [query]
   * @returns {Promise<SessionPage>}
   */
  sessions({ after = "", limit = 50, q = "" } = {}) {
    return this.get("sessions", { after, limit, q });
  }

  /**
   * Change the session by an event.
   * @param {ActionBody} body
   * @param {AbortSignal} [signal] cancels a compaction: the server notices that the page has left
   * @returns {Promise<ActionResult>}
   */
  act(body, signal) {
    if (!this.isWritable) return Promise.reject(new Problem(this.whyReadOnly || "This session cannot be changed."));
    return this.fetchJson(apiUrl("act", { id: this.id }), {
      method: "POST",
      signal,
      body: JSON.stringify(body),
      headers: { "Content-Type": "application/json", "X-Foveal-Inspect": writeToken() },
    });
  }

  /**
   * Return what can write the summary of a compaction, the default first.
   * @returns {Promise<{writers?: import("./types.js").OfferedWriter[]}>}
   */
  writers() {
    return this.get("writers", { id: this.id });
  }

  /**
   * Replay the session under other settings.
   * @param {Record<string, string | number>} parameters policy, window, model
   * @param {(progress: {done: number, total: number}) => void} [onProgress]
   * @param {AbortSignal} [signal]
   * @returns {Promise<WhatIf>}
   */
  whatIf(parameters, onProgress, signal) {
    return this.compute(apiUrl("whatif", { id: this.id, ...parameters }), onProgress, signal);
  }

  /**
   * Measure how much less the requests say about the recorded steps than the whole history.
   * @param {(progress: {done: number, total: number}) => void} [onProgress]
   * @param {AbortSignal} [signal]
   * @returns {Promise<import("./types.js").StepSurprises>}
   */
  surprises(onProgress, signal) {
    return this.compute(apiUrl("surprises", { id: this.id }), onProgress, signal);
  }

  /**
   * Return what the server computes for a while, and says how far it is.
   * @param {string} url
   * @param {(progress: {done: number, total: number}) => void} [onProgress]
   * @param {AbortSignal} [signal]
   * @returns {Promise<any>}
   */
  compute(url, onProgress, signal) {
    return new Promise((resolve, reject) => {
      const stream = new EventSource(url);
      /** @param {() => void} settle */
      const end = (settle) => {
        stream.close();
        settle();
      };
      stream.addEventListener("progress", (event) => onProgress?.(JSON.parse(event.data)));
      stream.addEventListener("result", (event) => end(() => resolve(JSON.parse(event.data))));
      stream.addEventListener("problem", (event) =>
        end(() => reject(new Problem(JSON.parse(event.data).message ?? "The computation failed."))),
      );
      stream.addEventListener("login", () => end(() => reject(new Problem("Your login has ended. Log in again.", "login"))));
      // A computation that breaks off is not started again by the browser.
      stream.addEventListener("error", () => {
        const isRefused = stream.readyState === EventSource.CLOSED;
        end(() => void this.whyBroken(url, isRefused).then(reject));
      });
      signal?.addEventListener("abort", () => end(() => reject(new Problem("The computation was stopped.", "stopped"))));
    });
  }

  /**
   * Return why a computation broke off. A browser does not tell a page what a refused stream answered, so that is asked
   * once more.
   * @param {string} url
   * @param {boolean} isRefused
   * @returns {Promise<Problem>}
   */
  async whyBroken(url, isRefused) {
    const asked = new AbortController();
    const options = { credentials: /** @type {const} */ ("same-origin"), signal: asked.signal };
    const response = isRefused ? await fetch(url, options).catch(() => null) : null;
    if (response && !response.ok) return responseProblem(response, await response.json().catch(() => null));
    asked.abort();
    return new Problem("The connection ended before the answer was complete. Try it again.");
  }

  /**
   * Follow a running session; returns a function that ends it. The browser resumes after a broken connection.
   * @param {{last: number, generation: number}} known the newest event that is known
   * @param {(timeline: Timeline) => void} onTimeline
   * @param {(state: StreamState) => void} [onState]
   * @returns {() => void}
   */
  follow({ last, generation }, onTimeline, onState) {
    return openStream(apiUrl("live", { id: this.id, after: last, generation }), "timeline", onTimeline, onState);
  }

  /**
   * Follow the list of sessions; returns a function that ends it.
   * @param {(rows: SessionRow[]) => void} onRows
   * @param {(state: StreamState) => void} [onState]
   * @returns {() => void}
   */
  followSessions(onRows, onState) {
    return openStream(apiUrl("live", {}), "sessions", onRows, onState);
  }

  /**
   * The address of the exported file of this session.
   * @returns {string}
   */
  exportUrl() {
    return apiUrl("export", { id: this.id });
  }

  /**
   * @param {string} name
   * @param {Record<string, string | number>} parameters
   * @returns {Promise<any>}
   */
  get(name, parameters) {
    return this.fetchJson(apiUrl(name, parameters), { method: "GET" });
  }

  /**
   * @param {string} url
   * @param {RequestInit} options
   * @returns {Promise<any>}
   */
  async fetchJson(url, options) {
    let response;
    try {
      response = await fetch(url, { credentials: "same-origin", ...options });
    } catch {
      if (options.signal?.aborted) throw new Problem("It was cancelled; nothing was recorded.", "cancelled");
      throw new Problem("The inspector does not answer. Check that `foveal inspect` is still running, then try again.");
    }
    const body = await response.json().catch(() => null);
    if (response.ok && body !== null) return body;
    throw responseProblem(response, body);
  }
}

/**
 * Return the reason that the server gave with a refusal.
 * @param {Response} response
 * @param {any} body
 * @returns {Problem}
 */
function responseProblem(response, body) {
  const { message = "", code = "" } = body?.error ?? {};
  return new Problem(message || statusText(response.status), code, response.status);
}

/**
 * @param {string} name
 * @param {Record<string, string | number>} parameters
 * @returns {string}
 */
function apiUrl(name, parameters) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(parameters)) {
    if (value !== "") query.set(key, String(value));
  }
  const text = query.toString();
  return text ? `api/${name}?${text}` : `api/${name}`;
}

/**
 * The token that the server asks for besides the cookie.
 * @returns {string}
 */
function writeToken() {
  return document.querySelector('meta[name="foveal-token"]')?.getAttribute("content") ?? "";
}

/**
 * @param {number} status
 * @returns {string}
 */
function statusText(status) {
  if (status === 401) return "This page is signed out. Open the address that `foveal inspect` has printed.";
  if (status === 404) return "The session is no longer there. Go back to the overview.";
  return `The inspector answered with status ${status}. Reload the page.`;
}

/**
 * @param {string} url
 * @param {string} type
 * @param {(data: any) => void} onData
 * @param {((state: StreamState) => void) | undefined} onState
 * @returns {() => void}
 */
function openStream(url, type, onData, onState) {
  const stream = new EventSource(url);
  stream.addEventListener(type, (event) => onData(JSON.parse(event.data)));
  stream.addEventListener("open", () => onState?.("live"));
  // The browser would open the stream again, although the server refuses it now.
  stream.addEventListener("login", () => {
    stream.close();
    onState?.("loggedOut");
  });
  stream.addEventListener("error", () => {
    if (stream.readyState === EventSource.CLOSED) void closedState().then((state) => onState?.(state));
    else onState?.("reconnecting");
  });
  return () => stream.close();
}

/**
 * Return why a stream was closed: the browser does not tell.
 * @returns {Promise<"refused" | "closed">} refused: the server runs and wants a login
 */
async function closedState() {
  const response = await fetch(apiUrl("sessions", { limit: 1 }), { credentials: "same-origin" }).catch(() => null);
  return response?.status === 401 ? "refused" : "closed";
}
