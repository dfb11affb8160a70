import assert from "node:assert/strict";
import test from "node:test";

import { coversOf } from "../../../src/foveal/inspector/static/covers.js";
import { LogEntries } from "../../../src/foveal/inspector/static/log_entries.js";
import { TimelineState } from "../../../src/foveal/inspector/static/timeline_state.js";

const NO_FILTERS = { roles: [], tools: [], levels: [], text: "" };
/** e1 is dropped by e3, then covered by the summaries e4 and e5; e6 takes e5 back. */
const TIMELINE = new TimelineState({
  id: "s",
  rows: [
    { seq: 0, kind: "user_said", category: "user" },
    { seq: 1, kind: "model_said", category: "assistant" },
    { seq: 2, kind: "tool_returned", category: "results" },
    { seq: 3, kind: "dropped" },
    { seq: 4, kind: "compacted", category: "summaries" },
    { seq: 5, kind: "compacted", category: "summaries" },
    { seq: 6, kind: "reverted", target: 5 },
  ],
  changes: [
    { at: 0, key: "e0", level: "full", category: "user" },
    { at: 1, key: "e1", level: "full", category: "assistant" },
    { at: 2, key: "e2", level: "dropped", category: "results", rule: "a result that no call waits for" },
    { at: 3, key: "e1", level: "dropped", category: "assistant", by: 3, rule: "room" },
    { at: 4, key: "e4", level: "full", category: "summaries", place: 1 },
    { at: 5, key: "e4", level: "summarised", category: "summaries", by: 5 },
    { at: 5, key: "e5", level: "full", category: "summaries", place: 1 },
    { at: 6, key: "e4", level: "full", category: "summaries", place: 1 },
    { at: 6, key: "e5", level: "removed", category: "summaries", by: 6 },
  ],
  reductions: [
    { seq: 3, kind: "dropped", rule: "room", ranges: [[1, 1]] },
    { seq: 4, kind: "compacted", rule: "fold", ranges: [[1, 2]] },
    { seq: 5, kind: "compacted", rule: "fold", ranges: [[1, 4]], undone: 6 },
  ],
});
const stateOf = (key, at) => {
  const { level, by, rule } = TIMELINE.at(at).get(key);
  return [level, by, rule];
};

test("a message is hidden by the newest reduction in force that covers it", () => {
  assert.deepEqual(stateOf("e1", 3), ["dropped", 3, "room"]);
  assert.deepEqual(stateOf("e1", 4), ["summarised", 4, "fold"]);
  assert.deepEqual(stateOf("e1", 5), ["summarised", 5, "fold"]);
  assert.deepEqual(stateOf("e1", 6), ["summarised", 4, "fold"]);
});

test("a result that no call waits for is hidden by no reduction", () => {
  assert.deepEqual(stateOf("e2", 5), ["dropped", -1, "a result that no call waits for"]);
});

test("the reductions that hide a message are listed from the newest on", () => {
  const change = TIMELINE.at(5).get("e1");
  assert.deepEqual(coversOf(TIMELINE, change, 5).map((card) => card.seq), [5, 4, 3]);
});

test("rows, counts and the map show the level of the newest reduction", () => {
  const found = new LogEntries(TIMELINE, TIMELINE.at(4), NO_FILTERS);
  const index = found.indexOf("e1");
  assert.equal(found.entry(index).change.by, 4);
  assert.equal(found.level(index), "summarised");
  assert.deepEqual(found.levels, { full: 2, summarised: 1, dropped: 1 });
});
