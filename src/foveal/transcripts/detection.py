"""Which product wrote a file, by what only its lines have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from foveal.transcripts import claude_code, codex, data, openai, own, pi
from foveal.transcripts.lines import Line, NotJson, value
from foveal.transcripts.recording import UnreadableTranscript, words

LOOKED_AT: Final = 50
"""Lines that are looked at before giving up."""


def detect(first_lines: Iterable[bytes | str], *, path: str = "the recording") -> str:
    """The name of the format that these lines are in; raises `UnreadableTranscript` when it is none."""
    empty = True
    for line in first_lines:
        empty = False
        raw = line.encode("utf-8", "surrogateescape") if isinstance(line, str) else line
        try:
            found = _format(value(raw))
        except NotJson:
            continue
        if found:
            return found
    if empty:
        raise UnreadableTranscript(path, 0, "there is nothing in it")
    raise UnreadableTranscript(
        path, 1, "no known recording begins like this; say which `format` it has if you know it"
    )


def detect_lines(lines: Iterable[Line], *, path: str) -> str:
    return detect((line.raw for line in lines), path=path)


def _format(held: Any) -> str:
    if isinstance(held, Mapping):
        return next((name for name, test in _TESTS if test(held, words(held.get("type")))), "")
    return openai.NAME if any(openai.conversations(held)) else ""


def _foveal(held: Mapping[str, Any], kind: str) -> bool:
    fact = held.get("fact")
    return held.get("foveal") == "session" or ("seq" in held and isinstance(fact, Mapping) and "kind" in fact)


def _codex(held: Mapping[str, Any], kind: str) -> bool:
    if "payload" in held:
        return kind in codex.TYPES
    header = {"id", "timestamp"} <= held.keys() and not {"type", "role", "messages"} & held.keys()
    return "record_type" in held or (header and bool({"instructions", "git"} & held.keys()))


def _pi(held: Mapping[str, Any], kind: str) -> bool:
    if kind == "session":
        return "id" in held
    if not {"id", "parentId"} <= held.keys() and "timestamp" not in held:
        return False
    message = held.get("message")
    if kind == "message":
        return isinstance(message, Mapping) and "role" in message
    return "uuid" not in held and "sessionId" not in held and kind in pi.ENTRIES


def _claude_code(held: Mapping[str, Any], kind: str) -> bool:
    if kind == "summary":
        return "leafUuid" in held
    known = kind in claude_code.NOTES or kind in claude_code.MESSAGES
    return known and bool({"sessionId", "uuid", "parentUuid", "isSidechain", "messageId"} & held.keys())


def _data(held: Mapping[str, Any], kind: str) -> bool:
    return isinstance(held.get("messages"), list) and {"id", "source", "meta"} <= held.keys()


def _openai(held: Mapping[str, Any], kind: str) -> bool:
    return any(openai.conversations(held)) or "role" in held or kind in codex.ITEMS


_TESTS: Final = (
    (own.NAME, _foveal),
    (codex.NAME, _codex),
    (claude_code.NAME, _claude_code),
    (pi.NAME, _pi),
    (data.NAME, _data),
    (openai.NAME, _openai),
)
