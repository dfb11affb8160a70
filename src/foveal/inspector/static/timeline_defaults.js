/**
 * Default values of the timeline's fields: the server leaves them out. All functions here are pure.
 *
 * @module
 */

/** @typedef {import("./types.js").TimelineRow} TimelineRow */
/** @typedef {import("./types.js").ViewChange} ViewChange */
/** @typedef {import("./types.js").RequestRow} RequestRow */
/** @typedef {import("./types.js").ReductionCard} ReductionCard */

/**
 * Return an event with all its fields.
 * @param {Partial<TimelineRow>} row
 * @returns {TimelineRow}
 */
export function completeRow(row) {
  return {
    seq: row.seq ?? 0,
    kind: row.kind ?? "",
    category: row.category ?? "",
    at: row.at ?? null,
    preview: row.preview ?? "",
    chars: row.chars ?? 0,
    units: row.units ?? 0,
    tool: row.tool ?? "",
    path: row.path ?? "",
    call: row.call ?? -1,
    failed: row.failed ?? false,
    target: row.target ?? -1,
  };
}

/**
 * Return a change with all its fields.
 * @param {Partial<ViewChange>} change
 * @returns {ViewChange}
 */
export function completeChange(change) {
  return {
    at: change.at ?? 0,
    key: change.key ?? "",
    level: change.level ?? "full",
    category: change.category ?? "",
    units: change.units ?? 0,
    by: change.by ?? -1,
    rule: change.rule ?? "",
    preview: change.preview ?? "",
    place: change.place ?? -1,
  };
}

/**
 * Return a request with all its fields.
 * @param {Partial<RequestRow>} request
 * @returns {RequestRow}
 */
export function completeRequest(request) {
  const miss = request.miss ?? null;
  return {
    number: 0,
    at: -1,
    answer: -1,
    used: -1,
    time: null,
    model: "",
    window: 0,
    units: 0,
    tools: 0,
    tokens: 0,
    predicted: 0,
    ratio: 1,
    overhead: 0,
    read: 0,
    written: 0,
    uncached: 0,
    output: 0,
    cost: null,
    prefix: 0,
    breakpoints: [],
    ...request,
    miss: miss && { ...NO_MISS, ...miss },
  };
}

/** @type {import("./types.js").CacheMiss} */
const NO_MISS = { cause: "unknown", text: "", by: -1, key: "", tokens: 0, lost: null, provider: "" };

/**
 * Return a reduction with all its fields.
 * @param {Partial<ReductionCard>} card
 * @returns {ReductionCard}
 */
export function completeReduction(card) {
  return {
    seq: -1,
    kind: "",
    rule: "",
    reason: "",
    why: "",
    before: 0,
    after: 0,
    keys: [],
    count: 0,
    first: -1,
    last: -1,
    by: "",
    chars: 0,
    checks: [],
    checked: [],
    unchecked: [],
    score: null,
    cost: null,
    seconds: 0,
    behind: 0,
    pays_after: null,
    ranges: [],
    did: "",
    undone: -1,
    problem: "",
    ...card,
  };
}
