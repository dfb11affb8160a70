"""Types with the openai client: chat completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_type

import openai
from openai.types.chat import (
    ChatCompletionMessage,
    ChatCompletionMessageParam,
    ChatCompletionToolParam,
    ChatCompletionUserMessageParam,
)

import foveal


def send_typed(
    client: openai.OpenAI,
    ctx: foveal.Context,
    messages: list[ChatCompletionMessageParam],
    of_one_kind: list[ChatCompletionUserMessageParam],
    sequence: Sequence[ChatCompletionMessageParam],
    tools: list[ChatCompletionToolParam],
) -> None:
    create = client.chat.completions.create
    reply = create(model="gpt-4.1", messages=ctx.fit(messages, tools=tools), tools=tools)
    ctx.observe(reply.usage)
    create(model="gpt-4.1", messages=ctx.fit(of_one_kind))
    create(model="gpt-4.1", messages=ctx.fit(sequence))
    fitted = ctx.fit(messages)
    assert_type(fitted, list[ChatCompletionMessageParam])
    create(model="gpt-4.1", messages=fitted)


def send_dicts(client: openai.OpenAI, ctx: foveal.Context, messages: list[dict[str, Any]]) -> None:
    create = client.chat.completions.create
    create(model="gpt-4.1", messages=ctx.fit(messages))
    create(model="gpt-4.1", messages=ctx.fit([{"role": "user", "content": "Why is CI red?"}]))
    inferred = [{"role": "user", "content": "Why is CI red?"}]
    create(model="gpt-4.1", messages=ctx.fit(inferred))
    nested = [
        {"role": "user", "content": [{"type": "text", "text": "Why?"}]},
        {"role": "assistant", "content": None},
    ]
    create(model="gpt-4.1", messages=ctx.fit(nested))
    fitted = ctx.fit(inferred)
    assert_type(fitted, list[Any])
    create(model="gpt-4.1", messages=fitted)


def send_objects(
    client: openai.OpenAI,
    ctx: foveal.Context,
    replies: list[ChatCompletionMessage],
    mixed: list[ChatCompletionMessageParam | ChatCompletionMessage],
    anything: list[Any],
    objects: list[object],
    typed: list[ChatCompletionMessageParam],
) -> None:
    create = client.chat.completions.create
    create(model="gpt-4.1", messages=ctx.fit(replies))
    create(model="gpt-4.1", messages=ctx.fit(mixed))
    create(model="gpt-4.1", messages=ctx.fit(anything))
    create(model="gpt-4.1", messages=ctx.fit(objects))
    with_a_dict = ctx.fit([*typed, {"role": "user", "content": "Go on."}])
    create(model="gpt-4.1", messages=with_a_dict)


def send_appended(client: openai.OpenAI, ctx: foveal.Context, reply: ChatCompletionMessage) -> None:
    ctx.append({"role": "user", "content": "Why is CI red?"}, reply)
    client.chat.completions.create(
        model="gpt-4.1", messages=ctx.fit(), tools=foveal.recall.tools("openai_chat")
    )


async def send_async(
    client: openai.AsyncOpenAI, ctx: foveal.Context, messages: list[ChatCompletionMessageParam]
) -> None:
    await client.chat.completions.create(model="gpt-4.1", messages=ctx.fit(messages))
