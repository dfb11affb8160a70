/**
 * Differences of two lists and of two texts, line by line.
 *
 * The exported page compares requests with it; a running inspector compares them on the server. The work is bounded:
 * two lists with more than `MAX_EDITS` differences are shown as removed and added. All functions here are pure.
 */

/** Most differences that are looked for; the memory of the search grows with its square. */
const MAX_EDITS = 1000;
/** Equal lines that are shown before and after a difference. */
const CONTEXT_LINES = 3;

/**
 * One step from the first list to the second: the index in each list, or -1 where the element is not in it.
 * @typedef {{ a: number, b: number }} DiffStep
 */

/**
 * The shortest way from one list to another: equal elements are in both, all others in one of them.
 * @param {readonly string[]} a
 * @param {readonly string[]} b
 * @returns {DiffStep[]}
 */
export function diffLists(a, b) {
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start += 1;
  let end = 0;
  const most = Math.min(a.length, b.length) - start;
  while (end < most && a[a.length - 1 - end] === b[b.length - 1 - end]) end += 1;
  const middle = shortestEdits(a.slice(start, a.length - end), b.slice(start, b.length - end));
  return [
    ...equalSteps(0, 0, start),
    ...middle.map((step) => ({ a: step.a < 0 ? -1 : step.a + start, b: step.b < 0 ? -1 : step.b + start })),
    ...equalSteps(a.length - end, b.length - end, end),
  ];
}

/**
 * @param {number} a
 * @param {number} b
 * @param {number} count
 * @returns {DiffStep[]}
 */
function equalSteps(a, b, count) {
  return Array.from({ length: count }, (_, index) => ({ a: a + index, b: b + index }));
}

/**
 * Myers' search: `frontier` holds, for each diagonal, how far the first list is reached with so many differences.
 * @param {readonly string[]} a
 * @param {readonly string[]} b
 * @returns {DiffStep[]}
 */
function shortestEdits(a, b) {
  const most = Math.min(a.length + b.length, MAX_EDITS);
  const middle = most + 1;
  const frontier = new Int32Array(2 * most + 3);
  /** @type {Int32Array[]} */
  const history = [];
  for (let edits = 0; edits <= most; edits += 1) {
    history.push(frontier.slice(middle - edits - 1, middle + edits + 2));
    for (let diagonal = -edits; diagonal <= edits; diagonal += 2) {
      const below = frontier[middle + diagonal + 1];
      const beside = frontier[middle + diagonal - 1];
      const isDown = diagonal === -edits || (diagonal !== edits && beside < below);
      let x = isDown ? below : beside + 1;
      while (x < a.length && x - diagonal < b.length && a[x] === b[x - diagonal]) x += 1;
      frontier[middle + diagonal] = x;
      if (x >= a.length && x - diagonal >= b.length) return walkBack(history, a.length, b.length);
    }
  }
  return [...a.map((_, index) => ({ a: index, b: -1 })), ...b.map((_, index) => ({ a: -1, b: index }))];
}

/**
 * Reads the way from the end to the beginning out of the frontiers.
 * @param {Int32Array[]} history
 * @param {number} x
 * @param {number} y
 * @returns {DiffStep[]}
 */
function walkBack(history, x, y) {
  /** @type {DiffStep[]} */
  const steps = [];
  for (let edits = history.length - 1; edits >= 0; edits -= 1) {
    const frontier = history[edits];
    const centre = edits + 1;
    const diagonal = x - y;
    const isDown =
      diagonal === -edits ||
      (diagonal !== edits && frontier[centre + diagonal - 1] < frontier[centre + diagonal + 1]);
    const before = isDown ? diagonal + 1 : diagonal - 1;
    const startX = edits === 0 ? 0 : frontier[centre + before];
    const startY = startX - before;
    while (x > Math.max(startX, 0) && y > Math.max(edits === 0 ? 0 : startY, 0)) {
      x -= 1;
      y -= 1;
      steps.push({ a: x, b: y });
    }
    if (edits === 0) break;
    steps.push(isDown ? { a: -1, b: startY } : { a: startX, b: -1 });
    x = startX;
    y = startY;
  }
  return steps.reverse();
}

/**
 * The lines of two texts: " " in both, "-" only in the first, "+" only in the second, "…" for equal lines left out.
 * @param {string} a
 * @param {string} b
 * @returns {Array<[string, string]>}
 */
export function diffLines(a, b) {
  const before = a.split("\n");
  const after = b.split("\n");
  /** @type {Array<[string, string]>} */
  const lines = diffLists(before, after).map((step) => {
    if (step.b < 0) return ["-", before[step.a]];
    return [step.a < 0 ? "+" : " ", after[step.b]];
  });
  return foldEqualLines(lines);
}

/**
 * @param {Array<[string, string]>} lines
 * @returns {Array<[string, string]>}
 */
function foldEqualLines(lines) {
  const near = new Uint8Array(lines.length);
  lines.forEach(([mark], index) => {
    if (mark !== " ") near.fill(1, Math.max(0, index - CONTEXT_LINES), index + CONTEXT_LINES + 1);
  });
  /** @type {Array<[string, string]>} */
  const folded = [];
  for (let index = 0; index < lines.length; index += 1) {
    if (near[index]) {
      folded.push(lines[index]);
      continue;
    }
    const begin = index;
    while (index + 1 < lines.length && !near[index + 1]) index += 1;
    folded.push(["…", index === begin ? "1 equal line" : `${index - begin + 1} equal lines`]);
  }
  return folded;
}
