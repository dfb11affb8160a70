import assert from "node:assert/strict";
import test from "node:test";

import * as format from "../../../src/foveal/inspector/static/format.js";

test("numbers are written as in the rest of Foveal", () => {
  assert.deepEqual([0, 999, 1234, 1234567].map(format.formatNumber), ["0", "999", "1,234", "1,234,567"]);
  assert.deepEqual([0.672, 0, 1, NaN].map(format.formatPercent), ["67.2 %", "0.0 %", "100.0 %", "0.0 %"]);
  assert.deepEqual([845, 9_949, 12_345, 1_200_000].map(format.formatShort), ["845", "9.9k", "12k", "1.2M"]);
  assert.equal(format.formatCount(1, "request"), "1 request");
  assert.equal(format.formatCount(2, "reply", "replies"), "2 replies");
});

test("an unknown price is not free", () => {
  assert.deepEqual([null, undefined, 0, 0.0042, 12.345, 1e-9, -0.5].map(format.formatDollars), [
    "unknown",
    "unknown",
    "$0.00",
    "$0.0042",
    "$12.35",
    "<$0.0001",
    "−$0.50",
  ]);
});

test("sizes and durations have their unit", () => {
  assert.deepEqual([999, 12_345, 50_000_000].map(format.formatBytes), ["999 B", "12.3 kB", "50.0 MB"]);
  assert.deepEqual([0.4, 12, 185, 7_800, 273_600].map(format.formatDuration), [
    "0.4 s",
    "12 s",
    "3 min 5 s",
    "2 h 10 min",
    "3 d 4 h",
  ]);
});

test("a time outside of the calendar is empty", () => {
  assert.deepEqual([null, undefined, NaN, 1e300].map(format.formatTime), ["", "", "", ""]);
  assert.match(format.formatTime(1_790_000_000), /^2026-09-\d\d \d\d:\d\d:\d\d$/);
});

test("characters that cannot be seen are made visible", () => {
  assert.equal(format.oneLine("a\u202eb\n\tc\u0000"), "a\ufffdb c\ufffd");
  assert.equal(format.visibleText("a\u200bb\n\tc\r\n"), "a\ufffdb\n\tc\n");
});

test("a saving below zero is what reductions have cost so far", () => {
  assert.deepEqual([null, 0.5, -0.0013].map(format.savedText), [
    "",
    "saved about $0.50",
    "about $0.0013 more than sending everything with an ideal cache so far",
  ]);
});
