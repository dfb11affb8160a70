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
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from foveal.core.log.events import AnyFact, Content, ModelSaid, Opened, Thinking, ThinkingLeftOut, extras
from foveal.core.wire.common import Json

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
