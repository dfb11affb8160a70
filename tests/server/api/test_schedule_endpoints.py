"""`/api/schedules` over real HTTP, and in the OpenAPI document."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from foveal.server.api import schedule_endpoints
from foveal.server.jobs import schedule_store
from support.api_server import ApiServer
from support.serve_process import until

Json = dict[str, Any]
DEADLINE = 60.0
DAILY: Json = {"name": "daily", "session": "news", "cron": "0 9 * * *", "prompt": "What is new?"}
CONFIGURED = {"name": "fixed", "session": "news", "cron": "0 8 * * MON", "prompt": "Weekly."}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with ApiServer(tmp_path_factory.mktemp("schedules"), background=True, schedule=[CONFIGURED]) as served:
        yield served


@pytest.fixture(scope="module")
def connected(server: ApiServer) -> Iterator[httpx.Client]:
    with server.client(server.token("default")) as made:
        yield made


@pytest.fixture
def client(connected: httpx.Client) -> Iterator[httpx.Client]:
    yield connected
    for schedule in connected.get("/api/schedules").json()["schedules"]:
        connected.delete(f"/api/schedules/{schedule['name']}")


def test_a_schedule_is_created_read_changed_and_deleted(client: httpx.Client) -> None:
    made = client.post("/api/schedules", json=DAILY)
    assert (made.status_code, made.headers["location"]) == (201, "/api/schedules/daily")
    created = made.json()
    following = created.pop("next")
    assert created == {
        **DAILY,
        "zone": "UTC",
        "missed": "once",
        "enabled": True,
        "source": "api",
        "agent": "",
        "last": None,
        "result": "",
    }
    assert following > time.time() - DEADLINE
    assert following % 86_400 == 9 * 3_600

    changed = client.patch("/api/schedules/daily", json={"enabled": False, "prompt": "And today?"})
    assert changed.status_code == 200
    assert changed.json() == {**created, "prompt": "And today?", "enabled": False, "next": None}
    assert client.get("/api/schedules/daily").json() == changed.json()

    assert client.delete("/api/schedules/daily").status_code == 204
    assert client.get("/api/schedules/daily").status_code == 404


def test_a_schedule_that_is_run_now_sends_its_prompt(client: httpx.Client) -> None:
    assert client.post("/api/schedules", json={**DAILY, "enabled": False}).json()["last"] is None
    ran = client.post("/api/schedules/daily/run")
    assert (ran.status_code, set(ran.json())) == (202, {"key"})
    until(lambda: client.get("/api/schedules/daily").json()["result"] == "answered")
    assert client.get("/api/schedules/daily").json()["last"] > time.time() - DEADLINE
    events = client.get("/api/sessions/news/events").text
    assert "What is new?" in events
    assert "You said: What is new?" in events
    client.delete("/api/sessions/news")
    assert client.get("/api/schedules/daily").status_code == 404


def test_configured_schedules_are_listed_and_cannot_be_changed(client: httpx.Client) -> None:
    assert [each["name"] for each in client.get("/api/schedules").json()["schedules"]] == ["fixed"]
    assert client.get("/api/schedules/fixed").json()["source"] == "config"
    for refused in (
        client.patch("/api/schedules/fixed", json={"enabled": False}),
        client.delete("/api/schedules/fixed"),
        client.post("/api/schedules", json={**DAILY, "name": "fixed"}),
    ):
        assert refused.status_code == 409
        assert refused.headers["content-type"] == "application/problem+json"
        assert refused.json()["type"] == "urn:foveal:schedule_of_config"
        assert (
            refused.json()["detail"] == "schedule 'fixed' is in the configuration; change it in foveal.toml"
        )


def test_a_name_cannot_be_used_twice(client: httpx.Client) -> None:
    assert client.post("/api/schedules", json=DAILY).status_code == 201
    refused = client.post("/api/schedules", json=DAILY)
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:foveal:schedule_exists")
    assert refused.json()["detail"] == "schedule 'daily' exists; change it or choose another name"


def test_a_tenant_cannot_see_or_change_schedules_of_another(server: ApiServer, client: httpx.Client) -> None:
    client.post("/api/schedules", json=DAILY)
    with server.client(server.token("other")) as other:
        assert other.get("/api/schedules").json() == {"schedules": []}
        for refused in (
            other.get("/api/schedules/daily"),
            other.patch("/api/schedules/daily", json={}),
            other.delete("/api/schedules/daily"),
            other.post("/api/schedules/daily/run"),
        ):
            assert refused.status_code == 404
        assert other.post("/api/schedules", json=DAILY).status_code == 201
    assert client.get("/api/schedules/daily").status_code == 200


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"cron": "whenever"}, 400),
        ({"cron": "99 9 * * *"}, 422),
        ({"cron": "0 0 30 2 *"}, 422),
        ({"cron": "0 9 * * * *"}, 422),
        ({"cron": "0 9 * * *\n"}, 422),
        ({"zone": "localtime"}, 422),
        ({"name": "daily\n"}, 400),
        ({"zone": "Mars/Olympus"}, 422),
        ({"zone": "../../etc/passwd"}, 422),
        ({"prompt": "  "}, 422),
        ({"prompt": ""}, 400),
        ({"prompt": "x" * 100_001}, 400),
        ({"session": "a/b"}, 400),
        ({"name": "../x"}, 400),
        ({"missed": "all"}, 400),
        ({"enabled": "yes"}, 400),
        ({"tenant": "other"}, 400),
    ],
)
def test_an_invalid_schedule_is_refused(client: httpx.Client, changes: Json, status: int) -> None:
    refused = client.post("/api/schedules", json={**DAILY, **changes})
    assert refused.status_code == status
    assert refused.headers["content-type"] == "application/problem+json"
    assert client.get("/api/schedules/daily").status_code == 404


def test_the_number_of_schedules_is_limited(
    server: ApiServer, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule_store, "MAX_SCHEDULES_PER_TENANT", 2)
    with server.client(server.token("eager")) as eager:
        made = [eager.post("/api/schedules", json={**DAILY, "name": name}).status_code for name in "abc"]
        assert made == [201, 201, 422]
    assert client.post("/api/schedules", json=DAILY).status_code == 201


def test_a_secret_in_a_prompt_is_not_stored(server: ApiServer, client: httpx.Client) -> None:
    secret = "sk-proj-" + "a1B2" * 12
    created = client.post("/api/schedules", json={**DAILY, "prompt": f"Use {secret} please"}).json()
    assert secret not in created["prompt"]
    assert created["prompt"].startswith("Use ")
    assert all(secret.encode() not in file.read_bytes() for file in server.folder.glob("server/service.db*"))


def test_every_operation_is_in_the_document(client: httpx.Client) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    for operation in schedule_endpoints.SCHEDULE_OPERATIONS:
        assert paths[operation.path][operation.method.lower()]["operationId"] == operation.id
