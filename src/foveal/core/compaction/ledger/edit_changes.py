"""Tells in a few words what an edit changed, from the arguments of its call.

An edit with old and new text and a patch show the first line that differs and count the others, a file that was
written shows its first definition and its length, an inline command its expression. The words are the agent's own;
they are quoted and bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest
from typing import Final

from foveal.core.compaction.ledger.call_reader import (
    FIELD_KEYS_NEW,
    FIELD_KEYS_OLD,
    FIELD_KEYS_TEXT,
    FileAction,
    ReadCall,
    heredoc_body,
)
from foveal.core.compaction.ledger.sections import inline, word_start

MAX_CHANGE_CHARS: Final = 60
"""Characters of the old or the new line that are shown."""
_MAX_COMPARED_CHARS: Final = 4_000
_MAX_COMPARED_LINES: Final = 200
_QUOTE_MARKS: Final = ('"', "'", "`")
_DEFINITION: Final = re.compile(
    r"^[ \t]*(?:export |default |async |public |private |static |pub )*"
    r"(?:def|class|function|func|fn|interface|struct|enum|type|const)\s+\w+[^\n]{0,80}",
    re.MULTILINE,
)
_SED: Final = re.compile(r"(?<=['\"])(?:\d+(?:,\d+)?)?[sdaic](?=[/|#@,:\\ d'\"]).{0,200}?(?=['\"](?:\s|$))")
_HUNK: Final = re.compile(r"^@@[^\n@]*(?:@@)?[ \t]*([^\n]*)$", re.MULTILINE)


def describe_change(call: ReadCall, path: str, verb: FileAction) -> str:
    """Return what the call changed in the file, or "" if its arguments do not tell."""
    if verb in ("deleted", "moved"):
        others = [other for other, _ in call.touched if other != path] if verb == "moved" else []
        return f"to {inline(others[-1], 120)}" if others else ""
    texts = [text for _, text in call.fields]
    patch = next((text for text in texts if "\n@@" in text or "*** Begin Patch" in text), None)
    if patch is not None:
        return _patch_change(patch, path)
    if call.command is not None:
        return _command_change(max(texts, key=len, default=""), path, verb)
    old = _first_value(call.fields, FIELD_KEYS_OLD)
    new = _first_value(call.fields, FIELD_KEYS_NEW)
    if new is not None:
        return _pair_change(old or "", new)
    text = next((text for key, text in call.fields if key.endswith(FIELD_KEYS_TEXT) and text != path), "")
    return _text_change(text)


def _first_value(fields: Sequence[tuple[str, str]], keys: tuple[str, ...]) -> str | None:
    return next((text for key, text in fields if key.startswith(keys)), None)


def _pair_change(old: str, new: str) -> str:
    before, after = _lines(old), _lines(new)
    if not before:
        return f"+ {_quoted(_definition(new) or after[0])}" if after else ""
    if not after:
        return f"removed {_quoted(before[0])}"
    for left, right in zip_longest(before, after):
        if left != right:
            added = len(after) - len(before)
            if left is None or (added > 0 and left in after[after.index(right) :]):
                return f"+ {_quoted(_definition_among(after, before) or right)}"
            if right is None or (added < 0 and right in before):
                return f"removed {_quoted(left)}"
            return _arrow(left, right) + _more_changed(before, after)
    return ""


def _more_changed(before: Sequence[str], after: Sequence[str]) -> str:
    """Return how many more lines are new."""
    more = len({*after} - {*before}) - 1
    return f" and {more} more line{'s' * (more > 1)}" if more > 0 else ""


def _arrow(left: str, right: str) -> str:
    """Return both lines without their common beginning, where that is long."""
    same = 0
    while same < min(len(left), len(right)) and left[same] == right[same]:
        same += 1
    start = word_start(left, max(0, same - 16)) if same > MAX_CHANGE_CHARS // 2 else 0
    start = start if start <= same else max(0, same - 12)  # the beginning of a long word is left out
    lead = "…" if start else ""
    return f"{_quoted(lead + left[start:])} → {_quoted(lead + right[start:])}"


def _text_change(text: str) -> str:
    """Return the first definition or line of a file that was written, and its length."""
    lines = _lines(text)
    if not lines:
        return ""
    count = text.count("\n", 0, 200_000) + 1
    return f"{count:,} line{'s' * (count > 1)}, {_quoted(_definition(text) or lines[0])}"


def _patch_change(patch: str, path: str) -> str:
    """Return the first removed and added line of the file's part in a patch."""
    at = patch.find(path.removeprefix("./"), 0, 100_000)
    part = patch[max(0, at) : max(0, at) + _MAX_COMPARED_CHARS].partition("\n")[2]
    part = re.split(r"^(?:\*\*\* |diff )", part, maxsplit=1, flags=re.MULTILINE)[0]
    before, after = list(_marked_lines(part, "-")), list(_marked_lines(part, "+"))
    removed = next((line for line in before if line not in after), "")
    added = next((line for line in after if line not in before), "")
    if removed and added:
        return _arrow(removed, added) + _more_changed(before, after)
    if removed or added:
        return f"+ {_quoted(added)}" if added else f"removed {_quoted(removed)}"
    hunk = _HUNK.search(part)
    return f"at {_quoted(hunk[1])}" if hunk and hunk[1].strip() else ""


def _marked_lines(part: str, mark: str) -> Iterator[str]:
    for line in part.split("\n"):
        if line.startswith(mark) and not line.startswith(mark * 3) and line[1:].strip():
            yield line[1:].strip()


def _command_change(command: str, path: str, verb: FileAction) -> str:
    if verb == "written":
        return _text_change(heredoc_body(command, max(0, command.find(path))))
    expression = _SED.search(command, 0, 2_000)
    return _quoted(expression.group()) if expression else ""


def _definition(text: str) -> str:
    found = _DEFINITION.search(text, 0, _MAX_COMPARED_CHARS)
    return found.group().strip() if found else ""


def _definition_among(lines: Sequence[str], known: Sequence[str]) -> str:
    """Return the first definition that is new."""
    seen = set(known)
    return next((line for line in lines if line not in seen and _DEFINITION.match(line)), "")


def _lines(text: str) -> list[str]:
    lines = (line.strip() for line in text[:_MAX_COMPARED_CHARS].split("\n"))
    return list(islice((line for line in lines if line and not line.startswith("#!")), _MAX_COMPARED_LINES))


def _quoted(line: str) -> str:
    """Return a line between marks that do not occur in it, or without any."""
    short = inline(line, MAX_CHANGE_CHARS)
    mark = next((mark for mark in _QUOTE_MARKS if mark not in short), "")
    return f"{mark}{short}{mark}"
