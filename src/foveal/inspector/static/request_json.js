/**
 * The body of a request as JSON. All functions here are pure.
 *
 * @module
 */

/** @typedef {import("./types.js").SentRequest} SentRequest */

/** The line of the command that names the delimiter of the body. */
const BODY_DELIMITER = /<<'(\w+)'$/;

/**
 * Return the body of a request as indented JSON. The command that sends it has the body in the form of the provider;
 * without a command, the parts are put together under their common names.
 * @param {SentRequest} sent
 * @returns {string}
 */
export function requestJson(sent) {
  const body = commandBody(sent.curl ?? "") ?? {
    ...(sent.tools ? { tools: parsedOrText(sent.tools) } : {}),
    ...(sent.system ? { system: sent.system } : {}),
    messages: (sent.messages ?? []).map((message) => parsedOrText(message.json)),
  };
  return JSON.stringify(body, null, 2);
}

/**
 * Return the JSON value between the delimiters of a command; undefined if it has none.
 * @param {string} command
 * @returns {unknown}
 */
function commandBody(command) {
  const lines = command.split("\n");
  const start = lines.findIndex((line) => BODY_DELIMITER.test(line));
  const end = start < 0 ? -1 : lines.indexOf(BODY_DELIMITER.exec(lines[start])?.[1] ?? "", start);
  const value = end < 0 ? undefined : parsedOrText(lines.slice(start + 1, end).join("\n"));
  return typeof value === "string" ? undefined : value;
}

/**
 * @param {string} json
 * @returns {unknown}
 */
function parsedOrText(json) {
  try {
    return JSON.parse(json);
  } catch {
    return json;
  }
}
