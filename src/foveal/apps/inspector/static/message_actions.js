/**
 * Buttons that change the session: undo, expand, pin, drop and compact.
 *
 * Each asks first and says what will happen. The server appends the same event as the library, the chat and the API do,
 * and the page then loads what is new. Actions apply to the newest state of the session, whatever point is shown.
 *
 * @module
 */

import { clear, el } from "./dom.js";
import { formatCount, formatNumber } from "./format.js";
import { actionButton, confirmAction, eventLink, problemBox } from "./panel_parts.js";
import { isSent, seqOfKey } from "./timeline_state.js";

/** @typedef {import("./types.js").ActionBody} ActionBody */
/** @typedef {import("./types.js").App} App */
/** @typedef {import("./dom.js").Child} Child */
/** @typedef {import("./types.js").ReductionCard} ReductionCard */
/** @typedef {import("./types.js").ViewChange} ViewChange */

/**
 * One button.
 * @typedef {object} ActionChoice
 * @property {string} name  The text of the button.
 * @property {() => ActionBody} body
 * @property {string} title  The question of the dialog.
 * @property {string[]} sentences  What will happen.
 * @property {string} [whyNot]  Why it cannot be used now; "" if it can.
 */

const UNDO_HINT = "You can take it back with Undo; the log keeps everything.";

/**
 * Return why the session cannot be changed from this page; "" if it can.
 * @param {App} app
 * @returns {string}
 */
export function whyReadOnly(app) {
  if (app.data.isOffline) return "This is an exported file. Open the session with `foveal inspect` to change it.";
  if (!app.data.isWritable) return app.data.whyReadOnly || "This session is read-only: the inspector only reads its file.";
  if (app.state.current.lane === "whatIf") return "This is a replay. Show the recorded session to change it.";
  return "";
}

/**
 * Return the buttons for one message.
 * @param {App} app
 * @param {string} key
 * @returns {HTMLElement}
 */
export function messageActions(app, key) {
  const change = app.timeline.at(app.timeline.last).get(key);
  if (!key.startsWith("e") || !change) {
    return el("p", { class: "action-note" }, "Foveal made this message for the request; it cannot be pinned or dropped.");
  }
  return actionBar(app, `message ${key}`, [undoOf(app, key, change), expandOf(app, key, change), pinOf(app, key, change), dropOf(app, key, change)]);
}

/**
 * Return the buttons that bring a hidden message back: alone until the next user message, or with all that the same
 * event hid.
 * @param {App} app
 * @param {string} key
 * @returns {HTMLElement | null} null if there is nothing to bring back
 */
export function restoreActions(app, key) {
  const change = app.timeline.at(app.timeline.last).get(key);
  if (!key.startsWith("e") || !change || change.level === "full" || change.level === "removed") return null;
  const undo = undoOf(app, key, change);
  return actionBar(app, `restore ${key}`, [
    { ...expandOf(app, key, change), name: "Restore" },
    { ...undo, name: change.by >= 0 ? `Undo e${change.by}` : undo.name },
  ]);
}

/**
 * Return the buttons for one reduction.
 * @param {App} app
 * @param {ReductionCard} card
 * @param {string} place where the card stands, because it can be open in two places
 * @returns {HTMLElement}
 */
export function reductionActions(app, card, place) {
  const name = `e${card.seq}`;
  const change = card.kind === "compacted" ? app.timeline.at(app.timeline.last).get(name) : undefined;
  const isUndone = card.undone >= 0 ? `It was undone by e${card.undone}.` : "";
  const freed = Math.max(0, card.before - card.after);
  const choices = [
    {
      name: "Undo",
      body: () => ({ action: /** @type {const} */ ("undo"), event: name }),
      title: `Undo ${name}?`,
      sentences: [
        `${formatCount(card.count, "message")} will be shown as before ${name}; requests grow by about ${formatNumber(freed)} tokens.`,
        "The provider reads everything behind the first of them again. If the request no longer fits, Foveal refuses or reduces it in another way.",
      ],
      whyNot: isUndone || coveredBy(app, card.seq),
    },
    {
      name: "Expand",
      body: () => ({ action: /** @type {const} */ ("expand"), event: name }),
      title: `Expand ${name}?`,
      sentences: ["What it hides is shown in full until the next user message. The reduction stays in force after that."],
      whyNot: isUndone,
    },
  ];
  const own = change ? [pinOf(app, name, change, "summary"), dropOf(app, name, change, "summary")] : messageChoicesOnly(card);
  return actionBar(app, `reduction ${name} ${place}`, [...choices, ...own]);
}

/**
 * Pin and drop act on messages; a reduction without a text of its own has none.
 * @param {ReductionCard} card
 * @returns {ActionChoice[]}
 */
function messageChoicesOnly(card) {
  const whyNot =
    card.kind === "compacted"
      ? "The summary is not in the request."
      : "Only messages can be pinned or dropped: open one of those that it changed.";
  return ["Pin", "Drop"].map((name) => ({ name, body: () => ({ action: "pin" }), title: "", sentences: [], whyNot }));
}

/**
 * Return the form "Compact now" with its focus field.
 * @param {App} app
 * @returns {HTMLElement}
 */
export function compactForm(app) {
  const focus = el("input", {
    type: "text",
    id: "compact-focus",
    maxlength: 2000,
    placeholder: "What the summary must keep, such as: the failing test and its cause",
  });
  const bar = actionBar(app, "compact", [
    {
      name: "Compact now",
      body: () => ({ action: "compact", focus: focus.value.trim() }),
      title: "Compact the session now?",
      sentences: [
        "Foveal replaces old messages by a summary. If a model is configured, it writes the summary, which costs its price and can take minutes with a local one; otherwise the ledger is taken from the log.",
        UNDO_HINT,
      ],
    },
  ]);
  return el("div", { class: "compact-form" }, el("label", { for: "compact-focus" }, "Focus (optional)"), focus, bar);
}

/**
 * The places for answers by what the buttons are about. The page may draw the buttons again before the server answers,
 * because the live stream brings the new event first.
 * @type {Map<string, HTMLElement>}
 */
const answerPlaces = new Map();

/** The newest answer, which stays visible when its buttons are drawn again. */
const newestAnswer = { subject: "", text: "", event: -1 };

/**
 * Return a row of buttons with a place for the answer.
 * @param {App} app
 * @param {string} subject what the buttons are about
 * @param {ActionChoice[]} choices
 * @returns {HTMLElement}
 */
export function actionBar(app, subject, choices) {
  const blocked = whyReadOnly(app);
  const answer = el("div", { class: "action-answer", role: "status" });
  answerPlaces.set(subject, answer);
  if (newestAnswer.subject === subject) clear(answer, answerContent(app));
  const buttons = choices.map((choice) =>
    actionButton(choice.name, () => void perform(app, subject, choice, buttons), {
      disabled: Boolean(blocked || choice.whyNot),
      title: blocked || choice.whyNot || choice.title,
    }),
  );
  return el(
    "div",
    { class: "action-bar" },
    el("div", { class: "button-row" }, buttons),
    blocked ? el("p", { class: "action-note" }, blocked) : null,
    answer,
  );
}

/**
 * Ask, change the session, and show the answer or the error in full.
 * @param {App} app
 * @param {string} subject
 * @param {ActionChoice} choice
 * @param {HTMLButtonElement[]} buttons
 * @returns {Promise<void>}
 */
async function perform(app, subject, choice, buttons) {
  if (!(await confirmAction(choice.title, choice.sentences, choice.name))) return;
  const usable = buttons.filter((button) => !button.disabled);
  for (const button of usable) button.disabled = true;
  showAnswer(subject, `${choice.name} … You can go on; the answer appears here.`);
  try {
    const result = await app.data.act(choice.body());
    Object.assign(newestAnswer, { subject, text: result.text || "Done.", event: seqOfKey(result.event ?? "") });
    await app.refresh();
    showAnswer(subject, answerContent(app));
    app.announce(newestAnswer.text);
  } catch (error) {
    showAnswer(subject, problemBox(error));
  } finally {
    for (const button of usable) button.disabled = false;
  }
}

/**
 * @param {string} subject
 * @param {Child | Child[]} content
 */
function showAnswer(subject, content) {
  const place = answerPlaces.get(subject);
  if (place) clear(place, content);
}

/**
 * @param {App} app
 * @returns {Child[]}
 */
function answerContent(app) {
  const { text, event } = newestAnswer;
  return [text, " ", event >= 0 ? eventLink(app, event, `Go to e${event}`) : null];
}

// ── Choices for a message ──────────────────────────────────────────────────────────────────────────────

/**
 * @param {App} app
 * @param {string} key
 * @param {ViewChange} change
 * @returns {ActionChoice}
 */
function undoOf(app, key, change) {
  const pin = pinOfMessage(app, seqOfKey(key));
  const target = pin >= 0 ? pin : change.by;
  const name = pin >= 0 ? "Unpin" : "Undo";
  return {
    name,
    body: () => ({ action: "undo", event: `e${target}` }),
    title: `${name === "Unpin" ? `Unpin ${key}, that is: undo` : "Undo"} e${target}?`,
    sentences: [
      name === "Unpin"
        ? `Later reductions can hide ${key} again.`
        : `All messages that e${target} changed are shown as before it, not only ${key}. To bring back this one alone, use Expand.`,
    ],
    whyNot: target < 0 ? "No reduction has changed this message." : coveredBy(app, target),
  };
}

/**
 * Why it would show nothing to undo an event: a later one hides its summary too. "" if it shows something.
 * @param {App} app
 * @param {number} seq
 * @returns {string}
 */
function coveredBy(app, seq) {
  const own = app.timeline.at(app.timeline.last).get(`e${seq}`);
  if (!own || isSent(own.level) || own.by < 0) return "";
  return `e${own.by} hides what e${seq} hid, so undoing e${seq} alone shows nothing. Use Restore or Expand.`;
}

/**
 * The newest pin of a message or of its step that was not taken back; a pinned rule is its own. -1 if there is none.
 * @param {App} app
 * @param {number} seq
 * @returns {number}
 */
function pinOfMessage(app, seq) {
  const { timeline } = app;
  const step = stepOf(timeline, seq);
  /** @type {Set<number>} */
  const undone = new Set();
  for (let index = timeline.rows.length - 1; index >= 0; index -= 1) {
    const { seq: pin, kind, target } = timeline.rows[index];
    if (kind === "reverted") undone.add(target);
    else if (kind === "pinned" && !undone.has(pin) && stepOf(timeline, target >= 0 ? target : pin) === step) return pin;
  }
  return -1;
}

/**
 * The event that begins the step of a message: the answer with its call, or itself.
 * @param {import("./timeline_state.js").TimelineState} timeline
 * @param {number} seq
 * @returns {number}
 */
function stepOf(timeline, seq) {
  const call = timeline.row(seq)?.call ?? -1;
  return call >= 0 ? call : seq;
}

/**
 * @param {App} app
 * @param {string} key
 * @param {ViewChange} change
 * @returns {ActionChoice}
 */
function expandOf(app, key, change) {
  const row = app.timeline.row(seqOfKey(key));
  const more = app.timeline.tokens(Math.max(0, (row?.units ?? 0) - change.units), app.timeline.last);
  const what = row?.kind === "compacted" ? `All messages that the summary ${key} covers are` : `The step of ${key}, a call with all its results, is`;
  return {
    name: "Expand",
    body: () => ({ action: "expand", event: key }),
    title: `Expand ${key}?`,
    sentences: [
      `${what} shown in full until the next user message.`,
      `The next request grows by at least ${formatNumber(more)} tokens. ${UNDO_HINT}`,
    ],
    whyNot: change.level === "full" ? "It is shown in full." : change.level === "removed" ? "It was removed." : "",
  };
}

/**
 * @param {App} app
 * @param {string} key
 * @param {ViewChange} change
 * @param {string} [noun]
 * @returns {ActionChoice}
 */
function pinOf(app, key, change, noun = "message") {
  const isPinned = pinOfMessage(app, seqOfKey(key)) >= 0;
  const isHidden = !isSent(change.level);
  return {
    name: "Pin",
    body: () => ({ action: "pin", event: key }),
    title: `Pin ${key}?`,
    sentences: [`The ${noun} stays in every request as it is shown now, through all later reductions. ${UNDO_HINT}`],
    whyNot: isPinned ? "It is pinned." : isHidden ? "It is hidden. Expand it first, then pin it." : "",
  };
}

/**
 * @param {App} app
 * @param {string} key
 * @param {ViewChange} change
 * @param {string} [noun]
 * @returns {ActionChoice}
 */
function dropOf(app, key, change, noun = "message") {
  const freed = app.timeline.tokens(change.units, app.timeline.last);
  return {
    name: "Drop",
    body: () => ({ action: "drop", event: key }),
    title: `Drop ${key}?`,
    sentences: [
      `The ${noun}${noun === "message" ? " and the rest of its step, a call with all its results," : ""} leaves the next requests; a notice names what is left out.`,
      `Requests shrink by at least ${formatNumber(freed)} tokens, and the provider reads everything behind it again. ${UNDO_HINT}`,
    ],
    whyNot: isSent(change.level) ? "" : "It is not in the request.",
  };
}
