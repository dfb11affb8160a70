import assert from "node:assert/strict";
import test from "node:test";

import { diffLines, diffLists } from "../../../src/foveal/inspector/static/text_diff.js";

/** Applies a diff: what it makes of the first list. */
function applied(a, b, steps) {
  assert.deepEqual(
    steps.filter((step) => step.a >= 0).map((step) => step.a),
    [...a.keys()],
  );
  for (const step of steps) if (step.a >= 0 && step.b >= 0) assert.equal(a[step.a], b[step.b]);
  return steps.filter((step) => step.b >= 0).map((step) => b[step.b]);
}

test("the steps lead from the first list to the second", () => {
  let seed = 7;
  const random = (most) => (seed = (seed * 1103515245 + 12345) % 2147483648) % most;
  for (let round = 0; round < 500; round += 1) {
    const a = Array.from({ length: random(12) }, () => "abcd"[random(4)]);
    const b = Array.from({ length: random(12) }, () => "abcd"[random(4)]);
    const steps = diffLists(a, b);
    assert.deepEqual(applied(a, b, steps), b, `${a} → ${b}`);
  }
});

test("the way is the shortest one", () => {
  const steps = diffLists([..."ABCABBA"], [..."CBABAC"]);
  assert.equal(steps.filter((step) => step.a < 0 || step.b < 0).length, 5);
});

test("lists with too many differences are removed and added", () => {
  const a = Array.from({ length: 3000 }, (_, index) => `a${index}`);
  const b = Array.from({ length: 3000 }, (_, index) => `b${index}`);
  assert.deepEqual(applied(a, b, diffLists(a, b)), b);
});

test("equal lines far from a difference are folded", () => {
  const before = Array.from({ length: 20 }, (_, index) => `line ${index}`);
  const after = before.with(10, "another line");
  assert.deepEqual(diffLines(before.join("\n"), after.join("\n")), [
    ["…", "7 equal lines"],
    [" ", "line 7"],
    [" ", "line 8"],
    [" ", "line 9"],
    ["-", "line 10"],
    ["+", "another line"],
    [" ", "line 11"],
    [" ", "line 12"],
    [" ", "line 13"],
    ["…", "6 equal lines"],
  ]);
});

test("equal texts have no lines but one fold", () => {
  assert.deepEqual(diffLines("a\nb", "a\nb"), [["…", "2 equal lines"]]);
});
