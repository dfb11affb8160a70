"""What a model's name gives away when no table knows it: its window, its provider's cache rules, its tokenizer."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from foveal.catalogue import canonical

SMALLEST_READ_RATIO = 0.01
"""Callers divide by the read ratio, and even a free cache read is not worth more than a hundred calls."""

WINDOW_PATTERNS = (
    ("claude", 200_000),
    ("gpt-5", 400_000),
    ("gpt-4.1", 1_000_000),
    ("gpt-4o", 128_000),
    ("gpt-4-turbo", 128_000),
    ("gpt-4", 128_000),
    ("gemini", 1_000_000),
    ("grok-4", 2_000_000),
    ("grok", 131_072),
    ("deepseek-v3", 163_840),
    ("deepseek-chat-v3", 163_840),
    ("deepseek", 128_000),
    ("qwen3", 131_072),
    ("qwen", 128_000),
    ("llama-4", 327_680),
    ("llama", 128_000),
    ("mistral-large", 262_144),
    ("mistral", 128_000),
    ("mixtral", 128_000),
)
"""The window of a model that only its name describes. The first match wins: specific before general."""

TOKEN_RATIOS = (("claude", 1.25), ("deepseek", 1.09), ("gpt", 1.0))
"""Tokens per o200k token, measured against real calls; others are taken for 1.0."""

LOCAL = frozenset(
    {"hosted-vllm", "llama-cpp", "llama-server", "llamacpp", "llamafile", "lm-studio", "lmstudio", "local"}
    | {"ollama", "ollama-chat", "vllm"}
)
"""Providers that run on your own machine: prefixes are reused while they are resident, tokens are free."""


class CacheRule(NamedTuple):
    """How a family of providers keeps prompt prefixes; `read` and `write` are relative to the input price."""

    family: str
    read: float
    write: float
    ttl: int
    minimum: int


ANTHROPIC = CacheRule("anthropic", read=0.1, write=1.25, ttl=300, minimum=1_024)
OPENAI = CacheRule("openai", read=0.1, write=1.0, ttl=300, minimum=1_024)
OPENAI_PAID_WRITES = CacheRule("openai", read=0.1, write=1.25, ttl=300, minimum=1_024)
GEMINI = CacheRule("gemini", read=0.1, write=1.0, ttl=300, minimum=2_048)  # its life is not promised
DEEPSEEK = CacheRule("deepseek", read=0.1, write=1.0, ttl=7_200, minimum=64)
RESIDENT = CacheRule("local", read=SMALLEST_READ_RATIO, write=1.0, ttl=3_600, minimum=1)
UNKNOWN = CacheRule("", read=0.1, write=1.0, ttl=300, minimum=1_024)

_OPENAI_NAME = re.compile(r"\b(?:gpt\d|chatgpt|codex|o[1-9]\b)")
_GPT_VERSION = re.compile(r"gpt(\d+)-(\d{1,2})(?!\d)")


def cache_rule(name: str) -> CacheRule:
    """The rule of the family that a model belongs to by its name; `UNKNOWN` for all others."""
    known = canonical(name)
    if known.partition("/")[0] in LOCAL:
        return RESIDENT
    for part, rule in (("claude", ANTHROPIC), ("gemini", GEMINI), ("deepseek", DEEPSEEK)):
        if part in known:
            return rule
    if _OPENAI_NAME.search(known):
        version = _GPT_VERSION.search(known)
        paid = version is not None and (int(version[1]), int(version[2])) >= (5, 6)
        return OPENAI_PAID_WRITES if paid else OPENAI
    return UNKNOWN


def window_pattern(name: str) -> int | None:
    """The window that the last part of a name suggests: `ollama/x` is no Llama."""
    last = name.lower().rpartition("/")[2].replace("_", "-")
    return next((window for pattern, window in _compiled_patterns() if pattern.search(last)), None)


@functools.cache
def _compiled_patterns() -> tuple[tuple[re.Pattern[str], int], ...]:
    return tuple((_pattern(text), window) for text, window in WINDOW_PATTERNS)


def _pattern(text: str) -> re.Pattern[str]:
    """Separators may vary (`llama4`, `gpt-4-1`), but `gpt-4-1106` is no GPT-4.1 and `qwen32` no Qwen 3."""
    loose = text.replace("-", "-?").replace(".", "[.-]")
    return re.compile(loose + r"(?!\d)" if text[-1].isdigit() else loose)
