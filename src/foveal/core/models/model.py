"""Limits, prices and cache rules of one model, each with its source.

`model("gpt-4.1")` takes each value from the first source that has it and records which one that was:

    yours      you gave the value
    learned    an overflow error reported the limit
    snapshot   the bundled table of some thousand models (`tools/refresh_models.py` writes it)
    pattern    the name looks like a known model ("claude" → 200,000)
    family     the rule of the provider's prompt cache or tokenizer
    default    nothing is known: 128,000 tokens and no price

Limits change over time, so the caller can set each of them, and an unknown name is not an error. The first
lookup reads the table (`catalogue`); later lookups take microseconds.

The name also says which vocabulary the model counts with (`counter_for`), and so how far other counts are off
(`first_calibration`).
"""

from __future__ import annotations

import functools
import math
import re
from typing import Final, TypeVar

import msgspec

from foveal.core.models.catalogue import (
    MIN_READ_RATIO,
    RESIDENT,
    TOKEN_RATIOS,
    UNKNOWN_FAMILY,
    ModelLimits,
    ModelPrices,
    ModelRow,
    cache_rule,
    canonical_name,
    find_row,
    model_rows,
    server_window,
    window_pattern,
)
from foveal.core.tokens.calibration import Calibration
from foveal.core.tokens.counter import QWEN_BY_CL100K, Counter, counter
from foveal.core.wire.bound_thinking import BINDING_SETTING
from foveal.core.wire.bound_thinking import binds_thinking as name_binds_thinking
from foveal.errors import BadSetting

DEFAULT_WINDOW = 128_000
DEFAULT_MAX_OUTPUT = 4_096
"""Small enough for every model in use; providers refuse a request for more output than they allow."""

MILLION = 1_000_000
DEFAULT_OUTPUT_RATIO: Final = 5.0
"""The price of an output token relative to an uncached one where it is unknown: that of most models."""
HOUR_WRITE_RATIO: Final = 2.0
"""The price of a token that is written to the cache for an hour relative to an uncached one, at Anthropic."""

T = TypeVar("T")


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """The limits, prices and cache rules of one model.

    Prices are dollars per million tokens. `foveal.model` returns what is known of a model.

    Examples:
        ```python
        import foveal

        known = foveal.model("gpt-4.1")
        assert known.window > known.max_output
        ```
    """

    name: str
    """The name that was asked for."""
    window: int
    """Tokens of input and output together."""
    max_input: int
    """Tokens of input alone; never more than the window."""
    max_output: int
    """Tokens that the model may write."""
    input_price: float | None
    """Price of uncached input; None when it is unknown."""
    cached_price: float | None
    """Price of input read from the cache; None when it is unknown."""
    write_price: float | None
    """Price of input written to the cache; None when it is unknown."""
    output_price: float | None
    """Price of output; None when it is unknown."""
    cache_ttl: int
    """Seconds after its last use that a cached prefix survives."""
    cache_minimum: int
    """Tokens; a shorter prefix is not cached."""
    token_ratio: float
    """Tokens of this model per o200k token, before calibration."""
    binds_thinking: bool = False
    """Whether its provider refuses thinking once anything before it has changed."""
    sources: dict[str, str]
    """The source of each value, such as `yours`, `asked`, `learned`, `server`, `snapshot` or `default`. Equal
    lookups share the dict: do not change it.
    """

    def input_limit(self, reserve: int) -> int:
        """Return the input tokens that are left when tokens are kept for the answer.

        Args:
            reserve: Tokens kept for the answer.

        Examples:
            ```python
            import foveal

            assert foveal.model("local", window=32_000).input_limit(4_000) == 28_000
            ```
        """
        return max(0, min(self.max_input, self.window - reserve))

    @property
    def read_ratio(self) -> float:
        """The price of a cached token relative to an uncached one; never 0, because callers divide by it."""
        if not self.input_price or self.cached_price is None:
            return cache_rule(self.name).read
        return max(MIN_READ_RATIO, self.cached_price / self.input_price)

    @property
    def write_ratio(self) -> float:
        """The price of a token that is written to the cache relative to an uncached one."""
        if not self.input_price or self.write_price is None:
            return cache_rule(self.name).write
        return self.write_price / self.input_price

    @property
    def output_ratio(self) -> float:
        """The price of a token that the model writes relative to an uncached one."""
        if not self.input_price or self.output_price is None:
            return DEFAULT_OUTPUT_RATIO
        return self.output_price / self.input_price

    def cost(
        self,
        *,
        input: int = 0,
        cache_read: int = 0,
        cache_write: int = 0,
        cache_write_1h: int = 0,
        output: int = 0,
    ) -> float | None:
        """Return the dollars for one call, or None when a price is unknown.

        The kinds of input exclude each other, as in `Used`: a cached token is not in `input` as well. Reasoning
        counts as output.

        Args:
            input: Tokens read at the full price.
            cache_read: Tokens read from the cache.
            cache_write: Tokens written to the cache.
            cache_write_1h: The part of `cache_write` that is kept for an hour.
            output: Tokens that the model wrote.

        Examples:
            ```python
            import foveal

            known = foveal.model("local", input_price=2.0, output_price=8.0)
            assert known.cost(input=500_000, output=250_000) == 3.0
            ```
        """
        parts = (
            (input, self.input_price),
            (cache_read, self.cached_price),
            (cache_write - cache_write_1h, self.write_price),
            (cache_write_1h, None if self.input_price is None else self.input_price * HOUR_WRITE_RATIO),
            (output, self.output_price),
        )
        dollars = 0.0
        for tokens, price in parts:
            if not tokens:
                continue
            if price is None:
                return None
            dollars += tokens * price
        return dollars / MILLION


class _ModelOverrides(msgspec.Struct, frozen=True, kw_only=True):
    """Values set by the caller: validated, hashable, and the key of the lookup cache."""

    window: int | None
    max_input: int | None
    max_output: int | None
    input_price: float | None
    cached_price: float | None
    write_price: float | None
    output_price: float | None
    cache_ttl: int | None
    cache_minimum: int | None
    token_ratio: float | None
    binds_thinking: bool | None
    learned_window: int | None


def model(
    name: str,
    *,
    window: int | None = None,
    max_input: int | None = None,
    max_output: int | None = None,
    input_price: float | None = None,
    cached_price: float | None = None,
    write_price: float | None = None,
    output_price: float | None = None,
    cache_ttl: int | None = None,
    cache_minimum: int | None = None,
    token_ratio: float | None = None,
    binds_thinking: bool | None = None,
    learned_window: int | None = None,
) -> Model:
    """Return what is known of a model; values that you give take precedence.

    Each value comes from the first source that has it: yours, learned, the bundled table, a pattern in the
    name, the family, the default. Prices are dollars per million tokens.

    Args:
        name: The name, such as `"gpt-4.1"` or `"anthropic/claude-sonnet-4-5"`. An unknown name is allowed.
        window: Tokens of input and output together. None takes the known value, or 128,000.
        max_input: Tokens of input alone. None takes the known value, at most the window.
        max_output: Tokens that the model may write. None takes the known value, or 4,096.
        input_price: Price of uncached input. None takes the known value.
        cached_price: Price of input read from the cache. None takes the known value.
        write_price: Price of input written to the cache. None takes the known value.
        output_price: Price of output. None takes the known value.
        cache_ttl: Seconds that a cached prefix survives. None takes the rule of the family.
        cache_minimum: Tokens of the shortest prefix that is cached. None takes the rule of the family.
        token_ratio: Tokens of this model per o200k token. None takes the known value, or 1.
        binds_thinking: Whether the provider refuses thinking once anything before it has changed. None decides
            by the version in the name.
        learned_window: A window that an overflow error reported. None if there was none.

    Returns:
        The model, with the source of each value.

    Raises:
        BadSetting: The name is empty, or a value is out of range.

    Examples:
        ```python
        import foveal

        mine = foveal.model("my-finetune", window=64_000, input_price=0.5)
        assert mine.sources["window"] == "yours"
        ```
    """
    if not isinstance(name, str) or not canonical_name(name):
        raise BadSetting("model", name, 'a name such as "gpt-4.1" or "anthropic/claude-sonnet-4-5"')
    given = _ModelOverrides(
        window=_tokens("window", window),
        max_input=_tokens("max_input", max_input),
        max_output=_tokens("max_output", max_output),
        input_price=_price("input_price", input_price),
        cached_price=_price("cached_price", cached_price),
        write_price=_price("write_price", write_price),
        output_price=_price("output_price", output_price),
        cache_ttl=_whole("cache_ttl", cache_ttl, least=0, most=31_536_000, unit="seconds"),
        cache_minimum=_whole("cache_minimum", cache_minimum, least=0, most=MILLION, unit="tokens"),
        token_ratio=_number("token_ratio", token_ratio, least=0.1, most=10.0, unit="tokens per o200k token"),
        binds_thinking=_flag(BINDING_SETTING, binds_thinking),
        learned_window=_tokens("learned_window", learned_window),
    )
    return _resolve(name, given)


def _tokens(field: str, value: int | None) -> int | None:
    return _whole(field, value, least=1, most=1_000_000_000, unit="tokens")


def _price(field: str, value: float | None) -> float | None:
    return _number(field, value, least=0.0, most=100_000.0, unit="dollars per million tokens")


def _flag(field: str, value: object) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise BadSetting(field, value, "True or False")
    return value


def _whole(field: str, value: int | None, *, least: int, most: int, unit: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise BadSetting(field, value, f"a whole number from {least:,} to {most:,} ({unit})")
    return value


def _number(field: str, value: float | None, *, least: float, most: float, unit: str) -> float | None:
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not least <= value <= most:
        raise BadSetting(field, value, f"a number from {least:g} to {most:,.0f} ({unit})")
    return float(value)


@functools.lru_cache(maxsize=1_024)
def _resolve(name: str, given: _ModelOverrides) -> Model:
    row = find_row(name, model_rows()) or ModelRow()
    binds = _first(
        (given.binds_thinking, "yours"), (name_binds_thinking(name) or None, "pattern"), default=False
    )
    found: _SourcedValues = {
        **_limits(name, given, row.limits),
        **_prices(name, given, row.prices),
        **_cache(name, given, row.limits),
        BINDING_SETTING: binds,
    }
    return msgspec.convert(
        {field: value for field, (value, _) in found.items()}
        | {"name": name, "sources": {field: source for field, (_, source) in found.items()}},
        type=Model,
    )


_SourcedValues = dict[str, tuple[float | None, str]]


def _first(*candidates: tuple[T | None, str], default: T) -> tuple[T, str]:
    """Return the first known value with its source."""
    return next(((value, source) for value, source in candidates if value is not None), (default, "default"))


def _limits(name: str, given: _ModelOverrides, known: ModelLimits) -> _SourcedValues:
    if given.window is not None and given.max_input is not None and given.max_input > given.window:
        raise BadSetting("max_input", given.max_input, f"at most the window, {given.window:,} tokens")
    window, source = _first(
        (given.window, "yours"),
        (given.learned_window, "learned"),
        (server_window(name), "server"),
        (known.window, "snapshot"),
        (window_pattern(name), "pattern"),
        default=DEFAULT_WINDOW,
    )
    if given.max_input is not None and given.max_input > window:
        window, source = given.max_input, "yours"  # the input limit cannot exceed the window
    return {
        "window": (window, source),
        "max_input": _max_input(given, known, window, source),
        "max_output": _max_output(given, known, window),
    }


def _max_input(given: _ModelOverrides, known: ModelLimits, window: int, source: str) -> tuple[int, str]:
    """Return the input limit. The table's limit does not apply when the caller sets a larger window."""
    if given.max_input is not None:
        return given.max_input, "yours"
    if known.max_input is not None and known.max_input < window <= (known.window or 0):
        return known.max_input, "snapshot"
    return window, source


def _max_output(given: _ModelOverrides, known: ModelLimits, window: int) -> tuple[int, str]:
    if given.max_output is not None and given.max_output > window:
        raise BadSetting(
            "max_output",
            given.max_output,
            f"at most the window, {window:,} tokens; give `window` if it is larger",
        )
    limit, source = _first(
        (given.max_output, "yours"), (known.max_output, "snapshot"), default=DEFAULT_MAX_OUTPUT
    )
    return min(limit, window), source


def _prices(name: str, given: _ModelOverrides, known: ModelPrices) -> _SourcedValues:
    """Return the prices. Cache prices follow a given input price in the known proportions."""
    known, origin = _prices_of(name, known)
    rule = cache_rule(name)
    input_price = _first((given.input_price, "yours"), (known.input, origin), default=None)
    base = input_price[0]
    scale = base / known.input if base is not None and known.input else 1.0
    cached = None if known.cached is None else known.cached * scale
    write = None if known.write is None else known.write * scale
    by_rule = base is not None and rule is not UNKNOWN_FAMILY
    return {
        "input_price": input_price,
        "cached_price": _first(
            (given.cached_price, "yours"),
            (cached, origin),
            (base * rule.read if base is not None and by_rule else None, "family"),
            default=None,
        ),
        "write_price": _first(
            (given.write_price, "yours"),
            (write, origin),
            (base * rule.write if base is not None and by_rule else None, "family"),
            default=base,
        ),
        "output_price": _first((given.output_price, "yours"), (known.output, origin), default=None),
    }


def _prices_of(name: str, known: ModelPrices) -> tuple[ModelPrices, str]:
    """Return the prices for a name; local models and names that end in `:free` cost nothing."""
    if cache_rule(name) is RESIDENT:
        return ModelPrices(0.0, 0.0, 0.0, 0.0), "family"
    if name.strip().lower().endswith(":free"):
        return ModelPrices(0.0, 0.0, 0.0, 0.0), "pattern"
    return known, "snapshot"


def _cache(name: str, given: _ModelOverrides, known: ModelLimits) -> _SourcedValues:
    rule = cache_rule(name)
    source = "default" if rule is UNKNOWN_FAMILY else "family"
    ratio = next((ratio for part, ratio in TOKEN_RATIOS if part in name.lower()), None)
    return {
        "cache_ttl": _first((given.cache_ttl, "yours"), (rule.ttl, source), default=rule.ttl),
        "cache_minimum": _first(
            (given.cache_minimum, "yours"),
            (known.cache_minimum, "snapshot"),
            (rule.minimum, source),
            default=rule.minimum,
        ),
        "token_ratio": _first((given.token_ratio, "yours"), (ratio, "family"), default=1.0),
    }


# ── Vocabularies ─────────────────────────────────────────────────────────────────────────────────────────
# A count with the model's own vocabulary is exact except for templates and hidden prompts. A count with another
# vocabulary, or an estimate, needs the ratio of the model's family, which depends on the text: on recorded
# requests of 20,000 tokens and more, o200k × ratio is up to 8 % below what DeepSeek reports, an estimate 11 %.

OWN_SPREAD: Final = 0.0075
"""Error of the ratio, per unit, before the first report: the model's own vocabulary counts."""
FOREIGN_SPREAD: Final = 0.05
"""The same when another vocabulary counts."""
ESTIMATE_SPREAD: Final = 0.1
"""The same when tokens are estimated."""

_VOCABULARIES: Final = (
    (re.compile(r"gpt-?oss|gpt-?(?:4o|4[.-]1|4[.-]5|[5-9])(?!\d)|\bo[1-9]\b|codex"), "o200k"),
    (re.compile(r"gpt-?(?:3[.-]5|4)(?!\d)"), "cl100k"),
    (re.compile(r"deepseek"), "deepseek"),
    (re.compile(r"qwen-?3[.-][5-9]"), "qwen3.5"),
    (re.compile(r"qwen"), "qwen"),
)
"""Patterns of model names, and how the name of their vocabulary begins. The first match wins."""


def has_own_vocabulary(model: str, counter: Counter) -> bool:
    """Return whether a counter uses the vocabulary of the model with this name."""
    return counter.exact and counter.name.partition("_")[0] == _own_vocabulary(model)


def counter_for(model: str, tokenizer: str = "auto") -> Counter:
    """Return the counter of that name. `auto` counts Qwen with its own vocabulary: it has a token for each digit,
    so that o200k counts logs and tables up to a third too low."""
    if tokenizer == "auto" and _own_vocabulary(model) == "qwen" and counter().exact:
        return counter(QWEN_BY_CL100K)
    return counter(tokenizer, model=model)


def _own_vocabulary(model: str) -> str | None:
    name = model.lower().rpartition("/")[2]
    return next((vocabulary for pattern, vocabulary in _VOCABULARIES if pattern.search(name)), None)


def first_calibration(model: Model, counter: Counter) -> Calibration:
    """Return what is known about a model's counting before its provider has reported anything."""
    if has_own_vocabulary(model.name, counter):
        # The ratio of a family is per o200k token; a ratio that the user gave is about whatever counts.
        ratio = model.token_ratio if model.sources.get("token_ratio") == "yours" else 1.0
        return Calibration(ratio=ratio, model=model.name, spread=OWN_SPREAD)
    spread = FOREIGN_SPREAD if counter.exact else ESTIMATE_SPREAD
    return Calibration(ratio=model.token_ratio, model=model.name, spread=spread, first_spread=spread)
