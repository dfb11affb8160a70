/**
 * Panel of one message: its text, how the request shows it, and the history of its levels.
 *
 * @module
 */

import { problemText } from "./data_source.js";
import { clear, copyText, debounce, el, on } from "./dom.js";
import { kindName, levelMark, levelName } from "./event_kinds.js";
import { formatBytes, formatCount, formatNumber, formatTime, oneLine, visibleText } from "./format.js";
import { ghostText } from "./log_row.js";
import { messageActions } from "./message_actions.js";
import { isSent, seqOfKey } from "./timeline_state.js";
import { term } from "./words.js";

/** @typedef {import("./types.js").App} App */
/** @typedef {import("./types.js").Panel} Panel */
/** @typedef {import("./types.js").PageState} PageState */
/** @typedef {import("./types.js").MessageText} MessageText */
/** @typedef {import("./types.js").MessagePart} MessagePart */
/** @typedef {import("./types.js").SentRequest} SentRequest */
/** @typedef {import("./types.js").ViewChange} ViewChange */
/** @typedef {"original" | "shown" | "json"} TextTab */

const LOAD_PAUSE_MS = 90;
/** Changes of level that are listed at once. */
const MAX_HISTORY_ROWS = 50;
/** @type {[TextTab, string][]} */
const TEXT_TABS = [
  ["original", "Original"],
  ["shown", "As shown at this point"],
  ["json", "JSON"],
];

/**
 * Return the panel.
 * @param {App} app
 * @returns {Panel}
 */
export function createMessagePanel(app) {
  const panel = new MessagePanel(app);
  return { id: "message", title: "Message", element: panel.element, render: (state) => panel.render(state) };
}

/**
 * The panel's elements and what it has loaded.
 */
class MessagePanel {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    /** @type {TextTab} */
    this.tab = "original";
    this.key = "";
    /** What the text area shows or loads; an answer for anything else is dropped. */
    this.wanted = "";
    this.copied = "";
    this.head = el("div", { class: "message-head" });
    this.tabs = TEXT_TABS.map(([id, title]) => this.tabButton(id, title));
    this.copy = el("button", { type: "button", class: "button" }, "Copy");
    this.area = el("div", { class: "message-text", role: "region", tabindex: 0, "aria-label": "Text of the message" });
    this.history = el("div", { class: "message-history" });
    this.empty = el("p", { class: "empty-state" }, "Choose a row to see its whole text, its level and its history.");
    const bar = el("div", { class: "message-bar" }, el("div", { class: "segmented", role: "group", "aria-label": "Version" }, this.tabs), this.copy);
    this.content = el("div", { class: "message-content", hidden: true }, this.head, bar, this.area, this.history);
    this.element = el("div", { class: "message-panel" }, this.empty, this.content);
    this.loadSoon = debounce(() => this.load(), LOAD_PAUSE_MS);
    on(this.copy, "click", () => this.copyShown());
  }

  /**
   * @param {PageState} state
   * @returns {void}
   */
  render(state) {
    const isEmpty = !state.selected;
    this.empty.hidden = !isEmpty;
    this.content.hidden = isEmpty;
    if (isEmpty) return;
    const mark = `${state.selected} ${state.point} ${state.version}`;
    if (mark !== this.key) {
      this.key = mark;
      this.renderHead(state);
      this.renderHistory(state);
    }
    for (const button of this.tabs) button.setAttribute("aria-pressed", String(button.dataset.tab === this.tab));
    if (this.wantedText(state) !== this.wanted) this.loadSoon();
  }

  /**
   * @param {PageState} state
   * @returns {void}
   */
  renderHead(state) {
    const { timeline } = this.app;
    const key = state.selected;
    const row = key.startsWith("e") ? timeline.row(seqOfKey(key)) : undefined;
    const change = timeline.at(state.point).get(key);
    const name = row ? kindName(row.kind) : key.startsWith("n") ? "Notice" : "Synthetic result";
    const facts = row ? [row.tool, row.path, formatTime(row.at), row.chars ? formatCount(row.chars, "character") : ""] : [];
    if (row?.failed) facts.unshift("failed");
    clear(
      this.head,
      el("h2", null, el("span", { class: "handle" }, key), " ", name),
      el("p", { class: "message-facts" }, facts.filter(Boolean).map((fact) => el("span", null, oneLine(fact)))),
      el("p", { class: "message-level" }, levelSentence(this.app, state, change, row?.units ?? 0)),
      this.links(key),
      messageActions(this.app, key),
    );
  }

  /**
   * Return links to the call of a result, to the results of a call, and to the target of an event.
   * @param {string} key
   * @returns {HTMLElement | null}
   */
  links(key) {
    const { timeline } = this.app;
    const seq = seqOfKey(key);
    const row = key.startsWith("e") ? timeline.row(seq) : undefined;
    if (!row) return null;
    const links = [];
    if (row.call >= 0) links.push(["Call", row.call]);
    for (const result of resultsOf(timeline, seq)) links.push(["Result", result]);
    if (row.target >= 0) links.push(["About", row.target]);
    const buttons = links.map(([name, target]) =>
      el("button", { type: "button", class: "link", onclick: () => this.app.openText(`e${target}`) }, `${name} e${target}`),
    );
    const goTo = el("button", { type: "button", class: "link", onclick: () => this.app.goTo(seq) }, `View after e${seq}`);
    return el("p", { class: "message-links" }, goTo, buttons);
  }

  /**
   * @param {PageState} state
   * @returns {void}
   */
  renderHistory(state) {
    const changes = this.app.timeline.history(state.selected);
    const shown = changes.slice(-MAX_HISTORY_ROWS);
    const rows = shown.map((change, index) => {
      const before = changes[changes.length - shown.length + index - 1];
      return historyRow(this.app, change, before, change.at > state.point);
    });
    const left = changes.length - shown.length;
    clear(
      this.history,
      el("h3", null, term("level", "Levels")),
      changes.length === 0 && el("p", { class: "muted" }, "This event is no message of the request, so it has no level."),
      left > 0 && el("p", { class: "muted" }, `${formatCount(left, "earlier change")} not listed.`),
      el("ol", { class: "history-list" }, rows),
    );
  }

  /**
   * Return what the text area has to show.
   * @param {PageState} state
   * @returns {string}
   */
  wantedText(state) {
    const key = state.selected;
    if (this.tab === "original") return `original ${key}`;
    if (this.tab === "json") return `json ${key} ${state.point}`;
    const change = this.app.timeline.at(state.point).get(key);
    return `shown ${key} ${change ? `${change.at} ${change.level}` : "none"}`;
  }

  /** @returns {Promise<void>} */
  async load() {
    const state = this.app.state.current;
    const wanted = this.wantedText(state);
    if (wanted === this.wanted || !state.selected) return;
    this.wanted = wanted;
    this.copied = "";
    clear(this.area, el("p", { class: "loading" }, "Loading the text…"));
    try {
      const nodes = await this.texts(state);
      if (wanted === this.wanted) clear(this.area, nodes);
    } catch (error) {
      if (wanted === this.wanted) this.showProblem(error);
    }
  }

  /**
   * @param {PageState} state
   * @returns {Promise<Node[]>}
   */
  async texts(state) {
    const key = state.selected;
    if (this.tab === "json") return this.jsonNodes(await this.app.data.request(state.point), key);
    if (this.tab === "original" && key.startsWith("e")) return this.textNodes(await this.app.data.text(key, 0), key);
    const change = this.app.timeline.at(state.point).get(key);
    if (change && !isSent(change.level)) return [el("p", { class: "empty-state" }, `Not in the request: ${ghostText(change)}.`)];
    if (!change) return [el("p", { class: "empty-state" }, "Not in the request at this point.")];
    return this.textNodes(await this.app.data.shown(key, state.point), "");
  }

  /**
   * @param {MessageText} message
   * @param {string} key of the message whose further text can be loaded; "" if there is none
   * @returns {Node[]}
   */
  textNodes(message, key) {
    const parts = message.parts ?? [];
    this.copied += parts.map(partText).join("\n\n");
    const nodes = parts.map(partNode);
    if (!parts.length) nodes.push(el("p", { class: "empty-state" }, "This event has no text."));
    if (message.truncated && key) nodes.push(this.moreButton(message, key));
    else if (message.truncated) nodes.push(el("p", { class: "muted" }, "The text goes on; Original has all of it."));
    return nodes;
  }

  /**
   * @param {MessageText} message
   * @param {string} key
   * @returns {HTMLElement}
   */
  moreButton(message, key) {
    const loaded = (message.parts ?? []).reduce((sum, part) => sum + countCharacters(part.text ?? ""), 0);
    const next = (message.from ?? 0) + loaded;
    const rest = Math.max(0, (message.chars ?? 0) - next);
    const button = el("button", { type: "button", class: "button" }, `Show more (${formatCount(rest, "character")} left)`);
    on(button, "click", async () => {
      button.disabled = true;
      try {
        const more = await this.app.data.text(key, next);
        const nodes = this.textNodes(more, key);
        const isJoined = joinText(button.previousElementSibling, nodes[0]);
        button.replaceWith(...(isJoined ? nodes.slice(1) : nodes));
      } catch (error) {
        button.disabled = false;
        this.app.announce(problemText(error));
      }
    });
    return button;
  }

  /**
   * Return the provider's messages that contain the selected one.
   * @param {SentRequest} sent
   * @param {string} key
   * @returns {Node[]}
   */
  jsonNodes(sent, key) {
    const found = (sent.messages ?? []).filter((message) => message.keys?.includes(key));
    this.copied = found.map((message) => message.json).join("\n");
    const note = el("p", { class: "muted" }, `${sent.dialect ?? ""} · ${sent.note ?? ""}`.replace(/^ · | · $/g, ""));
    if (!found.length) return [el("p", { class: "empty-state" }, "No message of the request at this point contains it."), note];
    return [...found.map((message) => el("pre", { class: "text-block" }, visibleText(message.json))), note];
  }

  /**
   * @param {unknown} error
   * @returns {void}
   */
  showProblem(error) {
    const retry = el("button", { type: "button", class: "button" }, "Try again");
    on(retry, "click", () => {
      this.wanted = "";
      void this.load();
    });
    clear(this.area, el("p", { class: "problem", role: "alert" }, problemText(error)), retry);
  }

  /** @returns {Promise<void>} */
  async copyShown() {
    const isCopied = await copyText(this.copied);
    this.app.announce(isCopied ? "The text is copied." : "The browser does not allow copying. Select the text instead.");
  }

  /**
   * @param {TextTab} id
   * @param {string} title
   * @returns {HTMLButtonElement}
   */
  tabButton(id, title) {
    const button = el("button", { type: "button", "data-tab": id, "aria-pressed": "false" }, title);
    on(button, "click", () => {
      this.tab = id;
      this.render(this.app.state.current);
    });
    return button;
  }
}

/**
 * Say how the request shows a message, which event did that, and what it saves.
 * @param {App} app
 * @param {PageState} state
 * @param {ViewChange | undefined} change
 * @param {number} units of the whole message
 * @returns {(Node | string)[]}
 */
function levelSentence(app, state, change, units) {
  if (!change) return ["Not in the request at this point."];
  const mark = term(change.level, `${levelMark(change.level)} ${levelName(change.level)}`, `level-badge level-${change.level}`);
  const now = app.timeline.tokens(change.units, state.point);
  const before = app.timeline.tokens(units || change.units, state.point);
  const sizes = before === now ? formatCount(now, "token") : `${formatNumber(before)} → ${formatCount(now, "token")}`;
  const rule = change.rule ? `, rule ${oneLine(change.rule)}` : "";
  if (change.by < 0) return [mark, ` ${sizes}${rule}`];
  const by = el("button", { type: "button", class: "link", onclick: () => app.goTo(change.by) }, `e${change.by}`);
  return [mark, ` ${sizes}${rule}, by `, by];
}

/**
 * @param {App} app
 * @param {ViewChange} change
 * @param {ViewChange | undefined} before
 * @param {boolean} isLater
 * @returns {HTMLElement}
 */
function historyRow(app, change, before, isLater) {
  const now = app.timeline.tokens(change.units, change.at);
  const sizes = before
    ? `${formatNumber(app.timeline.tokens(before.units, change.at))} → ${formatNumber(now)} tokens`
    : formatCount(now, "token");
  const label = `e${change.at}`;
  return el(
    "li",
    { class: isLater ? "later" : null },
    el("button", { type: "button", class: "link", title: `Show the view after ${label}`, onclick: () => app.goTo(change.at) }, label),
    el("span", { class: `level-badge level-${change.level}` }, `${levelMark(change.level)} ${levelName(change.level)}`),
    el("span", null, sizes),
    change.rule && el("span", { class: "rule" }, oneLine(change.rule)),
  );
}

/**
 * Return the events with the results of a message's calls.
 * @param {import("./timeline_state.js").TimelineState} timeline
 * @param {number} seq
 * @returns {number[]}
 */
function resultsOf(timeline, seq) {
  const results = [];
  const start = timeline.rowIndex(seq);
  if (start < 0 || timeline.rows[start].kind !== "model_said") return [];
  for (let index = start + 1; index < timeline.rows.length && timeline.rows[index].kind !== "model_said"; index++) {
    if (timeline.rows[index].call === seq) results.push(timeline.rows[index].seq);
  }
  return results;
}

/**
 * Add the beginning of a new window to the part that it continues; returns whether that was possible.
 * @param {Element | null} last
 * @param {Node | undefined} first
 * @returns {boolean}
 */
function joinText(last, first) {
  const [text, more] = [last?.querySelector("pre"), first instanceof Element && first.querySelector("pre")];
  if (!text || !more || !(first instanceof Element) || last?.className !== first.className) return false;
  text.append(more.textContent ?? "");
  return true;
}

/**
 * Return the characters of a text as the server counts them: a pair of surrogates is one.
 * @param {string} text
 * @returns {number}
 */
function countCharacters(text) {
  return text.length - (text.match(/[\ud800-\udbff][\udc00-\udfff]/g)?.length ?? 0);
}

/**
 * @param {MessagePart} part
 * @returns {string}
 */
function partText(part) {
  return part.kind === "call" ? `${part.name ?? ""} ${part.text ?? ""}` : (part.text ?? "");
}

/**
 * @param {MessagePart} part
 * @returns {HTMLElement}
 */
function partNode(part) {
  const names = { text: "", thinking: "Thinking", call: "Call", media: "Media", opaque: "Other content" };
  const facts = [names[part.kind] ?? part.kind, part.name, part.mime, part.size ? formatBytes(part.size) : "", part.id];
  const label = oneLine(facts.filter(Boolean).join(" · "));
  return el(
    "section",
    { class: `message-part part-${part.kind}` },
    label && el("h3", null, label),
    part.text ? el("pre", { class: "text-block" }, visibleText(part.text)) : null,
  );
}
