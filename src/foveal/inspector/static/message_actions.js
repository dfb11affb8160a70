/**
 * Buttons that change the session: undo, expand, pin, mark, supersede, drop and compact.
 *
 * Each asks first and says what will happen. The server appends the same event as the library, the chat and the API do,
 * and the page then loads what is new. Actions apply to the newest state of the session, whatever point is shown.
 *
 * @module
 */

import { coversOf } from "./covers.js";
import { clear, el, setText } from "./dom.js";
import { expansionSize, growthSentence, whyTooLarge } from "./expansion_size.js";
import { formatCount, formatNumber, oneLine } from "./format.js";
import { laterMessages, markOf, pinOfMessage, supersessionOf } from "./message_marks.js";
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
 * @property {(value: string) => ActionBody} body  `value` is that of the field.
 * @property {string} title  The question of the dialog.
 * @property {string[]} sentences  What will happen.
 * @property {string} [label]  What the field is about.
 * @property {() => HTMLSelectElement} [field]  Something to choose in the dialog.
 * @property {string} [whyNot]  Why it cannot be used now; "" if it can.
 * @property {() => Promise<import("./types.js").ExpansionRoom>} [room]  What else will be hidden to make room for it.
 * @property {() => string} [waits]  What is waited for, if that can take long; it can be cancelled then.
 */

/**
 * The priorities of messages with their names.
 * @type {[string, string][]}
 */
const PRIORITIES = [
  ["low", "Low"],
  ["normal", "Normal"],
  ["high", "High"],
];

/** What every confirmation ends with. */
export const UNDO_HINT = "You can take it back with Undo; the log keeps everything.";

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
  if (!key.startsWith("e")) {
    return el("p", { class: "action-note" }, "Foveal made this message for the request; it cannot be pinned or dropped.");
  }
  if (!change) return el("p", { class: "action-note" }, "This event is no message of the request, so there is nothing to pin or drop.");
  return actionBar(app, `message ${key}`, [
    undoOf(app, key, change),
    expandOf(app, key, change),
    pinOf(app, key, change),
    ...markChoices(app, key, change),
    ...supersedeOf(app, key, change),
    dropOf(app, key, change),
  ]);
}

/**
 * Return the buttons that bring a hidden message back: alone for good, alone until the next user message, or with all
 * that the same event hid.
 * @param {App} app
 * @param {string} key
 * @returns {HTMLElement | null} null if there is nothing to bring back
 */
export function restoreActions(app, key) {
  const change = app.timeline.at(app.timeline.last).get(key);
  if (!key.startsWith("e") || !change || change.level === "full" || change.level === "removed") return null;
  const undo = undoOf(app, key, change);
  return actionBar(app, `restore ${key}`, [
    isSent(change.level) ? expandOf(app, key, change) : pinOf(app, key, change),
    ...(isSent(change.level) ? [] : [expandOf(app, key, change)]),
    { ...undo, name: change.by >= 0 ? `Undo e${change.by}` : undo.name },
  ]);
}

/**
 * Return the button that brings one hidden message back for good; null if it is shown.
 * @param {App} app
 * @param {string} key
 * @param {string} place where the button stands, because several can be about one message
 * @returns {HTMLElement | null}
 */
export function restoreAction(app, key, place) {
  const change = app.timeline.at(app.timeline.last).get(key);
  if (!key.startsWith("e") || !change || isSent(change.level) || change.level === "removed") return null;
  return actionBar(app, `restore ${key} ${place}`, [pinOf(app, key, change)]);
}

/**
 * Return the buttons that keep what the user said in a message, or say that it no longer holds.
 * @param {App} app
 * @param {string} key
 * @param {"unseen" | "holding" | "replaced"} group
 * @returns {HTMLElement | null} null if there is nothing to do
 */
export function statementActions(app, key, group) {
  const change = app.timeline.at(app.timeline.last).get(key);
  if (whyReadOnly(app) || !change) return null;
  const [supersede, ...holdAgain] = supersedeOf(app, key, change);
  // A pin keeps a message as it is shown, which may be without the sentence; a pin of an expanded one keeps all of it.
  const expand = group === "unseen" && isSent(change.level) ? [expandOf(app, key, change)] : [];
  const choices = group === "replaced" ? holdAgain : [...expand, pinOf(app, key, change), supersede];
  const usable = choices.filter((choice) => choice && !choice.whyNot);
  return usable.length > 0 ? actionBar(app, `${group} statement ${key}`, usable) : null;
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
  const size = expansionSize(app.timeline, name);
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
      sentences: [
        "What it hides is shown in full until the next user message. The reduction stays in force after that.",
        growthSentence(size),
      ],
      room: () => app.data.room(card.seq, false),
      whyNot: isUndone || (size.more === 0 ? "Everything that it hides is shown, or was removed." : whyTooLarge(size)),
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
 * The places for answers by what the buttons are about. The page may draw the buttons again before the server answers,
 * because the live stream brings the new event first.
 * @type {Map<string, HTMLElement>}
 */
const answerPlaces = new Map();

/**
 * What is running, by what its buttons are about, so that it stays visible when they are drawn again.
 * @type {Map<string, HTMLElement>}
 */
const runningLines = new Map();

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
  const running = runningLines.get(subject);
  if (running) clear(answer, running);
  else if (newestAnswer.subject === subject) clear(answer, answerContent(app));
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
    el("p", { class: "action-note" }, blocked || disabledReasons(choices)),
    answer,
  );
}

/**
 * Why buttons are disabled, as a text that needs no pointer to be read: `Pin, Drop: only messages …`.
 * @param {ActionChoice[]} choices
 * @returns {string}
 */
function disabledReasons(choices) {
  /** @type {Map<string, string[]>} */
  const names = new Map();
  for (const { name, whyNot } of choices) {
    if (whyNot) names.set(whyNot, [...(names.get(whyNot) ?? []), name]);
  }
  return [...names].map(([reason, buttons]) => `${buttons.join(", ")}: ${reason}`).join(" ");
}

/**
 * Return a line that says for how long something has been running, with a button that cancels it.
 * @param {string} what
 * @param {() => void} cancel
 * @returns {{element: HTMLElement, end: () => void}}
 */
function runningLine(what, cancel) {
  const started = Date.now();
  const text = el("span");
  const show = () => setText(text, `${what}; ${formatNumber(Math.round((Date.now() - started) / 1000))} s …`);
  show();
  const timer = setInterval(show, 1000);
  // A screen reader would read out every second.
  const element = el("div", { class: "progress-row", "aria-live": "off" }, text, actionButton("Cancel", cancel));
  return { element, end: () => clearInterval(timer) };
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
  const field = choice.field?.();
  const asked = field ? [...choice.sentences, el("label", { class: "dialog-field" }, `${choice.label} `, field)] : choice.sentences;
  if (!(await confirmAction(choice.title, asked, choice.name, choice.room?.()))) return;
  const usable = buttons.filter((button) => !button.disabled);
  for (const button of usable) button.disabled = true;
  const stop = new AbortController();
  const line = choice.waits && runningLine(choice.waits(), () => stop.abort());
  if (line) runningLines.set(subject, line.element);
  showAnswer(subject, line ? line.element : `${choice.name} … You can go on; the answer appears here.`);
  try {
    const result = await app.data.act(choice.body(field?.value ?? ""), stop.signal);
    runningLines.delete(subject);
    Object.assign(newestAnswer, { subject, text: result.text || "Done.", event: seqOfKey(result.event ?? "") });
    await app.refresh();
    showAnswer(subject, answerContent(app));
    app.announce(newestAnswer.text);
  } catch (error) {
    showAnswer(subject, problemBox(error));
  } finally {
    line?.end();
    runningLines.delete(subject);
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
  const pin = pinOfMessage(app.timeline, seqOfKey(key));
  const isSuperseded = change.by >= 0 && change.by === supersessionOf(app.timeline, seqOfKey(key));
  const target = pin >= 0 ? pin : isSuperseded ? -1 : change.by;
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
    whyNot: target < 0 ? "No reduction has changed this message." : pin < 0 && hiddenBefore(app, change) || coveredBy(app, target),
  };
}

/**
 * Why it would not show a message to undo the newest reduction that hides it: an earlier one does too. "" if it would.
 * @param {App} app
 * @param {ViewChange} change
 * @returns {string}
 */
function hiddenBefore(app, change) {
  const [newest, earlier] = coversOf(app.timeline, change, app.timeline.last);
  if (!earlier) return "";
  return `e${earlier.seq} hid ${change.key} before, so undoing e${newest.seq} alone does not show it. Use Restore or Expand.`;
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
 * @param {App} app
 * @param {string} key
 * @param {ViewChange} change
 * @returns {ActionChoice}
 */
function expandOf(app, key, change) {
  const row = app.timeline.row(seqOfKey(key));
  const size = expansionSize(app.timeline, key);
  const what = row?.kind === "compacted" ? `All messages that the summary ${key} covers are` : `The step of ${key}, a call with all its results, is`;
  return {
    name: "Expand",
    body: () => ({ action: "expand", event: key }),
    title: `Expand ${key}?`,
    sentences: [
      `${what} shown in full until the next user message.`,
      `${growthSentence(size)} ${UNDO_HINT}`,
    ],
    room: () => app.data.room(seqOfKey(key), false),
    whyNot: change.level === "removed" ? "It was removed." : size.more === 0 ? "It is shown in full." : whyTooLarge(size),
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
  const isPinned = pinOfMessage(app.timeline, seqOfKey(key)) >= 0;
  const isHidden = !isSent(change.level);
  const isSummary = app.timeline.row(seqOfKey(key))?.kind === "compacted";
  const size = isHidden ? expansionSize(app.timeline, key) : null;
  const tooLarge = size ? whyTooLarge(size) : "";
  const whyHidden = isHidden && isSummary ? "A newer summary replaced it. Pin the messages that it covers." : tooLarge;
  const shown = isHidden ? `is shown in full again, with the rest of its step, and stays in every request` : "stays in every request as it is shown now";
  const name = isHidden && !isSummary && change.level !== "removed" ? "Restore" : "Pin";
  return {
    name,
    body: () => ({ action: "pin", event: key }),
    title: `${name} ${key}?`,
    sentences: [`The ${noun} ${shown}, through all later reductions. ${size ? `${growthSentence(size)} ` : ""}${UNDO_HINT}`],
    room: isHidden ? () => app.data.room(seqOfKey(key), true) : undefined,
    whyNot: isPinned ? "It is pinned." : change.level === "removed" ? "It was removed." : whyHidden,
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

/**
 * The buttons that say when reductions hide a message, and that take it back.
 * @param {App} app
 * @param {string} key
 * @param {ViewChange} change
 * @returns {ActionChoice[]}
 */
function markChoices(app, key, change) {
  const recorded = markOf(app.timeline, seqOfKey(key));
  /** @type {ActionChoice} */
  const mark = {
    name: "Mark…",
    body: (priority) => ({ action: "mark", event: key, priority }),
    title: `When do reductions hide ${key}?`,
    sentences: [
      `Low: before all other messages. High: last of all, but before the user's messages and the summaries. A call is meant with its results.`,
      "The next request stays as it is; the next cut follows the mark. You can take it back with Unmark.",
    ],
    label: "Priority",
    field: () =>
      el(
        "select",
        null,
        PRIORITIES.map(([value, name]) => el("option", { value }, name)),
      ),
    whyNot: isSent(change.level) ? "" : "It is not in the request.",
  };
  if (recorded < 0) return [mark];
  /** @type {ActionChoice} */
  const unmark = {
    name: "Unmark",
    body: () => ({ action: "undo", event: `e${recorded}` }),
    title: `Unmark ${key}, that is: undo e${recorded}?`,
    sentences: [`${key} has the priority again that it had before e${recorded}.`],
  };
  return [mark, unmark];
}

/**
 * The buttons that say that a message of the user, or a pinned rule, no longer holds, and that it does again.
 * @param {App} app
 * @param {string} key
 * @param {ViewChange} change
 * @returns {ActionChoice[]} none for other messages
 */
function supersedeOf(app, key, change) {
  const seq = seqOfKey(key);
  const row = app.timeline.row(seq);
  if (row?.kind !== "user_said" && !(row?.kind === "pinned" && row.target < 0)) return [];
  const later = laterMessages(app.timeline, seq);
  const recorded = supersessionOf(app.timeline, seq);
  /** @type {ActionChoice} */
  const supersede = {
    name: "Replaced by…",
    body: (by) => ({ action: "supersede", event: key, by }),
    title: `Which later message replaces ${key}?`,
    sentences: [
      `${key} no longer holds. A line at its end names the later message, wherever ${key} is shown; pinned, it stays pinned.`,
      "The provider reads everything behind it again. You can take it back with Holds again; the log keeps everything.",
    ],
    label: "The later message",
    field: () =>
      el(
        "select",
        null,
        later.map((other) => el("option", { value: `e${other.seq}` }, `e${other.seq} ${oneLine(other.preview).slice(0, 60)}`)),
      ),
    whyNot: change.level === "removed" ? "It was removed." : later.length ? "" : "The user has said nothing since.",
  };
  /** @type {ActionChoice} */
  const holdAgain = {
    name: "Holds again",
    body: () => ({ action: "undo", event: `e${recorded}` }),
    title: `Does ${key} hold again, that is: undo e${recorded}?`,
    sentences: [`The line that names the later message is removed from ${key}.`],
  };
  return recorded >= 0 ? [supersede, holdAgain] : [supersede];
}
