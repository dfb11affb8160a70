"""Coding agents from npm and PyPI through the drop-in endpoints, 100 requests each, in a window that is too small.

FOVEAL_SOAK=1 runs all of them, which takes minutes; an agent that cannot be installed is skipped. Without it, only
Codex and Claude Code run, for a few requests, and only where they are installed already.
"""

from __future__ import annotations

import json
import logging
import os
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path

import pytest

from foveal.server.http.json_logs import LOGGER_NAME
from support.agent_upstream import AgentUpstream
from support.coding_clients import BOUND_CLAUDE_CODE, BUILT_IN_CODEX, CODING_CLIENTS, CodingClient
from support.compaction_check import asks_for_compaction
from support.npm_clients import CODEX, client_home, installed, is_installed, run_claude_code, run_codex
from support.serve_process import Server, serving
from support.thinking_upstream import thoughts
from support.upstream import ProxyServer

TURNS = 4
STEPS = 24
REQUESTS = TURNS * (STEPS + 1)


def upstream_settings(upstream: AgentUpstream) -> dict[str, str]:
    urls = {"server.openai_url": upstream.openai, "server.anthropic_url": upstream.anthropic}
    return {**urls, "tokenizer": "auto"}


def test_codex_makes_15_legal_requests_in_one_turn() -> None:
    agent = next(agent for agent in CODING_CLIENTS if agent.client == CODEX)
    skip_unless_installed(agent)
    upstream = AgentUpstream(window=agent.window)
    with upstream, client_home() as home, reducing_server(agent, upstream) as server:
        converse(agent, home, server, upstream, turns=1, steps=14)
        exchanges = [line for line in server.logged if line["event"] == "exchange"]
    assert upstream.faults == []
    assert [line["status"] for line in exchanges] == [200] * 15
    assert any(line["whole"] > line["tokens"] for line in exchanges)


def test_codex_with_its_own_provider_changes_from_a_websocket_to_http_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    skip_unless_installed(BUILT_IN_CODEX)
    caplog.set_level(logging.INFO, logger=LOGGER_NAME)
    with AgentUpstream() as upstream, client_home() as home:
        upstream.steps = 2
        with ProxyServer(tmp_path, openai=upstream.openai) as proxy:
            said = run_codex(home, proxy.url, "Find a part.", continued=False, is_built_in=True)
        assert said == "Turn 1 is done."
        assert upstream.faults == []
    requests = [vars(line)["fields"] for line in caplog.records if line.msg == "request"]
    assert [(line["method"], line["status"]) for line in requests] == [("GET", 426), *[("POST", 200)] * 3]


@pytest.mark.parametrize(
    ("own_window", "turns", "steps", "compactions"),
    [(14_000, 1, 6, 1), pytest.param(18_000, TURNS, STEPS, 10, marks=pytest.mark.soak)],
    ids=["a few", "100"],
)
def test_codex_keeps_what_openai_has_compacted(
    own_window: int, turns: int, steps: int, compactions: int
) -> None:
    agent = BUILT_IN_CODEX
    skip_unless_installed(agent)
    with AgentUpstream() as upstream, client_home() as home, reducing_server(agent, upstream) as server:
        converse(agent, home, server, upstream, turns=turns, steps=steps, own_window=own_window)
        exchanges = [line for line in server.logged if line["event"] == "exchange"]
    assert upstream.faults == []
    assert upstream.compactions >= compactions
    assert upstream.client_summaries == 0
    assert upstream.memory.checked >= upstream.compactions
    assert len(exchanges) == upstream.answered + upstream.compactions
    assert [line for line in exchanges if line["status"] != 200 or line["recovered"]] == []
    assert len({line["session"] for line in exchanges}) == 1
    for request in upstream.requests:
        if asks_for_compaction(request.body):  # the provider reads the conversation, not a record of it
            assert "[foveal:" not in json.dumps(request.body["input"])
        else:
            assert request.prompt <= agent.window
    if steps == STEPS:
        assert any(line["whole"] > line["tokens"] for line in exchanges)


@pytest.mark.soak
def test_codex_goes_on_when_the_conversation_is_too_large_to_be_compacted() -> None:
    agent = BUILT_IN_CODEX
    upstream = AgentUpstream(window=agent.window)
    with upstream, client_home() as home, reducing_server(agent, upstream) as server:
        converse(agent, home, server, upstream, turns=2, steps=STEPS, own_window=18_000)
        statuses = {line["status"] for line in server.logged if line["event"] == "exchange"}
    refused = [request for request in upstream.requests if request.faults]
    assert refused
    assert all(asks_for_compaction(request.body) for request in refused)
    assert all("in a window of" in fault for fault in upstream.faults)
    assert statuses == {200}


@pytest.mark.parametrize(
    ("turns", "steps"), [(1, 10), pytest.param(TURNS, STEPS, marks=pytest.mark.soak)], ids=["a few", "100"]
)
def test_claude_code_sends_back_only_thinking_that_is_still_bound(turns: int, steps: int) -> None:
    agent = BOUND_CLAUDE_CODE
    skip_unless_installed(agent)
    upstream = AgentUpstream(window=agent.window)
    with upstream, client_home() as home, reducing_server(agent, upstream) as server:
        converse(agent, home, server, upstream, turns=turns, steps=steps)
        logged = server.logged
    assert upstream.faults == []
    exchanges = [line for line in logged if line["event"] == "exchange"]
    assert [line["status"] for line in exchanges] == [200] * upstream.answered
    assert [line for line in logged if line["event"] in ("illegal_request", "error", "refused")] == []
    sent = [request.body for request in upstream.requests if request.body.get("stream")]
    kept = [len(thoughts(body["messages"])) for body in sent]
    shorter = [later < earlier for earlier, later in pairwise(kept)]
    assert any(shorter), "nothing was reduced in front of thinking"
    assert sum(map(bool, kept)) > len(kept) // 2, "most requests have no thinking"


@pytest.mark.soak
@pytest.mark.parametrize("agent", CODING_CLIENTS, ids=lambda agent: agent.client.program)
def test_a_coding_agent_makes_100_legal_requests(agent: CodingClient) -> None:
    installed(agent.client)
    upstream = AgentUpstream(window=agent.window, has_tools=agent.has_tools)
    turns = TURNS if agent.has_tools else REQUESTS
    with upstream, client_home() as home, reducing_server(agent, upstream) as server:
        converse(agent, home, server, upstream, turns=turns, steps=STEPS)
        assert upstream.faults == []
        assert upstream.answered == REQUESTS
        assert upstream.client_summaries == 0
        assert_reduced_without_faults(server)


@pytest.mark.soak
def test_a_command_that_compacts_begins_a_new_session() -> None:
    with AgentUpstream() as upstream, client_home() as home:
        upstream.steps = 3
        with serving(settings=upstream_settings(upstream)) as server:
            first = run_claude_code(home, server.url, "Find part 0.", continued=False)
            run_claude_code(home, server.url, "/compact", continued=True)
            second = run_claude_code(home, server.url, "Find part 1.", continued=True)
            assert [first, second] == ["Turn 1 is done.", "Turn 2 is done."]
            assert upstream.faults == []
            assert upstream.client_summaries == 1
            sessions = [line["session"] for line in server.logged if line["event"] == "exchange"]
            before, after = (
                set(sessions[:4]),
                set(sessions[5:]),
            )  # between them is the request for the summary
            assert (len(before), len(after)) == (1, 1)
            assert before != after


@pytest.mark.soak
def test_the_login_of_a_subscription_reaches_the_upstream() -> None:
    with AgentUpstream() as upstream, client_home() as home:
        upstream.steps = 1
        upstream.key = "sk-ant-oat01-of-the-login"
        login = {"ANTHROPIC_API_KEY": "", "CLAUDE_CODE_OAUTH_TOKEN": upstream.key}
        with serving(settings=upstream_settings(upstream)) as server:
            answer = run_claude_code(home, server.url, "Find a part.", continued=False, more=login)
            assert answer == "Turn 1 is done."
            assert [line for line in server.logged if line.get("status", 200) != 200] == []


def skip_unless_installed(agent: CodingClient) -> None:
    if os.environ.get("FOVEAL_SOAK"):
        installed(agent.client)
    elif not is_installed(agent.client):
        pytest.skip(f"{agent.name} is not installed: FOVEAL_SOAK=1 installs it")


def reducing_server(agent: CodingClient, upstream: AgentUpstream) -> AbstractContextManager[Server]:
    """Return a server with a window that the requests of the agent fill soon."""
    return serving(window=agent.window, settings=upstream_settings(upstream))


def converse(
    agent: CodingClient,
    home: Path,
    server: Server,
    upstream: AgentUpstream,
    *,
    turns: int,
    steps: int,
    own_window: int = 0,
) -> None:
    """Have a conversation, and assert that the agent ended each turn."""
    upstream.steps = steps
    (home / "work" / "notes.txt").write_text("".join(f"note {number}\n" for number in range(200)))
    prompts = [f"Find part {turn}." for turn in range(turns)]
    answers = agent.converse(home, server.url, prompts, own_window=own_window)
    assert answers == [f"Turn {turn + 1} is done." for turn in range(turns)]


def assert_reduced_without_faults(server: Server) -> None:
    """Assert that the server cut the history and that no request failed, not those for summaries either."""
    logged = server.logged
    exchanges = [line for line in logged if line["event"] == "exchange"]
    assert [line for line in exchanges if line["status"] != 200 or line["recovered"]] == []
    assert [line for line in logged if line["event"] in ("illegal_request", "error", "refused")] == []
    assert any(line["whole"] > line["tokens"] for line in exchanges[-2:])
    assert {line["status"] for line in logged if line["event"] == "summary"} <= {200}
    assert any(line.get("compacted") for line in logged if line["event"] == "reduced")
