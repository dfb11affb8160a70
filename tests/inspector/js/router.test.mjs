import assert from "node:assert/strict";
import test from "node:test";

import { initialState } from "../../../src/foveal/inspector/static/app_state.js";
import { readFragment, writeFragment } from "../../../src/foveal/inspector/static/router.js";
import { TimelineState } from "../../../src/foveal/inspector/static/timeline_state.js";

const TIMELINE = new TimelineState({
  id: "s",
  rows: ["user_said", "user_said", "user_said", "masked", "used"].map((kind, seq) => ({ seq, kind })),
  reductions: [{ seq: 3, kind: "masked" }],
  requests: [
    { number: 1, at: 1 },
    { number: 2, at: 3 },
  ],
});
const read = (fragment) => ({ ...initialState(), ...readFragment(fragment, TIMELINE) });

test("an address without an event follows the newest one", () => {
  const { point, request, follow } = read("");
  assert.deepEqual({ point, request, follow }, { point: 4, request: -1, follow: true });
});

test("an event and a request name a point", () => {
  assert.equal(read("#e2").point, 2);
  assert.deepEqual([read("#r2").point, read("#r2").request], [3, 1]);
});

test("a place beyond the session is the nearest one", () => {
  assert.equal(read("#e999999").point, 4);
  assert.equal(read("#r99").point, 3);
  assert.equal(read("#r0").point, 1);
});

test("the fragment of a state restores it", () => {
  const state = {
    ...read("#e2"),
    selected: "m1.0",
    panel: "diff",
    filters: { roles: ["user"], tools: ["a,b", "mcp&x=1"], levels: ["masked", "full"], text: "100 % & more" },
    compare: { a: 0, b: 1 },
  };
  assert.deepEqual(read(`#${writeFragment(state, TIMELINE)}`), state);
});

test("a chosen request stays one", () => {
  assert.equal(writeFragment(read("#r2"), TIMELINE), "r2");
});

test("an address without a panel opens the one of its place", () => {
  const opened = (fragment) => [read(fragment).panel, read(fragment).selected];
  assert.deepEqual(opened(""), ["happened", ""]);
  assert.deepEqual(opened("#e2"), ["message", "e2"]);
  assert.deepEqual(opened("#e3"), ["reductions", ""]);
  assert.deepEqual(opened("#e4"), ["requests", ""]);
  assert.deepEqual(opened("#r2"), ["requests", ""]);
  assert.deepEqual(opened("#e3&message=e1"), ["message", "e1"]);
  for (const fragment of ["", "e2", "e3", "r2", "e3&message=e1", "e2&panel=message", "e2&panel=happened"]) {
    assert.equal(writeFragment(read(`#${fragment}`), TIMELINE), fragment);
  }
});

test("a broken fragment shows the newest event", () => {
  for (const fragment of ["#e", "#e-1", "#r1e5", "#%E0%A4%A", "#message=<b>", "#e2&panel=diff&text=%E0%A4%A"]) {
    const state = read(fragment);
    assert.equal(state.selected, "");
    assert.ok(state.point >= 0);
  }
});
