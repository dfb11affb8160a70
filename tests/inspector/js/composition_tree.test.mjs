import assert from "node:assert/strict";
import test from "node:test";

import { compositionAt, predictionError } from "../../../src/foveal/inspector/static/composition_tree.js";
import { TimelineState } from "../../../src/foveal/inspector/static/timeline_state.js";

const session = () =>
  new TimelineState({
    id: "s",
    prices: { input: 2, cache_read: 1 },
    rows: [
      { seq: 0, kind: "user_said", category: "user", units: 10 },
      { seq: 1, kind: "model_said", category: "assistant", units: 20, tool: "read" },
      { seq: 2, kind: "tool_returned", category: "results", units: 70, tool: "read", path: "a.py" },
      { seq: 3, kind: "tool_returned", category: "results", units: 50, tool: "shell" },
    ],
    changes: [
      { at: 0, key: "e0", level: "full", category: "user", units: 10 },
      { at: 1, key: "e1", level: "full", category: "assistant", units: 20 },
      { at: 2, key: "e2", level: "full", category: "results", units: 70 },
      { at: 3, key: "e3", level: "full", category: "results", units: 50 },
      { at: 4, key: "e2", level: "masked", category: "placeholders", units: 5, by: 4 },
    ],
    requests: [
      { number: 1, at: 0, used: 1, tokens: 20, predicted: 30, units: 10, ratio: 2, uncached: 20 },
      { number: 2, at: 3, used: 4, tokens: 330, predicted: 300, units: 160, tools: 10, tool_text: "4 tools, 1 used", ratio: 2, overhead: 10, read: 330 },
    ],
  });

const lines = (nodes) => nodes.map((node) => [node.label, node.tokens, node.count]);

test("the lines add up to what the provider reported", () => {
  const composition = compositionAt(session(), 3);
  assert.deepEqual(lines(composition.nodes), [
    ["Tool results", 240, 2],
    ["Assistant messages", 40, 1],
    ["User messages", 20, 1],
    ["Tool list: 4 tools, 1 used", 20, 0],
    ["System prompt, tools and templates that the log does not have", 10, 0],
  ]);
  assert.deepEqual([composition.tokens, composition.isReported, composition.index], [330, true, 1]);
});

test("results are grouped by file, then by tool, then by message", () => {
  const [results] = compositionAt(session(), 3).nodes;
  assert.deepEqual(lines(results.children), [
    ["a.py", 140, 1],
    ["shell", 100, 1],
  ]);
  assert.deepEqual(results.children[0].children.map((node) => node.key), ["e2"]);
});

test("a point between requests is an estimate by the request before it", () => {
  const composition = compositionAt(session(), 4);
  assert.deepEqual([composition.isExact, composition.isReported, composition.reportedIn, composition.tokens], [false, false, 2, 190 + 10]);
});

test("a message has cost its share of every request that contained it", () => {
  const user = compositionAt(session(), 3).nodes.find((node) => node.id === "user");
  // 20 tokens at 2 dollars, then 20 at 1 dollar per million.
  assert.deepEqual([user.requests, user.soFar], [2, 60 / 1_000_000]);
});

test("the cost is unknown without a price", () => {
  const timeline = session();
  timeline.prices = {};
  assert.equal(compositionAt(timeline, 3).nodes[0].soFar, null);
});

test("the error compares predictions with reports", () => {
  const { requests } = session();
  assert.equal(predictionError(requests, 0), 0.5);
  assert.equal(predictionError(requests, 1), 40 / 350);
  assert.equal(predictionError([], -1), null);
});
