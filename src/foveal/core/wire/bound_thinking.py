"""Bound thinking: which models bind it, what ends its validity, and how to say so to a provider.

Claude from version 5.1 binds a thinking block to the system text, the tools and every other block before it in the
request that produced it. A request that sends the block back behind anything else is refused. What is legal:

1. Thinking is sent back as it came, in its place, while nothing before it has changed. Cache marks do not count.
2. It may be left out from the start of the chain: all of it up to some place, never one block between others.
3. `thinking.block_binding.prefix_mismatch_behavior = "drop_block"`, with the header `BINDING_BETA`, makes the
   provider leave out what it would refuse. The answer lists that in `input_transformations`.

So a view leaves out all thinking from before the last change in front of any of it (`view.shown_thinking`).

Bedrock checks Claude's `reasoningText` in the same way; OpenRouter does not check. Gemini binds no thinking to what
comes before it: there, a call needs its own `thoughtSignature` (`gemini.write`), whatever was reduced before it.

`ThinkingCheck` is a stand-in for the provider's check. A provider that binds thinking knows, from the signature of
a block, what came before it when it was produced. The stand-in remembers that instead:

    check = ThinkingCheck()
    faults = check.faults("anthropic", messages, system=system, tools=tools)       # [] if the provider accepts it
    check.remember("anthropic", messages, reply, system=system, tools=tools)       # `reply` answers that request

It refuses what the provider refuses: a block behind other system text, tools or blocks than before, and one whose
chain has a gap. Thinking that is left out from the start of the chain is no fault. Cache marks and the order of the
fields of an object do not count. Blocks that no remembered request has produced are not checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import msgspec

from foveal.core.log.events import (
    AnyFact,
    Content,
    Dialect,
    ModelSaid,
    Opened,
    Thinking,
    ThinkingLeftOut,
    extras,
)
from foveal.core.wire.cache_marks import is_cache_point, strip_cache_marks
from foveal.core.wire.common import Json, has_null

BINDING_BETA: Final = "thinking-binding-controls-2026-08-01"
"""The value of the header `anthropic-beta` that `block_binding` needs."""
BETA_HEADER: Final = "anthropic-beta"
BINDING_SETTING: Final = "binds_thinking"
"""The name of the setting, and of its field in `Opened.settings`."""
FIRST_BINDING_VERSION: Final = (5, 1)
"""The first version of Claude that binds thinking."""
_CLAUDE_VERSION: Final = re.compile(r"claude-(?:[a-z]+-?)*(\d{1,2})(?:[-.](\d{1,2})(?!\d))?(?!\d)")
_UNCHECKED_GATEWAYS: Final = ("openrouter/",)
"""Beginnings of model names whose provider does not check thinking."""


def binds_thinking(model: str) -> bool:
    """Return whether the name of a model says that it binds thinking to what comes before it."""
    is_unchecked = model.lower().startswith(_UNCHECKED_GATEWAYS)
    return not is_unchecked and claude_version(model) >= FIRST_BINDING_VERSION


def claude_version(model: str) -> tuple[int, int]:
    """Return the version in the name of a Claude model, (0, 0) for any other."""
    found = _CLAUDE_VERSION.search(model.lower().replace("_", "-"))
    return (0, 0) if found is None else (int(found[1]), int(found[2] or 0))


class ThinkingBinding(NamedTuple):
    """What a log says about the binding of thinking so far."""

    model: str = ""
    """The model of the conversation; "" until it is known."""
    is_bound: bool = False
    """Whether thinking is bound to what comes before it."""

    def after(self, fact: AnyFact) -> ThinkingBinding:
        """Return what a log says with one more fact. A setting takes precedence over the name of the model, and a
        refusal over both."""
        if isinstance(fact, Opened):
            given = extras(fact.settings).get(BINDING_SETTING)
            is_bound = given if isinstance(given, bool) else binds_thinking(fact.model)
            is_learned = self.is_bound and fact.model == self.model and not isinstance(given, bool)
            return ThinkingBinding(fact.model, is_bound or is_learned)
        return self._replace(is_bound=True) if isinstance(fact, ThinkingLeftOut) and fact.problem else self

    def ends_with(self, later: ThinkingBinding) -> bool:
        """Return whether thinking is invalid under the `later` binding: another model reads only its own."""
        return bool(self.model) and self.model != later.model and (self.is_bound or later.is_bound)


# ── Content ──────────────────────────────────────────────────────────────────────────────────────────────


def has_thinking(content: Content) -> bool:
    """Return whether a message has thinking among its parts."""
    return not isinstance(content, str) and any(isinstance(part, Thinking) for part in content)


def without_thinking(content: Content) -> Content:
    """Return a message without its thinking."""
    if isinstance(content, str):
        return content
    return tuple(part for part in content if not isinstance(part, Thinking))


def is_bound_utterance(fact: AnyFact) -> bool:
    """Return whether a fact is an utterance with thinking, which is bound if its model binds it."""
    return isinstance(fact, ModelSaid) and has_thinking(fact.content)


# ── Requests ────────────────────────────────────────────────────────────────────────────────


def with_dropped_blocks(thinking: object, *, thinks: bool = False) -> Json | None:
    """Return the field `thinking` of a request that has the provider leave out what it would refuse; None if the
    field must stay as it is: thinking is off, or the client has chosen a behaviour itself. `thinks` says that the
    request has thinking in it: then the model thinks, although the field is missing."""
    if thinking is None:
        if not thinks:
            return None
        return {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
    if not isinstance(thinking, Mapping) or thinking.get("type") not in ("adaptive", "enabled"):
        return None
    binding = thinking.get("block_binding") or {}
    if not isinstance(binding, Mapping) or binding.get("prefix_mismatch_behavior"):
        return None
    return {**thinking, "block_binding": {**binding, "prefix_mismatch_behavior": "drop_block"}}


def with_beta(header: str, beta: str = BINDING_BETA) -> str:
    """Return the header `anthropic-beta` with one more value, by default the one that `block_binding` needs."""
    values = [value.strip() for value in header.split(",") if value.strip()]
    return ",".join(values if beta in values else [*values, beta])


CHECKED_DIALECTS: Final = frozenset({"anthropic", "bedrock"})
"""The dialects in which thinking is bound to what comes before it."""
_DIGEST_BYTES: Final = 16
_encode = msgspec.json.Encoder(order="deterministic", enc_hook=str).encode


class _ThinkingBlock(NamedTuple):
    """A thinking block in a request, and what stands before it."""

    at: int
    """The index of its message."""
    place: int
    """Its index in the content of that."""
    key: bytes
    """The digest of the block: two blocks with the same key are the same."""
    before: bytes
    """The digest of the system text, the tools and the other blocks before it."""


class _ThinkingOrigin(NamedTuple):
    """Where a thinking block was produced."""

    before: bytes
    previous: bytes
    """The key of the thinking before it; b"" if there was none."""


class ThinkingCheck:
    """Remembers which requests have produced thinking, and checks those that send it back."""

    def __init__(self) -> None:
        self._origins: dict[bytes, _ThinkingOrigin] = {}

    def remember(
        self,
        dialect: Dialect,
        messages: Sequence[Any],
        reply: Sequence[Any],
        *,
        system: Any = None,
        tools: Any = (),
    ) -> None:
        """Remember the thinking in the messages of a reply to a request."""
        if dialect not in CHECKED_DIALECTS:
            return
        previous = b""
        for block in _blocks([*messages, *reply], system, tools):
            if block.at >= len(messages):
                self._origins[block.key] = _ThinkingOrigin(block.before, previous)
            previous = block.key

    def faults(
        self, dialect: Dialect, messages: Sequence[Any], *, system: Any = None, tools: Any = ()
    ) -> list[str]:
        """Return which thinking blocks of a request its provider would refuse."""
        found = self._refused(messages, system, tools) if dialect in CHECKED_DIALECTS else ()
        return [
            f"[{block.at}].content[{block.place}] thinking "
            + ("without the one before it" if is_gap else "behind other content than it was produced behind")
            for block, is_gap in found
        ]

    def without_refused(
        self, dialect: Dialect, messages: Sequence[Json], *, system: Any = None, tools: Any = ()
    ) -> list[Json]:
        """Return a request without the thinking that its provider would refuse, and without all before that."""
        kept = list(messages)
        while dialect in CHECKED_DIALECTS and (found := list(self._refused(kept, system, tools))):
            moved = [block.at + 1 for block, is_gap in found if not is_gap]
            # A block whose predecessor is missing is legal as the first one.
            end = moved[-1] if moved else found[-1][0].at
            if not any(map(has_thinking_blocks, kept[:end])):
                end += 1
            kept = [*without_thinking_blocks(kept[:end]), *kept[end:]]
        return kept

    def _refused(
        self, messages: Sequence[Any], system: Any, tools: Any
    ) -> Iterator[tuple[_ThinkingBlock, bool]]:
        """Yield the blocks that would be refused, and whether it is because of a gap in the chain before them."""
        previous = b""
        for block in _blocks(messages, system, tools) if self._origins else ():
            origin = self._origins.get(block.key)
            if origin is not None and origin.before != block.before:
                yield block, False
            elif origin is not None and previous and previous != origin.previous:
                yield block, True
            previous = block.key


def _blocks(messages: Sequence[Any], system: Any, tools: Any) -> Iterator[_ThinkingBlock]:
    """Yield the thinking blocks of messages. Other blocks count with the message that they are in, so messages that
    were merged or split are others."""
    digest = blake2b(_plain_json([_as_blocks(system), tools or []]), digest_size=_DIGEST_BYTES)
    for at, message in enumerate(messages):
        content = _as_blocks(message.get("content") if isinstance(message, Mapping) else None)
        is_begun = False
        for place, block in enumerate(content):
            if is_thinking_block(block):
                key = blake2b(_plain_json(block), digest_size=_DIGEST_BYTES).digest()
                yield _ThinkingBlock(at, place, key, digest.digest())
            elif not is_cache_point(block):
                if not is_begun:
                    is_begun = True
                    digest.update(_encode(["message", message.get("role")]))
                digest.update(_plain_json(block))


def _as_blocks(content: Any) -> list[Any]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return list(content) if isinstance(content, list | tuple) else []


def _plain_json(value: Any) -> bytes:
    """Return a value as JSON without cache marks and nulls. Most values have none, and are not copied."""
    text = _encode(value)
    if has_null(text) or b"cache_control" in text or b"cachePoint" in text:
        return _encode(strip_cache_marks(value, drop_nulls=True))
    return text


def is_thinking_block(block: object) -> bool:
    """Return whether a block of Anthropic or Bedrock is thinking."""
    if not isinstance(block, Mapping):
        return False
    return block.get("type") in ("thinking", "redacted_thinking") or "reasoningContent" in block


def has_thinking_blocks(message: Json) -> bool:
    """Return whether a message of Anthropic or Bedrock has thinking in it."""
    return any(map(is_thinking_block, _as_blocks(message.get("content"))))


def without_thinking_blocks(messages: Sequence[Json]) -> list[Json]:
    """Return messages of Anthropic or Bedrock without thinking, and without those that have nothing else."""
    left: list[Json] = []
    for message in messages:
        if not has_thinking_blocks(message):
            left.append(message)
        elif content := [block for block in message["content"] if not is_thinking_block(block)]:
            left.append({**message, "content": content})
    return left
