"""The messages of pi's sessions as facts; None for one that is not understood."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from foveal.events import (
    AnyFact,
    AnyPart,
    Call,
    ModelSaid,
    Noted,
    Text,
    Thinking,
    ToolReturned,
    Used,
    UserSaid,
    raw,
)
from foveal.transcripts.messages import REFUSED, written
from foveal.transcripts.recording import words
from foveal.usage import used
from foveal.wire import wire

Json = Mapping[str, Any]


def user(content: object) -> list[AnyFact] | None:
    return _read({"role": "user", "content": _parts(content)})


def result(message: Json) -> list[AnyFact] | None:
    block: dict[str, Any] = {
        "type": "tool_result",
        "tool_use_id": message.get("toolCallId"),
        "content": _parts(message.get("content")),
    }
    if message.get("isError") is True:
        block["is_error"] = True
    facts = _read({"role": "user", "content": [block]})
    if facts is None or not isinstance(facts[0], ToolReturned):
        return None
    return [replace(facts[0], name=words(message.get("toolName")))]


def bash(message: Json) -> list[AnyFact]:
    """A command that the user ran, as pi tells it to the model, unless the user wanted to keep it to himself."""
    if message.get("excludeFromContext") is True:
        return [Noted(topic="pi bashExecution", text=written(message))]
    output, code = words(message.get("output")), message.get("exitCode")
    told = [f"Ran `{words(message.get('command'))}`", f"```\n{output}\n```" if output else "(no output)"]
    if message.get("cancelled") is True:
        told.append("\n(command cancelled)")
    elif isinstance(code, int) and code:
        told.append(f"\nCommand exited with code {code}")
    return [UserSaid(content="\n".join(told))]


def assistant(message: Json, model: str) -> list[AnyFact] | None:
    content = message.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(blocks, list) or not all(isinstance(block, Mapping) for block in blocks):
        return None
    thoughts = [block for block in blocks if block.get("type") == "thinking"]
    signed = all(words(block.get("thinkingSignature")) for block in thoughts)
    own = bool(thoughts) and signed and words(message.get("api")).startswith("anthropic")
    try:
        parts = tuple(_said(block, own=own) for block in blocks)
    except REFUSED:
        return None
    # thinking is sent in the dialect of its fact: what only another provider can read goes where none is sent
    said = ModelSaid(content=parts, dialect="anthropic" if own else "openai_chat" if thoughts else "")
    return [said, *_usage(message.get("usage"), model)]


def _said(block: Json, *, own: bool) -> AnyPart:
    match block.get("type"):
        case "text":
            return Text(text=_string(block, "text"))
        case "thinking":
            native = _native(block) if own else block
            return Thinking(native=raw(native), text=words(block.get("thinking")))
        case "toolCall":
            given = block.get("arguments")
            arguments = given if isinstance(given, str) else written({} if given is None else given)
            return Call(id=_string(block, "id"), name=_string(block, "name"), arguments=arguments)
        case _:
            raise TypeError("not a block of pi's")


def _string(block: Json, field: str) -> str:
    value = block.get(field)
    if not isinstance(value, str):
        raise TypeError(f"{field} is not a text")
    return value


def _native(block: Json) -> dict[str, Any]:
    """Thinking as Anthropic signed it."""
    if block.get("redacted") is True:
        return {"type": "redacted_thinking", "data": block["thinkingSignature"]}
    return {
        "type": "thinking",
        "thinking": words(block.get("thinking")),
        "signature": block["thinkingSignature"],
    }


def _usage(usage: object, model: str) -> Iterator[Used]:
    if not isinstance(usage, Mapping):
        return
    spelled = {
        "input_tokens": usage.get("input"),
        "cache_read_input_tokens": usage.get("cacheRead"),
        "cache_creation_input_tokens": usage.get("cacheWrite"),
        "output_tokens": usage.get("output"),
    }
    fact = used(spelled, model=model)
    if fact is not None:
        yield fact


def _read(message: Json) -> list[AnyFact] | None:
    try:
        return [fact for chunk in wire("anthropic").read((message,)) for fact in chunk.facts]
    except REFUSED:
        return None


def _parts(content: object) -> object:
    """Texts and images in Anthropic's form."""
    return [_part(block) for block in content] if isinstance(content, list) else content


def _part(block: object) -> object:
    if not isinstance(block, Mapping) or block.get("type") not in ("image", "text"):
        return block
    if block["type"] == "text":
        return {"type": "text", "text": block.get("text")}
    source = {"type": "base64", "media_type": block.get("mimeType"), "data": block.get("data")}
    return {"type": "image", "source": source}
