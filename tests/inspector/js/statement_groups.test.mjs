import assert from "node:assert/strict";
import test from "node:test";

import {
  groupStatements,
  placeOfStatement,
  statementsPoint,
  statementsSentence,
} from "../../../src/foveal/inspector/static/statement_groups.js";
import { TimelineState } from "../../../src/foveal/inspector/static/timeline_state.js";

const said = (handle, text, shown = "verbatim", replaced_by = "") => ({ handle, text, kind: "rule", shown, replaced_by });
const STATEMENTS = [
  said("e1", "Never push to main.", "record", "e9"),
  said("e1", "Use tabs.", "record"),
  said("e5", "The budget is 12,450 EUR.", "nowhere"),
  said("e9", "You can push to main now."),
  said("e9", "The deadline is 2 April."),
];

test("what holds and is shown nowhere, what is shown, and what was replaced are apart, newest first", () => {
  const groups = groupStatements(STATEMENTS);
  const texts = (messages) => messages.map(({ key, statements }) => [key, statements.map((one) => one.text)]);
  assert.deepEqual(texts(groups.unseen), [["e5", ["The budget is 12,450 EUR."]]]);
  assert.deepEqual(texts(groups.holding), [
    ["e9", ["You can push to main now.", "The deadline is 2 April."]],
    ["e1", ["Use tabs."]],
  ]);
  assert.deepEqual(texts(groups.replaced), [["e1", ["Never push to main."]]]);
});

test("a statement that was replaced is not missed", () => {
  assert.deepEqual(groupStatements([said("e1", "Use tabs.", "nowhere", "e3")]).unseen, []);
});

test("the sentence counts the places", () => {
  assert.equal(
    statementsSentence(STATEMENTS),
    "4 statements hold: 2 in their messages, 1 in a record, 1 shown nowhere. 1 was replaced later.",
  );
  assert.equal(statementsSentence([said("e1", "Use tabs.")]), "1 statement holds: 1 in its message.");
  assert.equal(statementsSentence([said("e1", "Use tabs.", "record", "e3")]), "0 statements hold. 1 was replaced later.");
  assert.match(statementsSentence([]), /no rule, correction or fact/);
  assert.equal(placeOfStatement(said("e1", "Use tabs.", "record")), "in a record");
});

test("answers and results change no statement", () => {
  const kinds = ["opened", "user_said", "model_said", "tool_returned", "used", "compacted", "model_said"];
  const timeline = new TimelineState({ id: "s", rows: kinds.map((kind, seq) => ({ seq, kind })) });
  assert.deepEqual([0, 1, 2, 4, 5, 6, 99].map((point) => statementsPoint(timeline, point)), [0, 1, 1, 1, 5, 5, 5]);
  assert.equal(statementsPoint(new TimelineState({ id: "s" }), -1), -1);
});
