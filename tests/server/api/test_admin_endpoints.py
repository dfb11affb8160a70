"""`/api/admin` and the audit trail of requests, over real connections."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import apsw
import httpx
import pytest

from foveal.server import AuthTokens
from foveal.server.audit import AuditEntry, AuditFilter
from foveal.server.http.guard import action_of
from support.api_server import ApiServer
from support.inspected_server import TOKEN_HEADER, page_token
from support.waiting import wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with ApiServer(tmp_path_factory.mktemp("admin"), model="gpt-4.1", server__models=["*"]) as running:
        yield running


@pytest.fixture(scope="module")
def admin(server: ApiServer) -> Iterator[httpx.Client]:
    tokens = AuthTokens(server.service.runtime.database)
    _, secret = server.do(tokens.create("", role="admin", now=1.0))
    with server.client(secret) as client:
        yield client


@pytest.fixture
def alice(admin: httpx.Client, server: ApiServer) -> Iterator[httpx.Client]:
    """A client with a token of tenant alice, which an administrator has created."""
    made = admin.post("/api/admin/tokens", json={"tenant": "alice", "label": "laptop"})
    assert made.status_code == 201
    with server.client(made.json()["secret"]) as client:
        client.headers["X-Token-Id"] = made.json()["id"]
        yield client


def trail(admin: httpx.Client, client: httpx.Client, **query: Any) -> list[tuple[str, str, str]]:
    """Return what a client did: action, object and outcome."""
    rows = admin.get("/api/admin/audit", params={"limit": 1_000, **query}).json()["entries"]
    mine = [row for row in rows if row["actor"] == client.headers["X-Token-Id"]]
    assert {row["tenant"] for row in mine} <= {"alice"}
    assert {row["address"] for row in mine} <= {"127.0.0.1"}
    return [(row["action"], row["object"], row["outcome"]) for row in mine]


# ── Tenants, tokens, usage, health ───────────────────────────────────────────────────────────────────────


def test_a_time_of_the_audit_trail_that_is_no_number_is_refused_as_such(admin: httpx.Client) -> None:
    refused = admin.get("/api/admin/audit", params={"since": "2026-01-01"})
    detail = "in the query: since must be a number"
    assert (refused.status_code, refused.json()["detail"]) == (400, detail)


def test_a_token_is_created_listed_and_revoked(admin: httpx.Client, server: ApiServer) -> None:
    made = admin.post("/api/admin/tokens", json={"tenant": "carol", "memory": "ada", "label": "x"})
    id, secret = made.json()["id"], made.json()["secret"]
    assert made.headers["location"] == f"/api/admin/tokens/{id}"
    listed = next(token for token in admin.get("/api/admin/tokens").json()["tokens"] if token["id"] == id)
    assert secret not in str(listed)
    assert listed | {"created": 0} == {
        "id": id,
        "role": "tenant",
        "tenant": "carol",
        "label": "x",
        "memory": "ada",
        "created": 0,
        "revoked": None,
    }
    with server.client(secret) as carol:
        assert carol.get("/api/sessions").status_code == 200
        assert admin.delete(f"/api/admin/tokens/{id}").status_code == 204
        wait_until(lambda: carol.get("/api/sessions").status_code == 401)
    assert admin.delete(f"/api/admin/tokens/{id}").status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        {"tenant": "../a"},
        {"tenant": ""},
        {"role": "admin", "tenant": "alice"},
        {"role": "metrics", "memory": "ada"},
        {"memory": "a b"},
    ],
)
def test_a_token_that_cannot_be_is_refused(admin: httpx.Client, body: dict[str, str]) -> None:
    before = admin.get("/api/admin/tokens").json()
    assert admin.post("/api/admin/tokens", json=body).status_code == 422
    assert admin.get("/api/admin/tokens").json() == before


def test_the_first_token_comes_from_the_command_line(tmp_path_factory: pytest.TempPathFactory) -> None:
    with ApiServer(tmp_path_factory.mktemp("open")) as running, running.client() as client:
        refused = client.post("/api/admin/tokens", json={"role": "admin"})
        assert refused.status_code == 409
        assert "`foveal token create`" in refused.json()["detail"]
        assert client.get("/api/sessions").status_code == 200


def test_usage_is_summed_by_tenant_user_and_model(admin: httpx.Client, alice: httpx.Client) -> None:
    for user in ("ada", "ada", "grace"):
        made = alice.post("/api/sessions", json={"user": user, "model": "gpt-4.1"})
        turn = {"text": "Hello.", "stream": False}
        assert alice.post(f"{made.headers['location']}/turns", json=turn).status_code == 200
    query = {"by": "user,model", "tenant": "alice"}
    rows = admin.get("/api/admin/usage", params=query).json()["rows"]
    named = {row["user"]: row for row in rows if row["user"]}
    assert {user: (row["calls"], row["input"], row["output"]) for user, row in named.items()} == {
        "ada": (2, 100, 10),
        "grace": (1, 50, 5),
    }
    assert named["ada"]["model"] == "gpt-4.1"
    assert named["ada"]["dollars"] == pytest.approx(2 * (50 * 2 + 5 * 8) / 1e6)
    assert admin.get("/api/admin/usage", params={"by": "person"}).status_code == 422
    (listed,) = [one for one in admin.get("/api/admin/tenants").json()["tenants"] if one["name"] == "alice"]
    assert listed["usage"]["calls"] >= 3
    assert listed["tokens"] >= 1
    assert "Hello" not in str(rows)


def test_a_fork_counts_no_usage_again(admin: httpx.Client, alice: httpx.Client) -> None:
    place = alice.post("/api/sessions", json={"user": "forker"}).headers["location"]
    alice.post(f"{place}/turns", json={"text": "Hello.", "stream": False})
    assert alice.post(f"{place}/fork", json={}).status_code == 201
    rows = admin.get("/api/admin/usage", params={"by": "user", "user": "forker"}).json()["rows"]
    assert [row["calls"] for row in rows] == [1]


def test_health_names_what_the_public_one_does_not(admin: httpx.Client, server: ApiServer) -> None:
    health = admin.get("/api/admin/health").json()
    assert health["problems"] == []
    assert health["storage"] == str(server.folder / "server")
    assert (health["inbox"], health["failing_tenants"]) == (0, [])


# ── Audit ────────────────────────────────────────────────────────────────────────────────────────────────


def test_reads_exports_undos_and_erasures_are_recorded(admin: httpx.Client, alice: httpx.Client) -> None:
    alice.post("/api/sessions", json={"id": "secret-plan"})
    alice.post("/api/sessions/secret-plan/turns", json={"text": "the canary sings", "stream": False})
    alice.get("/api/sessions/secret-plan/events")
    alice.get("/api/sessions/secret-plan/search", params={"q": "canary"})  # the same minute
    alice.get("/api/sessions/secret-plan/export")
    pin = alice.post("/api/sessions/secret-plan/pins", json={"text": "Be kind to the canary."}).json()
    alice.post("/api/sessions/secret-plan/undo", json={"handle": pin["handle"]})
    alice.get("/api/sessions/not-mine")
    alice.delete("/api/sessions/secret-plan")
    done = trail(admin, alice)
    assert done == [
        ("change", "session:secret-plan", "ok"),
        ("read", "session:secret-plan", "ok"),
        ("export", "session:secret-plan", "ok"),
        ("change", "session:secret-plan", "ok"),
        ("undo", "session:secret-plan", "ok"),
        ("read", "session:not-mine", "refused"),
        ("erase", "session:secret-plan", "ok"),
    ]
    assert "canary" not in admin.get("/api/admin/audit", params={"limit": 1_000}).text


def test_an_erased_user_leaves_the_fact_and_no_name(admin: httpx.Client, alice: httpx.Client) -> None:
    alice.post("/api/sessions", json={"id": "talk", "user": "lovelace"})
    alice.post("/api/sessions/talk/turns", json={"text": "Hello.", "stream": False})
    alice.post("/api/memory/lovelace", json={"text": "I use tabs."})
    assert alice.delete("/api/users/lovelace").json()["sessions"] == ["talk"]
    assert "lovelace" not in admin.get("/api/admin/audit", params={"limit": 1_000}).text
    assert "lovelace" not in admin.get("/api/admin/usage", params={"by": "user"}).text
    found = trail(admin, alice, user="lovelace")
    assert [(action, outcome) for action, _, outcome in found] == [("change", "ok"), ("erase", "ok")]


def test_tokens_are_recorded_and_the_trail_itself(admin: httpx.Client, server: ApiServer) -> None:
    id = admin.post("/api/admin/tokens", json={"tenant": "dave"}).json()["id"]
    admin.delete(f"/api/admin/tokens/{id}")
    admin.delete(f"/api/admin/tokens/{id}")
    rows = server.do(server.service.runtime.audit.page(AuditFilter(action="token"), limit=1_000))
    mine = [row for row in rows if row.object.startswith(f"token:{id}")]
    assert [(row.tenant, row.object.removeprefix(f"token:{id}"), row.outcome) for row in mine] == [
        ("dave", " created, role tenant", "ok"),
        ("dave", " revoked, role tenant", "ok"),
        ("", "", "refused"),
    ]
    admin.get("/api/admin/audit")
    reads = server.do(server.service.runtime.audit.page(AuditFilter(action="read"), limit=1_000))
    assert "admin:audit" in {row.object for row in reads}


def test_what_a_request_creates_is_named_also_if_it_is_refused(
    admin: httpx.Client, alice: httpx.Client
) -> None:
    alice.post("/api/sessions", json={"id": "named"})
    alice.post("/api/sessions", json={"id": "named"})
    alice.post("/api/sessions/named/fork", json={"id": "branch"})
    schedule = {"name": "daily", "session": "named", "cron": "0 9 * * *", "prompt": "Report."}
    alice.post("/api/schedules", json=schedule)
    alice.post("/api/schedules", json=schedule)
    assert trail(admin, alice) == [
        ("change", "session:named", "ok"),
        ("change", "session:named", "refused"),
        ("change", "session:named forked, session:branch", "ok"),
        ("change", "schedule:daily", "ok"),
        ("change", "schedule:daily", "refused"),
    ]


def test_pages_of_the_trail_continue_after_the_last_row(admin: httpx.Client) -> None:
    first = admin.get("/api/admin/audit", params={"limit": 2}).json()
    second = admin.get("/api/admin/audit", params={"limit": 2, "after": first["next"]}).json()
    ids = [row["id"] for row in (*first["entries"], *second["entries"])]
    assert ids == sorted(set(ids))
    assert len(ids) == 4


def of_login(server: ApiServer, before: int) -> list[AuditEntry]:
    rows = server.do(server.service.runtime.audit.page(AuditFilter(), after=before, limit=1_000))
    return [row for row in rows if row.action in ("login", "logout")]


def test_logins_of_browsers_are_recorded(admin: httpx.Client, alice: httpx.Client, server: ApiServer) -> None:
    before = admin.get("/api/admin/audit", params={"limit": 1_000}).json()["entries"][-1]["id"]
    secret = alice.headers["Authorization"].removeprefix("Bearer ")
    alice.post("/api/sessions", json={"id": "watched", "title": "Watched"})
    pin = alice.post("/api/sessions/watched/pins", json={"text": "Be brief."}).json()["handle"]
    with server.client() as browser:
        assert browser.post("/inspect/login", data={"token": "fv_wrong"}).status_code == 401
        assert browser.post("/inspect/login", data={"token": ""}).status_code == 200
        assert browser.post("/inspect/login", data={"token": secret}).status_code == 303
        page = page_token(browser.get("/inspect/").text)

        def key() -> str:
            rows = browser.get("/inspect/api/sessions").json()["sessions"]
            return next((row["key"] for row in rows if row["title"] == "Watched"), "")

        url = f"/inspect/api/act?id={wait_until(key)}"
        for body in ({"action": "pin", "text": "Be kind."}, {"action": "undo", "event": pin}):
            assert browser.post(url, json=body, headers={TOKEN_HEADER: page}).status_code == 200
        browser.get("/inspect/api/timeline", params={"id": key()})
        browser.post("/inspect/logout", data={"write_token": page})
    id = alice.headers["X-Token-Id"]
    logins = [(row.actor, row.action, row.outcome) for row in of_login(server, before)]
    assert logins == [("", "login", "refused"), (id, "login", "ok"), (id, "logout", "ok")]
    done = trail(admin, alice)
    assert ("change", "session:watched", "ok") in done
    assert ("undo", "session:watched", "ok") in done
    assert ("read", "session:watched", "ok") in done
    assert not any("fv_" in str(row) for row in of_login(server, 0))


def wait_for_other_writers(server: ApiServer, *, seconds: float) -> None:
    """Set how long the server waits for other connections that write to its database."""
    pragma = f"PRAGMA busy_timeout = {round(seconds * 1_000)}"
    server.do(server.service.runtime.database.read(lambda db: db.execute(pragma)))


def test_what_cannot_be_recorded_is_not_exported_and_a_read_is_recorded_later(
    admin: httpx.Client, alice: httpx.Client, server: ApiServer
) -> None:
    alice.post("/api/sessions", json={"id": "hidden", "title": "the canary sings"})
    wait_for_other_writers(server, seconds=0.2)
    with closing(apsw.Connection(str(server.folder / "server" / "service.db"))) as other:
        other.execute("BEGIN IMMEDIATE")  # no other connection can write
        assert alice.get("/api/sessions/hidden/events").status_code == 200
        refused = alice.get("/api/sessions/hidden/export")
    wait_for_other_writers(server, seconds=5.0)
    assert refused.status_code == 503
    assert refused.json()["type"] == "urn:foveal:store"
    assert "canary" not in refused.text
    alice.delete("/api/sessions/hidden")
    assert [action for action, _, _ in trail(admin, alice)] == ["change", "read", "erase"]


def test_an_administrator_cannot_log_in_to_the_inspector(admin: httpx.Client, server: ApiServer) -> None:
    secret = admin.headers["Authorization"].removeprefix("Bearer ")
    with server.client() as browser:
        assert browser.post("/inspect/login", data={"token": secret}).status_code == 401


@pytest.mark.parametrize(
    ("method", "route", "expected"),
    [
        ("POST", "/api/sessions/{session}/turns", None),
        ("GET", "/api/sessions/{session}/turns/{turn}", "read"),
        ("POST", "/api/sessions/{session}/undo", "undo"),
        ("POST", "/api/memory/{user}/entries/{entry}/undo", "undo"),
        ("GET", "/api/memory/{user}/export", "export"),
        ("DELETE", "/api/memory/{user}", "erase"),
        ("DELETE", "/api/schedules/{schedule}", "change"),
        ("PATCH", "/api/sessions/{session}", "change"),
    ],
)
def test_the_route_says_what_a_request_does(method: str, route: str, expected: str | None) -> None:
    assert action_of(method, route) == expected
