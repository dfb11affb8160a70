"""A token that names a user reaches nothing of others: by any route of the API and of the inspector."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import pytest

from foveal.core.log.events import MEMORY_LOG_PREFIX
from foveal.recall.archive.source import session_handle
from foveal.server import api
from foveal.server.api.operation import ApiOperation
from foveal.server.audit import AuditFilter, AuditTrail
from foveal.server.auth_tokens import AuthTokens, MemoryChoice
from support.api_server import ApiServer
from support.inspected_server import TOKEN_HEADER, page_token
from support.serve_process import until

SECRET: Final = "EVEPRIVATE"
OWN: Final = "of-mallory"
FOREIGN: Final = ("of-eve", "of-nobody", "drop-in-of-eve", "of-both")
MEMORY: Final = f"{MEMORY_LOG_PREFIX}eve"
REFUSED: Final = (403, "urn:foveal:other_user")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with ApiServer(tmp_path_factory.mktemp("bound"), background=True) as running:
        with running.client(running.token("default")) as owner:
            for id, user in (("of-eve", "eve"), (OWN, "mallory")):
                said = f"Remember that I prefer {SECRET if user == 'eve' else 'tabs'}."
                owner.post("/api/sessions", json={"id": id, "user": user, "title": f"{said}"})
                owner.post(f"/api/sessions/{id}/turns", json={"text": said})
            for id in FOREIGN[1:]:
                owner.post("/api/sessions", json={"id": id, "title": f"{SECRET} {id}"})
                owner.post(f"/api/sessions/{id}/turns", json={"text": f"Hold on to {SECRET}."})
        inbox = running.service.runtime.inbox
        for id, user in (("drop-in-of-eve", "eve"), ("of-both", "eve"), ("of-both", "mallory")):
            running.do(inbox.add_session_user("default", id, user))
        yield running


def bound(server: ApiServer, user: str) -> str:
    tokens = AuthTokens(server.service.runtime.database)
    return server.do(tokens.create("default", memory=MemoryChoice(user), now=0.0))[1]


@pytest.fixture(scope="module")
def mallory(server: ApiServer) -> Iterator[httpx.Client]:
    with server.client(bound(server, "mallory")) as client:
        yield client


@contextmanager
def browser_of(server: ApiServer, user: str) -> Iterator[httpx.Client]:
    """Yield a browser that has logged in with a token of a user; it sends the token of its page."""
    with server.client() as browser:
        assert browser.post("/inspect/login", data={"token": bound(server, user)}).status_code == 303
        browser.headers[TOKEN_HEADER] = page_token(browser.get("/inspect/").text)
        yield browser


def state_of_others(server: ApiServer) -> Any:
    with server.client(server.token("default")) as owner:
        events = [owner.get(f"/api/sessions/{id}/events", params={"limit": 1_000}).json() for id in FOREIGN]
        memory = owner.get("/api/memory/eve", params={"all": True}).json()
        listed = [each["id"] for each in owner.get("/api/sessions").json()["sessions"]]
        return events, memory, [id for id in listed if id != OWN]


# ── The API ──────────────────────────────────────────────────────────────────────────────────────────────

TENANT_LISTS: Final = frozenset({"list_sessions"})
"""Operations that answer every token; what they list is checked."""
BODIES: Final[dict[str, dict[str, Any]]] = {
    "rename_session": {"title": "Mine"},
    "append_events": {"text": "Hello."},
    "run_turn": {"text": "Hello."},
    "drop_event": {"handle": "e1"},
    "pin_rule": {"text": "Be kind."},
    "supersede_message": {"handle": "e1", "by": "e1"},
    "mark_message": {"handle": "e1", "priority": "high"},
    "add_entry": {"text": "I prefer spaces."},
    "edit_entry": {"text": "I prefer spaces."},
    "propose_entries": {"session": "of-eve"},
    "import_memory": {"lines": ""},
    "create_schedule": {"name": "daily", "session": "new", "cron": "0 9 * * *", "prompt": "Hello."},
    "change_schedule": {"prompt": "Hello."},
}
"""Valid bodies of operations that need one: a body that is not valid is refused before the rule is asked."""
QUERIES: Final[dict[str, dict[str, str]]] = {
    "search_session": {"q": SECRET},
    "export_session": {"to": "foveal"},
}
PATHS: Final = {"turn": "t1", "handle": "e1", "entry": "m0", "schedule": "daily"}
NAMES_OF_OTHERS: Final = {"user": ("eve",), "session": FOREIGN, "continue_from": FOREIGN}
"""Fields of bodies and queries that name a user or a session."""


class Asked(NamedTuple):
    """A request for something of others."""

    operation: ApiOperation[Any, Any]
    path: dict[str, str]
    body: dict[str, Any]


def asked_of_others() -> Iterator[Asked]:
    """Yield requests that name a session or a user of others in each place of each operation that can name one."""
    for operation in api.API_OPERATIONS:
        if operation.path.startswith("/api/admin"):
            continue  # other roles use these
        body = BODIES.get(operation.id, {})
        own = {"session": OWN, "user": "mallory", **PATHS}
        path = {name: own[name] for name in operation.path_params}
        found = False
        for name, values in NAMES_OF_OTHERS.items():
            for value in values:
                if name in path:
                    yield Asked(operation, {**path, name: value}, body)
                    found = True
                if name in operation.body.__struct_fields__:
                    yield Asked(operation, path, {**body, name: value})
                    found = True
        if not found and operation.id not in TENANT_LISTS:
            yield Asked(operation, path, body)


def ask(client: httpx.Client, asked: Asked) -> httpx.Response:
    operation = asked.operation
    body = {"json": asked.body} if asked.body else {}
    query = QUERIES.get(operation.id, {})
    return client.request(operation.method, operation.path.format(**asked.path), params=query, **body)


def test_no_operation_of_the_api_reaches_what_others_have(server: ApiServer, mallory: httpx.Client) -> None:
    before = state_of_others(server)
    for asked in asked_of_others():
        answer = ask(mallory, asked)
        got = answer.status_code, answer.json().get("type")
        assert got == REFUSED, (asked.operation.id, asked.path, asked.body, answer.text)
        assert SECRET not in answer.text
    assert state_of_others(server) == before


def test_lists_of_the_api_have_the_users_own(server: ApiServer, mallory: httpx.Client) -> None:
    assert {operation.id for operation in api.API_OPERATIONS} > TENANT_LISTS
    rows = mallory.get("/api/sessions", params={"limit": 1}).json()
    assert [each["id"] for each in rows["sessions"]] == [OWN]
    assert rows["next"] is None
    assert mallory.get(f"/api/sessions/{OWN}/events").status_code == 200
    assert mallory.get("/api/memory/mallory").json()["entries"][0]["text"] == "I prefer tabs."


# ── The inspector ────────────────────────────────────────────────────────────────────────────────────────

OPEN_PAGES: Final = frozenset(
    {"/inspect", "/inspect/login", "/inspect/logout", "/inspect/static/{name}"},
)
"""Pages without sessions and memories."""
INSPECTOR_LISTS: Final = frozenset(
    {("GET", "/inspect/"), ("GET", "/inspect/memory"), ("GET", "/inspect/api/sessions")}
)
PARAMETERS: Final[dict[str, dict[str, Any]]] = {
    "text": {"event": 1},
    "shown": {"key": "e1", "at": 1},
    "request": {"at": 1},
    "diff": {"a": 1, "b": 2},
    "search": {"q": SECRET},
    "lost": {"event": 1},
    "room": {"event": 1},
    "statements": {"at": 1},
}


def routes_of(server: ApiServer) -> list[tuple[str, str]]:
    """Return method and path of all routes of the inspector that show or change something."""
    return [
        (method, route.path)
        for route in server.inspector.routes()
        if route.path not in OPEN_PAGES
        for method in sorted((route.methods or set()) - {"HEAD"})
    ]


def inspect(client: httpx.Client, method: str, path: str, key: str) -> httpx.Response:
    if path == "/inspect/memory" and method == "POST":
        token = client.headers.get(TOKEN_HEADER, "")
        form = {"memory": session_handle("tenant default", MEMORY), "action": "forget", "id": "m0"}
        return client.post(path, data={**form, "write_token": token})
    params = {"id": key, **PARAMETERS.get(path.rpartition("/")[2], {})}
    body = {"json": {"action": "pin", "text": "Be kind."}} if method == "POST" else {}
    return client.request(method, path, params=params, **body)


@pytest.mark.parametrize("by_cookie", [True, False], ids=["cookie", "token"])
def test_no_route_of_the_inspector_reaches_what_others_have(server: ApiServer, by_cookie: bool) -> None:
    before, routes = state_of_others(server), routes_of(server)
    assert len(routes) > 15
    with browser_of(server, "mallory") if by_cookie else server.client(bound(server, "mallory")) as client:
        # Of the token, which the same check reads, one session is enough.
        for id in FOREIGN if by_cookie else FOREIGN[:1]:
            for key in (id, session_handle("tenant default", id)):
                for method, path in routes:
                    if (method, path) in INSPECTOR_LISTS:
                        answer = client.get(path, params={"q": SECRET})
                        assert answer.status_code == 200
                    else:
                        answer = inspect(client, method, path, key)
                        is_form = (method, path) == ("POST", "/inspect/memory")
                        assert answer.status_code == 403, (method, path, answer.text)
                        assert "reaches nothing of others" in answer.text or (is_form and not by_cookie)
                    assert SECRET not in answer.text.replace(f'value="{SECRET}"', ""), (method, path)
                    assert id not in answer.text
    assert state_of_others(server) == before


def test_the_inspector_shows_a_user_the_own_sessions_and_memory(server: ApiServer) -> None:
    with browser_of(server, "eve") as eve:
        for method, path in routes_of(server):
            if path in ("/inspect/api/live", "/inspect/memory", "/inspect/api/lost") or method == "POST":
                continue
            params = {} if (method, path) in INSPECTOR_LISTS else {"id": "of-eve"}
            name = path.rpartition("/")[2]
            answer = eve.get(path, params={**params, **PARAMETERS.get(name, {})})
            assert answer.status_code == 200, (path, answer.text)
        assert SECRET in eve.get("/inspect/memory").text
        assert SECRET in eve.get("/inspect/session", params={"id": "of-eve"}).text
        rows = eve.get("/inspect/api/sessions").json()["sessions"]
        assert len(rows) == 2, "of-eve, and that of the drop-in client"
        act = eve.post(
            "/inspect/api/act", params={"id": "of-eve"}, json={"action": "pin", "text": "Be kind."}
        )
        assert act.status_code == 200


def test_the_stream_of_the_list_has_the_own_sessions_only(server: ApiServer) -> None:
    everything = {"Last-Event-ID": "another-0"}  # of a list that this server does not know
    with (
        browser_of(server, "mallory") as browser,
        browser.stream("GET", "/inspect/api/live", headers=everything) as stream,
    ):
        seen = next(line for line in stream.iter_lines() if line.startswith("data:"))
    assert "I prefer tabs" in seen
    assert SECRET not in seen


# ── The trail ────────────────────────────────────────────────────────────────────────────────────────────


def test_the_trail_names_whose_memory_the_inspector_showed_and_changed(tmp_path: Path) -> None:
    with ApiServer(tmp_path) as server:
        with (
            browser_of(server, "@request") as owner,
            browser_of(server, "eve") as eve,
            browser_of(server, "mallory") as mallory,
        ):
            for user in ("eve", "bob"):
                memory = server.service.tenant("default").memory(user)
                server.do(memory.remember("I prefer tabs."))
            owner.get("/inspect/memory")
            for client in (mallory, eve):
                inspect(client, "POST", "/inspect/memory", "")

            trail = AuditTrail(server.service.runtime.database, clock=lambda: 0.0)

            def found(user: str) -> list[tuple[str, str]]:
                rows = server.do(trail.page(AuditFilter(user=user), limit=100))
                return [(row.action, row.outcome) for row in rows]

            assert found("eve") == [("read", "ok"), ("change", "refused"), ("change", "ok")]
            assert found("bob") == [("read", "ok")]
        with server.client(bound(server, "eve")) as client:
            client.post("/api/sessions", json={"id": "of-eve"})
        with browser_of(server, "mallory") as mallory:

            def is_recorded() -> bool:
                answer = inspect(mallory, "GET", "/inspect/session", "of-eve")
                assert answer.status_code in (403, 404), "a new session is known a moment later"
                rows = server.do(trail.page(AuditFilter(action="read"), limit=100))
                return ("session:of-eve", "refused") in {(row.object, row.outcome) for row in rows}

            until(is_recorded)


def test_a_user_who_erases_everything_leaves_the_words_of_others(tmp_path: Path) -> None:
    with ApiServer(tmp_path / "shared") as server, server.client(server.token("default")) as owner:
        for id, users in (("of-both", ("ada", "bob")), ("of-ada", ("ada",))):
            owner.post("/api/sessions", json={"id": id})
            owner.post(f"/api/sessions/{id}/turns", json={"text": "Hello."})
            for user in users:
                server.do(server.service.runtime.inbox.add_session_user("default", id, user))
        with server.client(bound(server, "ada")) as ada:
            erased = ada.delete("/api/users/ada").json()
        assert erased == {"sessions": ["of-ada"], "kept": [{"session": "of-both", "messages": 1}]}
        assert owner.delete("/api/users/ada").json() == {"sessions": ["of-both"], "kept": []}
