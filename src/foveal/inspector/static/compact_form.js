/**
 * Form "Compact now": the focus of the summary, and who writes it.
 *
 * @module
 */

import { el } from "./dom.js";
import { actionBar, UNDO_HINT, whyReadOnly } from "./message_actions.js";

/** @typedef {import("./types.js").App} App */
/** @typedef {import("./types.js").OfferedWriter} OfferedWriter */

/**
 * The writers of each session's place; asking for them loads the configuration of the server.
 * @type {WeakMap<object, Promise<OfferedWriter[]>>}
 */
const knownWriters = new WeakMap();

/**
 * Return the form with its focus field.
 * @param {App} app
 * @returns {HTMLElement}
 */
export function compactForm(app) {
  const focus = el("input", {
    type: "text",
    id: "compact-focus",
    maxlength: 2000,
    placeholder: "What the summary must keep, such as: the failing test and its cause",
  });
  const choice = createWriterChoice(app);
  const bar = actionBar(app, "compact", [
    {
      name: "Compact now",
      body: () => ({ action: "compact", focus: focus.value.trim(), writer: choice.select.value }),
      title: "Compact the session now?",
      get sentences() {
        return ["Foveal replaces old messages by a summary.", writerSentence(choice.writer()), UNDO_HINT];
      },
      waits: () => (choice.writer()?.calls_model === false ? "The summary is taken from the log" : "The model writes"),
    },
  ]);
  return el(
    "div",
    { class: "compact-form" },
    el("label", { for: "compact-focus" }, "Focus (optional)"),
    focus,
    choice.label,
    choice.select,
    bar,
  );
}

/**
 * @param {App} app
 * @returns {{label: HTMLElement, select: HTMLSelectElement, writer: () => OfferedWriter | undefined}}
 */
function createWriterChoice(app) {
  const label = el("label", { for: "compact-writer", hidden: true }, "Written by");
  const select = el("select", { id: "compact-writer", hidden: true });
  /** @type {OfferedWriter[]} */
  let writers = [];
  void loadWriters(app).then((found) => {
    writers = found;
    select.append(...found.map(({ name, title }) => el("option", { value: name }, title)));
    label.hidden = select.hidden = found.length === 0;
  });
  return { label, select, writer: () => writers.find(({ name }) => name === select.value) };
}

/**
 * Return who can write; nothing if the place offers no choice or does not answer, and then its default writer does.
 * @param {App} app
 * @returns {Promise<OfferedWriter[]>}
 */
function loadWriters(app) {
  if (whyReadOnly(app)) return Promise.resolve([]);
  let loading = knownWriters.get(app.data);
  if (!loading) {
    loading = app.data.writers().then(
      ({ writers = [] }) => writers.map((writer) => ({ ...writer, calls_model: writer.calls_model ?? false })),
      () => [],
    );
    knownWriters.set(app.data, loading);
  }
  return loading;
}

/**
 * @param {OfferedWriter | undefined} writer
 * @returns {string}
 */
function writerSentence(writer) {
  if (writer?.calls_model === false) return "The summary is taken from the log, without a model. It costs nothing.";
  const name = writer ? writer.title : "the model of the session";
  return `The summary is written by ${name}. You can cancel it, and closing the page cancels it too.`;
}
