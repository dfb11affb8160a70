/**
 * Parts that several panels are made of: links, states, facts, loading and confirmation.
 *
 * @module
 */

import { problemText } from "./data_source.js";
import { clear, el, setText } from "./dom.js";
import { lowerBound } from "./timeline_state.js";

/** @typedef {import("./types.js").App} App */
/** @typedef {import("./types.js").PageState} PageState */
/** @typedef {import("./dom.js").Child} Child */

/**
 * Return a button.
 * @param {string} text
 * @param {(event: any) => void} action
 * @param {{class?: string, disabled?: boolean, title?: string, label?: string}} [options]
 * @returns {HTMLButtonElement}
 */
export function actionButton(text, action, options = {}) {
  return el(
    "button",
    {
      type: "button",
      class: `button ${options.class ?? ""}`.trim(),
      disabled: options.disabled ?? false,
      title: options.title,
      "aria-label": options.label,
      onclick: action,
    },
    text,
  );
}

/**
 * Return a button that looks like a link and shows the view after an event.
 * @param {App} app
 * @param {number} seq
 * @param {string} [text]
 * @returns {HTMLButtonElement}
 */
export function eventLink(app, seq, text = `e${seq}`) {
  return el("button", { type: "button", class: "link", title: `Go to event ${seq}`, onclick: () => goToShown(app, seq) }, text);
}

/**
 * Show the view after an event of the timeline that is shown. The point of the page is an event of the recorded session,
 * so an event of a replay is reached by the request that shows it first.
 * @param {App} app
 * @param {number} seq
 * @returns {void}
 */
export function goToShown(app, seq) {
  const timeline = app.shown();
  if (timeline === app.timeline) return app.goTo(seq);
  const index = lowerBound(timeline.requests, (request) => request.at < seq);
  app.goToRequest(Math.min(index, app.timeline.requests.length - 1));
}

/**
 * Return a button that looks like a link and opens the text of a message.
 * @param {App} app
 * @param {string} key
 * @param {string} [text]
 * @returns {HTMLButtonElement}
 */
export function messageLink(app, key, text = key) {
  return el(
    "button",
    { type: "button", class: "link", title: `Open message ${key}`, onclick: () => openShown(app, key) },
    text,
  );
}

/**
 * Open the text of a message of the timeline that is shown.
 * @param {App} app
 * @param {string} key
 * @returns {void}
 */
export function openShown(app, key) {
  if (app.shown() === app.timeline) app.openText(key);
  else app.announce("The page has no texts of a replay. Show the recorded session to open messages.");
}

/**
 * Return a text in which every handle such as `e1499` goes to that event.
 * @param {App} app
 * @param {string} text
 * @returns {Child[]}
 */
export function linkEvents(app, text) {
  return text.split(/\b(e\d{1,9})\b/).map((part, index) => {
    return index % 2 === 1 ? eventLink(app, Number(part.slice(1))) : part;
  });
}

/**
 * Return a sentence about an empty or a loading part.
 * @param {string} text
 * @param {"empty" | "loading"} [kind]
 * @returns {HTMLElement}
 */
export function stateNote(text, kind = "empty") {
  return el("p", { class: `panel-note is-${kind}` }, text);
}

/**
 * Return a box with an error in full and, if it can be repeated, a button.
 * @param {unknown} error
 * @param {() => void} [retry]
 * @returns {HTMLElement}
 */
export function problemBox(error, retry) {
  const message = error instanceof Error ? error.message : String(error);
  return el(
    "div",
    { class: "panel-problem", role: "alert" },
    el("p", null, message),
    retry && actionButton("Try again", retry),
  );
}

/**
 * Return a list of facts: a term and its value. Facts without a value are left out.
 * @param {Array<[Child, Child | Child[]]>} facts
 * @returns {HTMLElement}
 */
export function factList(facts) {
  const rows = facts.filter(([, value]) => (Array.isArray(value) ? value.length > 0 : Boolean(value)));
  return el(
    "dl",
    { class: "facts" },
    rows.map(([term, value]) => el("div", null, el("dt", null, term), el("dd", null, value))),
  );
}

/**
 * Return the text of a message in a scrolling block.
 * @param {string} text
 * @param {string} label
 * @returns {HTMLElement}
 */
export function textBlock(text, label) {
  return el("pre", { class: "text-block", tabindex: 0, role: "region", "aria-label": label }, text);
}

/**
 * Return a function that fills `area` by an asynchronous load: a note while it runs, the error with "Try again" if it
 * fails. An answer that arrives after a newer load has begun is ignored.
 * @param {HTMLElement} area
 * @returns {<T>(note: string, load: () => Promise<T>, draw: (result: T) => Child | Child[]) => Promise<void>}
 */
export function createLoader(area) {
  let newest = 0;
  return async function fill(note, load, draw) {
    newest += 1;
    const mine = newest;
    area.setAttribute("aria-busy", "true");
    clear(area, stateNote(note, "loading"));
    /** @type {Child | Child[]} */
    let content;
    try {
      content = draw(await load());
    } catch (error) {
      content = problemBox(error, () => void fill(note, load, draw));
    }
    if (mine !== newest) return;
    area.removeAttribute("aria-busy");
    clear(area, content);
  };
}

/**
 * Ask in a dialog what to do, and return whether it was confirmed.
 * @param {string} title
 * @param {Child[]} sentences what will happen
 * @param {string} confirmation the text of the confirming button
 * @param {Promise<import("./types.js").ExpansionRoom> | null} [room] what makes room for it, if that must be found out
 * @returns {Promise<boolean>}
 */
export function confirmAction(title, sentences, confirmation, room = null) {
  return new Promise((resolve) => {
    const dialog = el("dialog", { class: "confirm", "aria-labelledby": "confirm-title" });
    const confirm = actionButton(confirmation, () => dialog.close("yes"), { class: "is-primary" });
    dialog.append(
      el("h2", { id: "confirm-title" }, title),
      ...sentences.map((sentence) => el("p", null, sentence)),
      ...(room ? [roomLine(room, confirm)] : []),
      el("div", { class: "button-row" }, actionButton("Cancel", () => dialog.close("no")), confirm),
    );
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
    confirm.focus();
  });
}

/**
 * Return a line that says what else will be hidden, once the server has found it out. What the session would refuse
 * cannot be confirmed.
 * @param {Promise<import("./types.js").ExpansionRoom>} room
 * @param {HTMLButtonElement} confirm
 * @returns {HTMLElement}
 */
function roomLine(room, confirm) {
  const line = el("p", { class: "dialog-room", role: "status" }, "Finding out what has to be hidden to make room …");
  room.then(
    ({ text, possible = true }) => {
      setText(line, text);
      line.dataset.state = possible ? "possible" : "refused";
      confirm.disabled = !possible;
    },
    (error) => {
      setText(line, `What has to be hidden to make room is not known: ${problemText(error)}`);
      line.dataset.state = "unknown";
    },
  );
  return line;
}

/**
 * Return a bar of segments. It is a picture of numbers that stand beside it as text, so it is hidden from screen readers.
 * @param {Array<{name: string, share: number, title?: string}>} segments  `name` is a class, `share` is of the bar.
 * @param {string} [kind] a further class
 * @returns {HTMLElement}
 */
export function segmentBar(segments, kind = "") {
  const bar = el("div", { class: `segment-bar ${kind}`.trim(), "aria-hidden": "true" });
  for (const { name, share, title } of segments) {
    if (!(share > 0)) continue;
    const segment = el("span", { class: `segment is-${name}`, title });
    segment.style.setProperty("width", `${Math.min(100, share * 100).toFixed(3)}%`);
    bar.append(segment);
  }
  return bar;
}

/** Milliseconds between two renderings of a panel while the scrubber moves. */
const PANEL_PAUSE_MS = 120;

/**
 * Return a `render` that draws at once, but not more often than every `PANEL_PAUSE_MS`: a panel must not slow down the
 * scrubber. The newest state is always drawn in the end.
 * @param {(state: PageState) => void} draw
 * @returns {(state: PageState) => void}
 */
export function calmRender(draw) {
  /** @type {PageState | null} */
  let latest = null;
  let isWaiting = false;
  const next = () => {
    isWaiting = latest !== null;
    if (latest === null) return;
    const state = latest;
    latest = null;
    setTimeout(next, PANEL_PAUSE_MS);
    draw(state);
  };
  return (state) => {
    latest = state;
    if (!isWaiting) next();
  };
}
