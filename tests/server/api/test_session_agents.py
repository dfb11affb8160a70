"""`agent` of a session: settings of `[agents.NAME]`, kept with the session, over real HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.api_server import ApiServer
from support.waiting import wait_until

CONFIG = """
model = "scripted/base"
window = 64000
prompt = "Speak to everybody."

[agents.reviewer]
model = "scripted/careful"
window = 32000
prompt = "Review the code."
[agents.reviewer.context]
policy = "rolling"

[agents.silent]
[agents.silent.tools]
deny = ["recall_read"]
"""
WITHOUT_REVIEWER = CONFIG.partition("[agents.reviewer]")[0] + "[agents.silent]\nwindow = 16000\n"


def serve(folder: Path, text: str = CONFIG, *, background: bool = False) -> ApiServer:
    folder.mkdir(exist_ok=True)
    (folder / "foveal.toml").write_text(text)
    return ApiServer(folder, background=background)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with serve(tmp_path_factory.mktemp("agents")) as server, server.client() as made:
        yield made


def create(client: httpx.Client, **given: Any) -> dict[str, Any]:
    made = client.post("/api/sessions", json=given)
    assert made.status_code == 201, made.text
    found: dict[str, Any] = made.json()
    return found


def first_events(client: httpx.Client, id: str) -> list[dict[str, Any]]:
    return [event["fact"] for event in client.get(f"/api/sessions/{id}/events").json()["events"]]


def test_a_session_has_the_settings_of_its_agent(client: httpx.Client) -> None:
    made = create(client, id="reviewed", agent="reviewer")
    assert (made["agent"], made["model"]) == ("reviewer", "scripted/careful")
    opened, instructed = first_events(client, "reviewed")[:2]
    assert opened["policy"] == "rolling"
    assert instructed["content"].endswith("Review the code.")
    assert client.get("/api/sessions/reviewed/context").json()["window"] == 32_000
    assert client.get("/api/sessions/reviewed").json() == made


def test_a_session_without_an_agent_has_the_settings_of_the_server(client: httpx.Client) -> None:
    made = create(client, id="plain")
    assert (made["agent"], made["model"]) == ("", "scripted/base")
    assert first_events(client, "plain")[1]["content"].endswith("Speak to everybody.")
    assert client.get("/api/sessions/plain/context").json()["window"] == 64_000


def test_the_list_names_the_agent_of_each_session(client: httpx.Client) -> None:
    create(client, id="listed", agent="reviewer")
    create(client, id="listed-plain")
    listed = {one["id"]: one["agent"] for one in client.get("/api/sessions").json()["sessions"]}
    assert (listed["listed"], listed["listed-plain"]) == ("reviewer", "")


def test_an_unknown_agent_is_refused_with_the_known_ones(client: httpx.Client) -> None:
    refused = client.post("/api/sessions", json={"id": "nowhere", "agent": "nobody"})
    assert refused.status_code == 422
    assert refused.json()["detail"] == "agent = 'nobody' is not allowed: one of reviewer, silent"
    assert client.get("/api/sessions/nowhere").status_code == 404


def test_a_model_of_the_request_wins_over_that_of_the_agent(client: httpx.Client) -> None:
    assert create(client, agent="reviewer", model="scripted/other")["model"] == "scripted/other"


def test_a_fork_has_the_agent_of_its_origin(client: httpx.Client) -> None:
    create(client, id="origin", agent="reviewer")
    forked = client.post("/api/sessions/origin/fork", json={"id": "forked"}).json()
    assert (forked["agent"], forked["model"]) == ("reviewer", "scripted/careful")


def test_a_session_that_continues_another_one_has_its_own_agent(client: httpx.Client) -> None:
    create(client, id="before", agent="reviewer")
    client.post("/api/sessions/before/turns", json={"text": "Use tabs.", "stream": False})
    assert create(client, continue_from="before", agent="silent")["agent"] == "silent"
    assert create(client, continue_from="before")["agent"] == ""


def offered_tools(client: httpx.Client, agent: str) -> set[str]:
    id = create(client, agent=agent)["id"]
    for number in range(4):
        text = f"Message {number}: " + " ".join(f"word{number}-{at}" for at in range(300))
        client.post(f"/api/sessions/{id}/turns", json={"text": text, "stream": False})
    assert client.post(f"/api/sessions/{id}/compact", json={}).status_code == 200
    events = client.get(f"/api/sessions/{id}/events").json()["events"]
    tools = [event["fact"]["tools"] for event in events if event["kind"] == "equipped"]
    return {tool.get("function", tool)["name"] for tool in tools[-1]}


def test_a_tool_that_an_agent_denies_is_not_offered(client: httpx.Client) -> None:
    assert "recall_read" in offered_tools(client, "reviewer")
    assert offered_tools(client, "silent") == offered_tools(client, "reviewer") - {"recall_read"}


def test_a_session_keeps_its_agent_after_a_restart(tmp_path: Path) -> None:
    with serve(tmp_path / "s") as server, server.client() as client:
        create(client, id="kept", agent="reviewer")
    with serve(tmp_path / "s") as server, server.client() as client:
        found = client.get("/api/sessions/kept").json()
        assert (found["agent"], found["model"]) == ("reviewer", "scripted/careful")
        done = client.post("/api/sessions/kept/turns", json={"text": "Hello.", "stream": False})
        assert done.json()["outcome"]["text"] == "You said: Hello."


def test_a_session_says_that_its_agent_was_removed(tmp_path: Path) -> None:
    with serve(tmp_path / "s") as server, server.client() as client:
        create(client, id="orphan", agent="reviewer")
        client.post("/api/sessions/orphan/turns", json={"text": "Hello.", "stream": False})
    with serve(tmp_path / "s", WITHOUT_REVIEWER) as server, server.client() as client:
        assert client.get("/api/sessions/orphan").json()["agent"] == "reviewer"
        before = client.get("/api/sessions/orphan").json()["events"]
        refused = client.post("/api/sessions/orphan/turns", json={"text": "More.", "stream": False})
        assert refused.status_code == 409
        assert refused.json()["detail"] == (
            "session 'orphan' belongs to the agent 'reviewer', which the configuration no longer has: add "
            "[agents.reviewer] again, or continue the session in a new one with another agent (it has silent)"
        )
        assert client.get("/api/sessions/orphan").json()["events"] == before
        assert create(client, continue_from="orphan", agent="silent")["agent"] == "silent"
    with serve(tmp_path / "s") as server, server.client() as client:
        done = client.post("/api/sessions/orphan/turns", json={"text": "Back.", "stream": False})
        assert done.json()["outcome"]["text"] == "You said: Back."


def test_a_message_that_waited_for_an_agent_that_was_removed_fails_with_the_reason(tmp_path: Path) -> None:
    with serve(tmp_path / "s") as server, server.client() as client:
        create(client, id="waiting", agent="reviewer")
        server.service.runtime.begin_closing()  # messages are accepted, and answered after the next start
        turn = client.post(
            "/api/sessions/waiting/turns", json={"text": "Hello.", "key": "a", "stream": False}
        )
        assert turn.json()["outcome"]["why"] == "stopped"
    with serve(tmp_path / "s", WITHOUT_REVIEWER) as server, server.client() as client:
        server.do(server.service.recover())
        id = turn.json()["turn"]
        with client.stream("GET", f"/api/sessions/waiting/turns/{id}") as stream:
            last = [line for line in stream.iter_lines() if line.startswith("data: ")][-1]
        assert "the agent 'reviewer', which the configuration no longer has" in last


# ── Schedules ──────────────────────────────────────────────────────────────────────────────────────────

DAILY = {"cron": "0 9 * * *", "prompt": "Report."}


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    text = (
        CONFIG + "[[schedule]]\nname = 'nightly'\nsession = 'night'\ncron = '0 3 * * *'\nprompt = 'Look.'\n"
    )
    folder = tmp_path_factory.mktemp("schedules")
    with serve(folder, f"{text}agent = 'reviewer'\n", background=True) as server, server.client() as made:
        yield made


def run_schedule(client: httpx.Client, name: str) -> str:
    """Run a schedule now and return its result."""
    assert client.post(f"/api/schedules/{name}/run", json={}).status_code == 202

    def result() -> str:
        return str(client.get(f"/api/schedules/{name}").json()["result"])

    wait_until(lambda: result() in ("answered", "failed"))
    return result()


def test_a_schedule_creates_its_session_with_its_agent(worker: httpx.Client) -> None:
    given = {"name": "daily", "session": "day", "agent": "reviewer", **DAILY}
    assert worker.post("/api/schedules", json=given).json()["agent"] == "reviewer"
    assert run_schedule(worker, "daily") == "answered"
    found = worker.get("/api/sessions/day").json()
    assert (found["agent"], found["model"]) == ("reviewer", "scripted/careful")


def test_a_schedule_of_the_configuration_has_an_agent(worker: httpx.Client) -> None:
    assert worker.get("/api/schedules/nightly").json()["agent"] == "reviewer"
    assert run_schedule(worker, "nightly") == "answered"
    assert worker.get("/api/sessions/night").json()["agent"] == "reviewer"


def test_a_schedule_names_a_known_agent(worker: httpx.Client) -> None:
    given = {"name": "lost", "session": "lost", **DAILY}
    refused = worker.post("/api/schedules", json={**given, "agent": "nobody"})
    assert (refused.status_code, refused.json()["detail"]) == (
        422,
        "agent = 'nobody' is not allowed: one of reviewer, silent",
    )
    assert worker.post("/api/schedules", json=given).status_code == 201
    assert worker.patch("/api/schedules/lost", json={"agent": "nobody"}).status_code == 422
    assert worker.patch("/api/schedules/lost", json={"agent": "silent"}).json()["agent"] == "silent"


def test_a_schedule_for_a_session_of_another_agent_fails_and_says_so(worker: httpx.Client) -> None:
    create(worker, id="theirs", agent="silent")
    given = {"name": "foreign", "session": "theirs", "agent": "reviewer", **DAILY}
    assert worker.post("/api/schedules", json=given).status_code == 201
    assert run_schedule(worker, "foreign") == "failed"
    assert first_events(worker, "theirs")[-1]["text"].endswith(
        "agent = 'reviewer' is not allowed: session 'theirs' exists and has the agent 'silent'"
    )
