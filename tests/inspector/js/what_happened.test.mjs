import assert from "node:assert/strict";
import test from "node:test";

import { TimelineState } from "../../../src/foveal/inspector/static/timeline_state.js";
import {
  costLines,
  missLines,
  reductionLines,
  sessionSentence,
  surpriseLines,
  unseenLines,
} from "../../../src/foveal/inspector/static/what_happened.js";
import { adviceLines } from "../../../src/foveal/inspector/static/what_to_do.js";

const EMPTY = new TimelineState({ id: "s" });
const UNKNOWN = { statements: null, surprises: null };

/** Three requests: the second read nothing from the cache, and the third has no usage. */
const REQUESTS = [
  { number: 1, at: 1, answer: 2, used: 3, units: 900, tokens: 1_000, window: 4_000, written: 1_000, cost: 0.004 },
  {
    number: 2,
    at: 4,
    answer: 5,
    used: 6,
    tokens: 2_000,
    window: 4_000,
    written: 2_000,
    cost: 0.008,
    miss: { cause: "expired", text: "12 min after\nthe last request", tokens: 1_000, lost: 0.0035 },
  },
  { number: 3, at: 7, answer: 8, tokens: 2_400, window: 4_000 },
];
const ROWS = [
  { seq: 0, kind: "opened", at: 0 },
  { seq: 1, kind: "user_said", at: 1 },
  { seq: 2, kind: "model_said", at: 61 },
  { seq: 3, kind: "used", at: 61 },
  { seq: 4, kind: "tool_returned", at: 62, tool: "look" },
  { seq: 5, kind: "model_said", at: 100 },
  { seq: 6, kind: "used", at: 100 },
  { seq: 7, kind: "masked", at: 110 },
  { seq: 8, kind: "model_said", at: 121 },
];
const MASKED = { seq: 7, kind: "masked", before: 2_300, after: 2_000, keys: ["e4"], count: 1, pays_after: 22 };
const timelineOf = (given = {}) =>
  new TimelineState({ id: "s", format: "foveal", rows: ROWS, requests: REQUESTS, reductions: [MASKED], spent: 0.012, saved: -0.001, ...given });
const labels = ({ lines }) => lines.map(({ label }) => label);

test("a session without requests has nothing to say but its size", () => {
  assert.equal(sessionSentence(EMPTY), "This session has no events yet.");
  const begun = timelineOf({ requests: [], reductions: [], spent: null, saved: null });
  assert.equal(sessionSentence(begun), "9 events in 2 min 1 s. No request was answered yet.");
  const found = [costLines(begun), missLines(begun), reductionLines(begun), unseenLines(begun, []), surpriseLines(begun, { at: 8 })];
  for (const { lead, lines } of [...found, adviceLines(begun, UNKNOWN)]) assert.deepEqual([lead, lines], [undefined, []]);
});

test("the sentence has the size of the session and of its newest request", () => {
  assert.equal(
    sessionSentence(timelineOf()),
    "9 events and 3 requests in 2 min 1 s. The newest request has about 2,400 tokens, 60.0 % of the window.",
  );
});

test("the known and the unknown cost add up to all requests", () => {
  assert.deepEqual(
    costLines(timelineOf()).lines.map(({ label, text }) => `${label} ${text}`.trim()),
    [
      "$0.01 known, for 2 of 3 requests",
      "1 request at an unknown cost, without usage from the provider",
      "About $0.0010 more than sending everything with an ideal cache so far",
      "0.0 % of 3,000 input tokens came from the cache",
    ],
  );
});

test("requests of unknown cost are counted by what is missing", () => {
  const timeline = timelineOf({ requests: [{ ...REQUESTS[0], cost: null }, REQUESTS[2]], spent: null, saved: null });
  assert.equal(costLines(timeline).lines[0].label, "2 requests");
  assert.equal(
    costLines(timeline).lines[0].text,
    "at an unknown cost: 1 without usage from the provider, 1 without a known price",
  );
});

test("a session without usage has an unknown cost, and advice to report usage", () => {
  const timeline = timelineOf({ requests: [REQUESTS[2]], reductions: [], spent: null, saved: null });
  assert.deepEqual(labels(costLines(timeline)), ["1 request"]);
  assert.match(missLines(timeline).lead, /^The provider reported no usage/);
  assert.deepEqual(labels(adviceLines(timeline, UNKNOWN)), ["Report usage"]);
});

test("a session without reductions hid nothing and saved nothing", () => {
  const timeline = timelineOf({ reductions: [] });
  assert.equal(reductionLines(timeline).lead, "Nothing was hidden: the model saw every message as it was said.");
  assert.ok(!JSON.stringify(costLines(timeline)).includes("sending everything"));
});

test("the largest misses come first, each with its cause, and lead to their requests", () => {
  const misses = [10, 40, 20, 30].map((tokens, index) => ({
    ...REQUESTS[1],
    number: index + 1,
    miss: { cause: "tools", text: "a tool was added", tokens, lost: null },
  }));
  const found = missLines(timelineOf({ requests: misses }));
  assert.deepEqual(labels(found), ["Request 2", "Request 4", "Request 3"]);
  assert.deepEqual(found.lines[0], {
    label: "Request 2",
    href: "#r2&panel=requests",
    text: "40 tokens read again (tools changed): a tool was added",
  });
  assert.deepEqual(found.rest, { label: "1 more miss", href: "#panel=requests" });
});

test("a reduction says what it hid, and a summary that failed is counted", () => {
  const failed = { seq: 9, kind: "compaction_failed" };
  const found = reductionLines(timelineOf({ reductions: [MASKED, failed] }));
  assert.equal(found.lead, "1 summary failed.");
  assert.equal(found.lines[0].href, "#e7&panel=reductions");
  assert.equal(found.lines[0].text, "1 result of look: 2,300 → 2,000 tokens");
  const undone = reductionLines(timelineOf({ reductions: [{ ...MASKED, undone: 8 }] }));
  assert.equal(undone.lines[0].text, "1 result of look: 2,300 → 2,000 tokens, undone by e8");
});

test("a statement that is shown nowhere is quoted, and one that is visible is not", () => {
  const said = (handle, text, shown) => ({ handle, text, kind: "rule", shown, replaced_by: "" });
  const statements = [said("e1", "Never push.", "nowhere"), said("e4", "Use tabs.", "verbatim")];
  assert.deepEqual(unseenLines(timelineOf(), statements), {
    lines: [{ label: "e1", href: "#panel=message&message=e1", text: "“Never push.”" }],
    rest: undefined,
  });
  assert.match(unseenLines(timelineOf(), [statements[1]]).lead, /shows every rule/);
  const [advice] = adviceLines(timelineOf(), { ...UNKNOWN, statements }).lines;
  assert.equal(advice.label, "Pin what still holds");
  assert.match(advice.text, /^1 statement of the user \(e1\) is not visible/);
});

test("a surprising step names what it quotes, how that was shown, and leads to both", () => {
  const changes = [
    { at: 4, key: "e4", level: "full" },
    { at: 7, key: "e4", level: "masked" },
  ];
  const found = { at: 8, steps: 40, measured: 1, mean: 0.31, worst: [{ answer: 8, bits: 0.31, gone: [["M8x40", "e4"]] }] };
  const { lead, lines } = surpriseLines(timelineOf({ changes }), found);
  assert.equal(lead, "Measured at 1 of 40 steps after the first reduction, spread evenly: on average 0.31 bits per byte.");
  assert.deepEqual(lines, [
    {
      label: "e8",
      href: "#r3&panel=message&message=e8",
      text: "0.31 bits per byte: it quotes “M8x40”, masked at that point, in ",
      also: { label: "e4", href: "#panel=message&message=e4" },
    },
  ]);
  const advice = adviceLines(timelineOf({ changes }), { statements: [], surprises: found });
  assert.ok(labels(advice).includes("Pin e4 while it is needed"));
});

test("a mean below nothing is nothing, and a step that quotes nothing is shown by its beginning", () => {
  const timeline = timelineOf({ rows: ROWS.map((row) => ({ ...row, preview: "It is done." })) });
  assert.equal(
    surpriseLines(timeline, { at: 8, steps: 1, measured: 1, mean: -0.012 }).lead,
    "Measured at 1 step after the first reduction: on average 0.00 bits per byte. No step lacked much.",
  );
  const { lines } = surpriseLines(timeline, { at: 8, steps: 1, measured: 1, mean: 0.3, worst: [{ answer: 8, bits: 0.3 }] });
  assert.equal(lines[0].text, "0.30 bits per byte: “It is done.”");
});

test("advice follows the figures: the cause of misses, a cut that has not paid, a request near its limit", () => {
  const { lines } = adviceLines(timelineOf({ limit: 2_500 }), UNKNOWN);
  assert.deepEqual(labels({ lines }), ["Keep the cache over pauses", "Try fewer cuts", "Compact with a focus", "Report usage"]);
  assert.match(lines[0].text, /^Cache expired 1 time: 1,000 tokens read again, \$0\.0035 more than from the cache\./);
  assert.match(lines[1].text, /^1 of 1 reduction has not paid so far: e7 pays after 22 calls, and 1 followed\./);
});

test("a recording of another agent leads to What if once its requests are large", () => {
  const recorded = { format: "claude_code", reductions: [], requests: [REQUESTS[0]] };
  assert.deepEqual(labels(adviceLines(timelineOf(recorded), UNKNOWN)), ["See what Foveal would save"]);
  const small = [{ ...REQUESTS[0], tokens: 900 }];
  assert.deepEqual(labels(adviceLines(timelineOf({ ...recorded, requests: small }), UNKNOWN)), []);
});

test("a small request gets no advice about what fills it, and a session without findings none at all", () => {
  const rows = ROWS.slice(0, 6);
  const changes = [{ at: 4, key: "e4", category: "results", units: 500 }];
  const labelsAt = (tokens) => {
    const requests = [{ number: 1, at: 4, answer: 5, used: 6, cost: 0.01, window: 4_000, tokens }];
    return adviceLines(timelineOf({ rows, changes, requests, reductions: [] }), UNKNOWN);
  };
  assert.deepEqual(labels(labelsAt(1_000)), ["Shorten results of look"]);
  assert.deepEqual(labelsAt(900), { lead: "Nothing: no figure stands out.", lines: [] });
});

test("the summary of a session is quick, however long it is", () => {
  const rows = Array.from({ length: 10_000 }, (_, seq) => ({ seq, kind: seq % 2 ? "model_said" : "tool_returned", tool: "look" }));
  const requests = rows.slice(0, 5_000).map(({ seq }) => ({ ...REQUESTS[1], number: seq + 1, at: 2 * seq, answer: 2 * seq + 1 }));
  const reductions = Array.from({ length: 500 }, (_, index) => ({ ...MASKED, seq: 20 * index, keys: [`e${20 * index}`] }));
  const timeline = timelineOf({ rows, requests, reductions });
  const begin = process.cpuUsage();
  for (const linesOf of [costLines, missLines, reductionLines]) assert.ok(linesOf(timeline).lines.length <= 5);
  assert.ok(adviceLines(timeline, UNKNOWN).lines.length > 0);
  assert.ok(process.cpuUsage(begin).user < 1_000_000);
});
