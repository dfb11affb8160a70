"""`max_tool_iterations` of the server and of an agent: where the limit is said."""

from __future__ import annotations

from pathlib import Path

from foveal.config import load
from foveal.server import Service
from foveal.server.gateways.outgoing import MessageComposer
from foveal.server.turns import TurnOutcome
from foveal.testing import Scripted
from support.gated_provider import run

CONFIG = "max_tool_iterations = 3\n[agents.quick]\nmax_tool_iterations = 1\n"
LIMIT = "it has reached its limit of {} of tool calls (max_tool_iterations)"


async def outcome_of(service: Service, agent: str) -> tuple[TurnOutcome, TurnOutcome, str]:
    """Return the outcome of a turn that only calls tools, the same as another process sees it, and what a chat
    shows."""
    live = await service.tenant("t").create(agent=agent)
    turn = await live.submit("Look for it.", key="k")
    outcome = await turn.outcome()
    live._turns.clear()
    again = await live.find_turn_of("k")
    assert again is not None
    shown = MessageComposer(footer=False).answer(turn, outcome, notes=[]).text
    return outcome, await again.outcome(), shown


@run
async def test_the_end_at_the_limit_is_said_everywhere(tmp_path: Path) -> None:
    (tmp_path / "foveal.toml").write_text(CONFIG)
    config = load(tmp_path, environ={}, user_folder=tmp_path, project=False)
    async with Service.open(config, folder=tmp_path / "served", environment={}) as service:
        for agent, rounds in (("", "3 rounds"), ("quick", "1 round")):
            provider = Scripted(*([("missing", {})] for _ in range(9)))
            service.runtime._providers[agent, ""] = provider
            outcome, again, shown = await outcome_of(service, agent)
            assert (outcome.why, outcome.problem) == ("steps", LIMIT.format(rounds))
            assert (again.why, again.problem) == ("steps", LIMIT.format(rounds))
            assert LIMIT.format(rounds) in shown
            assert len(provider.requests) == int(rounds[0])
