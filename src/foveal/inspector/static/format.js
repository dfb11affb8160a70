/**
 * Numbers, sizes, money and times as texts, written as in the rest of Foveal.
 *
 * @module
 */

const INTEGER = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const ONE_DIGIT = new Intl.NumberFormat("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const TWO_DIGITS = new Intl.NumberFormat("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 });

/** Characters that change the order or the look of the text around them without being seen. */
const INVISIBLE = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

/**
 * Return a whole number such as `1,234`.
 * @param {number} value
 * @returns {string}
 */
export function formatNumber(value) {
  return INTEGER.format(value);
}

/**
 * Return a number of tokens in few characters: `845`, `12.3k`, `1.2M`.
 * @param {number} value
 * @returns {string}
 */
export function formatShort(value) {
  const size = Math.abs(value);
  if (size < 1_000) return INTEGER.format(value);
  if (size < 9_950) return `${ONE_DIGIT.format(value / 1_000)}k`;
  if (size < 999_500) return `${INTEGER.format(value / 1_000)}k`;
  return `${ONE_DIGIT.format(value / 1_000_000)}M`;
}

/**
 * Return a share such as 0.672 as `67.2 %`.
 * @param {number} share
 * @returns {string}
 */
export function formatPercent(share) {
  return `${ONE_DIGIT.format(Number.isFinite(share) ? share * 100 : 0)} %`;
}

/**
 * Return dollars with two digits, or with four below a cent; `unknown` if a price is not known.
 * @param {number | null | undefined} amount
 * @returns {string}
 */
export function formatDollars(amount) {
  if (amount === null || amount === undefined) return "unknown";
  if (amount < 0) return `−${formatDollars(-amount)}`;
  if (amount > 0 && amount < 0.0001) return "<$0.0001";
  return amount >= 0.01 || amount === 0 ? `$${TWO_DIGITS.format(amount)}` : `$${amount.toFixed(4)}`;
}

/**
 * Return an estimate of what reductions have saved. Early on, a cut can cost more than it has saved so far.
 * @param {number | null | undefined} saved
 * @returns {string}
 */
export function savedText(saved) {
  if (saved === null || saved === undefined) return "";
  if (saved >= 0) return `saved about ${formatDollars(saved)}`;
  return `about ${formatDollars(-saved)} more than sending everything with an ideal cache so far`;
}

/**
 * Return what the calls of a session have cost: what is known, and of how many calls it is not known. "" if there were
 * no calls.
 * @param {{ spent: number | null, unpriced: number, requests: { used: number }[] }} timeline
 * @returns {string}
 */
export function sessionCost({ spent, unpriced, requests }) {
  const unknown = unpriced + requests.filter((request) => request.used < 0).length;
  if (requests.length === 0) return "";
  if (unknown === 0) return spent === null ? "" : `spent ${formatDollars(spent)}`;
  const calls = `${formatCount(unknown, "call")} without usage or price`;
  return spent ? `spent ${formatDollars(spent)}, and ${calls}` : `cost not known: ${calls}`;
}

/**
 * Return a number of bytes such as `12.3 kB`.
 * @param {number} bytes
 * @returns {string}
 */
export function formatBytes(bytes) {
  if (bytes < 1_000) return `${INTEGER.format(bytes)} B`;
  if (bytes < 1_000_000) return `${ONE_DIGIT.format(bytes / 1_000)} kB`;
  return `${ONE_DIGIT.format(bytes / 1_000_000)} MB`;
}

/**
 * Return a moment in local time such as `2026-11-16 14:03:05`; "" if it is unknown.
 * @param {number | null | undefined} seconds since 1970
 * @returns {string}
 */
export function formatTime(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const moment = new Date(seconds * 1000);
  if (Number.isNaN(moment.getTime())) return "";
  const [year, month, day] = [moment.getFullYear(), moment.getMonth() + 1, moment.getDate()];
  const clock = [moment.getHours(), moment.getMinutes(), moment.getSeconds()].map(twoPlaces).join(":");
  return `${year}-${twoPlaces(month)}-${twoPlaces(day)} ${clock}`;
}

/**
 * Return a length of time such as `0.4 s`, `12 s`, `3 min 5 s`, `2 h 10 min` or `3 d 4 h`.
 * @param {number} seconds
 * @returns {string}
 */
export function formatDuration(seconds) {
  if (!Number.isFinite(seconds)) return "";
  if (seconds < 10) return `${ONE_DIGIT.format(seconds)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3_600) return twoUnits(whole, 60, "min", 1, "s");
  if (whole < 86_400) return twoUnits(whole, 3_600, "h", 60, "min");
  return twoUnits(whole, 86_400, "d", 3_600, "h");
}

/**
 * Return how long ago a moment was, such as `5 min ago`; "" if it is unknown.
 * @param {number | null | undefined} seconds since 1970
 * @param {number} [now] seconds since 1970
 * @returns {string}
 */
export function formatAgo(seconds, now = Date.now() / 1000) {
  if (seconds === null || seconds === undefined) return "";
  const passed = Math.max(0, now - seconds);
  if (passed < 60) return "just now";
  if (passed < 3_600) return `${Math.floor(passed / 60)} min ago`;
  if (passed < 86_400) return `${Math.floor(passed / 3_600)} h ago`;
  return `${formatNumber(Math.floor(passed / 86_400))} d ago`;
}

/**
 * Return a number with its noun: `1 token`, `1,234 tokens`.
 * @param {number} count
 * @param {string} noun
 * @param {string} [plural]
 * @returns {string}
 */
export function formatCount(count, noun, plural = `${noun}s`) {
  return `${formatNumber(count)} ${count === 1 ? noun : plural}`;
}

/**
 * Return a text in one line without characters that are invisible or change the order of others.
 * @param {string} text
 * @returns {string}
 */
export function oneLine(text) {
  return text.replace(/\s+/g, " ").replace(INVISIBLE, "\ufffd").trim();
}

/**
 * Return a text with its lines, with characters that reorder or hide text made visible.
 * @param {string} text
 * @returns {string}
 */
export function visibleText(text) {
  return text.replace(INVISIBLE, (char) => (char === "\n" || char === "\t" ? char : char === "\r" ? "" : "\ufffd"));
}

/**
 * @param {number} value
 * @returns {string}
 */
function twoPlaces(value) {
  return String(value).padStart(2, "0");
}

/**
 * @param {number} seconds
 * @param {number} large
 * @param {string} largeName
 * @param {number} small
 * @param {string} smallName
 * @returns {string}
 */
function twoUnits(seconds, large, largeName, small, smallName) {
  const rest = Math.floor((seconds % large) / small);
  return `${Math.floor(seconds / large)} ${largeName}${rest ? ` ${rest} ${smallName}` : ""}`;
}
