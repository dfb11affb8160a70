/**
 * Words of the page with their meanings, and the control that explains one where it stands.
 *
 * The control is a button that shows the meaning beside it: with a click, with Enter, and to a screen reader as what
 * belongs to the button. Escape, or a click elsewhere, hides it.
 *
 * @module
 */

import { el, on } from "./dom.js";
import { LEVELS } from "./event_kinds.js";

/** @typedef {import("./dom.js").Child} Child */

/** Pixels between a word, its meaning, and the edge of the window. */
const NOTE_GAP_PX = 6;

/**
 * What each word means: name, mark if it has one, meaning.
 * @type {Record<string, {name: string, mark?: string, meaning: string}>}
 */
export const WORDS = {
  level: {
    name: "Level",
    meaning:
      "How the request shows a message: full, clipped, masked, summarised or dropped. The log keeps every message whole, so each level can be taken back.",
  },
  ...levelWords(),
  branch: {
    name: "Branch",
    meaning:
      "A part of the conversation that was replaced by its result when it ended. Its lane is folded then: it hides the rows that requests do not show.",
  },
  reduction: {
    name: "Reduction",
    meaning: "An event that makes the request shorter: a clip, a mask, a summary or a drop. Undo takes it back.",
  },
  pays: {
    name: "Pays after … calls",
    meaning:
      "A reduction changes the beginning of the request, so the provider reads what stands behind it again, at a higher price. Each later call is smaller. After this many calls the smaller requests have saved more than the change has cost.",
  },
  saved: {
    name: "Saved",
    meaning:
      "An estimate: what sending every message with each request would have cost with an ideal cache, minus what was spent. It can be negative early on, or if the provider's cache held less.",
  },
  miss: {
    name: "Miss",
    meaning:
      "A part of the request that the provider has read before, and reads again at the full price, because the cache has expired or something before that part has changed.",
  },
  read: { name: "Read", meaning: "Tokens from the provider's cache, mostly at a tenth of the price." },
  written: { name: "Written", meaning: "New tokens that the provider has put into its cache, so that the next request can read them there." },
  uncached: { name: "Uncached", meaning: "New tokens at the full price, which were not put into the cache." },
  estimated: { name: "Estimated", meaning: "The provider reported no usage for this request: the size is Foveal's own count." },
  mark: {
    name: "Cache mark",
    mark: "|",
    meaning: "A place where the client asks the provider to keep everything up to there in its cache.",
  },
  unseen: {
    name: "Not visible",
    meaning:
      "A rule, a correction or a fact that the user stated, that no later message replaces, and that stands neither in its message nor in a record of the request. It compares words: a summary may say it in others.",
  },
  surprise: {
    name: "Surprise",
    meaning:
      "How many bits per byte more it takes to write the step that followed, for a coder that has read the request, than for one that has read the whole history. 0: nothing was missing. 0.02 is little, 0.2 is much. It is an estimate by words, measured at a sample of the steps.",
  },
};

/**
 * The meanings of the levels.
 * @returns {Record<string, {name: string, mark: string, meaning: string}>}
 */
function levelWords() {
  /** @type {Record<string, {name: string, mark: string, meaning: string}>} */
  const words = {};
  for (const [level, { name, mark, meaning, more }] of Object.entries(LEVELS)) {
    words[level] = { name, mark, meaning: `${meaning[0].toUpperCase()}${meaning.slice(1)}. ${more}` };
  }
  return words;
}

/**
 * Return a word with a button's behaviour: it shows what the word means.
 * @param {string} word a key of `WORDS`
 * @param {Child | Child[]} [text] what is shown instead of the name
 * @param {string} [kind] a further class
 * @returns {HTMLElement}
 */
export function term(word, text, kind = "") {
  const known = WORDS[word];
  if (!known) return el("span", { class: kind || null }, text ?? word);
  const button = el("button", { type: "button", class: `term ${kind}`.trim() }, text ?? known.name);
  const note = el("span", { class: "term-note", popover: "auto" }, el("strong", null, known.name), ` ${known.meaning}`);
  button.popoverTargetElement = note;
  on(note, "toggle", () => placeNote(note, button));
  return el("span", { class: "term-place" }, button, note);
}

/**
 * Put a meaning below its word, or above it where there is no room.
 * @param {HTMLElement} note
 * @param {HTMLElement} button
 * @returns {void}
 */
function placeNote(note, button) {
  const word = button.getBoundingClientRect();
  const { width, height } = note.getBoundingClientRect();
  const { clientWidth, clientHeight } = document.documentElement;
  const left = Math.max(NOTE_GAP_PX, Math.min(word.left, clientWidth - width - NOTE_GAP_PX));
  const below = word.bottom + NOTE_GAP_PX;
  const isBelow = below + height <= clientHeight || word.top < height;
  note.style.setProperty("left", `${left}px`);
  note.style.setProperty("top", `${isBelow ? below : word.top - height - NOTE_GAP_PX}px`);
}
