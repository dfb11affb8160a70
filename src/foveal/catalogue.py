"""The bundled table of models: how its names are spelled, and the row that a name finds.

A provider's row comes before the vendor's own, a dated name before an undated one. The table is read at the first
lookup, never at import.
"""

from __future__ import annotations

import functools
import gzip
import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

# ── names ────────────────────────────────────────────────────────────────────────────────────────────────

PROVIDERS = {
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
"""One spelling for providers that the world writes in several ways."""

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
"""Words and dates at the end of a name that seldom change what the model holds."""


def canonical(name: str) -> str:
    """One spelling for a name: lower case, one provider, `llama-3.1` and `Llama3.1` both as `llama3-1`."""
    dashed = _SEPARATORS.sub("-", _plain(name)).strip("-/")
    head, slash, rest = _BEFORE_NUMBER.sub("", dashed).partition("/")
    return PROVIDERS.get(head, head) + slash + rest.strip("-")


def forms(name: str) -> Iterator[str]:
    """Canonical names to look for, the most specific first; some may come twice.

    Suffixes go last: what a dated model of any provider holds says more than its undated namesake. What
    Ollama calls `qwen2.5:7b` others call `qwen2.5-7b-instruct`.
    """
    stem = _plain(name)
    yield from _tails(stem)
    yield canonical(stem.rpartition("/")[2] + "-instruct")
    stem = _TAG.sub("", stem)
    while True:
        yield from _tails(stem)
        shorter = _SUFFIX.sub("", stem)
        if shorter == stem or not shorter:
            return
        stem = shorter


def _plain(name: str) -> str:
    """Lower case, and a fine-tuned model (`ft:gpt-4o:my-org`) as one that is sold by a provider `ft`."""
    lower = name.strip().lower()
    return "ft/" + lower[3:] if lower.startswith("ft:") else lower


def _tails(stem: str) -> Iterator[str]:
    yield canonical(stem)
    for joint in _JOINTS.finditer(stem):
        yield canonical(stem[joint.end() :])


# ── the bundled table ────────────────────────────────────────────────────────────────────────────────────


class Limits(msgspec.Struct, frozen=True, array_like=True):
    """What the snapshot knows of a model's size; None means unknown."""

    window: int | None = None
    max_input: int | None = None
    """None when it is all of the window."""
    max_output: int | None = None
    cache_minimum: int | None = None


class Prices(msgspec.Struct, frozen=True, array_like=True):
    """Dollars per million tokens; None means unknown."""

    input: float | None = None
    cached: float | None = None
    write: float | None = None
    output: float | None = None


class Row(NamedTuple):
    limits: Limits = Limits()
    prices: Prices = Prices()


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The file of the table. Sellers, limits and prices repeat a lot: each is kept once, named by its index.

    A name is left out when a shorter form of it finds the same row.
    """

    made: str
    """The day on which the packages were read."""
    packages: dict[str, str]
    sellers: list[str]
    """What stands before the last slash of a name: "" for the vendor's own model."""
    limits: list[Limits]
    prices: list[Prices]
    models: dict[str, list[int]]
    """For the last part of a name: (seller, limits, prices) of each of its rows, one after the other."""

    def rows(self) -> dict[str, Row]:
        """Every name with its row."""
        table = {}
        for last, indexes in self.models.items():
            triples = iter(indexes)
            for seller, size, price in zip(triples, triples, triples, strict=True):
                row = Row(self.limits[size], self.prices[price])
                table[self.sellers[seller] + "/" + last if self.sellers[seller] else last] = row
        return table


@functools.cache
def snapshot() -> Snapshot:
    """The bundled table, read at the first call."""
    from importlib.resources import files  # slow to import, and needed once

    packed = files("foveal").joinpath("data", "models.json.gz").read_bytes()
    return msgspec.json.decode(gzip.decompress(packed), type=Snapshot)


@functools.cache
def table() -> dict[str, Row]:
    return snapshot().rows()


def find(name: str, rows: dict[str, Row]) -> Row | None:
    """The row of the most specific form of the name that the table has."""
    return next((rows[form] for form in forms(name) if form in rows), None)
