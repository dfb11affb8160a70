"""A malicious session: text of every field stays text in pages, JSON and exported files."""

from __future__ import annotations

import asyncio
import json
import os
import re
from base64 import b64encode
from collections.abc import Iterator, Sequence
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from foveal.core.log.events import (
    AnyFact,
    Call,
    Clipped,
    Compacted,
    CompactionFailed,
    Dropped,
    Equipped,
    Event,
    Instructed,
    Mask,
    Masked,
    Media,
    ModelSaid,
    Noted,
    Opaque,
    Opened,
    Overflowed,
    Pinned,
    SnapshotTaken,
    Text,
    Thinking,
    ToolReturned,
    Used,
    UserSaid,
    raw,
)
from foveal.inspector.export_data import json_for_html, json_pieces
from foveal.stores import open_store
from support.inspected_server import InspectedServer

SOAK = bool(os.environ.get("FOVEAL_SOAK"))
PAYLOADS = [
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "javascript:alert(1)",
    "' onmouseover='alert(1)",
    "<!-- <script> --><style>*{background:url(http://evil.example/)}</style>",
    "</title></textarea><svg onload=alert(1)>",
    "&lt;img src=x onerror=alert(1)&gt; &#x3c;b&#x3e;",
    "\u202eevil\u202c \u2028\u2029 \x00\x07\x1b[31m\x7f",
    "\ud800 lone \udfff",
    "{{7*7}} ${7*7} %s %(a)s {0}",
]
TAGS = frozenset(
    [
        "html",
        "head",
        "meta",
        "title",
        "link",
        "style",
        "script",
        "body",
        "header",
        "main",
        "section",
        "aside",
        "div",
        "nav",
        "h1",
        "p",
        "a",
        "form",
        "label",
        "input",
        "button",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "noscript",
    ]
)
ATTRIBUTES = frozenset(
    [
        "lang",
        "charset",
        "name",
        "content",
        "rel",
        "href",
        "type",
        "src",
        "class",
        "id",
        "role",
        "aria-label",
        "aria-live",
        "data-command",
        "data-page",
        "data-policies",
        "data-id",
        "data-read-only",
        "data-offline",
        "download",
        "scope",
        "http-equiv",
        "action",
        "method",
        "for",
    ]
)


def facts(payload: str) -> list[AnyFact]:
    """One event of each kind, with the payload in each of its texts."""
    p, extra = payload, raw({"type": payload, payload: 1})
    call = Call(id=p, name=p, arguments=json.dumps({"path": p, p: 1}))
    return [
        Opened(model=p, policy=p, origin=p, settings=extra),
        Equipped(tools=raw([{"name": p, "description": p, "input_schema": {"type": p}}])),
        Instructed(content=p, source=p, extra=extra),
        UserSaid(content=(Text(text=p), Media(mime=p, native=extra)), extra=extra),
        ModelSaid(
            content=(Thinking(text=p, native=extra), Text(text=p), call, Opaque(native=extra)), extra=extra
        ),
        ToolReturned(call_id=p, content=p * 20, name=p, error=True, variety=p, extra=extra),
        Used(input=10, output=1, model=p),
        Clipped(target=5, pieces=((0, 5), p, (6, 9)), strategy=p, rule=p),
        Masked(masks=(Mask(target=5, text=p),), reason=p, rule=p),
        Dropped(ranges=((3, 3),), reason=p, rule=p, names_ranges=True),
        Compacted(first=3, last=5, summary=p, by=p, chunks=(p,), metrics=extra),
        CompactionFailed(first=3, last=5, problem=p, by=p, reason=p, metrics=extra),
        Overflowed(model=p, problem=p),
        Pinned(text=p),
        Noted(text=p, topic=p),
        SnapshotTaken(data=extra, label=p),
        UserSaid(content=f"token {p} sk-ant-api03-{'Ab3dEf6hIj' * 9}AA"),
        ModelSaid(content=p),
    ]


def unicode(text: str) -> str:
    """Text that a store accepts as an id or a title, and a URL as a parameter."""
    return text.encode("utf-8", "replace").decode()


async def write(path: Path, sessions: Sequence[tuple[str, str, Sequence[AnyFact]]]) -> None:
    async with open_store(str(path)) as store:
        for id, title, content in sessions:
            await store.append(id, [Event(seq, fact, 1_700_000_000.0) for seq, fact in enumerate(content)])
            await store.rename(id, title)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InspectedServer]:
    folder = tmp_path_factory.mktemp("hostile")
    sessions = [(unicode(f"s{n} {p[:40]}"), unicode(p), facts(p)) for n, p in enumerate(PAYLOADS)]
    asyncio.run(write(folder / "sessions.db", [*sessions, ("huge", "<b>" * 4_000_000, facts("x"))]))
    lines = [
        {"type": "summary", "summary": p, "leafUuid": p, "cwd": p, "sessionId": p} for p in PAYLOADS
    ] + [
        {"type": "user", "uuid": f"u{n}", "sessionId": p, "cwd": p, "gitBranch": p, "version": p,
         "message": {"role": "user", "content": p}, "timestamp": "2026-01-01T00:00:00Z"}
        for n, p in enumerate(PAYLOADS)
    ]  # fmt: skip
    (folder / "<img src=x onerror=alert(1)>.jsonl").write_text("\n".join(map(json.dumps, lines)), "ascii")
    with InspectedServer(folder) as running:
        yield running


@pytest.fixture(scope="module")
def keys(server: InspectedServer) -> list[str]:
    answer = server.client().get("/inspect/api/sessions?limit=100")
    assert answer.status_code == 200, answer.text
    rows = answer.json()["sessions"]
    assert len(rows) >= len(PAYLOADS) + 2
    return [row["key"] for row in rows]


class Page(HTMLParser):
    """The elements of a page with their attributes, and the contents of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.scripts: list[tuple[dict[str, str], str]] = []
        self.comments: list[str] = []
        self._is_script = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.elements.append((tag, attributes))
        self._is_script = tag == "script"
        if self._is_script:
            self.scripts.append((attributes, ""))

    def handle_endtag(self, tag: str) -> None:
        self._is_script = False

    def handle_data(self, data: str) -> None:
        if self._is_script:
            attributes, text = self.scripts[-1]
            self.scripts[-1] = attributes, text + data

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)


def check(page: Page) -> None:
    """Only known elements and attributes, no handler, and no address elsewhere."""
    assert {tag for tag, _ in page.elements} <= TAGS
    assert {name for _, attributes in page.elements for name in attributes} <= ATTRIBUTES
    assert page.comments == []
    for tag, attributes in page.elements:
        for name in ("href", "src", "action"):
            address = attributes.get(name, "")
            relative = (
                r"(?:\./|session\?id=[\w%.~-]*|api/export\?id=[\w%.~-]*|static/[\w.]+"
                r"|memory|login|logout|data:,)?"
            )
            assert re.fullmatch(relative, address), (tag, address)


@pytest.mark.long
def test_pages_have_no_element_of_a_session(server: InspectedServer, keys: list[str]) -> None:
    client = server.client()
    pages = [client.get("/inspect/"), *(client.get("/inspect/session", params={"id": key}) for key in keys)]
    for answer in pages:
        assert answer.status_code == 200
        assert len(answer.content) < 200_000
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        page = Page(answer.content.decode("utf-8"))
        check(page)
        assert page.scripts == [({"type": "module", "src": "static/main.js"}, "")]
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069\u2028\u2029]", answer.text)


@pytest.mark.parametrize("payload", [unicode(payload) for payload in PAYLOADS])
def test_errors_quote_what_was_asked_as_text(server: InspectedServer, payload: str) -> None:
    client = server.client()
    check(Page(client.get("/inspect/session", params={"id": payload}).text))
    check(Page(client.get("/inspect/session", params={payload: "x"}).text))
    check(Page(client.get("/inspect/login", params={"token": payload}).text))
    for path in ("timeline", "request?at=1&", "live"):
        answer = client.get(f"/inspect/api/{path}", params={"id": payload, "x": payload})
        assert answer.headers["content-type"] == "application/json"
        assert answer.json()["error"]["message"]


@pytest.mark.long
def test_json_is_json_whatever_a_session_contains(server: InspectedServer, keys: list[str]) -> None:
    client = server.client()
    for place, key in enumerate(keys):
        timeline = client.get("/inspect/api/timeline", params={"id": key}).json()
        end = timeline["next"] - 1
        texts = (
            range(end + 1) if SOAK else range(place % 3, end + 1, 3)
        )  # each event with a third of the payloads
        assert len(timeline.get("title", "")) <= 500
        for row in timeline["rows"]:
            assert len(row.get("preview", "")) <= 200
        for path, parameters in (
            *(("text", {"event": seq}) for seq in texts),
            *(("shown", {"key": f"e{seq}", "at": end}) for seq in (3, 5, 10) if seq <= end),
            ("request", {"at": end}),
            *(("request", {"at": end, "dialect": name}) for name in ("anthropic", "gemini")),
            ("diff", {"a": min(3, end), "b": end}),
            ("search", {"q": "alert"}),
            ("statements", {"at": end}),
        ):
            answer = client.get(f"/inspect/api/{path}", params={"id": key, **parameters})
            assert answer.status_code == 200, (path, parameters, answer.text)
            assert answer.headers["content-type"] == "application/json"
            answer.json()


@pytest.mark.long
def test_an_exported_file_runs_nothing_but_its_own_script(server: InspectedServer, keys: list[str]) -> None:
    client = server.client()
    for key in keys:
        answer = client.get("/inspect/api/export", params={"id": key})
        assert answer.status_code == 200, answer.text[:500]
        assert answer.headers["content-disposition"].startswith('attachment; filename="foveal-')
        text = answer.content.decode("utf-8")
        page = Page(text)
        check(page)
        (data_attributes, data), (script_attributes, script) = page.scripts
        assert data_attributes == {"type": "application/json", "id": "foveal-data"}
        assert script_attributes == {"type": "module"}
        assert "<" not in data
        assert {"timeline", "texts", "shown", "requests", "statements", "surprises"} == json.loads(
            data
        ).keys()
        assert "Ab3dEf6hIj" * 3 not in text
        digest = b64encode(sha256(script.encode()).digest()).decode()
        policy = next(a["content"] for tag, a in page.elements if a.get("http-equiv"))
        assert policy.startswith(f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'sha256-")
        assert len(text) < 3_000_000


def test_data_in_a_page_cannot_end_its_element() -> None:
    value: Any = {"</script><!--": {"<i>": "</SCRIPT>\u2028<b>\ud800", "b": [{}, 1]}, "c": {}}
    written = json_for_html(value)
    assert b"<" not in written
    assert json.loads(written) == value


def test_data_of_a_page_is_written_entry_by_entry() -> None:
    value = {"texts": {f"e{number}": "word " * 100 for number in range(1_000)}}
    assert max(map(len, json_pieces(value))) < 1_000
