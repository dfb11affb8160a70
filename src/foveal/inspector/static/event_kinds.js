/**
 * Words and marks for the kinds of events and the levels of messages.
 *
 * @module
 */

/**
 * @typedef {"user" | "assistant" | "result" | "instructions" | "pinned" | "note" | "reduction" | "usage" | "other"} Role
 */

/**
 * The roles in the order in which filters list them, with their names.
 * @type {[Role, string][]}
 */
export const ROLES = [
  ["user", "User"],
  ["assistant", "Assistant"],
  ["result", "Tool result"],
  ["instructions", "Instructions"],
  ["pinned", "Pinned"],
  ["note", "Note"],
  ["reduction", "Reduction"],
  ["usage", "Usage"],
  ["other", "Other"],
];

/** @type {Record<string, {role: Role, name: string, icon: string}>} */
const KINDS = {
  opened: { role: "other", name: "Opened", icon: "○" },
  equipped: { role: "other", name: "Tools", icon: "⚒" },
  instructed: { role: "instructions", name: "Instructions", icon: "§" },
  user_said: { role: "user", name: "User", icon: "▸" },
  model_said: { role: "assistant", name: "Assistant", icon: "◆" },
  tool_returned: { role: "result", name: "Result", icon: "↳" },
  pinned: { role: "pinned", name: "Pinned", icon: "◉" },
  superseded: { role: "other", name: "Replaced", icon: "⇢" },
  prioritised: { role: "other", name: "Priority", icon: "⇅" },
  steered: { role: "other", name: "Steered", icon: "⊳" },
  noted: { role: "note", name: "Note", icon: "✎" },
  used: { role: "usage", name: "Usage", icon: "Σ" },
  snapshot_taken: { role: "other", name: "Snapshot", icon: "▣" },
  erased: { role: "other", name: "Erased", icon: "⌫" },
  clipped: { role: "reduction", name: "Clipped", icon: "✂" },
  branched: { role: "other", name: "Branch", icon: "↱" },
  branch_ended: { role: "other", name: "Branch ended", icon: "↲" },
  marked: { role: "other", name: "Marked", icon: "¶" },
  masked: { role: "reduction", name: "Masked", icon: "▒" },
  dropped: { role: "reduction", name: "Dropped", icon: "✕" },
  compacted: { role: "reduction", name: "Summarised", icon: "Ξ" },
  compaction_failed: { role: "reduction", name: "Summary failed", icon: "!" },
  expanded: { role: "reduction", name: "Expanded", icon: "⤢" },
  overflowed: { role: "other", name: "Overflow", icon: "!" },
  reverted: { role: "reduction", name: "Undone", icon: "↶" },
  rewound: { role: "reduction", name: "Rewound", icon: "⟲" },
};

/**
 * The levels of a message, most detailed first: name, mark, what it means, and what can be done about it.
 * @type {Record<string, {name: string, mark: string, meaning: string, more: string}>}
 */
export const LEVELS = {
  full: { name: "Full", mark: "●", meaning: "shown as it was said", more: "Nothing of it is left out." },
  clipped: {
    name: "Clipped",
    mark: "◐",
    meaning: "only parts of the text are shown",
    more: "A marker counts what is left out. Undo shows the whole text again.",
  },
  masked: {
    name: "Masked",
    mark: "▒",
    meaning: "a placeholder stands for the text",
    more: "It says what the text was and how to get it back. Undo or Restore shows the text again.",
  },
  summarised: {
    name: "Summarised",
    mark: "Ξ",
    meaning: "hidden; a summary covers it",
    more: "The summary says in fewer words what the messages said. Expand shows them again for a while, Undo for good.",
  },
  dropped: {
    name: "Dropped",
    mark: "✕",
    meaning: "hidden; a notice covers it",
    more: "The notice names the events, and nothing else of them is shown. Undo or Restore shows the message again.",
  },
  removed: {
    name: "Removed",
    mark: "⟲",
    meaning: "no longer part of the conversation",
    more: "The conversation was taken back to an earlier message, or a newer version replaced this one: no reduction did that.",
  },
};

/**
 * Levels from the most to the least conspicuous: a pixel of the map that covers several rows shows the first one.
 * "later" is an event that was not yet said, "" one that is no message.
 */
export const LEVEL_ORDER = ["dropped", "summarised", "masked", "clipped", "removed", "full", "later", ""];

/**
 * Return the role of an event.
 * @param {string} kind
 * @returns {Role}
 */
export function roleOf(kind) {
  return KINDS[kind]?.role ?? "other";
}

/**
 * Return the name of a kind of event for people.
 * @param {string} kind
 * @returns {string}
 */
export function kindName(kind) {
  return KINDS[kind]?.name ?? (kind.replaceAll("_", " ") || "Unknown");
}

/**
 * Return the character that stands for a kind of event.
 * @param {string} kind
 * @returns {string}
 */
export function kindIcon(kind) {
  return KINDS[kind]?.icon ?? "·";
}

/**
 * Return the name of a level for people.
 * @param {string} level
 * @returns {string}
 */
export function levelName(level) {
  return LEVELS[level]?.name ?? level;
}

/**
 * Return the character that stands for a level.
 * @param {string} level
 * @returns {string}
 */
export function levelMark(level) {
  return LEVELS[level]?.mark ?? "·";
}
