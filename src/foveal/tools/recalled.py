"""The recall tools over a session, as tools of an agent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from foveal.clip import UNLIMITED
from foveal.recall import Library, Recall, tools
from foveal.tools.tool import Arguments, Output, Tool
from foveal.visible import one_line

TOKENS: Final = 2_000


def recalled(library: Library, *, tokens: int = TOKENS) -> list[Tool]:
    """Look back into a session (or another library). An answer has at most so many tokens, so it is not clipped."""
    recall = Recall(library, tokens=tokens)
    return [
        Tool(
            name=offered["name"],
            description=offered["description"],
            parameters=offered["input_schema"],
            run=_run(recall, offered["name"]),
            describe=_told(offered["name"]),
            limits=UNLIMITED,
            timeout=30.0,
        )
        for offered in tools("anthropic")
    ]


def _run(recall: Recall, name: str) -> Callable[[Arguments], Awaitable[Output]]:
    async def run(given: Arguments) -> Output:
        return Output(content=await recall.call(name, given))

    return run


def _told(name: str) -> Callable[[Arguments], str]:
    def told(given: Arguments) -> str:
        return f"{name} {one_line(' '.join(str(value) for value in given.values()), width=200)}"

    return told
