"""Bundled table of models, name matching, and rules for unlisted models.

1. `find` prefers a provider's row to the vendor's own, and a dated name to an undated one.
2. The table is read at the first lookup, not at import.
3. For a model that the table does not list, its name gives the window and the cache rules of its provider.
"""

from __future__ import annotations

import functools
import gzip
import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

# ── Rules for unlisted models ──────────────────────────────────────────────────────────────────────────

MIN_READ_RATIO = 0.01
"""Callers divide by the read ratio, so a free cache read counts as this."""

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
"""Windows by name. The first match wins, so specific names come before general ones."""

TOKEN_RATIOS = (("claude", 1.25), ("deepseek", 1.09), ("gpt", 1.0))
"""Tokens per o200k token, measured on real calls; 1.0 for other models."""

LOCAL_PROVIDERS = frozenset(
    {"hosted-vllm", "llama-cpp", "llama-server", "llamacpp", "llamafile", "lm-studio", "lmstudio", "local"}
    | {"ollama", "ollama-chat", "vllm"}
)
"""Providers on the user's machine: prefixes are reused while they are in memory, tokens are free."""


OLLAMA_PROVIDERS = frozenset({"ollama", "ollama-chat"})
OLLAMA_WINDOW = 4_096
"""Tokens that an Ollama server reads unless it is told otherwise, whatever the model could; it cuts longer requests
silently."""
_SMALL_TAG = re.compile(r"(?:^|/)llama-?3[.-]2:[13]b")
"""Tags of the quantised Llama 3.2, whose window is smaller than that of the model with all bits."""
SMALL_LLAMA_WINDOW = 8_192


class CacheRule(NamedTuple):
    """Prompt-cache rules of a provider family. `read` and `write` are relative to the input price."""

    family: str
    read: float
    write: float
    ttl: int
    minimum: int


ANTHROPIC = CacheRule("anthropic", read=0.1, write=1.25, ttl=300, minimum=1_024)
OPENAI = CacheRule("openai", read=0.1, write=1.0, ttl=300, minimum=1_024)
OPENAI_PAID_WRITES = CacheRule("openai", read=0.1, write=1.25, ttl=300, minimum=1_024)
GEMINI = CacheRule("gemini", read=0.1, write=1.0, ttl=300, minimum=2_048)  # the lifetime is not documented
DEEPSEEK = CacheRule("deepseek", read=0.1, write=1.0, ttl=7_200, minimum=64)
RESIDENT = CacheRule("local", read=MIN_READ_RATIO, write=1.0, ttl=3_600, minimum=1)
UNKNOWN_FAMILY = CacheRule("", read=0.1, write=1.0, ttl=300, minimum=1_024)

_OPENAI_NAME = re.compile(r"\b(?:gpt\d|chatgpt|codex|o[1-9]\b)")
_GPT_VERSION = re.compile(r"gpt(\d+)-(\d{1,2})(?!\d)")


def cache_rule(name: str) -> CacheRule:
    """Return the cache rules for a model name; `UNKNOWN_FAMILY` when no family matches."""
    known = canonical_name(name)
    if known.partition("/")[0] in LOCAL_PROVIDERS:
        return RESIDENT
    for part, rule in (("claude", ANTHROPIC), ("gemini", GEMINI), ("deepseek", DEEPSEEK)):
        if part in known:
            return rule
    if _OPENAI_NAME.search(known):
        version = _GPT_VERSION.search(known)
        paid = version is not None and (int(version[1]), int(version[2])) >= (5, 6)
        return OPENAI_PAID_WRITES if paid else OPENAI
    return UNKNOWN_FAMILY


def server_window(name: str) -> int | None:
    """Return the window that limits a model because of how it is served; None if only the model limits it."""
    if canonical_name(name).partition("/")[0] in OLLAMA_PROVIDERS:
        return OLLAMA_WINDOW
    return SMALL_LLAMA_WINDOW if _SMALL_TAG.search(name.lower()) else None


def window_pattern(name: str) -> int | None:
    """Return the window that the last part of a name suggests; `ollama/x` is not a Llama."""
    last = name.lower().rpartition("/")[2].replace("_", "-")
    return next((window for pattern, window in _compiled_patterns() if pattern.search(last)), None)


@functools.cache
def _compiled_patterns() -> tuple[tuple[re.Pattern[str], int], ...]:
    return tuple((_pattern(text), window) for text, window in WINDOW_PATTERNS)


def _pattern(text: str) -> re.Pattern[str]:
    """Compile a pattern that allows other separators (`llama4`, `gpt-4-1`) but no further digits: `gpt-4-1106`
    is not GPT-4.1, and `qwen32` is not Qwen 3."""
    loose = text.replace("-", "-?").replace(".", "[.-]")
    return re.compile(loose + r"(?!\d)" if text[-1].isdigit() else loose)


# ── Names ──────────────────────────────────────────────────────────────────────────────────────────────

PROVIDER_SPELLINGS = {
    "amazon-bedrock": "bedrock",
    "aws": "bedrock",
    "dashscope": "alibaba",
    "fireworks": "fireworks-ai",
    "friendliai": "friendli",
    "gmi": "gmicloud",
    "google": "gemini",
    "google-vertex": "vertex-ai",
    "google-vertex-anthropic": "vertex-ai",
    "meta-llama": "meta",
    "mistralai": "mistral",
    "moonshot": "moonshotai",
    "novita": "novita-ai",
    "together": "togetherai",
    "together-ai": "togetherai",
    "vercel-ai-gateway": "vercel",
    "vertex": "vertex-ai",
    "x-ai": "xai",
    "z-ai": "zai",
}
"""The canonical spelling of providers with several names."""

_SEPARATORS = re.compile(r"[^a-z0-9/]+")
_BEFORE_NUMBER = re.compile(r"(?<=[a-z])-(?=\d)")
_JOINTS = re.compile(r"/|(?<=[a-z])\.(?=[a-z])")
"""Where a provider, a region or a vendor ends: `bedrock/us.anthropic.claude-…`."""
_TAG = re.compile(r"(?:-v\d+)?:[^/]*$")
"""`:free`, `:7b` and the version of Bedrock, `-v1:0`."""
_SUFFIX = re.compile(
    r"(?:[-@](?:free|latest|exp|beta|preview|thinking|gguf|awq|fp8|fp16|bf16|int4|int8)"
    r"|(?:[-@]|(?<=[a-z]))(?:20\d\d-\d\d-\d\d|\d\d-\d\d-20\d\d|\d\d-\d\d|\d{8}|\d{4}))$"
)
"""Words and dates at the end of a name that rarely change the window."""


def canonical_name(name: str) -> str:
    """Return the canonical spelling of a name: `llama-3.1` and `Llama3.1` both become `llama3-1`."""
    dashed = _SEPARATORS.sub("-", _plain(name)).strip("-/")
    head, slash, rest = _BEFORE_NUMBER.sub("", dashed).partition("/")
    return PROVIDER_SPELLINGS.get(head, head) + slash + rest.strip("-")


def name_forms(name: str) -> Iterator[str]:
    """Yield canonical names to look up, the most specific first; some may occur twice.

    Names without their suffix come last, because a dated model of any provider is a better match than its
    undated namesake. Ollama's `qwen2.5:7b` is `qwen2.5-7b-instruct` elsewhere.
    """
    stem = _plain(name)
    yield from _tails(stem)
    yield canonical_name(stem.rpartition("/")[2] + "-instruct")
    stem = _TAG.sub("", stem)
    while True:
        yield from _tails(stem)
        shorter = _SUFFIX.sub("", stem)
        if shorter == stem or not shorter:
            return
        stem = shorter


def _plain(name: str) -> str:
    """Return the name in lower case; a fine-tuned model (`ft:gpt-4o:my-org`) gets the provider `ft`."""
    lower = name.strip().lower()
    return "ft/" + lower[3:] if lower.startswith("ft:") else lower


def _tails(stem: str) -> Iterator[str]:
    yield canonical_name(stem)
    for joint in _JOINTS.finditer(stem):
        yield canonical_name(stem[joint.end() :])


# ── The bundled table ──────────────────────────────────────────────────────────────────────────────────


class ModelLimits(msgspec.Struct, frozen=True, array_like=True):
    """Token limits of a model; None means unknown."""

    window: int | None = None
    max_input: int | None = None
    """None when input may fill the window."""
    max_output: int | None = None
    cache_minimum: int | None = None


class ModelPrices(msgspec.Struct, frozen=True, array_like=True):
    """Dollars per million tokens; None means unknown."""

    input: float | None = None
    cached: float | None = None
    write: float | None = None
    output: float | None = None


class ModelRow(msgspec.Struct, frozen=True, gc=False):
    """What the table says about one model."""

    limits: ModelLimits = ModelLimits()
    prices: ModelPrices = ModelPrices()


class CatalogueSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The file format of the table. Sellers, limits and prices repeat often, so each is stored once and
    referred to by index. A name is left out when a shorter form of it finds the same row."""

    made: str
    """The day on which the source packages were read."""
    packages: dict[str, str]
    sellers: list[str]
    """The part of a name before its last slash; "" for the vendor's own model."""
    limits: list[ModelLimits]
    prices: list[ModelPrices]
    models: dict[str, tuple[int, ...]]
    """The last part of a name → indexes of (seller, limits, prices) for each row, flattened."""

    def rows(self) -> dict[str, ModelRow]:
        """Return all rows by name."""
        table = {}
        for last, indexes in self.models.items():
            triples = iter(indexes)
            for seller, size, price in zip(triples, triples, triples, strict=True):
                row = ModelRow(self.limits[size], self.prices[price])
                table[self.sellers[seller] + "/" + last if self.sellers[seller] else last] = row
        return table


@functools.cache
def catalogue_snapshot() -> CatalogueSnapshot:
    """Return the bundled table; it is read at the first call."""
    from importlib.resources import files  # slow to import and needed once

    packed = files("foveal.core.models").joinpath("models.json.gz").read_bytes()
    return msgspec.json.decode(gzip.decompress(packed), type=CatalogueSnapshot)


@functools.cache
def model_rows() -> dict[str, ModelRow]:
    """Return the rows of the bundled table by name."""
    return catalogue_snapshot().rows()


def find_row(name: str, rows: dict[str, ModelRow]) -> ModelRow | None:
    """Return the row of the most specific form of a name, or None."""
    return next((rows[form] for form in name_forms(name) if form in rows), None)
