/**
 * Panel "Statements": the rules, corrections and facts of the user, and where the request shows each of them.
 *
 * The server reads them for the shown point while the panel is open, and again only after an event that can have changed
 * them. An exported file has those of the newest request.
 *
 * @module
 */

import { clear, debounce, el } from "./dom.js";
import { formatCount, formatNumber, oneLine } from "./format.js";
import { shownPoint } from "./log_view.js";
import { statementActions, whyReadOnly } from "./message_actions.js";
import { pinOfMessage } from "./message_marks.js";
import { actionButton, calmRender, messageLink, problemBox, stateNote } from "./panel_parts.js";
import { groupStatements, placeOfStatement, statementsPoint, statementsSentence } from "./statement_groups.js";
import { seqOfKey } from "./timeline_state.js";

/** @typedef {import("./types.js").App} App */
/** @typedef {import("./types.js").Panel} Panel */
/** @typedef {import("./types.js").PageState} PageState */
/** @typedef {import("./types.js").ShownStatements} ShownStatements */
/** @typedef {import("./types.js").UserStatement} UserStatement */
/** @typedef {import("./statement_groups.js").StatedMessage} StatedMessage */
/** @typedef {import("./dom.js").Child} Child */
/** @typedef {"unseen" | "holding" | "replaced"} GroupName */

/** Messages of a group that are listed at once. */
const STATED_PER_PAGE = 40;
/** Milliseconds that the point must stay before the server is asked: the scrubber passes many. */
const STATEMENTS_DELAY_MS = 200;

/**
 * Return the panel with what the user said.
 * @param {App} app
 * @returns {Panel}
 */
export function createStatementsPanel(app) {
  const panel = new StatementsPanel(app);
  return { id: "statements", title: "Statements", element: panel.element, render: calmRender((state) => panel.render(state)) };
}

/**
 * The list and what it was loaded for.
 */
class StatementsPanel {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    /** What is shown or being loaded; an answer for anything else is ignored. */
    this.wanted = "";
    this.at = -1;
    /** What the buttons depend on. */
    this.drawn = "";
    /** @type {ShownStatements | null} */
    this.found = null;
    /** @type {Map<GroupName, number>} messages that are listed of a group */
    this.limits = new Map();
    this.isReplacedOpen = false;
    this.area = el("div", { class: "statements-area" });
    this.element = el("div", { class: "panel-body" }, el("h3", null, "What the user said that holds"), this.area);
    this.loadSoon = debounce(() => void this.load(), STATEMENTS_DELAY_MS);
  }

  /**
   * @param {PageState} state
   * @returns {void}
   */
  render(state) {
    const { app } = this;
    const { timeline } = app;
    if (state.lane === "whatIf") return this.showNote("whatIf", "The page has no texts of a replay. Show the recorded session to see what the user said.");
    const at = app.data.isOffline ? timeline.last : statementsPoint(timeline, shownPoint(app, state));
    if (at < 0) return this.showNote("empty", statementsSentence([]));
    const wanted = `${timeline.generation}:${at}`;
    if (wanted !== this.wanted) {
      this.wanted = wanted;
      this.at = at;
      if (this.found) this.area.setAttribute("aria-busy", "true");
      else clear(this.area, stateNote("Reading the messages of the user …", "loading"));
      this.loadSoon();
    } else if (this.found && this.drawnFor() !== this.drawn) {
      this.draw();
    }
  }

  /**
   * @param {string} wanted
   * @param {string} text
   * @returns {void}
   */
  showNote(wanted, text) {
    if (this.wanted === wanted) return;
    this.wanted = wanted;
    this.found = null;
    this.area.removeAttribute("aria-busy");
    clear(this.area, stateNote(text));
  }

  /** @returns {Promise<void>} */
  async load() {
    const { wanted } = this;
    if (!wanted.includes(":")) return;
    try {
      const found = await this.app.data.statements(this.at);
      if (wanted !== this.wanted) return;
      this.found = found;
      this.draw();
    } catch (error) {
      if (wanted !== this.wanted) return;
      this.found = null;
      clear(this.area, problemBox(error, () => void this.load()));
    }
    this.area.removeAttribute("aria-busy");
  }

  /**
   * A text that changes when what is drawn may be other. Buttons act on the newest state, whatever point is shown.
   * @returns {string}
   */
  drawnFor() {
    const { timeline } = this.app;
    return `${this.wanted}:${statementsPoint(timeline, timeline.last)}:${whyReadOnly(this.app)}:${this.isElsewhere}`;
  }

  /** Whether the page shows another point than the one whose statements an exported file has. */
  get isElsewhere() {
    return this.app.data.isOffline && this.app.state.current.point !== this.app.timeline.last;
  }

  /** Draw the list again and keep the focus at the same message. */
  draw() {
    if (!this.found) return;
    this.drawn = this.drawnFor();
    const focused = document.activeElement?.closest("[data-stated]")?.getAttribute("data-stated");
    clear(this.area, this.content(this.found));
    const item = [...this.area.querySelectorAll("[data-stated]")].find((other) => other.getAttribute("data-stated") === focused);
    item?.querySelector("button")?.focus();
  }

  /**
   * @param {ShownStatements} found
   * @returns {Child[]}
   */
  content(found) {
    const statements = found.statements ?? [];
    const groups = groupStatements(statements);
    const lead = el("p", { class: "lead" }, statementsSentence(statements));
    if (statements.length === 0) return [lead];
    const { app } = this;
    const readOnly = whyReadOnly(app);
    return [
      lead,
      this.isElsewhere ? el("p", { class: "action-note" }, "An exported file has the statements at its newest event only.") : null,
      groups.unseen.length > 0 ? unseenWarning(statements, { isReadOnly: Boolean(readOnly) }) : null,
      this.list("unseen", groups.unseen),
      groups.holding.length > 0 && groups.unseen.length > 0 ? el("h4", null, "Shown") : null,
      this.list("holding", groups.holding),
      this.replaced(groups.replaced),
      found.left_out ? stateNote(`${formatNumber(found.left_out)} older statements are not listed.`) : null,
      readOnly ? el("p", { class: "action-note" }, `Pin, Replaced by…: ${readOnly}`) : null,
    ];
  }

  /**
   * @param {GroupName} group
   * @param {StatedMessage[]} messages
   * @returns {HTMLElement | null}
   */
  list(group, messages) {
    if (messages.length === 0) return null;
    const limit = this.limits.get(group) ?? STATED_PER_PAGE;
    const rest = messages.length - limit;
    const more = () => {
      this.limits.set(group, limit + STATED_PER_PAGE * 3);
      this.draw();
    };
    return el(
      "div",
      { class: "statement-list" },
      el("ul", null, messages.slice(0, limit).map((message) => statedItem(this.app, group, message))),
      rest > 0 ? actionButton(`Show more (${formatNumber(rest)})`, more) : null,
    );
  }

  /**
   * What no longer holds, folded.
   * @param {StatedMessage[]} messages
   * @returns {HTMLElement | null}
   */
  replaced(messages) {
    if (messages.length === 0) return null;
    const count = messages.reduce((sum, message) => sum + message.statements.length, 0);
    const details = el(
      "details",
      { class: "replaced-statements", open: this.isReplacedOpen },
      el("summary", null, `Replaced (${formatNumber(count)})`),
      this.list("replaced", messages),
    );
    details.addEventListener("toggle", () => {
      this.isReplacedOpen = details.open;
    });
    return details;
  }
}

/**
 * @param {UserStatement[]} statements
 * @param {{isReadOnly: boolean}} options
 * @returns {HTMLElement}
 */
function unseenWarning(statements, { isReadOnly }) {
  const count = statements.filter((one) => !one.replaced_by && one.shown === "nowhere").length;
  const what = `${formatCount(count, "statement")} of the user ${count === 1 ? "is" : "are"} shown nowhere, so the model does not know ${count === 1 ? "it" : "them"}.`;
  const advice = " Pin keeps a message in every request; Replaced by… says that it no longer holds.";
  return el("div", { class: "panel-problem statements-warning" }, el("p", null, what, isReadOnly ? "" : advice));
}

/**
 * One message with its statements, and what can be done about it.
 * @param {App} app
 * @param {GroupName} group
 * @param {StatedMessage} message
 * @returns {HTMLElement}
 */
function statedItem(app, group, { key, statements }) {
  const isPinned = pinOfMessage(app.timeline, seqOfKey(key)) >= 0;
  return el(
    "li",
    { class: "stated", "data-stated": `${group} ${key}` },
    el("div", { class: "stated-handle" }, messageLink(app, key), isPinned ? el("span", { class: "badge" }, "pinned") : null),
    el("div", { class: "stated-texts" }, statements.map((one) => statementRow(app, one)), statementActions(app, key, group)),
  );
}

/**
 * @param {App} app
 * @param {UserStatement} statement
 * @returns {HTMLElement}
 */
function statementRow(app, statement) {
  const place = placeOfStatement(statement);
  const isUnseen = statement.shown === "nowhere" && !statement.replaced_by;
  return el(
    "div",
    { class: "statement" },
    el("q", { class: "statement-text" }, oneLine(statement.text)),
    el(
      "span",
      { class: "statement-about" },
      statement.kind,
      " · ",
      isUnseen ? el("span", { class: "badge is-miss" }, place) : place,
      statement.replaced_by ? [" · replaced by ", messageLink(app, statement.replaced_by)] : null,
    ),
  );
}
