"""Events of a turn are redacted while they are streamed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Literal

from foveal.agent.events import AgentEvent, ModelAnswered, TextStreamed, ToolOutputStreamed
from foveal.core.log import Call
from foveal.ports import ReplyPiece
from foveal.server.turns import redacted_events
from support.made_secrets import made

KEY = "sk-" + made(48)
SHOWN = f"[foveal: redacted OpenAI key …{KEY[-4:]}]"


def streamed(text: str, kind: Literal["text", "thinking", "call"] = "text") -> TextStreamed:
    return TextStreamed(piece=ReplyPiece(text=text, kind=kind))


def redacted(*events: AgentEvent) -> list[AgentEvent]:
    async def given() -> AsyncIterator[AgentEvent]:
        for event in events:
            yield event

    async def main() -> list[AgentEvent]:
        return [event async for event in redacted_events(given())]

    return asyncio.run(main())


def test_a_key_split_over_two_pieces_is_masked() -> None:
    answer = ModelAnswered(text=f"Use {SHOWN} now", calls=0, handle="e1")
    assert redacted(streamed(f"Use {KEY[:9]}"), streamed(f"{KEY[9:]} now"), answer) == [
        streamed("Use "),
        streamed(f"{SHOWN} now"),
        answer,
    ]


def test_text_of_one_kind_ends_before_text_of_another_begins() -> None:
    given = streamed(f"I saw {KEY}", "thinking"), streamed("Done"), streamed("run", "call")
    assert redacted(*given) == [
        streamed("I saw ", "thinking"),
        streamed(SHOWN, "thinking"),
        streamed("Done"),
        streamed("run", "call"),
    ]


def test_the_output_of_a_tool_is_masked() -> None:
    call = Call(id="a", name="run", arguments="{}")
    given = ToolOutputStreamed(call=call, lines=("one", f"key {KEY}"), seconds=1.0)
    assert redacted(given) == [ToolOutputStreamed(call=call, lines=("one", f"key {SHOWN}"), seconds=1.0)]
