import assert from "node:assert/strict";
import test from "node:test";

import {
  sessionAddress,
  sessionTitle,
  sortSessions,
} from "../../../src/foveal/inspector/static/session_table.js";
import { describeShares, sparklinePoints } from "../../../src/foveal/inspector/static/sparkline.js";

const ROWS = [
  { key: "a", title: "beta", active: 10, spent: null },
  { key: "b", title: "Alpha", active: 30, spent: 0.5 },
  { key: "c", title: "", active: 20, spent: 0 },
];
const order = (column, isDescending) =>
  sortSessions(ROWS, column, isDescending)
    .map((row) => row.key)
    .join("");

test("rows are sorted by the values of a column", () => {
  assert.deepEqual([order("active", true), order("active", false), order("title", false)], ["bca", "acb", "bac"]);
});

test("an unknown price comes after all known ones", () => {
  assert.equal(order("spent", true), "bca");
});

test("equal values are ordered by the last activity, and an unknown column by the server", () => {
  assert.deepEqual([order("reductions", false), order("relevance", true)], ["bca", "abc"]);
});

test("a key becomes one part of an address", () => {
  assert.equal(sessionAddress("a/b?c#d&e javascript:"), "session?id=a%2Fb%3Fc%23d%26e%20javascript%3A");
});

test("a title is one line, and the key where there is none", () => {
  assert.deepEqual(ROWS.map(sessionTitle), ["beta", "Alpha", "c"]);
  assert.equal(sessionTitle({ key: "k", title: "a\n\u202eb" }), "a \ufffdb");
});

test("the chart stays in its box whatever the data holds", () => {
  assert.deepEqual(
    sparklinePoints([0, 1, 2, NaN, -1]).map(([, y]) => y),
    [22, 2, 2, 22, 22],
  );
  assert.deepEqual(sparklinePoints([]), []);
});

test("the chart is described in words", () => {
  assert.equal(describeShares([], 0), "no requests");
  assert.equal(
    describeShares([0.1, 0.9, 0.5], 1200),
    "window use over 1,200 requests: last 50.0 %, at most 90.0 %",
  );
});
