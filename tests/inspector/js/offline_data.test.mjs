import assert from "node:assert/strict";
import test from "node:test";

import { Problem } from "../../../src/foveal/inspector/static/data_source.js";
import { OfflineData } from "../../../src/foveal/inspector/static/offline_data.js";

const message = (key, text) => ({ key, parts: [{ kind: "text", text }] });
const change = (at, key, level, by = -1) => ({ at, key, level, by, units: 1, category: "results" });

/** Three messages; e3 masks e1, e4 takes it back, e5 drops e1. */
function exported() {
  return new OfflineData({
    timeline: {
      id: "s",
      rows: [0, 1, 2, 3, 4, 5].map((seq) => ({ seq, kind: "user_said" })),
      changes: [
        change(0, "e0", "full"),
        change(1, "e1", "full"),
        change(2, "e2", "full"),
        change(3, "e1", "masked", 3),
        change(4, "e1", "full"),
        change(5, "e1", "dropped", 5),
      ],
      reductions: [{ seq: 3, kind: "masked", count: 1, why: "price" }],
    },
    texts: {
      e0: message("e0", "find the Parser"),
      e1: message("e1", "one\ntwo\nthree"),
      e2: message("e2", "done"),
    },
    shown: { "e1@3": message("e1", "one\n[masked: see parser]") },
    requests: [{ at: 2, dialect: "anthropic", messages: [] }],
  });
}

test("a message is shown as the request shows it", async () => {
  const data = exported();
  assert.deepEqual((await data.shown("e1", 2)).parts, [{ kind: "text", text: "one\ntwo\nthree" }]);
  assert.deepEqual((await data.shown("e1", 3)).parts, [{ kind: "text", text: "one\n[masked: see parser]" }]);
  assert.deepEqual(await data.shown("e1", 5), { key: "e1", level: "dropped", rule: "", by: 5, parts: [] });
  await assert.rejects(data.shown("e2", 1), Problem);
});

test("a search finds whole texts and versions in any case", async () => {
  const data = exported();
  assert.deepEqual(await data.search("PARSER"), {
    q: "PARSER",
    hits: [
      ["e1", 3],
      ["e0", -1],
    ],
    truncated: false,
  });
  assert.deepEqual((await data.search("nothing like it")).hits, []);
  await assert.rejects(data.search("x"), Problem);
});

test("a diff shows the lines that a reduction changed, and names it", async () => {
  assert.deepEqual(await exported().diff(2, 3), {
    a: 2,
    b: 3,
    dialect: "",
    first: { message: 1, byte: -1, key: "e1" },
    same: 1,
    moved_by: "e3: masked 1 message, price",
    by: [3],
    rows: [
      { op: "same", a: 0, b: 0, key: "e0", count: 1, lines: [] },
      {
        op: "changed",
        a: 1,
        b: 1,
        key: "e1",
        label: "full → masked",
        lines: [
          [" ", "one"],
          ["-", "two"],
          ["-", "three"],
          ["+", "[masked: see parser]"],
        ],
      },
      { op: "same", a: 2, b: 2, key: "e2", count: 1, lines: [] },
    ],
  });
});

test("a request that only adds messages does not diverge", async () => {
  const diff = await exported().diff(0, 2);
  assert.deepEqual([diff.first, diff.same, diff.moved_by], [null, 1, ""]);
  assert.deepEqual(
    diff.rows.map((row) => row.op),
    ["same", "added", "added"],
  );
});

test("a reduction that was taken back leaves no difference", async () => {
  assert.deepEqual(
    (await exported().diff(2, 4)).rows.map((row) => [row.op, row.count]),
    [["same", 3]],
  );
});

test("only the requests in the file are returned", async () => {
  assert.deepEqual(await exported().request(2), {
    at: 2,
    dialect: "anthropic",
    messages: [],
    dialects: ["anthropic"],
  });
  await assert.rejects(exported().request(1), /only the request after e2/);
});

test("what needs the log says so", async () => {
  const data = exported();
  for (const refused of [data.whatIf(), data.act({ action: "undo" }), data.text("e9"), data.text("e1", 200)]) {
    await assert.rejects(refused, /foveal inspect/);
  }
  assert.deepEqual([data.isOffline, data.isWritable], [true, false]);
});
