"""What the server did, as lines of JSON: one a request, a turn, a reduction, an error.

Never the text of a message, a header, a key or a query. So an error is told by its type and by the places in the
code that it passed, without its words; and so is what other libraries log, whose words nobody has checked.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TextIO

import msgspec

from foveal.core.log.events import REDUCTIONS, CompactionFailed, Overflowed, kind
from foveal.server.runtime import EventsStored, Exchanged, ServiceEvent, TurnEnded

NAME: Final = "foveal.server"
PLACES: Final = 12
"""The innermost places of an error that are told."""
OURS: Final = "foveal."
"""Loggers whose words are ours, too."""
LONGEST: Final = 200
_TOLD: Final = (*REDUCTIONS, CompactionFailed, Overflowed)
_log: Final = logging.getLogger(NAME)


def tell(
    event: str,
    fields: Mapping[str, Any] | None = None,
    *,
    level: int = logging.INFO,
    problem: BaseException | None = None,
) -> None:
    """Write one line; `fields` are numbers and short names of ours."""
    if _log.isEnabledFor(level):
        told = {name: _short(value) for name, value in (fields or {}).items()}
        if problem is not None:
            told |= {"error": type(problem).__name__, "places": places(problem)}
        _log.log(level, event, extra={"fields": told})


def watch(occurrence: ServiceEvent) -> None:
    """Write down what the service tells."""
    where = {"tenant": occurrence.tenant, "session": occurrence.session}
    match occurrence:
        case TurnEnded():
            level = logging.WARNING if occurrence.why == "failed" else logging.INFO
            tell("turn", where | _turn(occurrence), level=level)
        case Exchanged():
            tell("exchange", where | _exchange(occurrence))
        case EventsStored():
            kinds = Counter(kind(event.fact) for event in occurrence.events if isinstance(event.fact, _TOLD))
            if kinds:
                tell("reduced", where | kinds)


def _turn(turn: TurnEnded) -> dict[str, Any]:
    told = {"turn": turn.turn, "model": turn.model, "why": turn.why, "ms": _ms(turn.seconds)}
    return told | ({"error": turn.problem} if turn.problem else {})


def _exchange(done: Exchanged) -> dict[str, Any]:
    return {
        "dialect": done.dialect,
        "model": done.model,
        "status": done.status,
        "ms": _ms(done.seconds),
        "added_ms": _ms(done.added),
        "tokens": done.tokens,
        "whole": done.whole,
        "recovered": done.recovered,
        "streamed": done.streamed,
    }


def places(problem: BaseException) -> list[str]:
    """Where an error came from, without a word of it."""
    frames = traceback.extract_tb(problem.__traceback__)[-PLACES:]
    return [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]


def _short(value: Any) -> Any:
    """Names that clients choose are told, but not at any length."""
    return value[:LONGEST] if isinstance(value, str) else value


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────


class JsonLines(logging.Formatter):
    """A record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {"at": at.replace("+00:00", "Z"), "level": record.levelname.lower()}
        if record.name == NAME:
            line |= {"event": str(record.msg), **getattr(record, "fields", {})}
        elif record.name.startswith(OURS):
            line |= {"event": "note", "logger": record.name, "note": _short(record.getMessage())}
        else:
            line |= {"event": "library", "logger": record.name, "line": f"{record.module}:{record.lineno}"}
            if record.exc_info and record.exc_info[1] is not None:
                line |= {"error": type(record.exc_info[1]).__name__, "places": places(record.exc_info[1])}
        return msgspec.json.encode(line, enc_hook=str).decode()


def to_stderr(stream: TextIO | None = None) -> None:
    """From here on the process logs in this way, and in no other: those of libraries from warnings on."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    for other in list(root.handlers):
        root.removeHandler(other)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("foveal").setLevel(logging.INFO)
