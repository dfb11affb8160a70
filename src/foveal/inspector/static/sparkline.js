/**
 * Small chart of the window use of a session's requests, with a text alternative.
 *
 * @module
 */

import { svg } from "./dom.js";
import { formatCount, formatNumber, formatPercent } from "./format.js";

const SPARK_WIDTH = 120;
const SPARK_HEIGHT = 24;
/** Space above a full window, so that a line at 100 % is not cut. */
const SPARK_PADDING = 2;

/** @typedef {import("./types.js").SessionRow} SessionRow */

/**
 * Return the chart of the shares of the window that a session's requests took, oldest first.
 * @param {SessionRow} row
 * @returns {SVGSVGElement}
 */
export function createSparkline(row) {
  const line = sparklinePoints(row.shares ?? []);
  const baseline = SPARK_HEIGHT - SPARK_PADDING;
  const points = line.map(([x, y]) => `${x},${y}`).join(" ");
  const last = line[line.length - 1];
  return svg(
    "svg",
    {
      class: "sparkline",
      viewBox: `0 0 ${SPARK_WIDTH} ${SPARK_HEIGHT}`,
      role: "img",
      "aria-label": describeShares(row),
    },
    svg("line", { class: "sparkline-full", x1: 0, x2: SPARK_WIDTH, y1: SPARK_PADDING, y2: SPARK_PADDING }),
    svg("line", { class: "sparkline-base", x1: 0, x2: SPARK_WIDTH, y1: baseline, y2: baseline }),
    last &&
      svg("polygon", {
        class: "sparkline-area",
        points: `${line[0][0]},${baseline} ${points} ${last[0]},${baseline}`,
      }),
    last && svg("polyline", { class: "sparkline-line", points }),
    last && svg("circle", { class: "sparkline-last", cx: last[0], cy: last[1], r: 1.8 }),
  );
}

/**
 * Return the points of the line, rounded to a tenth of a pixel.
 * @param {readonly number[]} shares
 * @returns {Array<[number, number]>}
 */
export function sparklinePoints(shares) {
  const width = SPARK_WIDTH - 2 * SPARK_PADDING;
  const height = SPARK_HEIGHT - 2 * SPARK_PADDING;
  return shares.map((share, index) => {
    const x = SPARK_PADDING + (shares.length > 1 ? (width * index) / (shares.length - 1) : width);
    const y = SPARK_PADDING + height * (1 - clampShare(share));
    return [Math.round(x * 10) / 10, Math.round(y * 10) / 10];
  });
}

/**
 * Return the chart in words.
 * @param {SessionRow} row
 * @returns {string}
 */
export function describeShares(row) {
  const { shares = [], requests = 0, reported = 0 } = row;
  if (requests === 0) return "no requests";
  if (shares.length === 0) return `window use unknown: ${whyNoShare(row)}`;
  const most = shares.reduce((highest, share) => Math.max(highest, share), 0);
  const last = shares[shares.length - 1];
  const known = reported < requests ? `${formatNumber(reported)} of ` : "";
  const count = `${known}${formatCount(requests, "request")}`;
  return `window use over ${count}: last ${formatPercent(last)}, at most ${formatPercent(most)}`;
}

/**
 * Return why no share of the window is known for the requests of a session.
 * @param {SessionRow} row
 * @returns {string}
 */
export function whyNoShare(row) {
  return row.reported ? "the model's window is not known" : "no usage was reported";
}

/**
 * Return a share as a number from 0 to 1, whatever the data holds.
 * @param {number} share
 * @returns {number}
 */
export function clampShare(share) {
  return Number.isFinite(share) ? Math.min(1, Math.max(0, share)) : 0;
}
