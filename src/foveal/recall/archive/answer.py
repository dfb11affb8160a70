"""Texts of the archive's answers: titles of sessions, lists and search results.

Lines of Foveal begin with `[`, and text of a session with `> `, as in every answer of recall.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from foveal.core.redaction import scrub
from foveal.core.tokens.counter import Counter
from foveal.core.wire.event_text import RECALL_PREFIX, RECALL_READ, inline, quote_lines
from foveal.core.wire.safe_print import counted, one_line
from foveal.ports import Hit
from foveal.recall.archive.source import MAX_SESSION_TITLE_CHARS, SessionDetails, SessionEntry
from foveal.recall.search_answer import SearchAnswer

_MAX_FOLDER_CHARS = 200
_MAX_PROBLEM_CHARS = 300
_MAX_SHOWN_PROBLEMS = 3


def session_title(entry: SessionEntry, details: SessionDetails) -> str:
    """Return the line that describes a session, and its quoted title."""
    changed = "file changed" if entry.is_file_time else "active"
    parts = [entry.handle, details.kind, f"{changed} {format_time(entry.active)}"]
    parts += [counted(details.events, "event")] if details.events is not None else []
    parts += [inline(scrub(details.folder), max_chars=_MAX_FOLDER_CHARS)] if details.folder else []
    parts.append(f"id {inline(scrub(entry.name))}")
    title = one_line(scrub(details.title), width=MAX_SESSION_TITLE_CHARS)
    return f"[{'; '.join(parts)}]\n{quote_lines(title or '(no title)')}"


def format_time(at: float) -> str:
    """Return a time in UTC to the minute."""
    try:
        return time.strftime("%Y-%m-%d %H:%MZ", time.gmtime(at))
    except (ValueError, OverflowError, OSError):
        return "at an unknown time"


def recall_line(text: str) -> str:
    """Return a line that Foveal adds to an answer."""
    return f"{RECALL_PREFIX}{text}]"


def problem_lines(problems: Sequence[str]) -> list[str]:
    """Return a line about what could not be read, if there is anything."""
    return [recall_line(problem_text(problems))] if problems else []


def problem_text(problems: Sequence[str]) -> str:
    """Return what could not be read, redacted."""
    shown = "; ".join(
        inline(scrub(problem), max_chars=_MAX_PROBLEM_CHARS) for problem in problems[:_MAX_SHOWN_PROBLEMS]
    )
    more = (
        f"; and {len(problems) - _MAX_SHOWN_PROBLEMS:,} more" if len(problems) > _MAX_SHOWN_PROBLEMS else ""
    )
    return f"could not be read: {shown}{more}"


class SessionMatches(SearchAnswer):
    """The messages of one session in the answer to a search over several sessions."""

    def __init__(
        self, about: str, query: str, hits: Iterable[Hit], *, counter: Counter, tokens: int, limit: int
    ) -> None:
        """`about`: the lines that describe the session."""
        self._about = about
        super().__init__(query, hits, counter=counter, tokens=tokens, limit=limit)

    def _head(self, messages: int, matched: int) -> str:
        return self._about


def search_head(query: str, *, sessions: int, searched: int, left: int) -> str:
    """Return the first line of the answer to a search; `left` sessions were not searched completely."""
    where = f"{searched:,} session{'s' * (searched != 1)}"
    partly = f"searched {searched:,} of {searched + left:,} sessions so far; " if left else ""
    if not sessions:
        advice = "try other words, names or numbers that stood in the text, or fewer conditions"
        return recall_line(f'{partly}nothing found for "{inline(query)}" in {where}; {advice}')
    found = f'{sessions:,} session{"s" * (sessions != 1)} for "{inline(query)}", best first'
    return recall_line(
        f'{partly}{found}{"" if partly else f" ({searched:,} searched)"}; quoted text begins with "> "; '
        f"more of a message: {RECALL_READ} with its session and handle"
    )


def left_lines(left: int, *, is_building: bool, notice: str) -> list[str]:
    """Return what to do about sessions that were not searched completely; `notice`: why that is, "" for none."""
    if not left:
        return []
    many = "sessions were" if left != 1 else "session was"
    advice = "search again to include more, or name a session, a folder or a date"
    reason = f" ({notice})" if notice else " (they are being indexed)" if is_building else ""
    return [recall_line(f"{left:,} {many} not searched completely yet{reason}: {advice}")]


def list_head(shown: int, total: int, seen: int, last: str, *, is_empty: bool, is_page: bool) -> str:
    """Return the first line of a list. `is_empty`: if none is shown, there are none; `is_page`: pages came before
    this one."""
    if not shown and seen >= total:
        if is_page:
            return "there are no more sessions"
        return (
            "there are no sessions" if is_empty else "no session meets these conditions: use fewer or others"
        )
    found = f"{shown:,} session{'s' * (shown != 1)}, the most recently active first"
    if seen >= total:
        return f"{found}; these are all"
    looked = f"; {seen:,} of {total:,} were looked at" if shown < seen else f" of {total:,}"
    return f'{found}{looked}; more with recall_sessions(after="{last}") and the same conditions'
