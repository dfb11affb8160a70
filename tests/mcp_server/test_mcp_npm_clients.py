"""Claude Code and Codex from npm look back into their own past sessions with `foveal mcp`.

The tests take a minute: FOVEAL_SOAK=1 runs them. Without npm or its registry they are skipped.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from support.npm_clients import client_home, run_claude_code, run_codex
from support.provider_stand_in import Answer, Json, StandIn

pytestmark = pytest.mark.soak

MAX_ATTEMPTS = 6
"""Calls of a recall tool: on a loaded machine, the MCP server takes long to start."""
ARGUMENTS = ["-m", "foveal.cli", "mcp"]
CODEX_SETTINGS = f"""
[mcp_servers.foveal]
command = {json.dumps(sys.executable)}
args = {json.dumps(ARGUMENTS)}
startup_timeout_sec = 60
"""


class RecallingModel(StandIn):
    """Calls `recall_search` when it is asked for the past. It waits in a command before each attempt, because both
    clients send requests before an MCP server has started."""

    steps: int = 0
    """Waits and attempts so far."""

    def next_answer(self, number: int, body: Json) -> Answer:
        names, text = {tool.get("name") for tool in body.get("tools") or []}, json.dumps(body)
        if "What was the staging" not in text or not names & {"Bash", "exec_command"}:
            return Answer(text="Done.")
        if "[foveal recall: " in text or self.steps == 2 * MAX_ATTEMPTS:
            return Answer(text="Done.")
        self.steps += 1
        is_claude_code = "Bash" in names
        if self.steps % 2:
            name, field = ("Bash", "command") if is_claude_code else ("exec_command", "cmd")
            return Answer(calls=((name, {field: "sleep 10; echo waited"}),))
        # Codex offers the tools of an MCP server in a namespace, Claude Code with longer names.
        name = "mcp__foveal__recall_search" if is_claude_code else "recall_search"
        return Answer(calls=((name, {"query": "staging database"}),))


def add_to_claude_code(home: Path) -> None:
    server = {"command": sys.executable, "args": ARGUMENTS, "type": "stdio"}
    (home / ".claude.json").write_text(json.dumps({"mcpServers": {"foveal": server}}))
    (home / ".claude").mkdir(exist_ok=True)
    allowed = {"permissions": {"allow": ["mcp__foveal"]}}
    (home / ".claude" / "settings.json").write_text(json.dumps(allowed))


def recalled(model: StandIn) -> list[str]:
    """Return the requests with an answer of a recall tool."""
    bodies = (json.dumps(request.body) for request in model.requests)
    return [text for text in bodies if "[foveal recall: " in text]


def test_claude_code_finds_its_past_session() -> None:
    with RecallingModel() as model, client_home() as home:
        add_to_claude_code(home)
        run_claude_code(home, model.anthropic, "The staging database is db-zebra.", continued=False)
        run_claude_code(home, model.anthropic, "What was the staging database?", continued=False)
    answers = recalled(model)
    assert answers
    assert "> The staging database is db-zebra." in answers[-1]


def test_codex_finds_its_past_session() -> None:
    with RecallingModel() as model, client_home() as home:
        address = model.openai.removesuffix("/v1")
        for prompt in ("The staging database is db-zebra.", "What was the staging database?"):
            assert run_codex(home, address, prompt, continued=False, more=CODEX_SETTINGS) == "Done."
        offered = {tool.get("name"): tool for tool in model.requests[-1].body["tools"]}
    names = [tool["name"] for tool in offered["mcp__foveal"]["tools"]]
    assert sorted(names) == ["recall_read", "recall_search", "recall_sessions"]
    answers = recalled(model)
    assert answers
    assert "> The staging database is db-zebra." in answers[-1]
