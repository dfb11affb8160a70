import assert from "node:assert/strict";
import test from "node:test";

import { requestJson } from "../../../src/foveal/inspector/static/request_json.js";

test("the body of the command is the request", () => {
  const body = { model: "gpt", messages: [{ role: "user", content: "END\n<<'END'" }] };
  const curl = `curl -sS address \\\n  --data-binary @- <<'END_'\n${JSON.stringify(body)}\nEND_\n`;
  assert.deepEqual(JSON.parse(requestJson({ at: 3, curl })), body);
});

test("without a command the parts are put together", () => {
  const sent = {
    at: 3,
    system: "Be brief.",
    tools: '[{"name": "read"}]',
    messages: [{ json: '{"role": "user"}' }],
  };
  assert.deepEqual(JSON.parse(requestJson(sent)), {
    tools: [{ name: "read" }],
    system: "Be brief.",
    messages: [{ role: "user" }],
  });
});

test("a body that is not JSON is not taken for one", () => {
  const sent = { at: 3, curl: "curl <<'END'\nnot json\nEND\n", messages: [{ json: "broken" }] };
  assert.deepEqual(JSON.parse(requestJson(sent)), { messages: ["broken"] });
});
