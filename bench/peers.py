"""Trimmers and normalisers of langchain-core and litellm, if they are installed."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from copy import deepcopy
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

from bench.work import Json
from foveal.core.log import Dialect
from foveal.core.tokens.counter import counter

MODEL: Final = "gpt-4.1"
PACKAGES: Final = {"langchain_core": "langchain-core", "litellm": "litellm"}


class Trimmer(NamedTuple):
    """A `trim_messages` function, called as its documentation describes."""

    name: str
    counting: str
    """The peer's token counter."""
    like: str
    """Foveal's token counter of the same kind."""
    convert: Callable[[list[Json]], list[Any]]
    """Converts messages to the package's own type; not timed."""
    trim: Callable[[list[Any], int], list[Any]]
    """Trims messages to a number of tokens."""
    plain: Callable[[list[Any]], list[Json]]


class Normaliser(NamedTuple):
    """Converts chat messages to the form that a provider accepts."""

    name: str
    target: Dialect
    act: Callable[[list[Json]], Any]


def missing() -> list[str]:
    """Return the packages that are not installed."""
    return [name for module, name in PACKAGES.items() if find_spec(module) is None]


def trimmers() -> Iterator[Trimmer]:
    if "langchain-core" not in missing():
        yield from _langchain()
    if "litellm" not in missing():
        yield _litellm()


def normalisers() -> Iterator[Normaliser]:
    if "langchain-core" not in missing():
        from langchain_core.messages import convert_to_openai_messages

        yield Normaliser(
            "langchain-core convert_to_openai_messages", "openai_chat", convert_to_openai_messages
        )
    if "litellm" not in missing():
        _quiet()
        from litellm.litellm_core_utils.prompt_templates.factory import anthropic_messages_pt
        from litellm.utils import validate_and_fix_openai_messages

        yield Normaliser(
            "litellm validate_and_fix_openai_messages", "openai_chat", validate_and_fix_openai_messages
        )
        yield Normaliser(
            "litellm anthropic_messages_pt",
            "anthropic",
            lambda given: anthropic_messages_pt(
                given[1:], model="claude-sonnet-4-5", llm_provider="anthropic"
            ),
        )


def _langchain() -> Iterator[Trimmer]:
    from langchain_core.messages import convert_to_messages, convert_to_openai_messages, trim_messages

    exact = counter("o200k_base")

    def count(messages: list[Any]) -> int:
        texts = [message.content for message in messages]
        for message in messages:
            texts += [str(call["args"]) for call in getattr(message, "tool_calls", ())]
        return sum(exact.count_all(texts)) + 4 * len(messages)

    counters = (("approximate", "estimate", "approximate"), ("o200k_base", "o200k_base", count))
    for counting, like, token_counter in counters:
        yield Trimmer(
            "langchain-core",
            counting,
            like,
            convert=convert_to_messages,
            trim=lambda messages, most, token_counter=token_counter: trim_messages(
                messages, max_tokens=most, token_counter=token_counter, start_on="human", include_system=True
            ),
            plain=convert_to_openai_messages,
        )


def _litellm() -> Trimmer:
    _quiet()
    from litellm.utils import trim_messages

    return Trimmer(
        "litellm",
        "o200k_base by tiktoken",
        "o200k_base",
        convert=deepcopy,
        trim=lambda messages, most: trim_messages(messages, MODEL, max_tokens=most),
        plain=list,
    )


def _quiet() -> None:
    """Make litellm use its bundled price table instead of downloading one, and hide its log.

    litellm logs an error for every list that it could not trim."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    logging.getLogger("LiteLLM").setLevel(logging.CRITICAL)
