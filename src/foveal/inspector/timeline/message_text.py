"""Texts of messages: whole, as the log has them, and as a request shows them.

1. `whole_text` returns any event as parts: text, thinking, calls, media. `shown_text` returns what the request
   after an event shows of a message, with its placeholders and clips.
2. Keys name messages as in the timeline: `e12` is an event, `n40` the notice of dropped messages since e40, and
   `m12.0` the synthetic result of the first call of e12.
3. A text may have megabytes: `start` and `max_chars` select a window of it, counted over all parts together.
4. Panels of a page ask several questions about one point, and each would fold the log from its beginning.
   `LogViews` keeps the views that were asked for last.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import Final, NamedTuple

import msgspec

from foveal.core.log.codec import plain
from foveal.core.log.events import (
    AnyFact,
    AnyPart,
    Call,
    Compacted,
    Equipped,
    Event,
    ForeignSummary,
    Instructed,
    Masked,
    Media,
    ModelSaid,
    Noted,
    Opaque,
    Pinned,
    Text,
    Thinking,
    ToolReturned,
    Unknown,
    UserSaid,
    handle,
    kind,
    parts,
    raw,
)
from foveal.core.tokens.counter import Estimate
from foveal.core.tokens.message_tokens import MessageTokens
from foveal.core.view.fold import effective_events, fold
from foveal.core.view.steps import ShownMessage, Slot, Step
from foveal.core.view.view import View
from foveal.core.wire.safe_print import counted
from foveal.errors import UnknownHandle
from foveal.inspector.timeline.view_tracker import shown_because

MAX_WINDOW_CHARS: Final = 200_000
"""Characters of a text that are returned at once, unless the caller asks for another number."""
MAX_INDENTED_CHARS: Final = 1_000_000
"""Longest JSON that is indented; a longer one stays on one line."""
_KEY: Final = re.compile(r"([enm])(\d{1,15})(?:\.(\d{1,6}))?")


class TextWindow(NamedTuple):
    """The part of a text that the caller asks for."""

    start: int = 0
    max_chars: int = MAX_WINDOW_CHARS


FIRST_WINDOW: Final = TextWindow()


class TextPiece(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One part of a message, or the window of it that was asked for."""

    kind: str
    """`text`, `thinking`, `call`, `media` or `opaque`."""
    text: str = ""
    name: str = ""
    """The tool that is called, or the message that a placeholder replaces."""
    id: str = ""
    """The id of the call."""
    mime: str = ""
    size: int = 0
    """Bytes of media, and of thinking that is encrypted."""


class InspectedText(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The text of one message."""

    key: str
    kind: str
    """The kind of the event as the log stores it; `notice` and `missing_result` for what Foveal wrote."""
    role: str = ""
    parts: tuple[TextPiece, ...] = ()
    chars: int = 0
    """Characters of all parts together."""
    start: int = msgspec.field(default=0, name="from")
    truncated: bool = False
    """Whether the text goes on after this window."""
    level: str = "full"
    rule: str = ""
    by: int = -1
    """The event that put it at this level; -1 if it is shown as it was said."""


def log_until(log: Sequence[Event], at: int) -> Sequence[Event]:
    """Return the events up to event `at`; raises `UnknownHandle` if the log does not have it."""
    first = log[0].seq if log else 0
    if not first <= at < first + len(log):
        raise UnknownHandle(
            f"no event has the handle {handle(at)!r}; the log has {counted(len(log), 'event')}"
        )
    return log[: at - first + 1]


def view_at(log: Sequence[Event], at: int) -> View:
    """Return the view after event `at`."""
    return fold(log_until(log, at), MessageTokens(Estimate()))


# ── Whole texts ───────────────────────────────────────────────────────────────────────────────────


def whole_text(event: Event, window: TextWindow = FIRST_WINDOW) -> InspectedText:
    """Return the whole text of an event, as the log has it."""
    pieces, chars, truncated = _in_window(_fact_pieces(event.fact), window)
    return InspectedText(
        key=event.handle,
        kind=kind(event.fact),
        role=_role(event.fact),
        parts=pieces,
        chars=chars,
        start=window.start,
        truncated=truncated,
    )


def _fact_pieces(fact: AnyFact) -> Iterator[TextPiece]:
    match fact:
        case UserSaid() | ModelSaid() | ToolReturned() | Instructed() | ForeignSummary():
            yield from map(_piece, parts(fact.content))
        case Pinned() if fact.text:
            yield TextPiece(kind="text", text=fact.text)
        case Noted():
            yield TextPiece(kind="text", text=fact.text, name=fact.topic)
        case Compacted():
            yield TextPiece(kind="text", text=fact.summary)
        case Masked():
            for mask in fact.masks:
                yield TextPiece(kind="text", text=mask.text, name=handle(mask.target))
        case Equipped():
            yield TextPiece(kind="opaque", text=indented_json(bytes(fact.tools)))
        case Unknown():
            yield TextPiece(kind="opaque", text=indented_json(bytes(fact.raw)))
        case _:
            yield TextPiece(kind="opaque", text=indented_json(bytes(raw(plain(fact)))))


def _piece(part: AnyPart) -> TextPiece:
    match part:
        case Text():
            return TextPiece(kind="text", text=part.text)
        case Thinking():
            return TextPiece(
                kind="thinking", text=part.text, size=0 if part.text else len(bytes(part.native))
            )
        case Call():
            arguments = (
                part.arguments if part.is_masked else indented_json(part.arguments.encode("utf-8", "replace"))
            )
            return TextPiece(kind="call", text=arguments, name=part.name, id=part.id)
        case Media():
            return TextPiece(kind="media", mime=part.mime, size=part.size)
        case Opaque():
            return TextPiece(kind="opaque", text=indented_json(bytes(part.native)))


def indented_json(encoded: bytes) -> str:
    """Return JSON with indentation; text that is not JSON, or is very long, unchanged."""
    if len(encoded) > MAX_INDENTED_CHARS:
        return encoded.decode("utf-8", "replace")
    try:
        json.loads(encoded)  # `format` accepts some text that is not JSON
        return msgspec.json.format(encoded, indent=2).decode("utf-8", "replace")
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return encoded.decode("utf-8", "replace")


def _role(fact: AnyFact) -> str:
    match fact:
        case UserSaid() | Compacted():
            return "user"
        case ModelSaid() | ForeignSummary():
            return "assistant"
        case ToolReturned():
            return "tool"
        case Instructed():
            return fact.role
        case Pinned() if fact.text:
            return "system"
        case _:
            return ""


def _in_window(pieces: Iterable[TextPiece], window: TextWindow) -> tuple[tuple[TextPiece, ...], int, bool]:
    """Return the pieces inside a window, the characters of all pieces, and whether text follows the window."""
    start, chars = max(0, window.start), 0
    end = start + max(0, window.max_chars)
    shown: list[TextPiece] = []
    for piece in pieces:
        first, chars = chars, chars + len(piece.text)
        if first < end and (chars > start or (not piece.text and first >= start)):
            text = piece.text[max(0, start - first) : end - first]
            shown.append(msgspec.structs.replace(piece, text=text))
    return tuple(shown), chars, chars > end


# ── Shown texts ───────────────────────────────────────────────────────────────────────────────────


def shown_text(
    log: Sequence[Event],
    key: str,
    *,
    at: int,
    view: View | None = None,
    window: TextWindow = FIRST_WINDOW,
    redact: Callable[[AnyFact], AnyFact] | None = None,
) -> InspectedText:
    """Return a message as the request after event `at` shows it; without parts if it does not.

    `view` is the view at that point, if the caller has it; `redact` changes the message as it is shown. Raises
    `UnknownHandle` for a key that no message has.
    """
    view = view if view is not None else view_at(log, at)
    text, fact = _shown(log, at, view, key)
    if fact is not None and redact is not None:
        fact = redact(fact)
    pieces = () if fact is None else _fact_pieces(fact)
    shown, chars, truncated = _in_window(pieces, window)
    return msgspec.structs.replace(text, parts=shown, chars=chars, start=window.start, truncated=truncated)


def _shown(log: Sequence[Event], at: int, view: View, key: str) -> tuple[InspectedText, AnyFact | None]:
    """Return what is known of a message, and the message itself as it is shown; None if it is not."""
    found = _KEY.fullmatch(key)
    if found is None:
        raise UnknownHandle(f"{key[:40]!r} is not the key of a message, such as e12, n40 or m12.0")
    letter, seq, place = found[1], int(found[2]), int(found[3] or 0)
    if letter == "n":
        return _notice(view, key, seq)
    if letter == "m":
        return _missing_result(view, key, seq, place)
    event = _event_until(log, at, seq)
    if (visible := _visible(view, seq)) is None:
        return _hidden(log_until(log, at), view, event), None
    step, shown = visible
    by, rule = shown_because(shown)
    fact = shown.as_shown()
    text = InspectedText(
        key=key,
        kind=kind(event.fact),
        role=_role(event.fact if step is None else fact),
        level=shown.level,
        rule=rule,
        by=by,
    )
    return text, fact


def _event_until(log: Sequence[Event], at: int, seq: int) -> Event:
    """Return event `seq` of the log up to event `at`; raises `UnknownHandle`."""
    first = log[0].seq if log else 0
    if not first <= seq <= at:
        raise UnknownHandle(
            f"no event has the handle {handle(seq)!r}; the log has {counted(at + 1 - first, 'event')}"
        )
    return log[seq - first]


def _visible(view: View, seq: int) -> tuple[Step | None, ShownMessage] | None:
    aside = next((shown for shown in view.asides.values() if shown.seq == seq), None)
    return (None, aside) if aside is not None else view.find(seq)


def _hidden(log: Sequence[Event], view: View, event: Event) -> InspectedText:
    """Return what is known of a message that the request does not show."""
    cover = view.cover_of(event.seq)
    is_effective = any(other.seq == event.seq for other in effective_events(log))
    level, rule, by = "removed", "", -1
    if not isinstance(
        event.fact, UserSaid | ModelSaid | ToolReturned | Instructed | Pinned | Compacted | ForeignSummary
    ):
        level, rule = "removed", "this event is never sent"
    elif not is_effective:
        rule = "taken back"
    elif cover is not None:
        level, rule, by = cover.level, cover.rule, cover.owner
    elif isinstance(event.fact, ToolReturned):
        level = "dropped"
        is_orphan = event.seq in view.orphan_results
        rule = "a result that no call waits for" if is_orphan else "its call is not shown"
    else:
        rule = "replaced by a newer one"
    return InspectedText(
        key=event.handle, kind=kind(event.fact), role=_role(event.fact), level=level, rule=rule, by=by
    )


def _notice(view: View, key: str, owner: int) -> tuple[InspectedText, AnyFact | None]:
    step = view.notice
    if step is None or step.utterance.seq != -1 - owner:
        return InspectedText(key=key, kind="notice", role="user", level="removed"), None
    return InspectedText(key=key, kind="notice", role="user", by=owner), step.utterance.fact


def _missing_result(view: View, key: str, seq: int, place: int) -> tuple[InspectedText, AnyFact | None]:
    found = view.find(seq)
    slots: list[Slot] = found[0].all_slots if found is not None else []
    if place >= len(slots) or slots[place].result is not None:
        return InspectedText(key=key, kind="missing_result", role="tool", level="removed"), None
    slot = slots[place]
    text = InspectedText(key=key, kind="missing_result", role="tool", rule="the call has no recorded result")
    return text, slot.as_shown()


# ── Views of a log ─────────────────────────────────────────────────────────────────────────────────────


MAX_KEPT_VIEWS: Final = 4
"""Two requests of a diff, and the requests before them, whose cache breakpoints are needed."""


class LogViews:
    """The views of one log at the events that were asked for last; for several threads.

    A view stays valid while the log grows. Replace the object when earlier events change."""

    def __init__(self) -> None:
        self._views: OrderedDict[int, View] = OrderedDict()
        # Steps keep what they were rendered to, so two threads must not use one view at the same time.
        self._lock = RLock()

    def keep(self, seq: int, view: View) -> None:
        """Use this view as the one after event `seq`."""
        with self._lock:
            self._views[seq] = view

    @contextmanager
    def at(self, log: Sequence[Event], seq: int) -> Iterator[View]:
        """Yield the view after event `seq`; other threads wait meanwhile. Raises `UnknownHandle`."""
        with self._lock:
            view = self._views.pop(seq, None)
            if view is None:
                view = view_at(log, seq)
            self._views[seq] = view
            if len(self._views) > MAX_KEPT_VIEWS:
                self._views.popitem(last=False)
            yield view
