"""A session as one HTML file that opens from disk and asks no server.

The file has the data of `export_data`. Its page may run its own script only, by its hash, and load nothing.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from secrets import token_hex
from typing import Any, Final

import msgspec

from foveal.core.log.events import Event
from foveal.core.redaction import scrub
from foveal.core.tokens.message_tokens import MessageCounts
from foveal.inspector.export_data import ReportExport, export_data, redacted_log
from foveal.inspector.html_elements import Html, element
from foveal.inspector.pages import events_table, session_head, session_title
from foveal.inspector.sessions.source import SessionAbout
from foveal.inspector.static_files import script_bundle, style_bundle
from foveal.inspector.timeline.timeline import Timeline
from foveal.web.event_stream import encode_struct

_DATA: Final = f"data-{token_hex(16)}"
"""Stands for the data until the page around them is written; no text of a session can contain it."""
EXPORT_NOTICE: Final = (
    "An exported session without what looks like a secret. Check the rest before you share it."
)


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
        element("p", {"class": "export-notice"}, EXPORT_NOTICE),
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
    return encode_struct(value).replace(b"<", b"\\u003c").replace("\u2028".encode(), b"\\u2028")


def _redacted(about: SessionAbout) -> SessionAbout:
    return msgspec.structs.replace(
        about,
        title=scrub(about.title),
        place="",
        problems=tuple(scrub(problem) for problem in about.problems),
    )


def _hash(code: str) -> str:
    return f"sha256-{b64encode(sha256(code.encode()).digest()).decode()}"
