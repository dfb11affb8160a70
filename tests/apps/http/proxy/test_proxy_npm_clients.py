"""Coding agents from npm and PyPI through the drop-in endpoints, 100 requests each, in a window that is too small.

FOVEAL_SOAK=1 runs all of them, which takes minutes; an agent that cannot be installed is skipped. Without it, only
Codex runs, which takes less than a second of CPU time, and only where it is installed already.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from foveal.apps.http.json_logs import LOGGER_NAME
from support.agent_upstream import AgentUpstream
from support.coding_clients import CODING_CLIENTS, CodingClient
from support.npm_clients import CODEX, client_home, installed, is_installed, run_claude_code, run_codex
from support.serve_process import Server, serving
from support.upstream import ProxyServer

soak = pytest.mark.skipif(not os.environ.get("FOVEAL_SOAK"), reason="takes minutes: FOVEAL_SOAK=1 runs it")

TURNS = 4
STEPS = 24
REQUESTS = TURNS * (STEPS + 1)


def upstream_settings(upstream: AgentUpstream) -> dict[str, str]:
    urls = {"server.openai_url": upstream.openai, "server.anthropic_url": upstream.anthropic}
    return {**urls, "tokenizer": "auto"}


def test_codex_makes_15_legal_requests_in_one_turn() -> None:
    agent = next(agent for agent in CODING_CLIENTS if agent.client == CODEX)
    if not is_installed(CODEX):
        pytest.skip("Codex is not installed: FOVEAL_SOAK=1 installs it")
    with AgentUpstream(window=agent.window) as upstream, client_home() as home:
        upstream.steps = 14
        (home / "work" / "notes.txt").write_text("note\n" * 200)
        with serving(window=agent.window, settings=upstream_settings(upstream)) as server:
            assert agent.converse(home, server.url, ["Find a part."], own_window=0) == ["Turn 1 is done."]
            assert upstream.faults == []
            exchanges = [line for line in server.logged if line["event"] == "exchange"]
            assert [line["status"] for line in exchanges] == [200] * 15
            assert any(line["whole"] > line["tokens"] for line in exchanges)


def test_codex_with_its_own_provider_changes_from_a_websocket_to_http_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if not is_installed(CODEX):
        pytest.skip("Codex is not installed: FOVEAL_SOAK=1 installs it")
    caplog.set_level(logging.INFO, logger=LOGGER_NAME)
    with AgentUpstream() as upstream, client_home() as home:
        upstream.steps = 2
        with ProxyServer(tmp_path, openai=upstream.openai) as proxy:
            said = run_codex(home, proxy.url, "Find a part.", continued=False, is_built_in=True)
        assert said == "Turn 1 is done."
        assert upstream.faults == []
    requests = [vars(line)["fields"] for line in caplog.records if line.msg == "request"]
    assert [(line["method"], line["status"]) for line in requests] == [("GET", 426), *[("POST", 200)] * 3]


@soak
@pytest.mark.parametrize("agent", CODING_CLIENTS, ids=lambda agent: agent.client.program)
def test_a_coding_agent_makes_100_legal_requests(agent: CodingClient) -> None:
    installed(agent.client)
    turns = TURNS if agent.has_tools else REQUESTS
    with AgentUpstream(window=agent.window) as upstream, client_home() as home:
        upstream.steps, upstream.has_tools = STEPS, agent.has_tools
        (home / "work" / "notes.txt").write_text("".join(f"note {number}\n" for number in range(200)))
        with serving(window=agent.window, settings=upstream_settings(upstream)) as server:
            prompts = [f"Find part {turn}." for turn in range(turns)]
            answers = agent.converse(home, server.url, prompts, own_window=0)
            assert answers == [f"Turn {turn + 1} is done." for turn in range(turns)]
            assert [request.faults for request in upstream.requests if request.faults] == []
            assert upstream.answered == REQUESTS
            assert upstream.client_summaries == 0
            assert_reduced_without_faults(server)


@soak
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
            assert len(set(sessions)) == 2
            assert set(sessions[:5]).isdisjoint(sessions[5:])


@soak
def test_the_login_of_a_subscription_reaches_the_upstream() -> None:
    with AgentUpstream() as upstream, client_home() as home:
        upstream.steps = 1
        upstream.key = "sk-ant-oat01-of-the-login"
        login = {"ANTHROPIC_API_KEY": "", "CLAUDE_CODE_OAUTH_TOKEN": upstream.key}
        with serving(settings=upstream_settings(upstream)) as server:
            answer = run_claude_code(home, server.url, "Find a part.", continued=False, more=login)
            assert answer == "Turn 1 is done."
            assert [line for line in server.logged if line.get("status", 200) != 200] == []


def assert_reduced_without_faults(server: Server) -> None:
    """Assert that the server reduced and summarised the history and that no request failed."""
    logged = server.logged
    exchanges = [line for line in logged if line["event"] == "exchange"]
    assert [line for line in exchanges if line["status"] != 200 or line["recovered"]] == []
    assert [line for line in logged if line["event"] in ("illegal_request", "error", "refused")] == []
    assert any(line["whole"] > line["tokens"] for line in exchanges[-2:])
    summaries = [line["status"] for line in logged if line["event"] == "summary"]
    assert summaries
    assert set(summaries) == {200}
    assert any(line.get("compacted") for line in logged if line["event"] == "reduced")
