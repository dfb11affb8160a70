/**
 * What to do about what happened in a session: advice, with the figures that speak for it.
 *
 * All functions here are pure.
 *
 * @module
 */

import { MISS_CAUSES } from "./cache_map.js";
import { formatCount, formatDollars, formatNumber, formatPercent, oneLine } from "./format.js";
import { groupStatements } from "./statement_groups.js";
import { seqOfKey } from "./timeline_state.js";
import { capitalised, inputTokens, lostOf, requestHref, sumOf, tokensOf } from "./what_happened.js";

/** @typedef {import("./types.js").UserStatement} UserStatement */
/** @typedef {import("./types.js").StepSurprises} StepSurprises */
/** @typedef {import("./timeline_state.js").TimelineState} TimelineState */
/** @typedef {import("./what_happened.js").HappenedLine} HappenedLine */
/** @typedef {import("./what_happened.js").HappenedLines} HappenedLines */

/** Events that a sentence names. */
const NAMED_EVENTS = 3;
/** Share of all input tokens from which on misses of one cause get advice. */
const MIN_MISS_SHARE = 0.01;
/** Share of the limit from which on the next reduction is near. */
const NEAR_LIMIT_SHARE = 0.9;
/** Share of the window from which on it matters what fills a request. */
const MIN_FILLED_SHARE = 0.25;
/** Share of the newest request from which on the tool list gets advice. */
const LARGE_TOOLS_SHARE = 0.2;
/** Share of the newest request from which on the results of one tool get advice. */
const LARGE_RESULTS_SHARE = 0.4;
/** Bits per byte from which on a step gets advice. */
const MUCH_SURPRISE = 0.1;

/**
 * What to do about misses of one cause: the advice in a few words, and how.
 * @type {Record<string, [string, string]>}
 */
const CAUSE_ADVICE = {
  expired: [
    "Keep the cache over pauses",
    "ask the provider for a longer cache lifetime where it has one, or compact before a pause, so that less has to be read again",
  ],
  tools: ["Keep the tool list the same", "offer the same tools in the same order with every request"],
  system: ["Keep the system text the same", "leave dates, counters and other text that changes out of it"],
  model: ["Change the model less often", "keep one model for as long as the session goes on: each has a cache of its own"],
  edit: ["Append instead of changing", "leave messages that were sent before as they are, and put what is new at the end"],
  unknown: ["Send a cache key", "give the provider the same cache key with every request of a session, where it takes one"],
};

/**
 * Return what to do, with the figures that speak for it; statements and surprise are left out until they are known.
 * @param {TimelineState} timeline
 * @param {{statements: UserStatement[] | null, surprises: StepSurprises | null}} known
 * @returns {HappenedLines}
 */
export function adviceLines(timeline, { statements, surprises }) {
  const lines = [
    unseenAdvice(statements ?? []),
    ...causeAdvice(timeline),
    unpaidAdvice(timeline),
    surpriseAdvice(surprises),
    ...sizeAdvice(timeline),
    otherAgentAdvice(timeline),
    usageAdvice(timeline),
  ].filter((line) => line !== null);
  if (lines.length) return { lines };
  return { lead: timeline.requests.length ? "Nothing: no figure stands out." : undefined, lines };
}

/**
 * @param {UserStatement[]} statements
 * @returns {HappenedLine | null}
 */
function unseenAdvice(statements) {
  const { unseen } = groupStatements(statements);
  const count = sumOf(unseen, (message) => message.statements.length);
  if (count === 0) return null;
  const what = `${formatCount(count, "statement")} of the user (${namesOf(unseen.map((message) => message.key))})`;
  return {
    label: "Pin what still holds",
    href: "#panel=statements",
    text: `${what} ${count === 1 ? "is" : "are"} not visible to the model. Replaced by… says which ${count === 1 ? "message replaces it" : "no longer hold"}.`,
  };
}

/**
 * @param {TimelineState} timeline
 * @returns {HappenedLine[]}
 */
function causeAdvice({ requests }) {
  const all = inputTokens(requests);
  return Object.entries(CAUSE_ADVICE).flatMap(([cause, [label, advice]]) => {
    const missed = requests.filter(({ miss }) => miss?.cause === cause);
    const tokens = sumOf(missed, tokensOf);
    if (missed.length === 0 || tokens < all * MIN_MISS_SHARE) return [];
    const lost = sumOf(missed, lostOf);
    const price = lost > 0 ? `, ${formatDollars(lost)} more than from the cache` : "";
    const worst = missed.reduce((one, other) => (tokensOf(other) > tokensOf(one) ? other : one));
    const what = `${capitalised(MISS_CAUSES[cause])} ${formatCount(missed.length, "time")}: ${formatCount(tokens, "token")} read again${price}`;
    return [{ label, href: requestHref(worst), text: `${what}. To avoid it, ${advice}.` }];
  });
}

/**
 * @param {TimelineState} timeline
 * @returns {HappenedLine | null}
 */
function unpaidAdvice(timeline) {
  const priced = timeline.reductions.filter((card) => card.pays_after !== null && card.pays_after > 0 && card.undone < 0);
  const unpaid = priced.filter((card) => timeline.callsWhileInForce(card) < (card.pays_after ?? 0));
  if (unpaid.length === 0) return null;
  const worst = unpaid.reduce((one, other) => ((other.pays_after ?? 0) > (one.pays_after ?? 0) ? other : one));
  const followed = timeline.callsWhileInForce(worst);
  const which = `e${worst.seq} pays after ${formatCount(worst.pays_after ?? 0, "call")}, and ${formatNumber(followed)} followed`;
  const verb = unpaid.length === 1 ? "has" : "have";
  return {
    label: "Try fewer cuts",
    href: "#panel=what-if",
    text: `${formatNumber(unpaid.length)} of ${formatCount(priced.length, "reduction")} ${verb} not paid so far: ${which}. What if shows the bill of another policy or a larger window.`,
  };
}

/**
 * @param {StepSurprises | null} found
 * @returns {HappenedLine | null}
 */
function surpriseAdvice(found) {
  const step = (found?.worst ?? []).find((each) => each.bits >= MUCH_SURPRISE && each.gone?.some(([, key]) => key));
  const key = step?.gone?.find(([, holder]) => holder)?.[1];
  if (!step || !key) return null;
  return {
    label: `Pin ${key} while it is needed`,
    href: `#panel=message&message=${key}`,
    text: `Step e${step.answer} quotes it, and its request did not show that part (${step.bits.toFixed(2)} bits per byte). Expand shows a hidden message for one turn.`,
  };
}

/**
 * What fills the newest request.
 * @param {TimelineState} timeline
 * @returns {HappenedLine[]}
 */
function sizeAdvice(timeline) {
  const newest = timeline.requests[timeline.requests.length - 1];
  if (!newest || newest.tokens === 0) return [];
  /** @type {HappenedLine[]} */
  const lines = [];
  if (timeline.limit > 0 && newest.tokens >= timeline.limit * NEAR_LIMIT_SHARE) {
    const text = `The newest request takes ${formatPercent(newest.tokens / timeline.limit)} of the ${formatCount(timeline.limit, "token")} that it may have, so the next reduction is near. You choose what a summary keeps if you ask for it now.`;
    lines.push({ label: "Compact with a focus", href: "#panel=reductions", text });
  }
  if (newest.tokens < (newest.window || timeline.window) * MIN_FILLED_SHARE) return lines;
  const tools = newest.tools * newest.ratio;
  if (tools >= newest.tokens * LARGE_TOOLS_SHARE) {
    const used = newest.tool_text ? ` (${oneLine(newest.tool_text)})` : "";
    const text = `The tool list${used} takes ${formatNumber(Math.round(tools))} of ${formatCount(newest.tokens, "token")} of the newest request.`;
    lines.push({ label: "Offer fewer tools", href: "#panel=composition", text });
  }
  const [tool, units] = largestTool(timeline, newest.at);
  const tokens = Math.round(units * newest.ratio);
  if (tool && tokens >= newest.tokens * LARGE_RESULTS_SHARE) {
    const text = `They take ${formatNumber(tokens)} of ${formatCount(newest.tokens, "token")} (${formatPercent(tokens / newest.tokens)}) of the newest request. A narrower call, or clip in the policy, makes them shorter.`;
    lines.push({ label: `Shorten results of ${oneLine(tool)}`, href: "#panel=composition", text });
  }
  return lines;
}

/**
 * What Foveal would have done, for a recording of another agent.
 * @param {TimelineState} timeline
 * @returns {HappenedLine | null}
 */
function otherAgentAdvice({ requests, format, window }) {
  const newest = requests[requests.length - 1];
  if (format === "foveal" || !newest || newest.tokens < (newest.window || window) * MIN_FILLED_SHARE) return null;
  const text = "What if replays this recording under a policy, without a model, and shows the bill and each request.";
  return { label: "See what Foveal would save", href: "#panel=what-if", text };
}

/**
 * @param {TimelineState} timeline
 * @returns {HappenedLine | null}
 */
function usageAdvice({ requests, format, model }) {
  if (format !== "foveal") return null;
  const silent = requests.filter((request) => request.used < 0);
  const unpriced = requests.filter((request) => request.used >= 0 && request.cost === null);
  if (silent.length) {
    const text = `${formatNumber(silent.length)} of ${formatCount(requests.length, "request")} have no usage. Pass what the provider reports to observe: cost, misses and the size of the next request follow from it.`;
    return { label: "Report usage", href: requestHref(silent[0]), text };
  }
  if (unpriced.length === 0) return null;
  const text = `No price is known of ${oneLine(unpriced[0].model || model)}, so ${formatCount(unpriced.length, "request")} have no cost. foveal.model takes the prices.`;
  return { label: "Give the prices", href: requestHref(unpriced[0]), text };
}

/**
 * Return the tool whose results take most of a request, and their units.
 * @param {TimelineState} timeline
 * @param {number} at
 * @returns {[string, number]}
 */
function largestTool(timeline, at) {
  /** @type {Map<string, number>} */
  const tools = new Map();
  for (const change of timeline.at(at).items()) {
    const tool = change.category === "results" && timeline.row(seqOfKey(change.key))?.tool;
    if (tool) tools.set(tool, (tools.get(tool) ?? 0) + change.units);
  }
  return [...tools].reduce((one, other) => (other[1] > one[1] ? other : one), ["", 0]);
}

/**
 * @param {string[]} names
 * @returns {string}
 */
function namesOf(names) {
  const rest = names.length - NAMED_EVENTS;
  return `${names.slice(0, NAMED_EVENTS).join(", ")}${rest > 0 ? ` and ${formatNumber(rest)} more` : ""}`;
}
