"""Types with the openai client: the Responses API."""

from __future__ import annotations

from typing import assert_type

import openai
from openai.types.responses import (
    EasyInputMessageParam,
    ResponseInputItemParam,
    ResponseInputParam,
    ResponseOutputItem,
    ToolParam,
)

import foveal


def send(
    client: openai.OpenAI,
    ctx: foveal.Context,
    items: ResponseInputParam,
    output: list[ResponseOutputItem],
    mixed: list[ResponseInputItemParam | ResponseOutputItem],
    of_one_kind: list[EasyInputMessageParam],
    tools: list[ToolParam],
) -> None:
    create = client.responses.create
    reply = create(model="gpt-5.1", input=ctx.fit(items, tools=tools, system="Be brief."), tools=tools)
    ctx.observe(reply.usage)
    create(model="gpt-5.1", input=ctx.fit(output))
    create(model="gpt-5.1", input=ctx.fit(mixed))
    create(model="gpt-5.1", input=ctx.fit(of_one_kind))
    create(model="gpt-5.1", input=ctx.fit([{"role": "user", "content": "Why is CI red?"}]))
    inferred = [{"role": "user", "content": "Why is CI red?"}]
    create(model="gpt-5.1", input=ctx.fit(inferred))
    create(model="gpt-5.1", input=ctx.fit(), tools=foveal.recall.tools("openai_responses"))
    fitted = ctx.fit(items)
    assert_type(fitted, ResponseInputParam)
    create(model="gpt-5.1", input=fitted)
