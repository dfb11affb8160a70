"""Types with the anthropic client."""

from __future__ import annotations

from typing import assert_type

import anthropic
from anthropic.types import Message, MessageParam, TextBlockParam, ToolParam

import foveal


def send(
    client: anthropic.Anthropic,
    ctx: foveal.Context,
    messages: list[MessageParam],
    reply: Message,
    tools: list[ToolParam],
    system: list[TextBlockParam],
    objects: list[object],
) -> None:
    create = client.messages.create
    fitted = ctx.fit(messages, tools=tools, system=system)
    assert_type(fitted, list[MessageParam])
    done = create(model="claude-sonnet-4-6", max_tokens=900, system=system, messages=fitted, tools=tools)
    ctx.observe(done.usage)
    create(model="claude-sonnet-4-6", max_tokens=900, messages=ctx.fit(objects))
    inferred = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": reply.content}]
    create(model="claude-sonnet-4-6", max_tokens=ctx.max_tokens, messages=ctx.fit(inferred))
    create(
        model="claude-sonnet-4-6",
        max_tokens=900,
        messages=ctx.fit(
            [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": reply.content}]
        ),
        tools=foveal.recall.tools("anthropic"),
    )
