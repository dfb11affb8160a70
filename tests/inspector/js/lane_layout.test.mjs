import assert from "node:assert/strict";
import test from "node:test";

import {
  MAX_LANES,
  axisShare,
  layOutLanes,
  relatedKeys,
} from "../../../src/foveal/inspector/static/lane_layout.js";

const row = (key, first, last, more = {}) => ({ key, times: [first, last], ...more });
const names = (layout) => layout.lanes.map((lane) => `${" ".repeat(lane.depth)}${lane.row.key} ${lane.relation}`);

test("sessions whose times do not differ are no lanes", () => {
  assert.deepEqual(names(layOutLanes([row("one", 100, 100), row("two", 100.4, 100.4)])), []);
});

test("a session stands above those that began from it, and parallel ones follow", () => {
  const rows = [
    row("other", 150, 300),
    row("child", 120, 140, { origin: "main" }),
    row("grandchild", 130, 135, { origin: "child" }),
    row("main", 100, 200),
    row("earlier", 10, 50),
  ];
  const layout = layOutLanes(rows, "main");
  assert.deepEqual(names(layout), ["main this", " child related", "  grandchild related", "other parallel"]);
  assert.deepEqual([layout.from, layout.to, layout.leftOut], [100, 300, 0]);
  assert.deepEqual(
    layout.lanes[0].starts.map((start) => [start.time, start.row.key]),
    [[120, "child"]],
  );
});

test("without a session, the newest ones without a long pause between them are shown", () => {
  const rows = [row("new", 10_000, 10_500), row("before", 8_000, 9_000), row("old", 100, 200)];
  assert.deepEqual(names(layOutLanes(rows)), ["before parallel", "new parallel"]);
});

test("sessions that name each other in a circle are shown once", () => {
  const rows = [row("a", 1, 2, { origin: "b" }), row("b", 1, 2, { origin: "a" }), row("c", 1, 2, { origin: "c" })];
  assert.deepEqual(
    layOutLanes(rows, "a")
      .lanes.map((lane) => lane.row.key)
      .sort(),
    ["a", "b", "c"],
  );
  assert.deepEqual([...relatedKeys(rows, "a")].sort(), ["a", "b"]);
});

test("sessions without times are left out", () => {
  const rows = [{ key: "a" }, { key: "b", active: NaN, times: [] }, row("c", -1, Infinity)];
  assert.deepEqual(layOutLanes(rows).lanes, []);
});

test("requests are spread over the lane", () => {
  const [lane] = layOutLanes([row("a", 100, 200, { shares: [0.1, 0.5, 0.9] })]).lanes;
  assert.deepEqual(lane.ticks, [
    { time: 100, share: 0.1 },
    { time: 150, share: 0.5 },
    { time: 200, share: 0.9 },
  ]);
});

test("there are at most so many lanes, and the session itself is one of them", () => {
  const rows = Array.from({ length: 40 }, (_, index) => row(`s${index}`, index, 100));
  const layout = layOutLanes(rows, "s39");
  assert.deepEqual([layout.lanes.length, layout.leftOut], [MAX_LANES, 40 - MAX_LANES]);
  assert.ok(layout.lanes.some((lane) => lane.relation === "this"));
});

test("a moment is a share of the axis", () => {
  const layout = { from: 100, to: 200, lanes: [], leftOut: 0 };
  assert.deepEqual(
    [50, 100, 150, 300].map((time) => axisShare(layout, time)),
    [0, 0, 0.5, 1],
  );
  assert.equal(axisShare({ ...layout, to: 100 }, 100), 0);
});
