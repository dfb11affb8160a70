"""What the first request would have to wait for, done before there is one: vocabularies, tables and patterns."""

from __future__ import annotations

from typing import Final

from foveal import models, redact
from foveal.config import Config
from foveal.tokens import counter

SAMPLE: Final = (
    'def main(): return {"id": 12, "name": "Ørsted"}  # 2026-01-01T00:00:00Z, https://a.example/b?c=d\n'
)


def warm(config: Config) -> None:
    """Raises `BadSetting` when there is no counter of the configured name."""
    counter(config.get("tokenizer") or "auto", model=config.get("model") or "").count(SAMPLE)
    models.model("gpt-4.1")
    redact.scrub(SAMPLE)
