import assert from "node:assert/strict";
import test from "node:test";

import { LogEntries, countRolesAndTools } from "../../../src/foveal/inspector/static/log_entries.js";
import { TimelineState } from "../../../src/foveal/inspector/static/timeline_state.js";

const NO_FILTERS = { roles: [], tools: [], levels: [], text: "" };
const TIMELINE = new TimelineState({
  id: "s",
  rows: [
    { seq: 0, kind: "user_said", category: "user", preview: "fix the parser" },
    { seq: 1, kind: "model_said", category: "assistant", tool: "read_file" },
    { seq: 2, kind: "tool_returned", category: "results", tool: "read_file", call: 1 },
    { seq: 3, kind: "compacted", category: "summaries" },
    { seq: 4, kind: "user_said", category: "user", preview: "go on" },
  ],
  changes: [
    { at: 0, key: "e0", level: "full", category: "user" },
    { at: 1, key: "e1", level: "full", category: "assistant" },
    { at: 1, key: "m1.0", level: "full", category: "results" },
    { at: 2, key: "m1.0", level: "removed", category: "results" },
    { at: 2, key: "e2", level: "full", category: "results" },
    { at: 3, key: "e1", level: "summarised", by: 3 },
    { at: 3, key: "e2", level: "summarised", by: 3 },
    { at: 3, key: "e3", level: "full", category: "summaries", place: 1, preview: "a summary" },
    { at: 4, key: "e4", level: "full", category: "user" },
  ],
});
const entries = (seq, filters = {}) => new LogEntries(TIMELINE, TIMELINE.at(seq), { ...NO_FILTERS, ...filters });
const listed = (found) =>
  Array.from({ length: found.count }, (_, index) => {
    const { key, isPlaced } = found.entry(index);
    return isPlaced ? `(${key})` : key;
  });

test("a summary is an entry where it stands in the request", () => {
  assert.deepEqual(listed(entries(4)), ["e0", "e1", "(e3)", "e2", "e3", "e4"]);
});

test("a synthetic result stands after its call", () => {
  assert.deepEqual(listed(entries(1)), ["e0", "e1", "(m1.0)", "e2", "e3", "e4"]);
});

test("events after the point are listed as later", () => {
  const found = entries(1);
  assert.deepEqual(listed(found).map((_, index) => found.level(index)), ["full", "full", "full", "later", "later", "later"]);
});

test("a summary is counted once", () => {
  assert.deepEqual(entries(4).levels, { full: 3, summarised: 2 });
});

test("filters hold for roles, tools, levels and text together", () => {
  assert.deepEqual(listed(entries(4, { roles: ["user"] })), ["e0", "e4"]);
  assert.deepEqual(listed(entries(4, { tools: ["read_file"] })), ["e1", "e2"]);
  assert.deepEqual(listed(entries(4, { levels: ["summarised"] })), ["e1", "e2"]);
  assert.deepEqual(listed(entries(4, { text: "SUMMARY" })), ["(e3)"]);
  assert.deepEqual(listed(entries(4, { text: "go", roles: ["assistant"] })), []);
});

test("an entry is found by its key, in the log or in the request", () => {
  const found = entries(4);
  assert.deepEqual([found.indexOf("e3"), found.indexOf("e3", { placed: true }), found.indexOf("e99")], [4, 2, -1]);
  assert.equal(entries(4, { roles: ["user"] }).indexOf("e1"), -1);
});

test("the newest entry up to an event is found", () => {
  assert.equal(entries(4).lastUpTo(2), 3);
  assert.equal(entries(4, { roles: ["user"] }).lastUpTo(3), 0);
});

test("roles and tools are counted over the whole log", () => {
  const { roles, tools } = countRolesAndTools(TIMELINE);
  assert.deepEqual([...roles], [["user", 2], ["assistant", 1], ["result", 1], ["reduction", 1]]);
  assert.deepEqual([...tools], [["read_file", 2]]);
});
