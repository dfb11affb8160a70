/**
 * Panel "What happened": the first screen of a session, with what it cost, what went wrong, and what to do.
 *
 * 1. It is about the whole session up to now, whatever point is shown.
 * 2. A part is drawn again only when its lines are others: a running session brings new events every second.
 * 3. The surprise of the steps takes the server seconds, so it is measured once, while the panel is open. For a session
 *    that has grown since, a button measures it again.
 *
 * @module
 */

import { problemText } from "./data_source.js";
import { clear, debounce, el } from "./dom.js";
import { formatNumber } from "./format.js";
import { actionButton, calmRender, problemBox, stateNote } from "./panel_parts.js";
import { statementsPoint } from "./statement_groups.js";
import { costLines, missLines, reductionLines, sessionSentence, surpriseLines, unseenLines } from "./what_happened.js";
import { adviceLines } from "./what_to_do.js";
import { term } from "./words.js";

/** @typedef {import("./types.js").App} App */
/** @typedef {import("./types.js").Panel} Panel */
/** @typedef {import("./types.js").UserStatement} UserStatement */
/** @typedef {import("./types.js").StepSurprises} StepSurprises */
/** @typedef {import("./what_happened.js").HappenedLine} HappenedLine */
/** @typedef {import("./what_happened.js").HappenedLines} HappenedLines */
/** @typedef {"cost" | "advice" | "misses" | "reductions" | "unseen" | "surprise"} PartName */

/** Milliseconds after the newest event before the server is asked for the statements again. */
const UNSEEN_DELAY_MS = 500;

/**
 * Return the panel.
 * @param {App} app
 * @returns {Panel}
 */
export function createWhatHappenedPanel(app) {
  const panel = new WhatHappenedPanel(app);
  return { id: "happened", title: "What happened", element: panel.element, render: calmRender(() => panel.render()) };
}

/**
 * The parts of the panel and what was found out for them.
 */
class WhatHappenedPanel {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    this.version = -1;
    /** The newest event whose statements were asked for. */
    this.statedAt = -2;
    /** @type {UserStatement[] | null} */
    this.statements = null;
    /** @type {StepSurprises | null} */
    this.surprises = null;
    this.isMeasuring = false;
    this.hasMeasured = false;
    /** @type {Map<string, string>} what each part shows */
    this.drawn = new Map();
    this.lead = el("p", { class: "lead" });
    this.saved = term("saved", "Saved?");
    /** @type {Record<PartName, HTMLElement>} */
    this.areas = { cost: area(), advice: area(), misses: area(), reductions: area(), unseen: area(), surprise: area() };
    this.element = el("div", { class: "panel-body happened" }, this.lead, [
      part("Cost", this.saved, this.areas.cost),
      part("What to do", null, this.areas.advice),
      part("Largest misses of the cache", term("miss", "Miss?"), this.areas.misses),
      part("Largest reductions", term("reduction", "Reduction?"), this.areas.reductions),
      part("Said by the user, not visible to the model", term("unseen", "Not visible?"), this.areas.unseen),
      part("Steps with most surprise", term("surprise", "Surprise?"), this.areas.surprise),
    ]);
    this.loadStatementsSoon = debounce(() => void this.loadStatements(), UNSEEN_DELAY_MS);
  }

  /** @returns {void} */
  render() {
    const { timeline } = this.app;
    if (this.version !== timeline.version) {
      this.version = timeline.version;
      this.drawFigures();
      this.askForStatements();
    }
    if (!this.hasMeasured) void this.measure();
  }

  /** @returns {void} */
  drawFigures() {
    const { timeline } = this.app;
    clear(this.lead, sessionSentence(timeline));
    const cost = costLines(timeline);
    this.draw("cost", cost);
    this.saved.hidden = !cost.lines.some((line) => line.label.includes("aved"));
    this.draw("misses", missLines(timeline));
    this.draw("reductions", reductionLines(timeline));
    this.drawAdvice();
    if (this.statements) this.draw("unseen", unseenLines(timeline, this.statements));
    if (this.surprises) this.drawSurprises();
  }

  /** @returns {void} */
  drawAdvice() {
    this.draw("advice", adviceLines(this.app.timeline, { statements: this.statements, surprises: this.surprises }));
  }

  /**
   * Show lines, unless they are shown already. The focus stays at the same link.
   * @param {PartName} name
   * @param {HappenedLines} found
   * @param {HTMLElement | null} [button]
   * @returns {void}
   */
  draw(name, found, button = null) {
    const text = JSON.stringify([found, button?.textContent]);
    if (this.drawn.get(name) === text) return;
    this.drawn.set(name, text);
    const place = this.areas[name];
    showPart(place, found.lead !== undefined || found.lines.length > 0);
    const focused = place.contains(document.activeElement) ? document.activeElement?.getAttribute("href") : null;
    clear(
      place,
      found.lead ? stateNote(found.lead) : null,
      found.lines.length ? el("ul", { class: "happened-lines" }, found.lines.map(lineItem)) : null,
      found.rest ? el("p", null, el("a", { href: found.rest.href }, found.rest.label)) : null,
      button,
    );
    if (!focused) return;
    const same = [...place.querySelectorAll("a")].find((link) => link.getAttribute("href") === focused);
    same?.focus();
  }

  // ── Statements ─────────────────────────────────────────────────────────────────────────────────────────

  /** @returns {void} */
  askForStatements() {
    const at = statementsPoint(this.app.timeline, this.app.timeline.last);
    if (at === this.statedAt) return;
    const isFirst = this.statedAt === -2;
    this.statedAt = at;
    if (at < 0) this.draw("unseen", unseenLines(this.app.timeline, []));
    else if (isFirst) void this.loadStatements();
    else this.loadStatementsSoon();
  }

  /** @returns {Promise<void>} */
  async loadStatements() {
    const at = this.statedAt;
    if (!this.statements) this.say("unseen", stateNote("Reading the messages of the user …", "loading"));
    try {
      const found = await this.app.data.statements(at);
      if (at !== this.statedAt) return;
      this.statements = found.statements ?? [];
      this.draw("unseen", unseenLines(this.app.timeline, this.statements));
      this.drawAdvice();
    } catch (error) {
      this.showProblem("unseen", error, () => void this.loadStatements());
    }
  }

  // ── Surprise ───────────────────────────────────────────────────────────────────────────────────────────

  /** @returns {Promise<void>} */
  async measure() {
    const { app } = this;
    if (this.isMeasuring) return;
    this.hasMeasured = true;
    if (app.timeline.reductions.length === 0) {
      this.hasMeasured = false; // a running session may have one later
      return this.draw("surprise", surpriseLines(app.timeline, { at: app.timeline.last }));
    }
    this.isMeasuring = true;
    const bar = el("progress", { "aria-label": "Steps that are measured" });
    const note = stateNote("Measuring …", "loading");
    this.say("surprise", note, bar);
    try {
      this.surprises = await app.data.surprises(({ done, total }) => {
        if (total === 0) return;
        bar.max = total;
        bar.value = done;
        clear(note, `Measuring: ${formatNumber(done)} of ${formatNumber(total)} steps`);
      });
      this.isMeasuring = false;
      this.drawSurprises();
      this.drawAdvice();
    } catch (error) {
      this.isMeasuring = false;
      this.showProblem("surprise", error, () => void this.measure());
    }
  }

  /** @returns {void} */
  drawSurprises() {
    const { timeline, data } = this.app;
    if (!this.surprises || this.isMeasuring) return;
    const isOld = timeline.requests.some((request) => request.answer > (this.surprises?.at ?? 0));
    const again = isOld && !data.isOffline ? actionButton("Measure again", () => void this.measure()) : null;
    this.draw("surprise", surpriseLines(timeline, this.surprises), again);
  }

  /**
   * @param {PartName} name
   * @param {unknown} error
   * @param {() => void} retry
   * @returns {void}
   */
  showProblem(name, error, retry) {
    this.say(name, this.app.data.isOffline ? stateNote(problemText(error)) : problemBox(error, retry));
  }

  /**
   * Show something else than lines.
   * @param {PartName} name
   * @param {HTMLElement[]} content
   * @returns {void}
   */
  say(name, ...content) {
    this.drawn.delete(name);
    showPart(this.areas[name], true);
    clear(this.areas[name], content);
  }
}

/** @returns {HTMLElement} */
function area() {
  return el("div", { class: "happened-area" });
}

/**
 * Show or hide the part of an area.
 * @param {HTMLElement} place
 * @param {boolean} isShown
 * @returns {void}
 */
function showPart(place, isShown) {
  place.parentElement?.toggleAttribute("hidden", !isShown);
}

/**
 * @param {string} title
 * @param {HTMLElement | null} word explains a word of this part
 * @param {HTMLElement} content
 * @returns {HTMLElement}
 */
function part(title, word, content) {
  return el("section", { class: "happened-part", "aria-label": title }, el("div", { class: "happened-head" }, el("h3", null, title), word), content);
}

/**
 * @param {HappenedLine} line
 * @returns {HTMLElement}
 */
function lineItem({ label, href, text, also }) {
  return el("li", null, el("a", { href }, label), text && el("span", null, ` ${text}`), also && el("a", { href: also.href }, also.label));
}
