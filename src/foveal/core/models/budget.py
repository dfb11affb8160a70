"""How much a request may hold: window − output reserve − safety margin − system − tools = room for messages.

Limits are given in tokens, as people and providers speak of them; the thresholds are in units, as the view is
counted, so that what triggers a reduction and what the report shows are the same number.

    0 ─────────── warn ──── act ─── hard ────── input limit ────────── window
                    say so    reduce   never above    ← margin →  ← reserve →
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from foveal.core.models.model import Model
from foveal.core.tokens.calibration import Calibration
from foveal.errors import BadSetting

MARGIN: Final = 0.10
"""Share of the window that is never planned for."""
SURE: Final = 0.6
"""However little the count of tokens can be trusted, this share of the room is used: a request that turns out to be
too large can be made smaller, and one that has no room left cannot be made at all."""
LARGEST_WINDOW: Final = 100_000_000


class Caps(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the user allows, beside what the model can hold. None leaves it to the model; 0 is no cap."""

    reserve: int | None = None
    """Tokens kept free for the answer."""
    margin: float = MARGIN
    max_input_tokens: int | None = None
    max_history_tokens: int = 0
    """Tokens for the messages other than instructions."""
    max_messages: int = 0
    """Messages in view; for a session that may keep only so many events in memory."""
    max_images: int = 100
    max_media_bytes: int = 20_000_000
    """Bytes of images, sounds and files in one request, as encoded."""

    def __post_init__(self) -> None:
        for field in ("reserve", "max_input_tokens"):
            value = getattr(self, field)
            if value is not None:
                whole(field, value, least=0 if field == "reserve" else 1)
        for field in ("max_history_tokens", "max_messages", "max_images", "max_media_bytes"):
            whole(field, getattr(self, field), least=0)
        share("margin", self.margin, most=0.9)


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """The room of one request."""

    window: int
    reserve: int
    margin: int
    available: int
    """Tokens that the whole input may take."""
    fixed: int
    """Units of what goes beside the messages: system text given apart, and tools."""
    warn: int
    act: int
    hard: int
    """Units that the messages may take, at the most."""
    max_messages: int = 0
    max_images: int = 0
    max_media_bytes: int = 0


def whole(field: str, value: object, *, least: int = 0, most: int = LARGEST_WINDOW) -> int:
    """A whole number in its range, or an error that names the field."""
    if type(value) is not int or not least <= value <= most:
        raise BadSetting(field, value, f"a whole number from {least:,} to {most:,}")
    return value


def share(field: str, value: object, *, most: float = 1.0) -> float:
    """A fraction in its range, or an error that names the field."""
    if type(value) not in (int, float) or not 0 <= value <= most:  # type: ignore[operator]
        raise BadSetting(field, value, f"a number from 0 to {most:g}")
    return float(value)  # type: ignore[arg-type]


def thresholds(hard: int, *, warn: float, act: float) -> tuple[int, int, int]:
    """warn ≤ act < hard, whatever the shares and however small the room."""
    hard = max(1, hard)
    acts = min(hard - 1, int(hard * _sane(act)))
    return min(acts, int(hard * _sane(warn))), acts, hard


def _sane(value: float) -> float:
    return min(1.0, max(0.0, value)) if math.isfinite(value) else 1.0


def reserve_for(model: Model, caps: Caps) -> int:
    """Tokens kept for the answer: what the user says, else what the model may write, an eighth at the most."""
    wanted = caps.reserve if caps.reserve is not None else min(model.max_output, model.window // 8)
    return min(wanted, model.window)


def plan(
    model: Model,
    caps: Caps,
    calibration: Calibration,
    *,
    warn: float,
    act: float,
    act_tokens: int = 0,
    fixed: int = 0,
    instructed: int = 0,
) -> Budget:
    """The budget of the next request; `fixed` and `instructed` are units beside and among the messages."""
    reserve = reserve_for(model, caps)
    limit = model.input_limit(reserve)
    if caps.max_input_tokens is not None:
        limit = min(limit, caps.max_input_tokens)
    margin = int(model.window * caps.margin)
    available = max(0, min(limit, model.window - reserve - margin))
    expected = calibration.units(available)
    room = max(min(expected, calibration.safe_units(limit)), int(expected * SURE)) - fixed
    if caps.max_history_tokens:
        room = min(room, instructed + int(caps.max_history_tokens / calibration.ratio))
    low, middle, hard = thresholds(room, warn=warn, act=act)
    if act_tokens:
        middle = max(0, min(middle, calibration.units(act_tokens) - fixed))
        low = min(low, middle)
    return Budget(
        window=model.window,
        reserve=reserve,
        margin=margin,
        available=available,
        fixed=fixed,
        warn=low,
        act=middle,
        hard=hard,
        max_messages=caps.max_messages,
        max_images=caps.max_images,
        max_media_bytes=caps.max_media_bytes,
    )
