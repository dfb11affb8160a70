import assert from "node:assert/strict";
import test from "node:test";

import { LiveFeed, RECONNECT_DELAYS_MS } from "../../../../src/foveal/apps/inspector/static/live.js";

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

test("a closed stream is opened again after growing delays, then the feed ends", (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const { feed, opened } = followed();
  feed.start();
  RECONNECT_DELAYS_MS.forEach((delay, index) => {
    opened[index].onState("closed");
    assert.equal(feed.status, "reconnecting");
    context.mock.timers.tick(delay - 1);
    assert.equal(opened.length, index + 1);
    context.mock.timers.tick(1);
    assert.equal(opened.length, index + 2);
  });
  opened.at(-1).onState("closed");
  assert.equal(feed.status, "ended");
  assert.ok(opened.every((connection) => connection.isClosed));
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
