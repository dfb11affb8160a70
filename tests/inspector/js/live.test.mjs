import assert from "node:assert/strict";
import test from "node:test";

import { AppState, initialState } from "../../../src/foveal/inspector/static/app_state.js";
import { LiveFeed, RECONNECT_DELAYS_MS, appendLive, lostServerText } from "../../../src/foveal/inspector/static/live.js";
import { TimelineState } from "../../../src/foveal/inspector/static/timeline_state.js";

/** A feed with its connections, what it received, and the states it went through. */
function followed() {
  const opened = [];
  const received = [];
  const statuses = [];
  const feed = new LiveFeed(
    (onData, onState) => {
      const connection = { onData, onState, isClosed: false };
      opened.push(connection);
      return () => (connection.isClosed = true);
    },
    (data) => received.push(data),
    (status) => statuses.push(status),
  );
  return { feed, opened, received, statuses };
}

test("a feed is live once the stream is open", () => {
  const { feed, opened, received, statuses } = followed();
  feed.start();
  opened[0].onState("live");
  opened[0].onData("a");
  assert.deepEqual([received, statuses, feed.status], [["a"], ["live"], "live"]);
});

test("a paused feed closes its stream and takes nothing more from it", () => {
  const { feed, opened, received } = followed();
  feed.start();
  opened[0].onState("live");
  feed.pause();
  opened[0].onData("late");
  opened[0].onState("live");
  assert.deepEqual([opened[0].isClosed, received, feed.status], [true, [], "paused"]);
  feed.start();
  opened[1].onState("live");
  assert.equal(feed.status, "live");
});

test("a stream that the browser resumes is left alone", () => {
  const { feed, opened } = followed();
  feed.start();
  opened[0].onState("reconnecting");
  assert.deepEqual([feed.status, opened.length, opened[0].isClosed], ["reconnecting", 1, false]);
});

test("a feed whose login has ended closes its stream and does not try again", (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const { feed, opened, statuses } = followed();
  feed.start();
  opened[0].onState("live");
  opened[0].onState("loggedOut");
  context.mock.timers.tick(60_000);
  assert.deepEqual([opened.length, opened[0].isClosed, statuses], [1, true, ["live", "loggedOut"]]);
});

test("a closed stream is opened again after growing delays, for ever", (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const { feed, opened } = followed();
  feed.start();
  const last = RECONNECT_DELAYS_MS.at(-1);
  [...RECONNECT_DELAYS_MS, last, last, last].forEach((delay, index) => {
    opened[index].onState("closed");
    assert.equal(feed.status, "reconnecting");
    context.mock.timers.tick(delay - 1);
    assert.equal(opened.length, index + 1);
    context.mock.timers.tick(1);
    assert.equal(opened.length, index + 2);
  });
  opened.at(-1).onState("live");
  assert.deepEqual([feed.status, feed.lostAt], ["live", 0]);
});

test("a feed knows since when its server is lost, also after it has refused the page", (context) => {
  context.mock.timers.enable({ apis: ["setTimeout", "Date"], now: 50_000 });
  const { feed, opened } = followed();
  feed.start();
  opened[0].onState("live");
  assert.equal(feed.lostAt, 0);
  opened[0].onState("reconnecting");
  context.mock.timers.tick(60_000);
  opened[0].onState("refused");
  assert.deepEqual([feed.status, feed.lostAt], ["refused", 50]);
  context.mock.timers.tick(RECONNECT_DELAYS_MS[0]);
  assert.deepEqual([opened.length, feed.status], [2, "refused"]);
  opened[1].onState("live");
  assert.deepEqual([feed.status, feed.lostAt], ["live", 0]);
});

test("the notice says since when, what is shown and how to start the server", () => {
  const gone = lostServerText("reconnecting", "12:30:00", "foveal inspect");
  for (const part of ["since 12:30:00", "the last state", "by itself", "start it with `foveal inspect`"]) assert.ok(gone.includes(part), part);
  assert.match(lostServerText("refused", "", "foveal serve"), /started again.*log in in another tab/);
  assert.deepEqual(["live", "connecting", "paused", "loggedOut"].map((status) => lostServerText(status, "", "")), ["", "", "", ""]);
});

test("a connection that works starts the delays anew", (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const { feed, opened } = followed();
  feed.start();
  for (let round = 0; round < 20; round += 1) {
    opened.at(-1).onState("live");
    opened.at(-1).onState("closed");
    context.mock.timers.tick(RECONNECT_DELAYS_MS[0]);
  }
  assert.deepEqual([opened.length, feed.status], [21, "reconnecting"]);
});

test("a pause cancels a planned attempt", (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const { feed, opened } = followed();
  feed.start();
  opened[0].onState("closed");
  feed.pause();
  context.mock.timers.tick(60_000);
  assert.deepEqual([opened.length, feed.status], [1, "paused"]);
});

// Nothing is drawn here.
globalThis.requestAnimationFrame = () => 0;

/** A page with a session of three messages and two requests. */
function opened(state) {
  const timeline = new TimelineState({
    id: "s",
    rows: [0, 1, 2].map((seq) => ({ seq, kind: "user_said" })),
    changes: [0, 1, 2].map((seq) => ({ at: seq, key: `e${seq}`, level: "full", units: 1 })),
    requests: [{ number: 1, at: 0 }, { number: 2, at: 2 }],
  });
  const app = { timeline, state: new AppState({ ...initialState(), point: 2, ...state }) };
  app.append = (part) => timeline.append(part);
  const news = [];
  return { app, news, append: (part) => appendLive(app, part, (count) => news.push(count)) };
}

test("a timeline from event 0 replaces everything, and what was chosen of it", () => {
  const { app, news, append } = opened({ request: 1, compare: { a: 0, b: 1 }, selected: "e2", follow: false });
  append({ id: "s", rows: [{ seq: 0, kind: "noted" }], changes: [], requests: [], next: 1 });
  const { point, request, compare, selected, follow } = app.state.current;
  assert.deepEqual(
    [app.timeline.rows.map((row) => row.kind), app.timeline.requests, app.timeline.at(0).items()],
    [["noted"], [], []],
  );
  assert.deepEqual([point, request, compare, selected, follow], [0, -1, { a: -1, b: -1 }, "", true]);
  assert.deepEqual(news, [0]);
});

test("a regrouped timeline keeps the point and the message that are still there", () => {
  const { app, news, append } = opened({ request: 0, selected: "e1", point: 1, follow: false });
  const rows = [0, 1, 2, 3].map((seq) => ({ seq, kind: "tool_returned" }));
  append({ id: "s", generation: 7, rows, changes: [], requests: [{ number: 1, at: 1 }], next: 4 });
  const { point, request, selected, follow } = app.state.current;
  assert.deepEqual([point, request, selected, follow], [1, -1, "e1", false]);
  assert.deepEqual([app.timeline.last, app.timeline.generation, news], [3, 7, [1]]);
});

test("a continuation leaves what was chosen", () => {
  const { app, append } = opened({ request: 0, compare: { a: 0, b: 1 }, point: 0, follow: false });
  append({ id: "s", first: 3, first_request: 2, rows: [{ seq: 3, kind: "user_said" }], next: 4 });
  assert.deepEqual([app.timeline.requests.length, app.state.current.request], [2, 0]);
  assert.deepEqual(app.state.current.compare, { a: 0, b: 1 });
});
