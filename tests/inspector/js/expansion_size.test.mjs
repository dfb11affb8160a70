import assert from "node:assert/strict";
import test from "node:test";

import { expansionSize, growthSentence, whyTooLarge } from "../../../src/foveal/inspector/static/expansion_size.js";
import { TimelineState } from "../../../src/foveal/inspector/static/timeline_state.js";

const session = (limit) =>
  new TimelineState({
    id: "s",
    limit,
    rows: [
      { seq: 0, kind: "user_said", category: "user", units: 10 },
      { seq: 1, kind: "model_said", category: "assistant", units: 20 },
      { seq: 2, kind: "tool_returned", category: "results", units: 70, call: 1 },
      { seq: 3, kind: "tool_returned", category: "results", units: 50, call: 1 },
      { seq: 4, kind: "compacted", category: "summaries", units: 15 },
      { seq: 5, kind: "user_said", category: "user", units: 5 },
    ],
    changes: [
      { at: 0, key: "e0", level: "full", category: "user", units: 10 },
      { at: 4, key: "e1", level: "summarised", by: 4 },
      { at: 4, key: "e2", level: "summarised", by: 4 },
      { at: 4, key: "e3", level: "summarised", by: 4 },
      { at: 4, key: "e4", level: "full", category: "summaries", units: 15 },
      { at: 5, key: "e5", level: "full", category: "user", units: 5 },
    ],
    requests: [{ number: 1, at: 0, used: 1, tokens: 40, units: 10, ratio: 2, overhead: 20 }],
    reductions: [{ seq: 4, kind: "compacted", first: 0, last: 3, keys: ["e1", "e2", "e3"], count: 3 }],
  });

test("a result is shown with the rest of its step", () => {
  assert.deepEqual(expansionSize(session(400), "e2"), { more: 280, needed: 280 + 60 + 20, limit: 400 });
  assert.deepEqual(expansionSize(session(400), "e2"), expansionSize(session(400), "e1"));
});

test("a summary is shown with all that it covers, without what is shown already", () => {
  assert.equal(expansionSize(session(400), "e4").more, 280);
  assert.equal(expansionSize(session(400), "e0").more, 0);
});

test("only what exceeds the limit by itself is ruled out: for the rest, other messages give way", () => {
  assert.match(whyTooLarge(expansionSize(session(200), "e4")), /^It takes about 280 tokens itself, and a request at most 200\./);
  assert.deepEqual([300, 400, 0].map((limit) => whyTooLarge(expansionSize(session(limit), "e4"))), ["", "", ""]);
  assert.match(growthSentence(expansionSize(session(400), "e4")), /by about 280 tokens, to 360 of at most 400\.$/);
  assert.match(growthSentence(expansionSize(session(350), "e4")), /about 280 tokens.* 360 of at most 350, so other messages give way\.$/);
  assert.match(growthSentence(expansionSize(session(0), "e4")), /to 360\.$/);
});
