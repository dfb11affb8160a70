"""Branches of a model in sessions of the server, by the tools `branch` and `return`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from foveal.config import load
from foveal.server import Service
from foveal.testing import Scripted
from support.gated_provider import run
from support.provided import provided

TURN: Any = (
    [("branch", {"task": "Find the failing test."})],
    [("recall_search", {"query": "red"})],
    [("return", {"result": "test_dates.py fails"})],
    "The bound in parse() is wrong.",
)


@run
async def test_a_model_folds_a_part_of_its_turn_if_it_is_offered_the_tools(tmp_path: Path) -> None:
    provider = Scripted(*TURN, "Hello.")
    flags = {"tools.branches": True}
    config = load(tmp_path, flags=flags, environ={}, user_folder=tmp_path / "none")
    async with Service.open(
        config, folder=tmp_path / "served", environment={}, make_provider=provided(provider)
    ) as service:
        live = await service.tenant("default").create("demo")
        outcome = await (await live.submit("Why is CI red?")).outcome()
        assert outcome.why == "answered"
        [status] = await live.session.branches()
        assert (status.result, status.is_folded) == ("test_dates.py fails", True)
        last = str(provider.requests[-1].to_openai())
        assert "Task: Find the failing test." in last
        assert "recall_search" not in last


@run
async def test_the_tools_are_not_offered_by_default(tmp_path: Path) -> None:
    provider = Scripted("Hello.")
    config = load(tmp_path, flags={}, environ={}, user_folder=tmp_path / "none")
    async with Service.open(
        config, folder=tmp_path / "served", environment={}, make_provider=provided(provider)
    ) as service:
        live = await service.tenant("default").create("demo")
        await (await live.submit("Hi.")).outcome()
        assert '"branch"' not in str(provider.requests[-1].tools)
