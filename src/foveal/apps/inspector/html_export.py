"""A session as one HTML file that opens from disk and asks no server.

1. Secrets are replaced once more, in the log, before anything is made of it. So they are in no preview either.
2. The file has the timeline, the texts of messages, the versions that reductions made of them, and one request.
   Texts are cut so that the file stays below `MAX_EXPORT_CHARS`, and say how much is left out.
3. The page may run its own script only, by its hash, and load nothing.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any, Final

import msgspec

from foveal.apps.inspector.html_elements import Html, element
from foveal.apps.inspector.inspector_pages import events_table, session_head, session_title
from foveal.apps.inspector.open_logs import inspected_settings
from foveal.apps.inspector.script_bundle import script_bundle, style_bundle
from foveal.core.log.events import (
    Compacted,
    Event,
    Instructed,
    ModelSaid,
    Noted,
    Pinned,
    ToolReturned,
    UserSaid,
)
from foveal.core.redaction import redact_fact, scrub
from foveal.core.tokens.counter import Estimate
from foveal.core.tokens.message_tokens import MessageTokens
from foveal.core.wire.event_text import original_text
from foveal.inspection.message_text import InspectedText, TextPiece, shown_text, whole_text
from foveal.inspection.sent_request import InspectedRequest, sent_request
from foveal.inspection.session_source import SessionAbout
from foveal.inspection.timeline import Timeline
from foveal.inspection.timeline_builder import TimelineBuilder
from foveal.inspection.view_tracker import ViewTracker
from foveal.web.event_stream import encode_struct

MAX_EXPORT_CHARS: Final = 40_000_000
"""Characters of all texts of an exported file together."""
MAX_EXPORTED_TEXT_CHARS: Final = 200_000
"""Characters of one text in an exported file."""
MIN_EXPORTED_TEXT_CHARS: Final = 200
MAX_EXPORTED_REQUEST_BYTES: Final = 5_000_000
EXPORT_NOTICE: Final = (
    "An exported session without what looks like a secret. Check the rest before you share it."
)
_SPOKEN: Final = (UserSaid, ModelSaid, ToolReturned, Instructed, Compacted, Pinned, Noted)
"""Events whose texts the file has."""


def export_html(about: SessionAbout, events: Sequence[Event]) -> str:
    """Return the page."""
    log = [Event(event.seq, redact_fact(event.fact), event.at) for event in events]
    about = _redacted(about)
    data = json_for_html(_export_data(about, log))
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
        element("p", {"class": "export-notice"}, EXPORT_NOTICE),
        element("section", {"id": "scrubber", "aria-label": "Requests and events"}),
        element(
            "main",
            {"id": "main"},
            element("section", {"id": "log-view", "aria-label": "Log and view"}, events_table(log)),
            element("aside", {"id": "panels", "aria-label": "Details"}),
        ),
        element("footer", {"id": "status", "role": "status", "aria-live": "polite"}),
        Html(f'<script type="application/json" id="foveal-data">{data}</script>'),
        Html(f'<script type="module">{script}</script>'),
    ]
    attributes = {"data-page": "session", "data-id": about.key, "data-offline": ""}
    page = element("html", {"lang": "en"}, element("head", {}, *head), element("body", attributes, *body))
    return f"<!doctype html>\n{page}\n"


def json_for_html(value: Any) -> str:
    """Return JSON that can stand inside a script element: no character of it begins a tag."""
    return encode_struct(value).decode("utf-8").replace("<", "\\u003c").replace("\u2028", "\\u2028")


def _redacted(about: SessionAbout) -> SessionAbout:
    return msgspec.structs.replace(
        about,
        title=scrub(about.title),
        place="",
        problems=tuple(scrub(problem) for problem in about.problems),
    )


def _hash(code: str) -> str:
    return f"sha256-{b64encode(sha256(code.encode()).digest()).decode()}"


# ── Data ─────────────────────────────────────────────────────────────────────────────────────────────────


def _export_data(about: SessionAbout, log: Sequence[Event]) -> dict[str, Any]:
    max_chars = _text_limit(log)
    builder = TimelineBuilder(inspected_settings(about))
    builder.add(log)
    timeline = builder.document()
    texts = {
        event.handle: _cut(whole_text(event, max_chars=max_chars))
        for event in log
        if isinstance(event.fact, _SPOKEN)
    }
    return {
        "timeline": timeline,
        "texts": texts,
        "shown": dict(_versions(log, max_chars)),
        "requests": _last_request(timeline, log),
    }


def _versions(log: Sequence[Event], max_chars: int) -> Iterator[tuple[str, InspectedText]]:
    """Yield the texts that stand in place of others, each under its key and the event from which on it does."""
    tracker = ViewTracker(MessageTokens(Estimate()))
    for event in log:
        for change in tracker.add(event):
            if change.level in ("clipped", "masked") or (change.level == "full" and change.key[0] in "nm"):
                text = shown_text(log, change.key, at=event.seq, view=tracker.view, max_chars=max_chars)
                yield f"{change.key}@{change.at}", _cut(text)


def _last_request(timeline: Timeline, log: Sequence[Event]) -> list[InspectedRequest]:
    if not timeline.requests:
        return []
    made = sent_request(log, at=timeline.requests[-1].at)
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
