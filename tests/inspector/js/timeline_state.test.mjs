import assert from "node:assert/strict";
import test from "node:test";

import { TimelineState, seqOfKey } from "../../../src/foveal/inspector/static/timeline_state.js";

const said = (seq, units = 10) => ({ seq, kind: "user_said", category: "user", units, preview: `message ${seq}` });
const shown = (at, key, level, more = {}) => ({
  at,
  key,
  level,
  category: "user",
  units: level === "full" ? 10 : 0,
  ...more,
});
const keys = (view) => view.items().map((change) => change.key);

const SESSION = {
  id: "s",
  next: 5,
  rows: [said(0), said(1), said(2), { seq: 3, kind: "compacted" }, { seq: 4, kind: "reverted", target: 3 }],
  changes: [
    shown(0, "e0", "full"),
    shown(1, "e1", "full"),
    shown(2, "e2", "full"),
    shown(3, "e0", "summarised", { by: 3 }),
    shown(3, "e1", "summarised", { by: 3 }),
    shown(3, "e3", "full", { place: 1, category: "summaries", units: 4 }),
    shown(4, "e0", "full"),
    shown(4, "e1", "full"),
    shown(4, "e3", "removed", { by: 4 }),
  ],
  requests: [
    { number: 1, at: 0 },
    { number: 2, at: 3 },
  ],
  reductions: [{ seq: 3, kind: "compacted", undone: 4 }],
};

test("the last change of a key before an event counts", () => {
  const timeline = new TimelineState(SESSION);
  assert.deepEqual(keys(timeline.at(-1)), []);
  assert.deepEqual(keys(timeline.at(1)), ["e0", "e1"]);
  assert.deepEqual(keys(timeline.at(3)), ["e3", "e2"]);
  assert.deepEqual(keys(timeline.at(4)), ["e0", "e1", "e2"]);
  assert.equal(timeline.at(3).get("e0").by, 3);
});

test("units are summed up over what is sent", () => {
  assert.deepEqual(new TimelineState(SESSION).at(3).totals, {
    units: 14,
    byCategory: { user: 10, summaries: 4 },
    byLevel: { summarised: 2, full: 2 },
  });
});

test("a request is found by the event that it could show", () => {
  const timeline = new TimelineState(SESSION);
  assert.deepEqual(
    [-1, 0, 2, 3, 9].map((seq) => timeline.requestAt(seq)),
    [-1, 0, 0, 1, 1],
  );
});

test("an answer that the live stream has overtaken changes nothing", () => {
  const timeline = new TimelineState(SESSION);
  const [before, { version }] = [[...timeline.rows], timeline];
  timeline.append({ id: "s", first: 5, first_request: 2, next: 5 });
  timeline.append({ id: "s", first: 4, first_request: 2, next: 4 });
  timeline.append({ id: "s", first: 3, first_request: 1, next: 4, rows: [SESSION.rows[3]] });
  assert.deepEqual(timeline.rows, before);
  assert.equal(timeline.requests.length, 2);
  assert.equal(timeline.version, version);
  timeline.append({ id: "s", first: 3, first_request: 1, next: 4, rows: [SESSION.rows[3]], generation: 2 });
  assert.equal(timeline.last, 3);
});

test("a part that is appended gives the same views as the whole", () => {
  const whole = new TimelineState(SESSION);
  for (let first = 1; first < 5; first += 1) {
    const before = { ...SESSION, rows: SESSION.rows.filter((row) => row.seq < first) };
    before.changes = SESSION.changes.filter((change) => change.at < first);
    before.requests = SESSION.requests.filter((request) => request.at < first);
    const grown = new TimelineState(before);
    grown.append({
      ...SESSION,
      first,
      first_request: before.requests.length,
      rows: SESSION.rows.filter((row) => row.seq >= first),
      changes: SESSION.changes.filter((change) => change.at >= first),
      requests: SESSION.requests.filter((request) => request.at >= first),
    });
    assert.deepEqual(
      [grown.rows, grown.requests, grown.reductions],
      [whole.rows, whole.requests, whole.reductions],
    );
    for (let seq = -1; seq < 5; seq += 1) assert.deepEqual(keys(grown.at(seq)), keys(whole.at(seq)));
  }
});

test("a part that is sent twice changes nothing", () => {
  const timeline = new TimelineState(SESSION);
  timeline.append({ ...SESSION, first: 0, first_request: 0 });
  assert.equal(timeline.rows.length, 5);
  assert.equal(timeline.requests.length, 2);
  assert.deepEqual(keys(timeline.at(3)), ["e3", "e2"]);
});

test("views far apart in a long log are folded from keyframes", () => {
  const count = 5_000;
  const rows = Array.from({ length: count }, (_, seq) => said(seq));
  const changes = rows.flatMap(({ seq }) =>
    seq < 100
      ? [shown(seq, `e${seq}`, "full")]
      : [shown(seq, `e${seq}`, "full"), shown(seq, `e${seq - 100}`, "dropped", { by: seq })],
  );
  const timeline = new TimelineState({ id: "long", rows, changes });
  for (const seq of [4_999, 511, 512, 513, 2_047, 99, 3_000]) {
    const expected = Array.from(
      { length: Math.min(seq + 1, 100) },
      (_, index) => `e${seq - Math.min(seq, 99) + index}`,
    );
    assert.deepEqual(keys(timeline.at(seq)), expected);
  }
});

test("the seq of a key is read, and other texts are refused", () => {
  assert.deepEqual(["e12", "n40", "m12.0", "x1", "e", ""].map(seqOfKey), [12, 40, 12, -1, -1, -1]);
});
