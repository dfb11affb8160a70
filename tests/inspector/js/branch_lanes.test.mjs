import assert from "node:assert/strict";
import test from "node:test";

import { branchLanes, lanesAround } from "../../../src/foveal/inspector/static/branch_lanes.js";
import { LogEntries } from "../../../src/foveal/inspector/static/log_entries.js";
import { TimelineState } from "../../../src/foveal/inspector/static/timeline_state.js";

const NO_FILTERS = { roles: [], tools: [], levels: [], text: "" };
const said = (seq, kind = "model_said") => ({ seq, kind, category: kind === "user_said" ? "user" : "assistant" });
const full = (at) => ({ at, key: `e${at}`, level: "full" });
const folded = (at, ...seqs) => seqs.map((seq) => ({ at, key: `e${seq}`, level: "summarised", by: at }));
const record = (at, place) => ({ at, key: `e${at}`, level: "full", category: "summaries", place });

/** A branch at e1 with another inside at e3; e2 was kept, and e9 was said afterwards. */
const NESTED = new TimelineState({
  id: "s",
  rows: [
    said(0, "user_said"),
    { seq: 1, kind: "branched", preview: "branch: outer" },
    said(2),
    { seq: 3, kind: "branched", preview: "branch: inner" },
    said(4),
    { seq: 5, kind: "branch_ended", target: 3 },
    { seq: 6, kind: "compacted", category: "summaries", target: 3 },
    { seq: 7, kind: "branch_ended", target: 1 },
    { seq: 8, kind: "compacted", category: "summaries", target: 1 },
    said(9),
  ],
  changes: [
    ...[0, 2, 4].map(full),
    ...folded(6, 4),
    record(6, 4),
    ...folded(8, 6),
    record(8, 7),
    full(9),
  ],
});

const entries = (point, unfolded = [], filters = {}, timeline = NESTED) =>
  new LogEntries(timeline, timeline.at(point), { ...NO_FILTERS, ...filters }, unfolded);
const listed = (found) =>
  Array.from({ length: found.count }, (_, index) => {
    const { key, isPlaced, depth, fold } = found.entry(index);
    const mark = fold ? `${fold.isFolded ? "▸" : "▾"}${fold.count}` : "";
    return `${"  ".repeat(depth)}${isPlaced ? `(${key})` : key}${mark}`;
  });
const depths = (rows) =>
  branchLanes(new TimelineState({ id: "s", rows, changes: [] })).map((lane, index) => lanesAround(lane, rows[index].seq).length);

test("a branch that has not ended is a lane that is open", () => {
  assert.deepEqual(listed(entries(4)), ["e0", "e1", "  e2", "  e3", "    e4", "    e5", "    e6", "  e7", "  e8", "e9"]);
});

test("a branch that has ended is folded to its record and to what was kept", () => {
  assert.deepEqual(listed(entries(9)), ["e0", "e1▸6", "  e2", "  (e8)", "e9"]);
});

test("an inner branch is folded while the outer one is open", () => {
  assert.deepEqual(listed(entries(6)), ["e0", "e1", "  e2", "  e3▸2", "    (e6)", "    e6", "  e7", "  e8", "e9"]);
});

test("branches are unfolded one by one", () => {
  assert.deepEqual(listed(entries(9, [1])), ["e0", "e1▾6", "  e2", "  e3▸3", "  e7", "  (e8)", "  e8", "e9"]);
  const all = ["e0", "e1▾6", "  e2", "  e3▾3", "    e4", "    e5", "    e6", "  e7", "  (e8)", "  e8", "e9"];
  assert.deepEqual(listed(entries(9, [1, 3])), all);
});

test("filters look into folded branches", () => {
  assert.deepEqual(listed(entries(9, [], { levels: ["summarised"] })), ["    e4", "    e6"]);
});

test("the branch of a row, and the folds over it, are found", () => {
  const found = entries(9, [1]);
  assert.deepEqual(["e4", "e3", "e2", "e0", ""].map((key) => found.branchOf(key)), [3, 3, 1, -1, -1]);
  assert.deepEqual(["e4", "e3"].map((key) => found.foldsOver(key)), [[3], []]);
  assert.deepEqual(entries(9).foldsOver("e4"), [3, 1]);
  assert.deepEqual([found.isInside("e4", 1), found.isInside("e1", 1), found.isInside("e9", 1)], [true, false, false]);
});

test("a rewind to before a branch ends its lane, and one to before its end opens it again", () => {
  const rows = [said(0), { seq: 1, kind: "branched" }, said(2), { seq: 3, kind: "rewound", target: 0 }, said(4)];
  assert.deepEqual(depths(rows), [0, 0, 1, 0, 0]);
  const again = [{ seq: 0, kind: "branched" }, said(1), { seq: 2, kind: "branch_ended", target: 0 }, said(3)];
  assert.deepEqual(depths([...again, { seq: 4, kind: "rewound", target: 1 }, said(5)]), [0, 1, 1, 0, 1, 1]);
});

test("a log without branches has no lanes", () => {
  assert.equal(branchLanes(new TimelineState({ id: "s", rows: [said(0)], changes: [] })), null);
});
