"""Claude Code and Codex from npm through the drop-in endpoints, 100 requests each, in a window that is too small.

The tests take minutes: FOVEAL_SOAK=1 runs them. Without npm or its registry they are skipped.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from support.npm_clients import AgentUpstream, client_home, run_claude_code, run_codex
from support.serve_process import Server, serving

pytestmark = pytest.mark.skipif(
    not os.environ.get("FOVEAL_SOAK"), reason="takes minutes: FOVEAL_SOAK=1 runs it"
)

TURNS = 4
STEPS = 24
REQUESTS = TURNS * (STEPS + 1)


@pytest.mark.parametrize(
    ("run", "window"),
    [
        # Claude Code begins with 21,000 tokens and reserves 32,000 for the answer; Codex begins with 9,000.
        pytest.param(run_claude_code, 72_000, id="claude-code"),
        pytest.param(run_codex, 24_000, id="codex"),
    ],
)
def test_a_coding_agent_from_npm_makes_100_legal_requests(run: Callable[..., str], window: int) -> None:
    with AgentUpstream(window=window) as upstream, client_home() as home:
        upstream.steps = STEPS
        (home / "work" / "notes.txt").write_text("".join(f"note {number}\n" for number in range(200)))
        settings = {"server.openai_url": upstream.openai, "server.anthropic_url": upstream.anthropic}
        with serving(window=window, settings={**settings, "tokenizer": "auto"}) as server:
            answers = [
                run(home, server.url, f"Find part {turn}.", continued=turn > 0) for turn in range(TURNS)
            ]
            assert answers == [f"Turn {turn + 1} is done." for turn in range(TURNS)]
            assert upstream.faults == []
            assert upstream.answered == REQUESTS
            assert_reduced_without_faults(server)


def assert_reduced_without_faults(server: Server) -> None:
    """Assert that the server reduced and summarised the history and that no request failed."""
    logged = server.logged
    exchanges = [line for line in logged if line["event"] == "exchange"]
    assert [line for line in exchanges if line["status"] != 200 or line["recovered"]] == []
    assert [line for line in logged if line["event"] in ("illegal_request", "error", "refused")] == []
    assert exchanges[-1]["whole"] > exchanges[-1]["tokens"]
    summaries = [line["status"] for line in logged if line["event"] == "summary"]
    assert summaries
    assert set(summaries) == {200}
    assert any(line.get("compacted") for line in logged if line["event"] == "reduced")
