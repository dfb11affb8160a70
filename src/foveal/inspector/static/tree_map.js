/**
 * Treemap: rectangles whose areas are proportional to their values.
 *
 * `treeMapLayout` is pure and follows the squarified layout of Bruls, Huizing and van Wijk: it fills the shorter side of
 * what is left, row by row, while the worst aspect ratio of the row gets better.
 */

/**
 * @typedef {object} TreeMapBox
 * @property {number} index  Index of the value.
 * @property {number} x
 * @property {number} y
 * @property {number} width
 * @property {number} height
 */

/**
 * Boxes for positive values, largest first, inside `width` × `height`.
 * @param {number[]} values
 * @param {number} width
 * @param {number} height
 * @returns {TreeMapBox[]}
 */
export function treeMapLayout(values, width, height) {
  const total = values.reduce((sum, value) => sum + Math.max(0, value), 0);
  if (total <= 0 || width <= 0 || height <= 0) return [];
  const scale = (width * height) / total;
  const areas = values
    .map((value, index) => ({ index, area: value * scale }))
    .filter((item) => item.area > 0)
    .sort((a, b) => b.area - a.area);
  /** @type {TreeMapBox[]} */
  const boxes = [];
  let space = { x: 0, y: 0, width, height };
  let start = 0;
  while (start < areas.length) {
    const side = Math.min(space.width, space.height);
    let end = start + 1;
    let sum = areas[start].area;
    while (end < areas.length) {
      const next = sum + areas[end].area;
      const largest = areas[start].area;
      if (worstAspect(largest, areas[end].area, next, side) > worstAspect(largest, areas[end - 1].area, sum, side)) break;
      sum = next;
      end += 1;
    }
    space = placeTreeMapRow(boxes, areas.slice(start, end), sum, space);
    start = end;
  }
  return boxes;
}

/**
 * The worst aspect ratio of a row with this largest and smallest area.
 * @param {number} largest
 * @param {number} smallest
 * @param {number} sum
 * @param {number} side
 * @returns {number}
 */
function worstAspect(largest, smallest, sum, side) {
  const square = side * side;
  return Math.max((square * largest) / (sum * sum), (sum * sum) / (square * smallest));
}

/**
 * Places one row along the shorter side and returns the space that is left.
 * @param {TreeMapBox[]} boxes
 * @param {Array<{index: number, area: number}>} row
 * @param {number} sum
 * @param {{x: number, y: number, width: number, height: number}} space
 * @returns {{x: number, y: number, width: number, height: number}}
 */
function placeTreeMapRow(boxes, row, sum, space) {
  const isTall = space.height <= space.width;
  const thickness = sum / (isTall ? space.height : space.width);
  let offset = 0;
  for (const { index, area } of row) {
    const length = area / thickness;
    boxes.push(
      isTall
        ? { index, x: space.x, y: space.y + offset, width: thickness, height: length }
        : { index, x: space.x + offset, y: space.y, width: length, height: thickness },
    );
    offset += length;
  }
  return isTall
    ? { x: space.x + thickness, y: space.y, width: Math.max(0, space.width - thickness), height: space.height }
    : { x: space.x, y: space.y + thickness, width: space.width, height: Math.max(0, space.height - thickness) };
}
