"""Malicious sessions and pages of other origins: nothing runs, loads or leaves in a real browser."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

from foveal.core.log.events import (
    AnyFact,
    Call,
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
    Text,
    Thinking,
    ToolReturned,
    Used,
    UserSaid,
    raw,
)
from foveal.stores import open_store
from support.chromium import ATTACKER, Chromium
from support.effort import rest_in_soak
from support.inspected_pages import ROWS
from support.inspected_server import TOKEN_HEADER, InspectedServer

ELSEWHERE: Final = "http://127.0.0.1:9/"
"""An address that only a payload asks for."""
RUN: Final = "window.__pwned=1"
PAYLOADS: Final = (
    f"</script><script>{RUN}</script>",
    f'"><img src={ELSEWHERE} onerror="{RUN}"><svg onload="{RUN}">',
    f"javascript:{RUN}//",
    f"' autofocus onfocus='{RUN}' x='",
    f"<style>*{{background:url({ELSEWHERE})}}</style><link rel=stylesheet href={ELSEWHERE}>",
    f"<iframe srcdoc='<script>parent.{RUN}</script>'></iframe><object data={ELSEWHERE}></object>",
    "${window.__pwned=1} `${window.__pwned=1}` {{constructor.constructor('window.__pwned=1')()}}",
    "\u202eevil\u202c\u2066\u2028\u2029\x00\x07\x1b[31m",
    f"[link](javascript:{RUN}) ![image]({ELSEWHERE}) <a href=javascript:{RUN}>x</a>",
)
TOGETHER: Final = ((2, 4, 6, 8), (0, 1, 3, 5, 7))
"""Payloads that also have a session together: `make test` tries the first one alone and the first group on the
pages, and the other group in an exported file, which the same scripts draw. `make soak` tries each alone, too."""
TEXTS: Final = (*PAYLOADS, *(" ".join(PAYLOADS[one] for one in group) for group in TOGETHER))
"""The payload of each session."""
ON_PAGES, IN_EXPORT = (0, 9), 10
HUGE: Final = "<b>" * 300_000
PANELS: Final = (
    "What happened",
    "Message",
    "Reductions",
    "Requests",
    "Diff",
    "Composition",
    "Statements",
    "Search",
    "What if",
)


def facts(p: str, *, longest: str) -> list[AnyFact]:
    """Messages, usage and reductions with the payload in each text."""
    extra = raw({"__proto__": {"polluted": p}, "constructor": {"prototype": {"polluted": p}}, p: p})
    call = Call(id="c1", name=p, arguments=json.dumps({"path": p, "__proto__": {"polluted": p}}))
    return [
        Opened(model=p, policy=p, settings=extra),
        Equipped(
            tools=raw([{"name": p, "description": p, "input_schema": {"type": p, "__proto__": {"a": 1}}}])
        ),
        Instructed(content=p, source=p),
        UserSaid(content=(Text(text=p), Media(mime=p, native=extra)), extra=extra),
        ModelSaid(content=(Thinking(text=p, native=extra), Text(text=p), call, Opaque(native=extra))),
        Used(input=10, output=1, model=p),
        ToolReturned(call_id="c1", content=p * 20, name=p, error=True, variety=p, extra=extra),
        ModelSaid(content=p),
        Used(input=20, cache_read=5, output=1, model=p),
        Masked(masks=(Mask(target=6, text=p),), reason=p, rule=p),
        UserSaid(content=longest),
        ModelSaid(content=p),
        Used(input=30, output=1, model=p),
        Compacted(
            first=3, last=7, summary=p, by=p, metrics=raw({"checks": [p], "checked": [p], "unchecked": [p]})
        ),
        CompactionFailed(first=3, last=5, problem=p, by=p, reason=p),
        Dropped(ranges=((10, 10),), reason=p, rule=p, names_ranges=True),
        Overflowed(model=p, problem=p),
        Pinned(text=p),
        Noted(text=p, topic=p),
        UserSaid(content=p),
        ModelSaid(content=p),
        Used(input=40, output=1, model=p),
    ]


async def write(path: Path) -> None:
    async with open_store(str(path)) as store:
        for number, payload in enumerate(TEXTS):
            id = f"s{number} {payload[:60]}".replace("\x00", "")
            events = [
                Event(seq, fact, 1_700_000_000.0 + seq)
                for seq, fact in enumerate(facts(payload, longest=HUGE if number == 0 else payload * 50))
            ]
            await store.append(id, events)
            await store.rename(id, f"{number:02} {payload}")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InspectedServer]:
    """The inspector with malicious sessions, and a malicious transcript in a file with a malicious name."""
    folder = tmp_path_factory.mktemp("hostile")
    asyncio.run(write(folder / "sessions.db"))
    lines = [
        {"type": "user", "uuid": f"u{n}", "parentUuid": f"u{n - 1}" if n else None, "sessionId": p, "cwd": p,
         "gitBranch": p, "__proto__": {"polluted": p}, "message": {"role": "user", "content": p}}
        for n, p in enumerate(PAYLOADS)
    ]  # fmt: skip
    name = "<img src=x onerror=window.__pwned=1>.jsonl"
    (folder / name).write_text("\n".join(map(json.dumps, lines)), "ascii")
    with InspectedServer(folder) as server:
        yield server


@pytest.fixture(scope="module")
def keys(hostile: InspectedServer) -> list[str]:
    """The keys of the sessions in the order of `TEXTS`, and that of the transcript."""
    rows = hostile.client().get("/inspect/api/sessions?limit=100").json()["sessions"]
    return [row["key"] for row in sorted(rows, key=lambda row: str(row["title"]))]


IS_CLEAN: Final = """
() => {
  const elements = "img, iframe, object, embed, [onerror], [onload], [onfocus], [srcdoc], a[href^='javascript:']";
  const scripts = [...document.querySelectorAll("script:not([type='application/json']), style")];
  return window.__pwned === undefined
    && ({}).polluted === undefined
    && document.querySelector(elements) === null
    && scripts.every((each) => !each.textContent.includes("__pwned"));
}
"""
"""Whether no payload ran, changed a prototype, or became an element."""


def click_through(page: Any) -> None:
    """Open every panel, every card and several messages."""
    page.locator(ROWS).first.wait_for()
    for number, name in enumerate(PANELS, 1):
        page.keyboard.press(str(number))
        page.get_by_role("tabpanel", name=name).wait_for()
    page.keyboard.press("3")
    for card in page.locator("details.card > summary").all():
        card.click()
    page.keyboard.press("5")
    page.locator(".diff-lead, .state-note, .diff-area > *").first.wait_for()
    page.keyboard.press("2")
    for _ in range(4):
        page.keyboard.press("k")
        page.keyboard.press("Enter")
    page.locator(".message-text pre, .message-text .empty-state").first.wait_for()
    page.get_by_role("button", name="JSON").click()
    page.locator(".message-text > .muted, .message-text > .problem").first.wait_for(state="attached")


def test_no_payload_runs_or_loads_on_the_pages(
    chromium: Chromium, hostile: InspectedServer, keys: list[str]
) -> None:
    assert len(keys) >= len(PAYLOADS) + 1
    host = hostile.address.removeprefix("http://")
    with chromium.page() as watched:
        page = watched.page
        page.goto(hostile.server.url())
        page.locator(".overview .session-table tbody tr").first.wait_for()
        assert page.evaluate(IS_CLEAN)
        for number, key in enumerate(keys):
            if number not in (*ON_PAGES, len(TEXTS)) and not os.environ.get("FOVEAL_SOAK"):
                continue
            page.goto(hostile.server.url(session=key))
            click_through(page)
            assert page.evaluate(IS_CLEAN), key
            watched.check(host)


@pytest.mark.parametrize("number", rest_in_soak([IN_EXPORT, *range(len(PAYLOADS))]))
def test_no_payload_runs_or_loads_in_an_exported_file(
    chromium: Chromium, hostile: InspectedServer, keys: list[str], tmp_path: Path, number: int
) -> None:
    path = tmp_path / "export.html"
    path.write_bytes(hostile.client().get("/inspect/api/export", params={"id": keys[number]}).content)
    with chromium.page() as watched:
        watched.page.goto(path.as_uri())
        click_through(watched.page)
        assert watched.page.evaluate(IS_CLEAN)
        watched.check()


class OtherOrigin(BaseHTTPRequestHandler):
    """A page of another site, which the browser has open beside the inspector."""

    def do_GET(self) -> None:
        body = b"<!doctype html><title>Other</title><p>Other"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def other_site() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), OtherOrigin)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://localhost:{server.server_address[1]}/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_page_of_another_origin_can_neither_read_nor_act(
    chromium: Chromium, hostile: InspectedServer, keys: list[str], other_site: str
) -> None:
    api = f"{hostile.address}/inspect/api"
    before = hostile.client().get("/inspect/api/timeline", params={"id": keys[0]}).json()["next"]
    attempt = """
    async ([url, options]) => {
      try {
        const answer = await fetch(url, { credentials: "include", ...options });
        return answer.type === "opaque" ? "opaque" : `read ${answer.status} ${await answer.text()}`;
      } catch (error) {
        return error.name;
      }
    }
    """
    act = {"method": "POST", "body": json.dumps({"action": "pin", "text": "evil"})}
    with chromium.page() as watched:
        page = watched.page
        page.goto(hostile.server.url())  # the browser has logged in
        page.goto(other_site)
        key = keys[0]
        assert page.evaluate(attempt, [f"{api}/timeline?id={key}", {}]) == "TypeError"
        assert page.evaluate(attempt, [f"{api}/timeline?id={key}", {"mode": "no-cors"}]) == "TypeError"
        with_token = {**act, "headers": {TOKEN_HEADER: "guess", "Content-Type": "application/json"}}
        assert page.evaluate(attempt, [f"{api}/act?id={key}", with_token]) == "TypeError"
        assert page.evaluate(attempt, [f"{api}/act?id={key}", {**act, "mode": "no-cors"}]) == "TypeError"
        frame = """
        url => new Promise((onload) => {
          document.body.append(Object.assign(document.createElement("iframe"), { src: url, onload }));
        })
        """
        page.evaluate(frame, f"{hostile.address}/inspect/")
        assert "Sessions" not in (page.frames[-1].content() if len(page.frames) > 1 else "")
    assert hostile.client().get("/inspect/api/timeline", params={"id": keys[0]}).json()["next"] == before


def test_another_name_of_this_machine_is_refused(chromium: Chromium, hostile: InspectedServer) -> None:
    """A name that an attacker lets point to 127.0.0.1 must not reach the inspector."""
    port = hostile.address.rpartition(":")[2]
    with chromium.page() as watched:
        answer = watched.page.goto(f"http://{ATTACKER}:{port}/inspect/")
        assert answer is not None
        assert answer.status in (400, 403, 421)
