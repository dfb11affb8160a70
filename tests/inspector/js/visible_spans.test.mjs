import assert from "node:assert/strict";
import test from "node:test";

import { joinHits, showsText, visibleSpans } from "../../../src/foveal/inspector/static/visible_spans.js";

const REQUESTS = [2, 5, 8, 11, 14].map((at, index) => ({ at, number: index + 1 }));
const change = (at, level, by = -1) => ({ at, key: "e1", level, by });

test("a text is visible until a reduction hides it, and again after its undo", () => {
  const changes = [change(1, "full"), change(6, "masked", 6), change(12, "full")];
  const found = visibleSpans(changes, REQUESTS, new Set([-1]));
  assert.deepEqual(found.spans, [
    [0, 1],
    [4, 4],
  ]);
  assert.equal(found.last, 4);
  assert.equal(found.removal, null);
  assert.equal(found.isVisible, true);
});

test("a placeholder that keeps the text shows it too", () => {
  const changes = [change(1, "full"), change(6, "masked", 6), change(9, "dropped", 9)];
  const found = visibleSpans(changes, REQUESTS, new Set([-1, 6]));
  assert.deepEqual([found.spans, found.last, found.removal], [[[0, 2]], 2, changes[2]]);
});

test("a text that no request has shown has no span", () => {
  const found = visibleSpans([change(15, "full")], REQUESTS, new Set([-1]));
  assert.deepEqual([found.spans, found.last, found.isVisible], [[], -1, true]);
});

test("hits are joined by message", () => {
  const found = joinHits([
    ["e9", -1],
    ["e1", 6],
    ["e9", 12],
  ]);
  assert.deepEqual(found, [
    { key: "e9", owners: new Set([-1, 12]) },
    { key: "e1", owners: new Set([6]) },
  ]);
});

test("only what is sent shows a text", () => {
  const owners = new Set([-1, 6]);
  const levels = ["full", "summarised", "dropped", "removed"].map((level) => showsText(change(1, level), owners));
  assert.deepEqual(levels, [true, false, false, false]);
  assert.deepEqual(
    [6, 7].map((by) => showsText(change(1, "clipped", by), owners)),
    [true, false],
  );
});
