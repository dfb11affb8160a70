/**
 * Panel "Reductions": what each reduction did, why, what it cost, and the buttons that change it.
 *
 * The reduction at the current point is open on top; below it are all of them, newest first.
 *
 * @module
 */

import { compactForm } from "./compact_form.js";
import { clear, el } from "./dom.js";
import { kindIcon, kindName } from "./event_kinds.js";
import { formatCount, formatDollars, formatDuration, formatNumber, formatPercent, visibleText } from "./format.js";
import { shownPoint } from "./log_view.js";
import { lostSection } from "./lost_details.js";
import { reductionActions, whyReadOnly } from "./message_actions.js";
import {
  actionButton,
  calmRender,
  createLoader,
  eventLink,
  factList,
  goToShown,
  messageLink,
  segmentBar,
  stateNote,
  textBlock,
} from "./panel_parts.js";
import { lowerBound } from "./timeline_state.js";
import { term } from "./words.js";

/** @typedef {import("./types.js").App} App */
/** @typedef {import("./types.js").Panel} Panel */
/** @typedef {import("./types.js").ReductionCard} ReductionCard */
/** @typedef {import("./timeline_state.js").TimelineState} TimelineState */

/** Cards that are listed at once; a button shows the next ones. */
const CARDS_PER_PAGE = 40;

/** Kinds of reductions that the list can be limited to. */
const CARD_KINDS = ["compacted", "masked", "clipped", "dropped", "compaction_failed"];

/**
 * Return the panel with the reductions of the session.
 * @param {App} app
 * @returns {Panel}
 */
export function createReductionsPanel(app) {
  const current = el("section", { class: "card-current", "aria-label": "Reduction at the current point" });
  const list = createCardList(app);
  const compact = el("div");
  const element = el("div", { class: "panel-body" }, compact, current, list.element);
  let shown = "";
  let listed = "";
  let form = "";
  return {
    id: "reductions",
    title: "Reductions",
    element,
    render: calmRender((state) => {
      const timeline = app.shown();
      const access = whyReadOnly(app);
      const lane = `${state.lane}:${timeline.id}:${access}`;
      if (form !== lane) clear(compact, compactForm(app));
      form = lane;
      const cards = `${lane}:${cardsVersion(timeline)}`;
      if (listed !== cards) list.update(timeline);
      listed = cards;
      const point = shownPoint(app, state);
      const card = cardUpTo(timeline, point);
      // The buttons depend on how the newest request shows the summary.
      const own = card && timeline.at(timeline.last).get(`e${card.seq}`);
      const name = `${lane}:${card?.seq}:${card?.undone}:${card?.seq === point}:${own?.at}`;
      if (name === shown) return;
      shown = name;
      clear(current, card ? cardArticle(app, timeline, card, point) : noCard(timeline));
    }),
  };
}

/**
 * A text that changes when a reduction is added or taken back. A live session brings new events every second; cards
 * that stay the same must not be drawn again under the reader.
 * @param {TimelineState} timeline
 * @returns {string}
 */
function cardsVersion(timeline) {
  const undone = timeline.reductions.reduce((sum, card) => sum + card.undone + 1, 0);
  return `${timeline.reductions.length}:${undone}`;
}

/**
 * The newest reduction up to an event.
 * @param {TimelineState} timeline
 * @param {number} point
 * @returns {ReductionCard | undefined}
 */
function cardUpTo(timeline, point) {
  return timeline.reductions[lowerBound(timeline.reductions, (card) => card.seq <= point) - 1];
}

/**
 * @param {TimelineState} timeline
 * @returns {HTMLElement}
 */
function noCard(timeline) {
  return stateNote(
    timeline.reductions.length > 0
      ? "Nothing has been reduced up to this point. Later reductions are listed below."
      : "Nothing has been reduced in this session: every message is shown as it was said.",
  );
}

// ── The list ───────────────────────────────────────────────────────────────────────────────────────────

/**
 * All reductions, newest first, a page at a time.
 * @param {App} app
 * @returns {{element: HTMLElement, update: (timeline: TimelineState) => void}}
 */
function createCardList(app) {
  const title = el("h3");
  const items = el("div", { class: "card-list" });
  const filter = el("select", { "aria-label": "Kind of reduction", onchange: () => draw(CARDS_PER_PAGE) });
  const element = el("section", { "aria-label": "All reductions" }, el("div", { class: "toolbar" }, title, filter), items);
  let timeline = app.timeline;
  /** @type {Set<number>} cards that stay open when the list is drawn again */
  const open = new Set();
  /** @type {(count: number) => void} */
  function draw(count) {
    const cards = timeline.reductions.filter((card) => !filter.value || card.kind === filter.value).reverse();
    const rest = cards.length - count;
    clear(
      items,
      cards.slice(0, count).map((card) => cardDetails(app, timeline, card, open)),
      rest > 0 && actionButton(`Show more (${formatNumber(rest)})`, () => draw(count + CARDS_PER_PAGE)),
    );
  }
  return {
    element,
    update(newTimeline) {
      timeline = newTimeline;
      clear(title, formatCount(timeline.reductions.length, "reduction"));
      fillKinds(filter, timeline.reductions);
      element.hidden = timeline.reductions.length === 0;
      draw(CARDS_PER_PAGE);
    },
  };
}

/**
 * @param {HTMLSelectElement} select
 * @param {ReductionCard[]} cards
 */
function fillKinds(select, cards) {
  const chosen = select.value;
  const counts = CARD_KINDS.map((kind) => ({ kind, count: cards.filter((card) => card.kind === kind).length }));
  clear(
    select,
    el("option", { value: "" }, "All kinds"),
    counts
      .filter(({ count }) => count > 0)
      .map(({ kind, count }) => el("option", { value: kind }, `${kindName(kind)} (${formatNumber(count)})`)),
  );
  select.value = counts.some(({ kind, count }) => kind === chosen && count > 0) ? chosen : "";
}

/**
 * One line of the list; the card is made when it is opened.
 * @param {App} app
 * @param {TimelineState} timeline
 * @param {ReductionCard} card
 * @param {Set<number>} open
 * @returns {HTMLElement}
 */
function cardDetails(app, timeline, card, open) {
  const details = el("details", { class: "card", open: open.has(card.seq) }, el("summary", null, cardLine(card)));
  details.addEventListener("toggle", () => {
    if (details.open) open.add(card.seq);
    else open.delete(card.seq);
    if (details.open && details.childElementCount === 1) details.append(...cardBody(app, timeline, card, "list"));
  });
  return details;
}

/**
 * What happened in one line.
 * @param {ReductionCard} card
 * @returns {HTMLElement[]}
 */
function cardLine(card) {
  const what = card.count > 0 ? formatCount(card.count, "message") : "";
  return [
    el("span", { class: "card-icon", "aria-hidden": "true" }, kindIcon(card.kind)),
    el("span", { class: "card-name" }, `e${card.seq} ${kindName(card.kind)}`),
    el("span", { class: "card-what" }, [what, card.why].filter(Boolean).join(", ")),
    el("span", { class: "card-tokens" }, tokensChange(card)),
    card.undone >= 0 ? el("span", { class: "badge is-undone" }, "undone") : el("span"),
  ];
}

/**
 * @param {ReductionCard} card
 * @returns {string}
 */
function tokensChange(card) {
  if (card.before === 0 && card.after === 0) return "";
  return `${formatNumber(card.before)} → ${formatNumber(card.after)}`;
}

// ── One card ───────────────────────────────────────────────────────────────────────────────────────────

/**
 * The open card on top.
 * @param {App} app
 * @param {TimelineState} timeline
 * @param {ReductionCard} card
 * @param {number} point
 * @returns {HTMLElement}
 */
function cardArticle(app, timeline, card, point) {
  const place = card.seq === point ? "at this point" : "the newest before this point";
  return el(
    "article",
    { class: "card is-open" },
    el(
      "h3",
      { class: "card-title" },
      el("span", { class: "card-icon", "aria-hidden": "true" }, kindIcon(card.kind)),
      term(card.kind === "compacted" ? "summarised" : card.kind, kindName(card.kind)),
      " by ",
      eventLink(app, card.seq),
      el("span", { class: "card-place" }, place),
    ),
    cardBody(app, timeline, card, "top"),
  );
}

/**
 * @param {App} app
 * @param {TimelineState} timeline
 * @param {ReductionCard} card
 * @param {"top" | "list"} place
 * @returns {HTMLElement[]}
 */
function cardBody(app, timeline, card, place) {
  return [
    sizeChange(timeline, card),
    factList([
      ["State", stateText(app, card)],
      ["Did", card.did],
      ["Trigger", card.why || card.reason],
      ["Rule", card.rule],
      ["Author", authorText(card)],
      ["Covers", rangeLinks(app, card)],
      ["Cost", costText(card)],
      [term("pays", "Pays"), payText(timeline, card)],
      ["Names kept", card.score === null ? "" : `${formatPercent(card.score)} of the rare names of the source`],
      ["Problem", card.problem],
    ]),
    ...(card.kind === "compacted" ? [summaryText(app, card), ...checkLists(card)] : []),
    lostSection(app, card, place),
    ...(card.checks.length > 0 ? [bulletList("Faults of earlier drafts", card.checks)] : []),
    changedMessages(app, card),
    el(
      "div",
      { class: "button-row" },
      eventButton(app, card.seq - 1, "View before"),
      eventButton(app, card.seq, "View after"),
      diffButton(app, timeline, card),
    ),
    reductionActions(app, card, place),
  ].filter((part) => part !== null);
}

/**
 * Two bars on the scale of the window, and the numbers.
 * @param {TimelineState} timeline
 * @param {ReductionCard} card
 * @returns {HTMLElement}
 */
function sizeChange(timeline, card) {
  const scale = Math.max(timeline.window, card.before, card.after, 1);
  const removed = card.before - card.after;
  const share = card.before > 0 ? ` (${formatPercent(Math.abs(removed) / card.before)})` : "";
  const change = removed === 0 ? "the size did not change" : `${formatNumber(Math.abs(removed))} tokens ${removed > 0 ? "less" : "more"}${share}`;
  return el(
    "div",
    { class: "size-change" },
    segmentBar([{ name: "before", share: card.before / scale }], "is-thin"),
    segmentBar([{ name: "after", share: card.after / scale }], "is-thin"),
    el("p", null, el("strong", null, `${formatNumber(card.before)} → ${formatNumber(card.after)} tokens`), `: ${change}`),
  );
}

/**
 * @param {App} app
 * @param {ReductionCard} card
 * @returns {Array<import("./dom.js").Child>}
 */
function stateText(app, card) {
  if (card.kind === "compaction_failed") return ["the summary failed; the view did not change"];
  if (card.undone < 0) return ["in force"];
  return ["undone by ", eventLink(app, card.undone)];
}

/**
 * @param {ReductionCard} card
 * @returns {string}
 */
function authorText(card) {
  if (card.by === "ledger") return "ledger (taken from the log, no model call)";
  return card.by;
}

/**
 * @param {App} app
 * @param {ReductionCard} card
 * @returns {Array<import("./dom.js").Child> | string}
 */
function rangeLinks(app, card) {
  if (card.first < 0) return "";
  if (card.first === card.last) return [messageLink(app, `e${card.first}`)];
  return [messageLink(app, `e${card.first}`), " to ", messageLink(app, `e${card.last}`)];
}

/**
 * @param {ReductionCard} card
 * @returns {string}
 */
function costText(card) {
  const asks = card.kind === "compacted" || card.kind === "compaction_failed";
  const model = !asks || card.cost === 0 ? "no model call" : `${formatDollars(card.cost)} for the summary`;
  const time = card.seconds > 0 ? `, ${formatDuration(card.seconds)}` : "";
  const again = card.behind > 0 ? `; ${formatNumber(card.behind)} tokens behind it were read again` : "";
  return model + time + again;
}

/**
 * After how many calls the reduction pays, and whether that many followed.
 * @param {TimelineState} timeline
 * @param {ReductionCard} card
 * @returns {string}
 */
function payText(timeline, card) {
  if (card.kind === "compaction_failed") return "";
  const followed = timeline.callsWhileInForce(card);
  const after = card.pays_after;
  if (after === null) return `unknown, because no price is known; ${formatCount(followed, "call")} followed`;
  if (after === 0) return `at once; ${formatCount(followed, "call")} followed`;
  const verdict = followed >= after ? "it has paid" : card.undone >= 0 ? "it was undone before" : "not yet";
  return `after ${formatCount(after, "call")}; ${formatNumber(followed)} followed: ${verdict}`;
}

/**
 * The whole summary, loaded when the card is opened.
 * @param {App} app
 * @param {ReductionCard} card
 * @returns {HTMLElement}
 */
function summaryText(app, card) {
  const area = el("div", { class: "summary-area" });
  if (app.state.current.lane === "whatIf") {
    clear(area, stateNote("The page has no texts of a replay."));
  } else {
    const key = `e${card.seq}`;
    void createLoader(area)(`Loading the summary (${formatCount(card.chars, "character")}) …`, () => app.data.text(key), (message) => {
      const text = (message.parts ?? []).map((part) => part.text ?? "").join("\n");
      return [
        textBlock(visibleText(text), `Summary ${key}`),
        message.truncated ? el("p", null, "The text is longer. ", messageLink(app, key, "Open the whole text")) : null,
      ];
    });
  }
  return el("section", { class: "card-section" }, el("h4", null, "Summary"), area);
}

/**
 * @param {ReductionCard} card
 * @returns {HTMLElement[]}
 */
function checkLists(card) {
  return [
    bulletList("Checked", card.checked, "is-checked"),
    bulletList("Not checked", card.unchecked, "is-unchecked"),
  ].filter((list) => list.querySelector("li"));
}

/**
 * @param {string} title
 * @param {string[]} texts
 * @param {string} [kind]
 * @returns {HTMLElement}
 */
function bulletList(title, texts, kind = "") {
  return el(
    "section",
    { class: "card-section" },
    el("h4", null, title),
    el("ul", { class: `bullets ${kind}`.trim() }, texts.map((text) => el("li", null, text))),
  );
}

/**
 * @param {App} app
 * @param {ReductionCard} card
 * @returns {HTMLElement}
 */
function changedMessages(app, card) {
  if (card.count === 0) return el("div");
  const rest = card.count - card.keys.length;
  return el(
    "section",
    { class: "card-section" },
    el("h4", null, `Changed ${formatCount(card.count, "message")}`),
    el(
      "p",
      { class: "key-links" },
      card.keys.map((key) => messageLink(app, key)),
      rest > 0 ? ` and ${formatNumber(rest)} more` : null,
    ),
  );
}

/**
 * @param {App} app
 * @param {number} seq
 * @param {string} text
 * @returns {HTMLButtonElement}
 */
function eventButton(app, seq, text) {
  return actionButton(text, () => goToShown(app, seq), { disabled: seq < 0 });
}

/**
 * @param {App} app
 * @param {TimelineState} timeline
 * @param {ReductionCard} card
 * @returns {HTMLButtonElement}
 */
function diffButton(app, timeline, card) {
  const b = lowerBound(timeline.requests, (request) => request.at < card.seq);
  const isPossible = b > 0 && b < timeline.requests.length && timeline === app.timeline;
  return actionButton("Diff of the requests around it", () => app.state.set({ compare: { a: b - 1, b }, panel: "diff" }), {
    disabled: !isPossible,
    title: isPossible ? "" : "It needs a request before and one after the reduction",
  });
}
