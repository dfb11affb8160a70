/**
 * The state of the page in the fragment of its address: `#e412&panel=requests&message=e37`, or `#r17` for a request.
 *
 * 1. Without an event, the page follows the newest one.
 * 2. An address that names neither panel nor message opens the panel of its place: `#e412` the reduction or message,
 *    `#r17` the request, and an address without a place what happened.
 *
 * @module
 */

import { on } from "./dom.js";

/** @typedef {import("./types.js").App} App */
/** @typedef {import("./types.js").PageState} PageState */
/** @typedef {import("./timeline_state.js").TimelineState} TimelineState */

/** Browsers refuse more than about 100 changes of the address in 30 seconds. */
const ADDRESS_MS = 350;

/**
 * Read the address into the state, and keep both equal from then on.
 * @param {App} app
 * @returns {void}
 */
export function connectAddress(app) {
  let timer = 0;
  let known = location.hash;
  const read = () => {
    known = location.hash;
    // Earlier points are not known yet.
    if (!app.timeline.isOutline) app.state.set(readFragment(location.hash, app.timeline));
  };
  const write = (/** @type {PageState} */ state) => {
    // The address was changed a moment ago, and its event follows: do not undo that.
    if (location.hash !== known) return;
    writeAddress(state, app.timeline);
    known = location.hash;
  };
  app.state.set(readFragment(location.hash, app.timeline));
  on(window, "hashchange", read);
  app.state.subscribe((state) => {
    clearTimeout(timer);
    timer = window.setTimeout(() => write(state), ADDRESS_MS);
  });
}

/**
 * Return the part of the state that a fragment describes.
 * @param {string} fragment
 * @param {TimelineState} timeline
 * @returns {Partial<PageState>}
 */
export function readFragment(fragment, timeline) {
  const [place, ...rest] = fragment.replace(/^#/, "").split("&");
  const fields = new Map(rest.concat(place.includes("=") ? [place] : []).map(splitField));
  const numbers = (fields.get("compare") ?? "").split("-").map((text) => Number(text || NaN) - 1);
  return {
    ...readPlace(place, timeline),
    ...(fields.has("panel") || fields.has("message")
      ? { selected: /^[enm]\d+(\.\d+)?$/.test(fields.get("message") ?? "") ? fields.get("message") : "", panel: fields.get("panel") || "message" }
      : panelOfPlace(place, timeline)),
    filters: {
      roles: listOf(fields.get("role")),
      tools: listOf(fields.get("tool")),
      levels: listOf(fields.get("level")),
      text: fields.get("text") ?? "",
    },
    compare: numbers.length === 2 && numbers.every(Number.isInteger) ? { a: numbers[0], b: numbers[1] } : { a: -1, b: -1 },
  };
}

/**
 * Return the fragment of a state.
 * @param {PageState} state
 * @param {TimelineState} timeline
 * @returns {string}
 */
export function writeFragment(state, timeline) {
  const { filters, compare } = state;
  const place = placeText(state, timeline);
  const own = panelOfPlace(place, timeline);
  const isOwn = own.panel === state.panel && own.selected === state.selected;
  /** @type {[string, string][]} */
  const fields = [
    ["panel", isOwn || (state.panel === "message" && state.selected) ? "" : state.panel],
    ["message", isOwn ? "" : state.selected],
    ["role", filters.roles.join(",")],
    ["tool", filters.tools.map(encodeURIComponent).join(",")],
    ["level", filters.levels.join(",")],
    ["text", filters.text],
    ["compare", compare.a >= 0 && compare.b >= 0 ? `${compare.a + 1}-${compare.b + 1}` : ""],
  ];
  const named = fields.filter(([, value]) => value).map(([name, value]) => `${name}=${encodeURIComponent(value)}`);
  return [place, ...named].join("&");
}

/**
 * Return the panel that shows what an address without a panel and a message names.
 * @param {string} place such as `e412`, `r17` or ""
 * @param {TimelineState} timeline
 * @returns {{panel: string, selected: string}}
 */
function panelOfPlace(place, timeline) {
  if (/^r\d{1,15}$/.test(place)) return { panel: "requests", selected: "" };
  const row = /^e\d{1,15}$/.test(place) ? timeline.row(Number(place.slice(1))) : undefined;
  if (!row) return { panel: "happened", selected: "" };
  if (timeline.reductions.some((card) => card.seq === row.seq)) return { panel: "reductions", selected: "" };
  return row.kind === "used" ? { panel: "requests", selected: "" } : { panel: "message", selected: `e${row.seq}` };
}

/**
 * @param {PageState} state
 * @param {TimelineState} timeline
 * @returns {string}
 */
function placeText(state, timeline) {
  if (timeline.requests[state.request]?.at === state.point) return `r${state.request + 1}`;
  return state.follow || state.point < 0 ? "" : `e${state.point}`;
}

/**
 * @param {PageState} state
 * @param {TimelineState} timeline
 * @returns {void}
 */
function writeAddress(state, timeline) {
  const fragment = writeFragment(state, timeline).replace(/^&/, "");
  if (`#${fragment}` === location.hash || (!fragment && !location.hash)) return;
  try {
    history.replaceState(null, "", fragment ? `#${fragment}` : location.pathname + location.search);
  } catch {
    // Some browsers forbid it for pages from disk; the page works without.
  }
}

/**
 * @param {string} place
 * @param {TimelineState} timeline
 * @returns {Partial<PageState>}
 */
function readPlace(place, timeline) {
  const match = /^([er])(\d{1,15})$/.exec(place);
  if (!match) return { point: timeline.last, request: -1, follow: true };
  const number = Number(match[2]);
  if (match[1] === "r" && timeline.requests.length) {
    const request = Math.min(timeline.requests.length, Math.max(1, number)) - 1;
    return { point: timeline.requests[request].at, request, follow: false };
  }
  const point = Math.max(timeline.first, Math.min(timeline.last, number));
  return { point, request: -1, follow: false };
}

/**
 * @param {string} field
 * @returns {[string, string]}
 */
function splitField(field) {
  const equals = field.indexOf("=");
  if (equals < 0) return [field, ""];
  return [field.slice(0, equals), decodeText(field.slice(equals + 1))];
}

/**
 * @param {string | undefined} text
 * @returns {string[]}
 */
function listOf(text) {
  return text ? text.split(",").filter(Boolean).map(decodeText) : [];
}

/**
 * @param {string} text
 * @returns {string} the text itself if it is not a valid encoding
 */
function decodeText(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
