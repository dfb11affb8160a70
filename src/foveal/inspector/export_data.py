"""A session without secrets as one HTML file that opens from disk.

The file asks no server. It has the timeline, texts, versions of texts, statements of the user, the surprise of the
steps and one request.

1. Secrets are replaced once more, in the log, before anything is made of it. So they are in no preview either. A
   log in which nothing had to be replaced keeps the timeline that the caller has of it.
2. A version that a reduction made is taken from the log as it is, and redacted then: a clip has positions in the
   text as it was recorded. Of a secret that it cuts, at most `MAX_FRAGMENT_CHARS` characters remain.
3. Texts are cut so that the file stays below `MAX_EXPORT_CHARS`, and say how much is left out.
4. The page may run its own script only, by its hash, and load nothing.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from itertools import groupby
from operator import attrgetter
from secrets import token_hex
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from foveal.core.engine.user_statements import UserStatement
from foveal.core.log.events import (
    Compacted,
    Event,
    Instructed,
    ModelSaid,
    Noted,
    Pinned,
    ToolReturned,
    UserSaid,
    text_of,
)
from foveal.core.log.logged_requests import logged_requests
from foveal.core.redaction import find_secrets, redact_fact, scrub
from foveal.core.tokens.message_tokens import MessageCounts, MessageTokens
from foveal.core.view.fold import fold, needs_refold
from foveal.core.view.view import View
from foveal.core.wire.event_text import original_text
from foveal.errors import FovealError
from foveal.inspector.open_logs import inspected_settings
from foveal.inspector.pages import (
    Html,
    element,
    events_table,
    script_bundle,
    session_head,
    session_title,
    style_bundle,
)
from foveal.inspector.sessions.source import SessionAbout
from foveal.inspector.step_surprises import StepSurprises, step_surprises
from foveal.inspector.timeline.builder import TimelineBuilder
from foveal.inspector.timeline.message_text import (
    InspectedText,
    LogViews,
    TextPiece,
    TextWindow,
    shown_text,
    whole_text,
)
from foveal.inspector.timeline.sent_request import (
    InspectedRequest,
    ShownStatements,
    sent_request,
    statements_in,
)
from foveal.inspector.timeline.timeline import Timeline, ViewChange
from foveal.web.event_stream import encode_struct

MAX_EXPORT_CHARS: Final = 40_000_000
"""Characters of all texts of an exported file together."""
MAX_EXPORTED_TEXT_CHARS: Final = 200_000
"""Characters of one text in an exported file."""
MIN_EXPORTED_TEXT_CHARS: Final = 200
MAX_EXPORTED_REQUEST_BYTES: Final = 5_000_000
MAX_FRAGMENT_CHARS: Final = 5
"""Characters that can remain of a secret that a clip has cut."""
EXPORT_NOTICE: Final = (
    "An exported session without what looks like a secret. Check the rest before you share it."
)
_DATA: Final = f"data-{token_hex(16)}"
"""Stands for the data until the page around them is written; no text of a session can contain it."""
_FRAGMENT: Final = "[foveal: redacted part]"
_EVENTS_PER_REPORT: Final = 200
_SPOKEN: Final = (UserSaid, ModelSaid, ToolReturned, Instructed, Compacted, Pinned, Noted)
"""Events whose texts the file has."""

ReportExport = Callable[[int, int], None]
"""Called with the steps done and their total."""


_LogStep: TypeAlias = tuple[Event, View, list[ViewChange]]
"""An event, the view after it, and what it changed."""


class RedactedLog(NamedTuple):
    """A log as it was recorded, and without what looks like a secret."""

    recorded: Sequence[Event]
    redacted: list[Event]
    is_clean: bool
    """Whether nothing was replaced."""


class _FoldedData(NamedTuple):
    """What is made of the view while the log is folded."""

    versions: dict[str, InspectedText]
    """The texts that stand in place of others, each under its key and the event from which on it does."""
    requests: list[InspectedRequest]
    """The last request."""
    statements: ShownStatements
    """Those at the end of the log."""


class UncountedTexts:
    """A `Counter` for views that are only read: counting takes longer than folding."""

    name: str = "uncounted"
    exact: bool = False

    def count(self, text: str) -> int:
        return 0

    def count_all(self, texts: Sequence[str]) -> list[int]:
        return [0] * len(texts)

    def head(self, text: str, tokens: int) -> int:
        return len(text)

    def tail(self, text: str, tokens: int) -> int:
        return len(text)


def export_data(
    about: SessionAbout,
    log: RedactedLog,
    timeline: Timeline | None,
    report: ReportExport,
    *,
    counts: MessageCounts | None = None,
) -> dict[str, Any]:
    """Return what the page of an exported file reads. `timeline` is that of the log as it was recorded, if the
    caller has it; `counts` are stored with it; `about` is redacted."""
    max_chars = _text_limit(log.redacted)
    builder = TimelineBuilder(inspected_settings(about), counts=counts if log.is_clean else None)
    if timeline is None and log.is_clean:  # the usual case of the command: one fold makes both
        made = _versions(log, builder.follow(log.recorded), max_chars, report)
        timeline = builder.document()
    else:
        if timeline is None or not log.is_clean or timeline.next != len(log.recorded):
            builder.add(log.redacted)
            timeline = builder.document()
        made = _versions(log, _walk(log.recorded, timeline.changes), max_chars, report)
    timeline = msgspec.structs.replace(timeline, title=about.title, problems=about.problems, generation=0)
    texts = {
        event.handle: _cut(whole_text(event, TextWindow(max_chars=max_chars)))
        for event in log.redacted
        if isinstance(event.fact, _SPOKEN)
    }
    return {
        "timeline": timeline,
        "texts": texts,
        "shown": made.versions,
        "requests": made.requests,
        "statements": made.statements,
        "surprises": _surprises(log.redacted),
    }


def _surprises(log: Sequence[Event]) -> StepSurprises | None:
    """Return the surprise of the steps; None if a message has a form that its dialect cannot read."""
    try:
        return step_surprises(log)
    except FovealError:
        return None


def redacted_log(events: Sequence[Event], report: ReportExport) -> RedactedLog:
    """Return a log with and without its secrets."""
    redacted: list[Event] = []
    for number, event in enumerate(events):
        fact = redact_fact(event.fact)
        redacted.append(event if fact is event.fact else Event(event.seq, fact, event.at))
        if number % _EVENTS_PER_REPORT == 0:
            report(number, 2 * len(events))
    is_clean = all(one is other for one, other in zip(events, redacted, strict=True))
    return RedactedLog(events, redacted, is_clean)


# ── Versions ─────────────────────────────────────────────────────────────────────────────────────────────


def _versions(
    log: RedactedLog, steps: Iterator[_LogStep], max_chars: int, report: ReportExport
) -> _FoldedData:
    sent = logged_requests(log.recorded)
    last = sent[-1].at if sent else -1
    is_clean, count = log.is_clean, len(log.recorded)
    versions: dict[str, InspectedText] = {}
    requests: list[InspectedRequest] = []
    statements = ShownStatements(at=-1)
    for number, (event, view, changes) in enumerate(steps):
        for change in filter(_has_version, changes):
            text = shown_text(
                log.recorded,
                change.key,
                at=event.seq,
                view=view,
                window=TextWindow(max_chars=max_chars),
                redact=None if is_clean else redact_fact,
            )
            versions[f"{change.key}@{change.at}"] = _cut(text if is_clean else _without_fragments(text, log))
        if event.seq == last:
            requests += _last_request(log.redacted, last, view if is_clean else None)
        if number % _EVENTS_PER_REPORT == 0:
            report(count + number, 2 * count)
        if number == count - 1:
            statements = _statements(log, view)
    return _FoldedData(versions, requests, statements)


def _statements(log: RedactedLog, view: View) -> ShownStatements:
    """Return the user's statements. Their places in the view are those of the log as it was recorded."""
    found = statements_in(log.recorded, view)
    if log.is_clean:
        return found
    texts = {one.handle: text_of(one.fact.content) for one in log.redacted if isinstance(one.fact, UserSaid)}

    def redacted(one: UserStatement) -> UserStatement:
        if one.text in texts[one.handle]:
            return one
        text = scrub(one.text)  # a secret may be one only beside other words of the message
        return msgspec.structs.replace(one, text=_FRAGMENT if text == one.text else text)

    return msgspec.structs.replace(found, statements=tuple(map(redacted, found.statements)))


def _has_version(change: ViewChange) -> bool:
    """Return whether a message is shown with another text than its own."""
    return change.level in ("clipped", "masked") or (change.level == "full" and change.key[0] in "nm")


def _walk(log: Sequence[Event], changes: Sequence[ViewChange]) -> Iterator[_LogStep]:
    """Yield each event with the view after it, which the next one changes, and what it changed."""
    changed = {at: list(group) for at, group in groupby(changes, key=attrgetter("at"))}
    meter = MessageTokens(UncountedTexts())
    view = View(meter)
    for number, event in enumerate(log):
        if needs_refold(event.fact, view):
            view = fold(log[: number + 1], meter)
        else:
            view.advance(event)
        yield event, view, changed.get(event.seq, [])


def _without_fragments(text: InspectedText, log: RedactedLog) -> InspectedText:
    """Return a clip without the parts of secrets that stand at its cuts."""
    if text.level != "clipped" or not text.key.startswith("e"):
        return text
    place = int(text.key[1:]) - log.recorded[0].seq
    if log.recorded[place].fact is log.redacted[place].fact:
        return text
    max_chars = len(original_text(log.recorded[place].fact)) * 2 + 1_000
    whole = whole_text(log.recorded[place], TextWindow(max_chars=max_chars))
    secrets = {piece.text[hit.start : hit.end] for piece in whole.parts for hit in find_secrets(piece.text)}
    parts = tuple(msgspec.structs.replace(part, text=_cover(part.text, secrets)) for part in text.parts)
    return msgspec.structs.replace(text, parts=parts)


def _cover(text: str, secrets: set[str]) -> str:
    for secret in secrets:
        for size in range(len(secret), MAX_FRAGMENT_CHARS, -1):
            text = text.replace(secret[:size], _FRAGMENT).replace(secret[-size:], _FRAGMENT)
    return text


# ── Texts and requests ───────────────────────────────────────────────────────────────────────────────────


def _last_request(log: Sequence[Event], at: int, view: View | None) -> list[InspectedRequest]:
    views = LogViews()
    if view is not None:
        views.keep(at, view)
    made = sent_request(log, at=at, views=views)
    return [made] if made.bytes <= MAX_EXPORTED_REQUEST_BYTES else []


def _text_limit(log: Sequence[Event]) -> int:
    """Return the characters of one text with which all of them stay below `MAX_EXPORT_CHARS`."""
    sizes = [len(original_text(event.fact)) for event in log if isinstance(event.fact, _SPOKEN)]
    limit = MAX_EXPORTED_TEXT_CHARS
    while limit > MIN_EXPORTED_TEXT_CHARS and sum(min(size, limit) for size in sizes) > MAX_EXPORT_CHARS:
        limit //= 2
    return limit


def _cut(text: InspectedText) -> InspectedText:
    """Return a text that says how much of it is left out."""
    if not text.truncated:
        return text
    left = text.chars - sum(len(part.text) for part in text.parts)
    note = TextPiece(kind="text", text=f"\n… {left:,} characters are left out of this file")
    return msgspec.structs.replace(text, parts=(*text.parts, note))


# ── The page ───────────────────────────────────────────────────────────────────────────────────────────


def export_html(
    about: SessionAbout,
    events: Sequence[Event],
    *,
    timeline: Timeline | None = None,
    counts: MessageCounts | None = None,
    report: ReportExport = lambda done, total: None,
) -> bytes:
    """Return the page as UTF-8. `timeline` is that of these events, if the caller has it, and `counts` are stored
    with them."""
    log = redacted_log(events, report)
    about = _redacted(about)
    data = json_for_html(export_data(about, log, timeline, report, counts=counts))
    script, style = script_bundle(), style_bundle()
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    head = [
        element("meta", {"charset": "utf-8"}),
        element("meta", {"http-equiv": "Content-Security-Policy", "content": policy}),
        element("meta", {"name": "referrer", "content": "no-referrer"}),
        element("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        element("meta", {"name": "color-scheme", "content": "light dark"}),
        element("title", {}, f"{session_title(about)} – Foveal"),
        element("link", {"rel": "icon", "href": "data:,"}),
        Html(f"<style>{style}</style>"),
    ]
    body = [
        element("header", {"id": "head"}, *session_head(about, is_exported=True)),
        element("aside", {"class": "export-notice", "aria-label": "About this file"}, EXPORT_NOTICE),
        element("section", {"id": "scrubber", "aria-label": "Requests and events"}),
        element(
            "main",
            {"id": "main"},
            element("section", {"id": "log-view", "aria-label": "Log and view"}, events_table(log.redacted)),
            element("aside", {"id": "panels", "aria-label": "Details"}),
        ),
        element("div", {"id": "status", "role": "status", "aria-live": "polite"}),
        Html(f'<script type="application/json" id="foveal-data">{_DATA}</script>'),
        Html(f'<script type="module">{script}</script>'),
    ]
    attributes = {"data-page": "session", "data-id": about.key, "data-offline": ""}
    page = element("html", {"lang": "en"}, element("head", {}, *head), element("body", attributes, *body))
    # The data are tens of megabytes: each element around them would copy them once more.
    before, after = f"<!doctype html>\n{page}\n".encode().split(_DATA.encode())
    return b"".join((before, data, after))


def json_for_html(value: Any) -> bytes:
    """Return JSON that can stand inside a script element: no character of it begins a tag."""
    return b"".join(json_pieces(value))


def json_pieces(value: Any) -> Iterator[bytes]:
    """Yield this JSON, each entry of a dictionary by itself: while one is encoded, all other threads wait."""
    if not isinstance(value, dict) or not value:
        yield encode_struct(value).replace(b"<", b"\\u003c").replace("\u2028".encode(), b"\\u2028")
        return
    before = b"{"
    for name, entry in value.items():
        yield before
        yield from json_pieces(name)
        yield b":"
        yield from json_pieces(entry)
        before = b","
    yield b"}"


def _redacted(about: SessionAbout) -> SessionAbout:
    return msgspec.structs.replace(
        about,
        title=scrub(about.title),
        place="",
        problems=tuple(scrub(problem) for problem in about.problems),
    )


def _hash(code: str) -> str:
    return f"sha256-{b64encode(sha256(code.encode()).digest()).decode()}"
