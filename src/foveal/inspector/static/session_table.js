/**
 * Table of sessions: one row per session, columns that sort, focus that stays when rows move.
 *
 * The table keeps one element per session and updates it in place. A row that has the focus is never moved in the
 * document; the others move around it.
 *
 * @module
 */

import { clear, el } from "./dom.js";
import {
  formatAgo,
  formatBytes,
  formatCount,
  formatDollars,
  formatNumber,
  formatPercent,
  formatShort,
  formatTime,
  oneLine,
} from "./format.js";
import { createSparkline, whyNoShare } from "./sparkline.js";

/** @typedef {import("./types.js").SessionRow} SessionRow */

/** Shown for a figure that the server has not computed yet. */
const NOT_YET = "…";
const PARTIAL_NOTE = "of the newest events; the server has not read the whole session";

/**
 * One column.
 * @typedef {object} SessionColumn
 * @property {string} id
 * @property {string} title
 * @property {boolean} isNumber whether its values are aligned to the right and sorted from the largest on
 * @property {(row: SessionRow) => number | string} sortKey
 * @property {(row: SessionRow) => Array<Node | string>} cell
 */

/** @type {SessionColumn[]} */
const SESSION_COLUMNS = [
  {
    id: "title",
    title: "Session",
    isNumber: false,
    sortKey: (row) => sessionTitle(row).toLowerCase(),
    cell: titleCell,
  },
  { id: "model", title: "Model", isNumber: false, sortKey: (row) => row.model ?? "", cell: modelCell },
  { id: "active", title: "Last active", isNumber: true, sortKey: (row) => row.active ?? 0, cell: activeCell },
  { id: "used", title: "Window use", isNumber: true, sortKey: lastShare, cell: useCell },
  { id: "requests", title: "Requests", isNumber: true, sortKey: (row) => row.requests ?? 0, cell: requestsCell },
  { id: "spent", title: "Cost", isNumber: true, sortKey: (row) => row.spent ?? -1, cell: costCell },
  { id: "cache", title: "From cache", isNumber: true, sortKey: (row) => row.cache_share ?? -1, cell: cacheCell },
  {
    id: "reductions",
    title: "Reductions",
    isNumber: true,
    sortKey: (row) => row.reductions ?? 0,
    cell: reductionsCell,
  },
  {
    id: "error",
    title: "Last error",
    isNumber: false,
    sortKey: (row) => (row.error ? `0${row.error}` : "1"),
    cell: errorCell,
  },
];

/**
 * Return the address of a session's page.
 * @param {string} key
 * @returns {string}
 */
export function sessionAddress(key) {
  return `session?id=${encodeURIComponent(key)}`;
}

/**
 * Return the title of a session in one line, or its key where it has none.
 * @param {SessionRow} row
 * @returns {string}
 */
export function sessionTitle(row) {
  return oneLine(row.title ?? "") || oneLine(row.key);
}

/**
 * Return the rows in the order of a column; rows with equal values are ordered by their last activity. A column that
 * does not exist, such as `relevance`, keeps the order of the server.
 * @param {readonly SessionRow[]} rows
 * @param {string} column
 * @param {boolean} isDescending
 * @returns {SessionRow[]}
 */
export function sortSessions(rows, column, isDescending) {
  const key = SESSION_COLUMNS.find((one) => one.id === column)?.sortKey;
  if (!key) return [...rows];
  const sign = isDescending ? -1 : 1;
  return [...rows].sort((one, other) => {
    const [a, b] = [key(one), key(other)];
    return a < b ? -sign : a > b ? sign : (other.active ?? 0) - (one.active ?? 0);
  });
}

/** The table; `set` shows rows, `move` moves the focus by rows. */
export class SessionTable {
  /** @param {() => void} onSort called after the user has chosen a column */
  constructor(onSort) {
    /** @type {{column: string, isDescending: boolean}} */
    this.order = { column: "active", isDescending: true };
    /** @type {Map<string, {node: HTMLTableRowElement, text: string}>} */
    this._shown = new Map();
    this._body = el("tbody", { role: "rowgroup" });
    /** @type {Map<string, HTMLTableCellElement>} */
    this._heads = new Map();
    const heads = SESSION_COLUMNS.map((column) => this._head(column, onSort));
    const caption = el(
      "caption",
      { class: "visually-hidden" },
      "Sessions. The buttons in the head sort the loaded rows.",
    );
    const head = el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, heads));
    /** The element of the table. */
    this.element = el("table", { class: "session-table", role: "table" }, caption, head, this._body);
    this._markOrder();
  }

  /**
   * Show these sessions in the chosen order; `changed` are highlighted.
   * @param {readonly SessionRow[]} rows
   * @param {ReadonlySet<string>} [changed]
   * @returns {void}
   */
  set(rows, changed = new Set()) {
    const sorted = sortSessions(rows, this.order.column, this.order.isDescending);
    const kept = new Set(sorted.map((row) => row.key));
    for (const [key, { node }] of this._shown) {
      if (!kept.has(key)) {
        node.remove();
        this._shown.delete(key);
      }
    }
    this._place(sorted.map((row) => this._rowNode(row, changed.has(row.key))));
  }

  /**
   * Choose the order of the rows that are shown next.
   * @param {string} column
   * @param {boolean} isDescending
   * @returns {void}
   */
  setOrder(column, isDescending) {
    this.order = { column, isDescending };
    this._markOrder();
  }

  /**
   * Move the focus by so many rows; from outside the table, to its first row.
   * @param {number} by
   * @returns {void}
   */
  move(by) {
    const links = /** @type {HTMLElement[]} */ ([...this._body.querySelectorAll("a.session-link")]);
    const row = document.activeElement?.closest("tr");
    const current = links.findIndex((link) => link.closest("tr") === row);
    links[current < 0 ? 0 : Math.min(links.length - 1, Math.max(0, current + by))]?.focus();
  }

  /**
   * @param {SessionColumn} column
   * @param {() => void} onSort
   * @returns {HTMLTableCellElement}
   */
  _head(column, onSort) {
    const choose = () => {
      const isSame = this.order.column === column.id;
      this.setOrder(column.id, isSame ? !this.order.isDescending : column.isNumber);
      onSort();
    };
    const button = el("button", { type: "button", class: "sort-button", onclick: choose }, column.title);
    const kind = column.isNumber ? "is-number" : "is-text";
    const head = el("th", { scope: "col", role: "columnheader", class: `column-${column.id} ${kind}` }, button);
    this._heads.set(column.id, head);
    return head;
  }

  /** Write the order into the heads, where assistive technology reads it. */
  _markOrder() {
    for (const [id, head] of this._heads) {
      if (id !== this.order.column) head.removeAttribute("aria-sort");
      else head.setAttribute("aria-sort", this.order.isDescending ? "descending" : "ascending");
    }
  }

  /**
   * @param {SessionRow} row
   * @param {boolean} isChanged
   * @returns {HTMLTableRowElement}
   */
  _rowNode(row, isChanged) {
    const text = `${JSON.stringify(row)} ${formatAgo(row.active)}`;
    const known = this._shown.get(row.key);
    const node = known?.node ?? el("tr", { role: "row" });
    if (known?.text !== text) this._fill(node, row);
    node.classList.toggle("is-changed", isChanged);
    this._shown.set(row.key, { node, text });
    return node;
  }

  /**
   * Write the cells of a row. The link of a known row stays in place, because it may have the focus.
   * @param {HTMLTableRowElement} node
   * @param {SessionRow} row
   * @returns {void}
   */
  _fill(node, row) {
    const link = node.querySelector("a.session-link");
    const cells = SESSION_COLUMNS.map((column, index) => {
      const kind = `column-${column.id} ${column.isNumber ? "is-number" : "is-text"}`;
      const content = column.cell(row);
      if (index > 0) return el("td", { class: kind, role: "cell", "data-label": column.title }, content);
      return el("th", { class: kind, role: "rowheader", scope: "row" }, content);
    });
    if (!link) {
      clear(node, cells);
      return;
    }
    link.textContent = sessionTitle(row);
    const head = /** @type {HTMLElement} */ (link.parentElement);
    while (link.nextSibling) link.nextSibling.remove();
    head.append(...[...cells[0].childNodes].slice(1));
    while (head.nextSibling) head.nextSibling.remove();
    node.append(...cells.slice(1));
  }

  /**
   * Put the rows into this order without moving the one with the focus.
   * @param {HTMLTableRowElement[]} nodes
   * @returns {void}
   */
  _place(nodes) {
    const focused = nodes.findIndex((node) => node.contains(document.activeElement));
    const anchor = focused < 0 ? null : nodes[focused];
    if (nodes.every((node, index) => this._body.children[index] === node)) return;
    nodes.forEach((node, index) => {
      if (node !== anchor) this._body.insertBefore(node, index < focused ? anchor : null);
    });
  }
}

/**
 * @param {SessionRow} row
 * @returns {Array<Node | string>}
 */
function titleCell(row) {
  const from = [row.format && row.format !== "foveal" ? row.format : "", oneLine(row.place ?? "")].filter(Boolean);
  return [
    el("a", { class: "session-link", href: sessionAddress(row.key), title: sessionTitle(row) }, sessionTitle(row)),
    el("span", { class: "session-place", title: from.join(" · ") }, from.join(" · ")),
  ];
}

/**
 * @param {SessionRow} row
 * @returns {Array<Node | string>}
 */
function modelCell(row) {
  return [
    el("span", { class: "session-model", title: oneLine(row.model ?? "") }, oneLine(row.model ?? "") || "unknown"),
  ];
}

/**
 * @param {SessionRow} row
 * @returns {Array<Node | string>}
 */
function activeCell(row) {
  const moment = row.active ? new Date(row.active * 1000) : null;
  if (!moment || Number.isNaN(moment.getTime())) return ["unknown"];
  return [el("time", { datetime: moment.toISOString(), title: formatTime(row.active) }, formatAgo(row.active))];
}

/**
 * @param {SessionRow} row
 * @returns {Array<Node | string>}
 */
function useCell(row) {
  const shares = row.shares ?? [];
  if (shares.length === 0 && row.requests) {
    return [createSparkline(row), el("span", { class: "session-use", title: whyNoShare(row) }, "unknown")];
  }
  const share = shares.length > 0 ? formatPercent(lastShare(row)) : row.partial ? NOT_YET : "none";
  const size = row.window ? `${formatShort(row.used ?? 0)} of ${formatShort(row.window)} tokens` : "";
  return [createSparkline(row), el("span", { class: "session-use", title: size }, share)];
}

/**
 * @param {SessionRow} row
 * @returns {Array<Node | string>}
 */
function requestsCell(row) {
  const size = `${formatNumber(row.events ?? 0)} events, ${formatBytes(row.bytes ?? 0)}`;
  return [el("span", { title: size }, knownPart(row, formatNumber(row.requests ?? 0), "≥"))];
}

/**
 * @param {SessionRow} row
 * @returns {Array<Node | string>}
 */
function costCell(row) {
  const cost = knownPart(row, formatDollars(row.spent), "≥");
  const unknown = row.unknown_calls ?? 0;
  if (row.partial || row.spent === null || row.spent === undefined || unknown === 0) return [cost];
  const title = `${formatCount(unknown, "call")} without usage or price`;
  return [el("span", { title }, `≥ ${formatDollars(row.spent)}`)];
}

/**
 * @param {SessionRow} row
 * @returns {Array<Node | string>}
 */
function cacheCell(row) {
  return [knownPart(row, typeof row.cache_share === "number" ? formatPercent(row.cache_share) : "unknown", "≈")];
}

/**
 * @param {SessionRow} row
 * @returns {Array<Node | string>}
 */
function reductionsCell(row) {
  return [knownPart(row, formatNumber(row.reductions ?? 0), "≥")];
}

/**
 * @param {SessionRow} row
 * @returns {Array<Node | string>}
 */
function errorCell(row) {
  const error = oneLine(row.error ?? "");
  if (!error) return [el("span", { class: "session-no-error" }, "none")];
  const time = row.error_at ? `${formatTime(row.error_at)}: ` : "";
  const age = row.error_at ? `${formatAgo(row.error_at)}: ` : "";
  return [el("span", { class: "session-error", title: `${time}${error}` }, `${age}${error}`)];
}

/**
 * Return a figure; one of a session that is not read completely is marked.
 * @param {SessionRow} row
 * @param {string} figure
 * @param {string} mark
 * @returns {Node | string}
 */
function knownPart(row, figure, mark) {
  if (!row.partial) return figure;
  if (!row.requests || figure === "unknown") return NOT_YET;
  return el("span", { title: PARTIAL_NOTE }, `${mark} ${figure}`);
}

/**
 * Return the share of the window that the last request took.
 * @param {SessionRow} row
 * @returns {number}
 */
function lastShare(row) {
  const shares = row.shares ?? [];
  if (row.window && row.used) return row.used / row.window;
  return shares.length > 0 ? shares[shares.length - 1] : -1;
}
