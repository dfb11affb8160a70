/**
 * Panel "Composition": what fills the request at the current point, and what that costs.
 *
 * @module
 */

import { clear, el, svg } from "./dom.js";
import { compositionAt } from "./composition_tree.js";
import { formatCount, formatDollars, formatNumber, formatPercent, oneLine } from "./format.js";
import { shownPoint } from "./log_view.js";
import { actionButton, calmRender, messageLink, openShown, stateNote } from "./panel_parts.js";
import { treeMapLayout } from "./tree_map.js";

/** @typedef {import("./types.js").App} App */
/** @typedef {import("./types.js").Panel} Panel */
/** @typedef {import("./types.js").Prices} Prices */
/** @typedef {import("./composition_tree.js").Composition} Composition */
/** @typedef {import("./composition_tree.js").CompositionNode} CompositionNode */

/** Rows of one group that are listed at once. */
const MAX_GROUP_ROWS = 30;
/** Units of the treemap's drawing; the page scales it to the width of the panel. */
const TREE_MAP_WIDTH = 480;
const TREE_MAP_HEIGHT = 170;
/** Boxes of the treemap; what is smaller is one box for each category. */
const MAX_BOXES = 60;

/**
 * Return the panel with the composition of the request.
 * @param {App} app
 * @returns {Panel}
 */
export function createCompositionPanel(app) {
  const lead = el("div");
  const map = el("div", { class: "tree-map" });
  const table = new CompositionTable(app);
  const element = el("div", { class: "panel-body" }, lead, map, table.element);
  let shown = "";
  return {
    id: "composition",
    title: "Composition",
    element,
    render: calmRender((state) => {
      const timeline = app.shown();
      const point = shownPoint(app, state);
      const name = `${state.lane}:${timeline.version}:${point}`;
      if (name === shown) return;
      shown = name;
      const composition = compositionAt(timeline, point);
      clear(lead, leadSentence(composition, app));
      clear(map, composition.tokens > 0 ? treeMap(composition, (node) => table.reveal(node)) : null);
      table.show(composition);
    }),
  };
}

/**
 * How large the request is, and how sure that is.
 * @param {Composition} composition
 * @param {App} app
 * @returns {HTMLElement}
 */
function leadSentence(composition, app) {
  const timeline = app.shown();
  const request = timeline.requests[composition.index];
  if (composition.tokens === 0) return stateNote("Nothing has been said up to this point, so a request would be empty.");
  const subject = composition.isExact ? `Request ${formatNumber(request.number)}` : "A request sent at this point";
  const size = formatCount(composition.tokens, "token");
  const window = request?.window || timeline.window;
  const share = window > 0 ? ` (${formatPercent(composition.tokens / window)} of the window)` : "";
  return el("p", { class: "lead" }, `${subject}: ${size}${share}, ${certainty(composition)}.`);
}

/**
 * @param {Composition} composition
 * @returns {string}
 */
function certainty(composition) {
  const error = composition.error === null ? "" : ` ± ${formatPercent(composition.error)}`;
  if (composition.isReported) return `as the provider reported; single lines are estimated${error}`;
  const number = composition.reportedIn;
  if (number > 0) return `estimated${error} from what the provider reported for request ${formatNumber(number)}`;
  return "estimated; the provider has reported nothing to compare with";
}

// ── Treemap ────────────────────────────────────────────────────────────────────────────────────────────

/**
 * A picture of the table below it; boxes can be clicked, the table offers the same to keyboards and screen readers.
 * @param {Composition} composition
 * @param {(node: CompositionNode) => void} open
 * @returns {SVGElement}
 */
function treeMap(composition, open) {
  const nodes = largestBoxes(composition);
  const boxes = treeMapLayout(nodes.map((node) => node.tokens), TREE_MAP_WIDTH, TREE_MAP_HEIGHT);
  const picture = svg("svg", { viewBox: `0 0 ${TREE_MAP_WIDTH} ${TREE_MAP_HEIGHT}`, "aria-hidden": "true" });
  for (const box of boxes) {
    const node = nodes[box.index];
    const group = svg("g", { class: `box is-${node.category}`, onclick: () => open(node) });
    group.append(
      svg("title", null, `${node.label}: ${formatCount(node.tokens, "token")}`),
      svg("rect", { x: box.x, y: box.y, width: Math.max(0, box.width - 1), height: Math.max(0, box.height - 1) }),
    );
    if (box.height > 14 && box.width > 34) {
      const chars = Math.floor((box.width - 6) / 5.6);
      group.append(svg("text", { x: box.x + 4, y: box.y + 12 }, shortened(node.label, chars)));
      if (box.height > 27) group.append(svg("text", { x: box.x + 4, y: box.y + 24, class: "box-size" }, formatNumber(node.tokens)));
    }
    picture.append(group);
  }
  return picture;
}

/**
 * The groups below the categories, as long as they are not too many.
 * @param {Composition} composition
 * @returns {CompositionNode[]}
 */
function largestBoxes(composition) {
  return composition.nodes
    .filter((node) => node.tokens > 0)
    .flatMap((node) => {
      if (node.children.length < 2) return [node];
      const large = node.children.slice(0, MAX_BOXES).filter((child) => child.tokens >= composition.tokens / 100);
      const rest = node.tokens - large.reduce((sum, child) => sum + child.tokens, 0);
      const other = { ...node, label: large.length > 0 ? `${node.label}: others` : node.label, tokens: rest };
      return rest > 0 ? [...large, other] : large;
    });
}

/**
 * @param {string} text
 * @param {number} chars
 * @returns {string}
 */
function shortened(text, chars) {
  const line = oneLine(text.slice(0, 200));
  return line.length <= chars ? line : `${line.slice(0, Math.max(1, chars - 1))}…`;
}

// ── Table ──────────────────────────────────────────────────────────────────────────────────────────────

/**
 * The table with groups that open.
 */
class CompositionTable {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    /** @type {Set<string>} ids of the open groups */
    this.open = new Set();
    /** @type {Map<string, number>} rows that are listed of a group */
    this.limits = new Map();
    /** @type {Composition | null} */
    this.composition = null;
    this.body = el("tbody");
    this.element = el(
      "div",
      { class: "table-scroll", role: "region", "aria-label": "Composition as a table", tabindex: 0 },
      el(
        "table",
        { class: "figures composition" },
        el("thead", null, el("tr", null, columnHeads())),
        this.body,
      ),
    );
  }

  /** @param {Composition} composition */
  show(composition) {
    this.composition = composition;
    this.draw();
  }

  /**
   * Open the group of a node and move the focus there.
   * @param {CompositionNode} node
   */
  reveal(node) {
    this.open.add(node.category);
    if (node.key) return openShown(this.app, node.key);
    this.open.add(node.id);
    this.draw();
    this.focus(node.id);
  }

  draw() {
    if (!this.composition) return;
    const focused = document.activeElement?.getAttribute("data-node");
    clear(this.body, this.rowsOf(this.composition.nodes, 0, ""), this.totalRow(this.composition));
    if (focused) this.focus(focused);
  }

  /** @param {string} id */
  focus(id) {
    const button = [...this.body.querySelectorAll("button[data-node]")].find((other) => other.getAttribute("data-node") === id);
    if (button instanceof HTMLElement) button.focus();
  }

  /**
   * @param {CompositionNode[]} nodes
   * @param {number} depth
   * @param {string} parent
   * @returns {HTMLElement[]}
   */
  rowsOf(nodes, depth, parent) {
    const limit = this.limits.get(parent) ?? MAX_GROUP_ROWS;
    const rows = nodes.slice(0, limit).flatMap((node) => {
      const isOpen = this.open.has(node.id) && node.children.length > 0;
      return [this.row(node, depth, isOpen), ...(isOpen ? this.rowsOf(node.children, depth + 1, node.id) : [])];
    });
    if (nodes.length > limit) rows.push(this.moreRow(nodes.slice(limit), parent, limit));
    return rows;
  }

  /**
   * @param {CompositionNode} node
   * @param {number} depth
   * @param {boolean} isOpen
   * @returns {HTMLElement}
   */
  row(node, depth, isOpen) {
    const { prices } = this.app.shown();
    const isMessage = depth > 0;
    return el(
      "tr",
      { class: `depth-${depth}` },
      el("th", { scope: "row" }, this.name(node, depth, isOpen)),
      el("td", null, formatNumber(node.tokens)),
      el("td", null, pricesOf(node.tokens, prices)),
      el("td", null, node.requests > 0 ? `${isMessage || node.key ? "" : "≤ "}${formatNumber(node.requests)}` : ""),
      el("td", null, node.id === "overhead" || node.soFar === null ? "" : formatDollars(node.soFar)),
    );
  }

  /**
   * @param {CompositionNode} node
   * @param {number} depth
   * @param {boolean} isOpen
   * @returns {import("./dom.js").Child[]}
   */
  name(node, depth, isOpen) {
    const swatch = depth === 0 ? el("span", { class: `swatch is-${node.category}`, "aria-hidden": "true" }) : null;
    if (node.key) return [messageLink(this.app, node.key), " ", el("span", { class: "node-preview" }, oneLine(node.label))];
    const { tokens } = /** @type {Composition} */ (this.composition);
    const share = el("span", { class: "node-share" }, ` ${formatPercent(tokens > 0 ? node.tokens / tokens : 0)}`);
    if (node.children.length === 0) return [swatch, node.label, share];
    const toggle = el(
      "button",
      {
        type: "button",
        class: "disclosure",
        "aria-expanded": String(isOpen),
        "data-node": node.id,
        title: `${node.label}: ${formatCount(node.count, "message")}`,
      },
      el("span", { "aria-hidden": "true" }, isOpen ? "▾ " : "▸ "),
      oneLine(node.label),
      share,
    );
    toggle.addEventListener("click", () => {
      if (isOpen) this.open.delete(node.id);
      else this.open.add(node.id);
      this.draw();
    });
    return [swatch, toggle];
  }

  /**
   * @param {CompositionNode[]} rest
   * @param {string} parent
   * @param {number} limit
   * @returns {HTMLElement}
   */
  moreRow(rest, parent, limit) {
    const tokens = rest.reduce((sum, node) => sum + node.tokens, 0);
    const button = actionButton(`Show more (${formatNumber(rest.length)}, ${formatCount(tokens, "token")})`, () => {
      this.limits.set(parent, limit + MAX_GROUP_ROWS * 3);
      this.draw();
    });
    return el("tr", { class: "depth-2" }, el("td", { colspan: 5 }, button));
  }

  /**
   * @param {Composition} composition
   * @returns {HTMLElement}
   */
  totalRow(composition) {
    const { prices } = this.app.shown();
    return el(
      "tr",
      { class: "total" },
      el("th", { scope: "row" }, "Whole request"),
      el("td", null, formatNumber(composition.tokens)),
      el("td", null, pricesOf(composition.tokens, prices)),
      el("td"),
      el("td"),
    );
  }
}

/**
 * @returns {HTMLElement[]}
 */
function columnHeads() {
  const heads = [
    ["Part", "With its share of the request"],
    ["Tokens", "Calibrated to what the provider reported"],
    ["Cached / full", "Dollars per request, read from the cache and at the full input price"],
    ["Requests", "Requests that contained it, up to this point; of a group, the most of one message"],
    ["So far", "Its share, by size, of the input cost of those requests"],
  ];
  return heads.map(([name, title]) => el("th", { scope: "col", title: title || null }, name));
}

/**
 * What a part costs in one request: read from the cache, and at the full price.
 * @param {number} tokens
 * @param {Prices} prices
 * @returns {string}
 */
function pricesOf(tokens, prices) {
  const amounts = [prices.cache_read, prices.input].map((price) =>
    price === null || price === undefined ? "–" : formatDollars((Math.max(0, tokens) * price) / 1_000_000),
  );
  return amounts.join(" / ");
}
