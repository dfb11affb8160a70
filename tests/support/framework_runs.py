"""Runs of the examples in `examples/frameworks` against the stand-in."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from typing import Any

from foveal.core.log import Used
from foveal.transport import ConversationPool
from support.adapter_runs import check_run
from support.framework_environments import ROOT
from support.provider_stand_in import Answer, Script, StandIn


def load_example(name: str) -> dict[str, Any]:
    """Return the names that an example defines; each call makes its conversations anew."""
    return runpy.run_path(str(ROOT / "examples" / "frameworks" / f"with_{name}.py"))


def ending_with(tool: str, argument: str, script: Script) -> Script:
    """Return a script whose turns end with a call of a tool, for agents that take no plain text as their answer."""

    def ended(number: int) -> Answer:
        answer = script(number)
        return answer if answer.calls else Answer(calls=((tool, {argument: answer.text}),))

    return ended


def check_transport_run(
    provider: StandIn, conversations: ConversationPool, *, framework_breaks: int = 0
) -> None:
    """Assert what every run must show, and that one context has seen the usage of all requests."""
    check_run(provider, framework_breaks=framework_breaks)
    seen = [sum(isinstance(event.fact, Used) for event in context.log) for context in conversations.contexts]
    assert seen == [len(provider.requests)]


def ask_in_turns(ask: Callable[[str], Any], turns: int) -> None:
    for turn in range(turns):
        ask(f"Question {turn}: look it up.")
