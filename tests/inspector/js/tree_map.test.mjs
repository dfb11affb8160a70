import assert from "node:assert/strict";
import test from "node:test";

import { treeMapLayout } from "../../../src/foveal/inspector/static/tree_map.js";

test("areas are proportional to the values and fill the map", () => {
  const boxes = treeMapLayout([6, 6, 4, 3, 2, 2, 1], 600, 400);
  const areas = boxes.map((box) => [box.index, Math.round(box.width * box.height)]);
  assert.deepEqual(areas, [[0, 60000], [1, 60000], [2, 40000], [3, 30000], [4, 20000], [5, 20000], [6, 10000]]);
});

test("boxes stay inside the map", () => {
  for (const box of treeMapLayout(Array.from({ length: 200 }, (_, index) => 1 / (index + 1)), 300, 100)) {
    assert.ok(box.x >= 0 && box.y >= 0 && box.x + box.width <= 300.001 && box.y + box.height <= 100.001);
  }
});

test("values of nothing have no box", () => {
  assert.deepEqual(treeMapLayout([], 10, 10), []);
  assert.deepEqual(treeMapLayout([0, -1], 10, 10), []);
  assert.deepEqual(treeMapLayout([0, 2], 10, 10), [{ index: 1, x: 0, y: 0, width: 10, height: 10 }]);
});
