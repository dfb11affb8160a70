"""`max_tool_iterations` of the server and of an agent: where the limit is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from foveal.config import load
from foveal.server import Service
from foveal.server.gateways.outgoing import MessageComposer
from foveal.server.inbox import SessionSetup
from foveal.testing import Scripted
from support.gated_provider import run
from support.provided import provided

CONFIG = "max_tool_iterations = 3\n[agents.quick]\nmax_tool_iterations = 1\n"
LIMIT = "it has reached its limit of {} of tool calls (max_tool_iterations)"


@pytest.mark.parametrize(("agent", "rounds"), [("", "3 rounds"), ("quick", "1 round")])
def test_the_end_at_the_limit_is_said_everywhere(tmp_path: Path, agent: str, rounds: str) -> None:
    (tmp_path / "foveal.toml").write_text(CONFIG)
    config = load(tmp_path, environ={}, user_folder=tmp_path, project=False)
    provider = Scripted(*([("missing", {})] for _ in range(9)))
    served: dict[str, Any] = {
        "folder": tmp_path / "served",
        "environment": {},
        "make_provider": provided(provider),
    }

    @run
    async def check() -> None:
        async with Service.open(config, **served) as service:
            live = await service.tenant("t").create("demo", SessionSetup(agent=agent))
            turn = await live.submit("Look for it.", key="k")
            outcome = await turn.outcome()
            shown = MessageComposer(footer=False).answer(turn, outcome, notes=[]).text
        async with Service.open(config, **served) as service:
            again = await (await service.tenant("t").session("demo")).find_turn_of("k")
            assert again is not None
            later = await again.outcome()
        assert (outcome.why, outcome.problem) == ("steps", LIMIT.format(rounds))
        assert (later.why, later.problem) == ("steps", LIMIT.format(rounds))
        assert LIMIT.format(rounds) in shown
        assert len(provider.requests) == int(rounds[0])

    check()
