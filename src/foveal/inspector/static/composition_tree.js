/**
 * What a request consists of: categories, then files or tools, then messages.
 *
 * 1. Sizes are calibrated: a message has its units times the tokens per unit of the request.
 * 2. What the provider counted beyond the messages is a line of its own, so all lines add up to the tokens of the request.
 * 3. What a message has cost so far is its share, by size, of the input cost of each request that contained it.
 *
 * All functions here are pure.
 *
 * @module
 */

import { isSent, lowerBound, seqOfKey } from "./timeline_state.js";

/** @typedef {import("./types.js").RequestRow} RequestRow */
/** @typedef {import("./types.js").ViewChange} ViewChange */
/** @typedef {import("./timeline_state.js").TimelineState} TimelineState */

/**
 * A category, a file or tool, or a message.
 * @typedef {object} CompositionNode
 * @property {string} id
 * @property {string} label
 * @property {string} category
 * @property {string} key  The message; "" for a group.
 * @property {number} tokens
 * @property {number} count  Messages.
 * @property {number} requests  Requests that contained the message; of a group the most of its messages.
 * @property {number | null} soFar  Dollars up to the current request; null if a price is unknown.
 * @property {CompositionNode[]} children
 */

/**
 * @typedef {object} Composition
 * @property {number} index  The request that the sizes are calibrated by; -1 if there is none.
 * @property {boolean} isExact  Whether the view at this point is the one that the request sent.
 * @property {boolean} isReported  Whether the provider reported the total.
 * @property {number} reportedIn  The newest request whose total it reported; 0 if there is none.
 * @property {number} tokens
 * @property {number | null} error  Relative error of the newest predictions; null if there were none.
 * @property {CompositionNode[]} nodes  Largest first; the provider's own part is last.
 */

/** Requests whose predictions are compared with what was reported. Earlier ones say little: counting is calibrated. */
const ERROR_REQUESTS = 20;

/** Names of the categories. @type {Record<string, string>} */
export const CATEGORY_NAMES = {
  system: "System text",
  instructions: "Instructions",
  tools: "Tool list",
  pinned: "Pinned",
  user: "User messages",
  assistant: "Assistant messages",
  results: "Tool results",
  summaries: "Summaries",
  placeholders: "Placeholders and notices",
  overhead: "System prompt, tools and templates that the log does not have",
};

/**
 * Return what the view after an event consists of.
 * @param {TimelineState} timeline
 * @param {number} seq
 * @returns {Composition}
 */
export function compositionAt(timeline, seq) {
  const index = timeline.requestAt(seq);
  const request = timeline.requests[Math.max(0, index)];
  const isExact = index >= 0 && request.at === seq;
  const ratio = request?.ratio ?? 1;
  const costs = new RunningCosts(timeline, index);
  const nodes = categoryNodes(timeline, timeline.at(seq).items(), ratio, costs);
  if (request && request.tools > 0) nodes.push(toolListNode(request, costs));
  nodes.sort((a, b) => b.tokens - a.tokens);
  const counted = nodes.reduce((sum, node) => sum + node.tokens, 0);
  const tokens = isExact ? request.tokens : counted + (request?.overhead ?? 0);
  if (tokens !== counted) nodes.push(overheadNode(tokens - counted));
  return {
    index,
    isExact,
    isReported: isExact && request.used >= 0,
    tokens,
    reportedIn: newestReported(timeline.requests, index),
    error: predictionError(timeline.requests, index),
    nodes,
  };
}

/**
 * The number of the newest request whose usage the provider reported; 0 if there is none.
 * @param {RequestRow[]} requests
 * @param {number} last index of the last request that counts
 * @returns {number}
 */
function newestReported(requests, last) {
  for (let index = last; index >= 0; index -= 1) if (requests[index].used >= 0) return requests[index].number;
  return 0;
}

/**
 * Relative error of what was expected before the provider reported, over the newest requests.
 * @param {RequestRow[]} requests
 * @param {number} last index of the last request that counts
 * @returns {number | null}
 */
export function predictionError(requests, last) {
  const known = requests.slice(0, last + 1).filter((row) => row.used >= 0 && row.predicted > 0 && row.tokens > 0);
  let [wrong, all] = [0, 0];
  for (const row of known.slice(-ERROR_REQUESTS)) {
    wrong += Math.abs(row.predicted - row.tokens);
    all += row.tokens;
  }
  return all > 0 ? wrong / all : null;
}

/**
 * Dollars per unit of all requests up to one, as running sums, so that the cost of a message is one subtraction for each
 * of its changes.
 */
class RunningCosts {
  /**
   * @param {TimelineState} timeline
   * @param {number} last
   */
  constructor(timeline, last) {
    this.timeline = timeline;
    this.requests = timeline.requests.slice(0, last + 1);
    /** @type {number[]} dollars per unit of the requests before this index */
    this.sums = [0];
    this.isKnown = true;
    for (const request of this.requests) {
      const price = inputPrice(timeline, request);
      if (price === null) this.isKnown = false;
      this.sums.push(this.sums[this.sums.length - 1] + request.ratio * (price === null ? NaN : price));
    }
  }

  /**
   * How many requests contained a message, and what it cost in them.
   * @param {string} key
   * @returns {{requests: number, soFar: number | null}}
   */
  of(key) {
    const changes = this.timeline.history(key);
    let requests = 0;
    let dollars = 0;
    changes.forEach((change, place) => {
      if (!isSent(change.level)) return;
      const next = changes[place + 1]?.at ?? Infinity;
      const begin = lowerBound(this.requests, (request) => request.at < change.at);
      const end = lowerBound(this.requests, (request) => request.at < next);
      requests += end - begin;
      dollars += change.units * (this.sums[end] - this.sums[begin]);
    });
    return { requests, soFar: this.isKnown ? dollars : null };
  }
}

/**
 * Dollars per input token of a request on average; null if a price is unknown.
 * @param {TimelineState} timeline
 * @param {RequestRow} request
 * @returns {number | null}
 */
function inputPrice(timeline, request) {
  const full = timeline.prices.input ?? null;
  if (full === null || request.tokens === 0) return request.tokens === 0 ? 0 : null;
  const [read, write] = [timeline.prices.cache_read ?? full, timeline.prices.cache_write ?? full];
  const dollars =
    request.used >= 0
      ? request.read * read + request.written * write + request.uncached * full
      : request.prefix * read + (request.tokens - request.prefix) * full;
  return dollars / request.tokens / 1_000_000;
}

/**
 * @param {TimelineState} timeline
 * @param {ViewChange[]} items
 * @param {number} ratio
 * @param {RunningCosts} costs
 * @returns {CompositionNode[]}
 */
function categoryNodes(timeline, items, ratio, costs) {
  /** @type {Map<string, CompositionNode[]>} */
  const byCategory = new Map();
  for (const change of items) {
    const node = messageNode(timeline, change, ratio, costs);
    const known = byCategory.get(node.category);
    if (known) known.push(node);
    else byCategory.set(node.category, [node]);
  }
  return [...byCategory].map(([category, messages]) => {
    const label = CATEGORY_NAMES[category] ?? category;
    return groupNode(category, label, category, namedGroups(timeline, category, messages));
  });
}

/**
 * Messages grouped by the file or the tool that they are about. Messages about none stay single if all are.
 * @param {TimelineState} timeline
 * @param {string} category
 * @param {CompositionNode[]} messages
 * @returns {CompositionNode[]}
 */
function namedGroups(timeline, category, messages) {
  /** @type {Map<string, CompositionNode[]>} */
  const byName = new Map();
  for (const node of messages) {
    const row = timeline.row(seqOfKey(node.key));
    const name = row?.path || row?.tool || "";
    const known = byName.get(name);
    if (known) known.push(node);
    else byName.set(name, [node]);
  }
  if (byName.size === 1 && byName.has("")) return messages;
  return [...byName].map(([name, nodes]) => groupNode(`${category}/${name}`, name || "without a tool", category, nodes));
}

/**
 * @param {string} id
 * @param {string} label
 * @param {string} category
 * @param {CompositionNode[]} children
 * @returns {CompositionNode}
 */
function groupNode(id, label, category, children) {
  children.sort((a, b) => b.tokens - a.tokens);
  const group = { id, label, category, key: "", tokens: 0, count: 0, requests: 0, soFar: /** @type {number | null} */ (0), children };
  for (const child of children) {
    group.tokens += child.tokens;
    group.count += child.count;
    group.requests = Math.max(group.requests, child.requests);
    group.soFar = group.soFar === null || child.soFar === null ? null : group.soFar + child.soFar;
  }
  return group;
}

/**
 * @param {TimelineState} timeline
 * @param {ViewChange} change
 * @param {number} ratio
 * @param {RunningCosts} costs
 * @returns {CompositionNode}
 */
function messageNode(timeline, change, ratio, costs) {
  const row = timeline.row(seqOfKey(change.key));
  return {
    id: change.key,
    label: change.preview || row?.preview || "",
    category: change.category || row?.category || "placeholders",
    key: change.key,
    tokens: Math.round(change.units * ratio),
    count: 1,
    ...costs.of(change.key),
    children: [],
  };
}

/**
 * @param {RequestRow} request
 * @param {RunningCosts} costs
 * @returns {CompositionNode}
 */
function toolListNode(request, costs) {
  const soFar = costs.isKnown ? request.tools * costs.sums[costs.sums.length - 1] : null;
  return {
    id: "tools",
    label: request.tool_text ? `${CATEGORY_NAMES.tools}: ${request.tool_text}` : CATEGORY_NAMES.tools,
    category: "tools",
    key: "",
    tokens: Math.round(request.tools * request.ratio),
    count: 0,
    requests: costs.requests.length,
    soFar,
    children: [],
  };
}

/**
 * @param {number} tokens
 * @returns {CompositionNode}
 */
function overheadNode(tokens) {
  const [id, label] = ["overhead", CATEGORY_NAMES.overhead];
  return { id, label, category: id, key: "", tokens, count: 0, requests: 0, soFar: null, children: [] };
}
