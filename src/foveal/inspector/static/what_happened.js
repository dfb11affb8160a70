/**
 * What happened in a session, as lines with links: its cost, the misses of the cache, what was hidden, and what is lost.
 *
 * 1. A line leads to the event, the request or the panel that it is about, by the address of that place.
 * 2. The figures are those of the timeline. What the server has to find out, the statements of the user and the surprise
 *    of the steps, is given once it is known.
 *
 * All functions here are pure.
 *
 * @module
 */

import { MISS_CAUSES } from "./cache_map.js";
import { kindName, levelName } from "./event_kinds.js";
import { formatCount, formatDollars, formatDuration, formatNumber, formatPercent, oneLine, savedText } from "./format.js";
import { groupStatements } from "./statement_groups.js";
import { seqOfKey } from "./timeline_state.js";

/** @typedef {import("./types.js").RequestRow} RequestRow */
/** @typedef {import("./types.js").ReductionCard} ReductionCard */
/** @typedef {import("./types.js").UserStatement} UserStatement */
/** @typedef {import("./types.js").StepSurprises} StepSurprises */
/** @typedef {import("./timeline_state.js").TimelineState} TimelineState */

/**
 * One line: a link, what it says, and perhaps a second link.
 * @typedef {object} HappenedLine
 * @property {string} label
 * @property {string} href
 * @property {string} text
 * @property {{label: string, href: string}} [also]
 */

/**
 * Lines of one kind.
 * @typedef {object} HappenedLines
 * @property {string} [lead] a sentence before the lines, or instead of them; without both there is nothing to say
 * @property {HappenedLine[]} lines
 * @property {{label: string, href: string}} [rest] leads to what is not listed
 */

/** Misses that are listed. */
const SHOWN_MISSES = 3;
/** Reductions that are listed. */
const SHOWN_REDUCTIONS = 5;
/** Messages with lost statements that are listed. */
const SHOWN_UNSEEN = 5;
/** Surprising steps that are listed. */
const SHOWN_STEPS = 3;
/** Tools whose results a line names. */
const SHOWN_TOOLS = 3;
/** Characters of a quoted text. */
const MAX_QUOTE_CHARS = 160;
/** Seconds below which the time of a session is not given. */
const MIN_TIME_S = 1;

/**
 * Return the session in one sentence.
 * @param {TimelineState} timeline
 * @returns {string}
 */
export function sessionSentence(timeline) {
  const { rows, requests } = timeline;
  if (rows.length === 0) return "This session has no events yet.";
  const [first, last] = [rows[0].at, rows[rows.length - 1].at];
  const time = first !== null && last !== null && last - first >= MIN_TIME_S ? ` in ${formatDuration(last - first)}` : "";
  const newest = requests[requests.length - 1];
  if (!newest) return `${formatCount(rows.length, "event")}${time}. No request was answered yet.`;
  const lead = `${formatCount(rows.length, "event")} and ${formatCount(requests.length, "request")}${time}.`;
  const window = newest.window || timeline.window;
  const share = window > 0 ? `, ${formatPercent(newest.tokens / window)} of the window` : "";
  const about = newest.used >= 0 ? "" : "about ";
  return `${lead} The newest request has ${about}${formatCount(newest.tokens, "token")}${share}.`;
}

/**
 * Return what the session has cost: what is known, what is not, what reductions saved, and the share of the cache.
 * @param {TimelineState} timeline
 * @returns {HappenedLines}
 */
export function costLines(timeline) {
  const { requests, spent, saved } = timeline;
  if (requests.length === 0) return { lines: [] };
  /** @type {HappenedLine[]} */
  const lines = [];
  const unknown = requests.filter((request) => request.used < 0 || request.cost === null);
  const known = requests.length - unknown.length;
  if (spent !== null) {
    const of = unknown.length ? `known, for ${formatNumber(known)} of ${formatCount(requests.length, "request")}` : `for ${formatCount(known, "request")}`;
    lines.push({ label: formatDollars(spent), href: "#panel=requests", text: of });
  }
  if (unknown.length) {
    const silent = unknown.filter((request) => request.used < 0).length;
    const why = silent && silent < unknown.length
      ? `: ${formatNumber(silent)} without usage from the provider, ${formatNumber(unknown.length - silent)} without a known price`
      : `, ${silent ? "without usage from the provider" : "without a known price"}`;
    const text = `at an unknown cost${why}`;
    lines.push({ label: formatCount(unknown.length, "request"), href: requestHref(unknown[0]), text });
  }
  if (saved && timeline.reductions.length) {
    const text = saved < 0 ? "" : "compared with sending everything with an ideal cache";
    lines.push({ label: capitalised(savedText(saved)), href: "#panel=reductions", text });
  }
  const [read, all] = [sumOf(requests, (request) => request.read), inputTokens(requests)];
  if (all > 0) {
    lines.push({ label: formatPercent(read / all), href: "#panel=requests", text: `of ${formatNumber(all)} input tokens came from the cache` });
  }
  return { lines };
}

/**
 * Return the largest misses of the cache, each with its cause.
 * @param {TimelineState} timeline
 * @returns {HappenedLines}
 */
export function missLines({ requests }) {
  const missed = requests.filter(({ miss }) => miss);
  if (requests.length === 0) return { lines: [] };
  if (missed.length === 0) {
    const isReported = requests.some((request) => request.used >= 0);
    const lead = isReported
      ? "No request missed the cache by more than a block."
      : "The provider reported no usage, so it is not known what came from its cache.";
    return { lead, lines: [] };
  }
  const sorted = [...missed].sort((a, b) => lostOf(b) - lostOf(a) || tokensOf(b) - tokensOf(a) || a.number - b.number);
  const lines = sorted.slice(0, SHOWN_MISSES).map((request) => {
    const miss = /** @type {import("./types.js").CacheMiss} */ (request.miss);
    const cause = MISS_CAUSES[miss.cause] ?? miss.cause;
    const price = miss.lost === null ? "" : `, ${formatDollars(miss.lost)} more`;
    const text = `${formatCount(miss.tokens, "token")} read again${price} (${cause}): ${oneLine(miss.text)}`;
    return { label: `Request ${formatNumber(request.number)}`, href: requestHref(request), text };
  });
  return { lines, rest: restOf(missed.length - lines.length, "miss", "#panel=requests", "misses") };
}

/**
 * Return the largest reductions, each with what it hid.
 * @param {TimelineState} timeline
 * @returns {HappenedLines}
 */
export function reductionLines(timeline) {
  const cards = timeline.reductions.filter((card) => card.kind !== "compaction_failed");
  const failed = timeline.reductions.length - cards.length;
  const problems = failed ? ` ${formatCount(failed, "summary", "summaries")} failed.` : "";
  if (cards.length === 0) {
    return timeline.requests.length
      ? { lead: `Nothing was hidden: the model saw every message as it was said.${problems}`, lines: [] }
      : { lead: problems.trim() || undefined, lines: [] };
  }
  const removed = (/** @type {ReductionCard} */ card) => card.before - card.after;
  const sorted = [...cards].sort((a, b) => removed(b) - removed(a) || a.seq - b.seq);
  const lines = sorted.slice(0, SHOWN_REDUCTIONS).map((card) => ({
    label: `e${card.seq} ${kindName(card.kind)}${card.did ? ":" : ""}`,
    href: `#e${card.seq}&panel=reductions`,
    text: `${hiddenText(timeline, card)}: ${formatNumber(card.before)} → ${formatCount(card.after, "token")}${card.undone >= 0 ? `, undone by e${card.undone}` : ""}`,
  }));
  return { lead: problems.trim() || undefined, lines, rest: restOf(cards.length - lines.length, "reduction", "#panel=reductions") };
}

/**
 * Return what a reduction hid: the messages that it changed, by kind.
 * @param {TimelineState} timeline
 * @param {ReductionCard} card
 * @returns {string}
 */
function hiddenText(timeline, card) {
  if (card.did) return oneLine(card.did);
  /** @type {Map<string, number>} */
  const tools = new Map();
  const counts = { results: 0, user: 0, assistant: 0 };
  for (const key of card.keys) {
    const row = timeline.row(seqOfKey(key));
    if (row?.kind === "tool_returned") {
      counts.results += 1;
      if (row.tool) tools.set(row.tool, (tools.get(row.tool) ?? 0) + 1);
    } else if (row?.kind === "user_said") counts.user += 1;
    else if (row?.kind === "model_said") counts.assistant += 1;
  }
  const common = [...tools].sort((a, b) => b[1] - a[1]).slice(0, SHOWN_TOOLS).map(([tool]) => oneLine(tool));
  const of = common.length ? ` of ${common.join(", ")}${tools.size > common.length ? " and other tools" : ""}` : "";
  const kinds = [
    counts.results && `${formatCount(counts.results, "result")}${of}`,
    counts.assistant && formatCount(counts.assistant, "answer"),
    counts.user && `${formatNumber(counts.user)} of the user`,
  ];
  const known = kinds.filter(Boolean).join("; ");
  if (!known) return formatCount(card.count, "message");
  return card.count > card.keys.length ? `${formatCount(card.count, "message")}, among them ${known}` : known;
}

/**
 * Return what the user said that holds and that the newest request shows nowhere.
 * @param {TimelineState} timeline
 * @param {UserStatement[]} statements
 * @returns {HappenedLines}
 */
export function unseenLines({ requests }, statements) {
  if (requests.length === 0) return { lines: [] };
  const { unseen, holding } = groupStatements(statements);
  if (unseen.length === 0) {
    const lead = holding.length
      ? "The newest request shows every rule, correction and fact of the user that holds."
      : "The user has stated no rule, correction or fact.";
    return { lead, lines: [] };
  }
  const lines = unseen.slice(0, SHOWN_UNSEEN).map((message) => ({
    label: message.key,
    href: `#panel=message&message=${message.key}`,
    text: `“${shortQuote(message.statements.map((one) => one.text).join(" … "))}”`,
  }));
  return { lines, rest: restOf(unseen.length - lines.length, "message", "#panel=statements") };
}

/**
 * Return the steps that their requests said least about.
 * @param {TimelineState} timeline
 * @param {StepSurprises} found
 * @returns {HappenedLines}
 */
export function surpriseLines(timeline, found) {
  const { steps = 0, measured = 0, mean = 0, worst = [] } = found;
  if (timeline.requests.length === 0) return { lines: [] };
  if (steps === 0) return { lead: "Nothing was reduced before a step, so no step lacked anything.", lines: [] };
  const of = measured < steps ? `${formatNumber(measured)} of ` : "";
  const spread = measured < steps ? ", spread evenly" : "";
  const average = `on average ${Math.max(0, mean).toFixed(2)} bits per byte`;
  const none = worst.length ? "" : " No step lacked much.";
  const lead = `Measured at ${of}${formatCount(steps, "step")} after the first reduction${spread}: ${average}.${none}`;
  return { lead, lines: worst.slice(0, SHOWN_STEPS).map((step) => stepLine(timeline, step)) };
}

/**
 * @param {TimelineState} timeline
 * @param {import("./types.js").SurprisingStep} step
 * @returns {HappenedLine}
 */
function stepLine(timeline, { answer, bits, gone = [] }) {
  const request = timeline.requests.find((each) => each.answer === answer);
  const place = request ? `r${request.number}` : `e${answer}`;
  const line = { label: `e${answer}`, href: `#${place}&panel=message&message=e${answer}`, text: `${bits.toFixed(2)} bits per byte` };
  const [quote] = gone;
  const preview = timeline.row(answer)?.preview;
  if (!quote) return preview ? { ...line, text: `${line.text}: “${shortQuote(preview)}”` } : line;
  const [text, key] = quote;
  const level = key && timeline.at(request?.at ?? answer - 1).get(key)?.level;
  const how = level && level !== "full" ? `, ${levelName(level).toLowerCase()} at that point, in ` : ", last said in ";
  const said = `${line.text}: it quotes “${shortQuote(text)}”`;
  if (!key) return { ...line, text: said };
  return { ...line, text: `${said}${how}`, also: { label: key, href: `#panel=message&message=${key}` } };
}

// ── Parts ──────────────────────────────────────────────────────────────────────────────────────────────

/**
 * @param {number} count
 * @param {string} noun
 * @param {string} href
 * @param {string} [plural]
 * @returns {{label: string, href: string} | undefined}
 */
function restOf(count, noun, href, plural = `${noun}s`) {
  return count > 0 ? { label: `${formatNumber(count)} more ${count === 1 ? noun : plural}`, href } : undefined;
}

/**
 * Return the address of a request.
 * @param {RequestRow} request
 * @returns {string}
 */
export function requestHref(request) {
  return `#r${request.number}&panel=requests`;
}

/**
 * Return the dollars that a miss of a request cost; 0 if it missed nothing, or if the price is not known.
 * @param {RequestRow} request
 * @returns {number}
 */
export function lostOf({ miss }) {
  return miss?.lost ?? 0;
}

/**
 * Return the tokens that a request missed.
 * @param {RequestRow} request
 * @returns {number}
 */
export function tokensOf({ miss }) {
  return miss?.tokens ?? 0;
}

/**
 * Return the input tokens that were reported for requests.
 * @param {RequestRow[]} requests
 * @returns {number}
 */
export function inputTokens(requests) {
  return sumOf(requests, (request) => request.read + request.written + request.uncached);
}

/**
 * Return the sum of a value over items.
 * @template Item
 * @param {Item[]} items
 * @param {(item: Item) => number} valueOf
 * @returns {number}
 */
export function sumOf(items, valueOf) {
  return items.reduce((sum, item) => sum + valueOf(item), 0);
}

/**
 * Return a text that begins with a capital letter.
 * @param {string} text
 * @returns {string}
 */
export function capitalised(text) {
  return text.slice(0, 1).toUpperCase() + text.slice(1);
}

/**
 * @param {string} text
 * @returns {string}
 */
function shortQuote(text) {
  const line = oneLine(text);
  return line.length > MAX_QUOTE_CHARS ? `${line.slice(0, MAX_QUOTE_CHARS)}…` : line;
}
