import assert from "node:assert/strict";
import test from "node:test";

import { ANSWER_MS, StatusLine } from "../../../src/foveal/inspector/static/status_line.js";

/** A status line and the texts that it has shown. */
function shown(context) {
  context.mock.timers.enable({ apis: ["setTimeout", "Date"] });
  const texts = [];
  return { line: new StatusLine((text) => texts.push(text)), texts };
}

test("news wait until an answer has been shown for a while", (context) => {
  const { line, texts } = shown(context);
  line.answer("e12 is taken back.");
  context.mock.timers.tick(1_000);
  line.news("1 new event.");
  line.news("2 new events.");
  context.mock.timers.tick(ANSWER_MS - 1_001);
  assert.deepEqual(texts, ["e12 is taken back."]);
  context.mock.timers.tick(1);
  assert.deepEqual(texts, ["e12 is taken back.", "2 new events."]);
});

test("the next answer is shown at once, and news before it are dropped", (context) => {
  const { line, texts } = shown(context);
  line.answer("First.");
  line.news("1 new event.");
  line.answer("Second.");
  context.mock.timers.tick(2 * ANSWER_MS);
  assert.deepEqual(texts, ["First.", "Second."]);
});

test("news without an answer before are shown at once", (context) => {
  const { line, texts } = shown(context);
  line.answer("");
  line.news("1 new event.");
  assert.deepEqual(texts, ["", "1 new event."]);
});
