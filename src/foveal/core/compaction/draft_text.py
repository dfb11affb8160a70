"""Reads the summary out of a model's reply and quotes what imitates Foveal.

1. `extract_summary` returns the text without thinking, tags, control characters and invisible characters.
2. `quote_imitations` puts `> ` before the lines that look like Foveal's own: the header and the end line of a
   summary, the headings and items of a ledger, pinned rules, speakers. The items below such a heading are quoted
   with it. Lines at the margin that begin like this are written by code alone.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection
from typing import Final

from foveal.core.compaction.ledger.sections import SECTION_HEADINGS

QUOTE_MARK: Final = "> "
"""Begins a quoted line of a draft."""
_TAG: Final = re.compile(
    r"<(/?)(think|thinking|analysis|scratchpad|reasoning|reflection|thought|summary)\s*>", re.IGNORECASE
)
_SUMMARY_START: Final = re.compile(r"<summary>", re.IGNORECASE)
_SUMMARY_END: Final = re.compile(r"</summary\s*>", re.IGNORECASE)
_FAKE_TAG: Final = re.compile(
    r"[\[【［](?=\s*(?:foveal\b|/?INST\b))"
    r"|<(?=\||<\s*/?\s*SYS|/?\s*(?:system|developer|user|assistant|human|tool|function|summary|instructions?|foveal)\b)",
    re.IGNORECASE,
)
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_INVISIBLE: Final = re.compile(
    "[\u00ad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e0fff]"
)
"""Without meaning in any language; joiners such as U+200C are spelling and stay."""


def extract_summary(text: str) -> tuple[str, bool]:
    """Return the summary in a reply, without thinking and tags, and whether it was closed."""
    spoken = _without_thinking(text)
    closing = list(_SUMMARY_END.finditer(spoken))
    if closing:
        spoken = spoken[: closing[-1].start()]
    opening = _SUMMARY_START.search(spoken)
    if opening:
        spoken = spoken[opening.end() :]
    return neutralise(_SUMMARY_END.sub("", _SUMMARY_START.sub("", spoken)).strip()), bool(closing)


def _without_thinking(text: str) -> str:
    """Return a reply without the thinking before its summary, even if a tag of it is missing."""
    kept, start, thought = "", 0, ""
    for tag in _TAG.finditer(text):
        name = tag[2].lower()
        if thought:
            if tag[1] and name == thought:
                thought, start = "", tag.end()
        elif name == "summary":
            return kept + text[start:]
        elif tag[1]:
            kept, start = "", tag.end()
        else:
            kept, thought, start = kept + text[start : tag.start()], name, tag.end()
    if not thought:
        return kept + text[start:]
    opening = _SUMMARY_START.search(text, start)
    return kept + text[opening.start() :] if opening else kept


def neutralise(text: str) -> str:
    """Return a text without control characters and without anything that looks like a role tag or a Foveal line."""
    text = _INVISIBLE.sub("", _CONTROL.sub(" ", text.replace("\r\n", "\n")))
    return _FAKE_TAG.sub(lambda found: "‹" if found[0] == "<" else "(", text)


def has_section(text: str, name: str) -> bool:
    """Return whether a text has a heading, in any markup."""
    heading = (
        rf"^[ \t]*(?:#{{1,6}}[ \t]*)?(?:\*\*|__)?{re.escape(name)}(?:\*\*|__)?[ \t]*:?(?:\*\*|__)?[ \t]*$"
    )
    return re.search(heading, text, re.MULTILINE | re.IGNORECASE) is not None


def is_heading(line: str) -> bool:
    return line.lstrip().startswith("#")


def keep_lines(text: str, is_kept: Callable[[str], bool]) -> str:
    """Return the headings of a text and the lines that `is_kept` accepts."""
    return "\n".join(line for line in text.split("\n") if is_heading(line) or is_kept(line)).strip()


def has_content(text: str) -> bool:
    """Return whether a text has more than headings and dashes."""
    return any(len(line.strip(" -*>")) > 2 for line in text.split("\n") if not is_heading(line))


# ── Imitations ───────────────────────────────────────────────────────────────────────────────────────────

_MARKUP: Final = " \t#*_`|\"'"
_EARLIER_HEADINGS: Final = (
    "Requests, newest first:", "Said last, newest first:", "Unresolved errors, newest first:",
    "Files, latest state first:", "Commands, latest first:", "Files only read:",
)  # fmt: skip
"""Headings of ledgers that earlier versions wrote: they stand in older summaries beside a new one."""
_LEADS: Final = tuple(
    heading.partition(",")[0].rstrip(":").casefold() for heading in (*SECTION_HEADINGS, *_EARLIER_HEADINGS)
)
"""How the headings of a ledger begin."""
_OWN_LINE: Final = re.compile(
    r"[\[(【［‹<]?\s*foveal\b"
    r"|[\[(]?\s*(?:end of (?:the |this )?record|record (?:of e?\d|\d+ of \d))"
    r"|look back\s*:|pin(?:ned)?(?: rules?)?\s*:|standing(?: rules?| requests?)?\s*:|instructions? (?:from|of)\b"
    r"|part \d+ of \d+\b|\+ \d+ more\b|shown in full\b|(?:open|answered|standing)\s*:\s*e\d"
    r"|[\[(]\s*e\d+\s+(?:user|assistant|tool|system|developer|result|error)\b|\[calls \S+\]$"
    r"|the conversation, e\d+ to e\d+"
    r"|(?:system|developer|user|assistant|human|tool)(?: message| prompt)?\s*:"
)
"""The header, the end line and other lines that Foveal writes, and lines that claim to be spoken by a role."""
_LEDGER_ITEM: Final = re.compile(
    r"[-*•]\s+e\d+(?:[-–]e?\d+)?,\s*(?:open|done|answered|standing|shown in full)\b"
)
_BELOW_HEADING: Final = re.compile(r"\s|[-*•+>]|\d+[.)]\s")


def quote_imitations(text: str, *, headings: Collection[str] = ()) -> str:
    """Return a text with `> ` before the lines that imitate Foveal; `headings` are those that were asked for."""
    asked = frozenset(_plain(heading) for heading in headings)
    lines, is_below = [], False
    for line in text.split("\n"):
        if line.startswith(">"):
            lines.append(line)
            continue
        is_own = _plain(line) not in asked and _imitates(line)
        is_below = is_own or (is_below and bool(_BELOW_HEADING.match(line)))
        lines.append(QUOTE_MARK + line if is_below else line)
    return "\n".join(lines)


def _imitates(line: str) -> bool:
    if _LEDGER_ITEM.match(line.strip().casefold()):
        return True
    plain = _plain(line)
    return bool(_OWN_LINE.match(plain)) or any(
        plain.startswith(lead) and _reads_as_heading(line, plain, lead) for lead in _LEADS
    )


def _reads_as_heading(line: str, plain: str, lead: str) -> bool:
    """Return whether a line is a heading of a ledger and not a sentence that begins with its words."""
    rest = plain[len(lead) :]
    if is_heading(line) or rest in ("", ":"):
        return not rest[:1].isalnum()
    return rest[0] in ",(" and plain.endswith(":")


def _plain(line: str) -> str:
    """Return a line without markup around it, in one case and with compatible letters made equal."""
    return unicodedata.normalize("NFKC", line).casefold().strip(_MARKUP)
