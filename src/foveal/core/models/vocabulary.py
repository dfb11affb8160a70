"""Which vocabulary a model counts with, and how far other counts are off.

A count with the model's own vocabulary is exact except for templates and hidden prompts. A count with another
vocabulary, or an estimate, needs the ratio of the model's family, which depends on the text: on recorded
requests of 20,000 tokens and more, o200k × ratio is up to 8 % below what DeepSeek reports, an estimate 11 %.
"""

from __future__ import annotations

import re
from typing import Final

from foveal.core.models.model import Model
from foveal.core.tokens.calibration import Calibration
from foveal.core.tokens.counter import QWEN_BY_CL100K, Counter, counter

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
