import assert from "node:assert/strict";
import test from "node:test";

import {
  laterMessages,
  markOf,
  pinOfMessage,
  supersessionOf,
} from "../../../src/foveal/inspector/static/message_marks.js";
import { TimelineState } from "../../../src/foveal/inspector/static/timeline_state.js";

/** e0 and e2 are messages of the user; e3 pins e0, e4 says that e2 replaces it, e5 and e6 take both back. */
function timelineUntil(last) {
  const rows = [
    { kind: "user_said" },
    { kind: "model_said" },
    { kind: "user_said" },
    { kind: "pinned", target: 0 },
    { kind: "superseded", target: 0 },
    { kind: "reverted", target: 3 },
    { kind: "reverted", target: 4 },
  ];
  return new TimelineState({ id: "s", rows: rows.slice(0, last + 1).map((row, seq) => ({ ...row, seq })) });
}

test("a pin counts until it is taken back", () => {
  assert.deepEqual([2, 3, 4, 5].map((last) => pinOfMessage(timelineUntil(last), 0)), [-1, 3, 3, -1]);
  assert.equal(pinOfMessage(timelineUntil(4), 2), -1);
});

test("a supersession counts until it is taken back", () => {
  assert.deepEqual([3, 4, 5, 6].map((last) => supersessionOf(timelineUntil(last), 0)), [-1, 4, 4, -1]);
});

test("a mark counts until it is taken back, and a later one in its place", () => {
  const kinds = [{ kind: "user_said" }, { kind: "prioritised", target: 0 }, { kind: "prioritised", target: 0 }, { kind: "reverted", target: 2 }];
  const until = (last) => new TimelineState({ id: "s", rows: kinds.slice(0, last + 1).map((row, seq) => ({ ...row, seq })) });
  assert.deepEqual([0, 1, 2, 3].map((last) => markOf(until(last), 0)), [-1, 1, 2, 1]);
});

test("only later messages of the user can replace one", () => {
  assert.deepEqual(laterMessages(timelineUntil(6), 0).map((row) => row.seq), [2]);
  assert.deepEqual(laterMessages(timelineUntil(6), 2), []);
});
