"""Token budget of a request: window − reserve − margin − system − tools = room for messages.

Limits are tokens, as providers state them. Thresholds are units, as the view is counted, so that the trigger
of a reduction and the number in the report are the same.

    0 ─────────── warn ──── act ─── hard ────── input limit ────────── window
                    report    reduce   never above    ← margin →  ← reserve →
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import msgspec

from foveal.core.models.model import Model
from foveal.core.models.spending import SpendingLimit, read_limits
from foveal.core.tokens.calibration import Calibration
from foveal.errors import BadSetting

MIN_MARGIN_SHARE: Final = 0.01
"""Share of the window that stays unused however exact the count is."""
MAX_MARGIN_SHARE: Final = 0.10
"""Share of the window that stays unused at most, however uncertain the count is. A request that turns out too
large can be reduced after the provider's refusal."""
MAX_MARGIN_OF_INPUT: Final = 0.4
"""Share of the input limit that the measured margin takes at most: a large reserve leaves little input."""
DEFAULT_MEMORY_TOKENS: Final = 1_000
"""Tokens of the text of a memory, unless it is made with another budget."""
MIN_MEMORY_TOKENS: Final = 100
MAX_MEMORY_TOKENS: Final = 32_000
MAX_WINDOW_TOKENS: Final = 100_000_000
MAX_WINDOW_BASED_SHARE: Final = 0.95
"""Share of the room at which a threshold that is a share of the window lies at the latest. Reserve and margin
often leave less than 90 % of the window: a question at 90 % would otherwise come after the limit."""
SharesOf: TypeAlias = Literal["room", "window"]
"""What the shares `warn` and `act` of a policy are shares of."""


class Caps(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Limits set by the user, beside those of the model. None leaves a limit to the model or the policy."""

    reserve: int | None = None
    """Tokens kept free for the answer."""
    margin: float | None = None
    """Share of the window that stays unused; None follows the measured error of counting."""
    max_input_tokens: int | None = None
    max_history_tokens: int | None = None
    """Tokens for the messages other than instructions; 0 is no limit, also if the policy has one."""
    max_messages: int = 0
    """Messages in view, for a session that keeps a bounded number of events in memory; 0 is no limit."""
    max_images: int = 100
    """Images in one request; with 0, only those of the latest message are shown."""
    max_media_bytes: int = 20_000_000
    """Encoded bytes of images, audio and files in one request."""
    limit: tuple[SpendingLimit, ...] = ()
    """Most dollars or tokens that the conversation may use; given as texts or numbers of dollars."""
    tell_budget: bool = False
    """Whether the model is told how much is left."""

    def __post_init__(self) -> None:
        for field in ("reserve", "max_input_tokens", "max_history_tokens"):
            value = getattr(self, field)
            if value is not None:
                check_whole_number(field, value, least=1 if field == "max_input_tokens" else 0)
        for field in ("max_messages", "max_images", "max_media_bytes"):
            check_whole_number(field, getattr(self, field), least=0)
        if self.margin is not None:
            check_share("margin", self.margin, most=0.9)
        msgspec.structs.force_setattr(self, "limit", read_limits(self.limit))
        if not isinstance(self.tell_budget, bool):
            raise BadSetting("tell_budget", self.tell_budget, "True or False")


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """The token budget of one request.

    Units are tokens as Foveal counts them, before the count is corrected by what the provider reports.

    Examples:
        ```python
        from foveal.policies import Budget

        def is_over(units: int, budget: Budget) -> bool:
            return units > budget.hard
        ```
    """

    window: int
    """The model's context window in tokens."""
    reserve: int
    """Tokens that are left free for the answer."""
    margin: int
    """Tokens that are left free because counts are not exact."""
    available: int
    """Tokens that the whole input may take."""
    fixed: int
    """Units of tools and of system text beside the messages."""
    warn: int
    """Units above which the report warns."""
    act: int
    """Units above which the policy acts."""
    hard: int
    """The most units that the messages may take."""
    limited_by: str = ""
    """The limit that leaves less than window − reserve − margin; "" if none does."""
    max_messages: int = 0
    """Messages that a request may have; 0 is no limit."""
    max_images: int = 0
    """Images that a request may have; 0 is no limit."""
    max_media_bytes: int = 0
    """Bytes of media that a request may have; 0 is no limit."""


def check_whole_number(field: str, value: object, *, least: int = 0, most: int = MAX_WINDOW_TOKENS) -> int:
    """Return an integer that is in its range; raises `BadSetting` with the name of the field."""
    if type(value) is not int or not least <= value <= most:
        raise BadSetting(field, value, f"a whole number from {least:,} to {most:,}")
    return value


def check_share(field: str, value: object, *, most: float = 1.0) -> float:
    """Return a number between 0 and `most`; raises `BadSetting` with the name of the field."""
    if type(value) not in (int, float) or not 0 <= value <= most:  # type: ignore[operator]
        raise BadSetting(field, value, f"a number from 0 to {most:g}")
    return float(value)  # type: ignore[arg-type]


def thresholds(
    hard: int, *, warn: float, act: float, window: int | None = None, fixed: int = 0
) -> tuple[int, int, int]:
    """Return thresholds with warn ≤ act < hard, for any shares and any room. The shares are of `hard`; with
    `window`, in units, they are of the window, of which `fixed` units are not messages. Where the room ends below
    `act` of the window, `warn` moves down with it."""
    hard = max(1, hard)

    def units(share: float) -> int:
        if window is None:
            return int(hard * _clamp(share))
        return max(0, min(int(hard * MAX_WINDOW_BASED_SHARE), int(window * _clamp(share)) - fixed))

    act_at = min(hard - 1, units(act))
    warn_at = min(act_at, units(warn))
    if window is not None and act > 0:
        warn_at = min(warn_at, int(act_at * _clamp(warn / act)))
    return warn_at, act_at, hard


def window_share(tokens: int, window: int) -> float:
    """Return tokens as a share of the window: the base of every percentage that a user sees."""
    return tokens / window if window > 0 else 1.0


def window_percent(tokens: int, window: int) -> str:
    """Return tokens in percent of the window, such as `67.2 %`."""
    return f"{window_share(tokens, window) * 100:,.1f} %"


def _clamp(value: float) -> float:
    return min(1.0, max(0.0, value)) if math.isfinite(value) else 1.0


def reserve_for(model: Model, caps: Caps) -> int:
    """Return the tokens kept for the answer: the user's setting, else the model's output limit, at most an
    eighth of the window."""
    wanted = caps.reserve if caps.reserve is not None else min(model.max_output, model.window // 8)
    return min(wanted, model.window)


def measured_margin(window: int, limit: int, calibration: Calibration) -> int:
    """Return the tokens below the provider's input limit that stay unused: what a request at the limit may be
    reported above its prediction, from 1 to 10 % of the window.

    The calibration is folded from the `Used` facts of the log, so the same log gives the same margin."""
    doubt = limit - calibration.tokens(calibration.safe_units(limit))
    least, most = math.ceil(window * MIN_MARGIN_SHARE), int(window * MAX_MARGIN_SHARE)
    return min(max(doubt, least), most, int(limit * MAX_MARGIN_OF_INPUT))


def _margin_and_available(
    model: Model, caps: Caps, calibration: Calibration, reserve: int
) -> tuple[int, int]:
    """Return the margin and the tokens that the whole input may take. A cap of the user is no limit of the
    provider: it needs no margin."""
    limit = model.input_limit(reserve)
    if caps.margin is None:
        margin = measured_margin(model.window, limit, calibration)
        available = limit - margin
    else:
        margin = min(int(model.window * caps.margin), model.window - reserve)
        available = min(limit, model.window - reserve - margin)
    if caps.max_input_tokens is not None:
        available = min(available, caps.max_input_tokens)
    return margin, max(0, available)


def _limited_by(model: Model, caps: Caps, *, uncapped: int, available: int, is_history_cut: bool) -> str:
    """Return the name of the limit that binds; `uncapped` is window − reserve − margin."""
    if is_history_cut:
        return "`max_history_tokens`"
    if available >= uncapped:
        return ""
    return "`max_input_tokens`" if available == caps.max_input_tokens else f"the input limit of {model.name}"


def plan_budget(
    model: Model,
    caps: Caps,
    calibration: Calibration,
    *,
    warn: float,
    act: float,
    shares_of: SharesOf = "room",
    act_tokens: int = 0,
    fixed: int = 0,
    instructed: int = 0,
) -> Budget:
    """Return the budget of the next request. `warn` and `act` are shares of the room or of the window; `fixed` are
    the units beside the messages, `instructed` those of instructions among the messages."""
    reserve = reserve_for(model, caps)
    margin, available = _margin_and_available(model, caps, calibration, reserve)
    room = whole_room = calibration.units(available) - fixed
    if caps.max_history_tokens:
        room = min(room, instructed + int(caps.max_history_tokens / calibration.ratio))
    window = calibration.units(model.window) if shares_of == "window" else None
    low, middle, hard = thresholds(room, warn=warn, act=act, window=window, fixed=fixed)
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
        limited_by=_limited_by(
            model,
            caps,
            uncapped=model.window - reserve - margin,
            available=available,
            is_history_cut=room < whole_room,
        ),
        max_messages=caps.max_messages,
        max_images=caps.max_images,
        max_media_bytes=caps.max_media_bytes,
    )


def apportion(amounts: Mapping[str, int], total: int) -> dict[str, int]:
    """Split `total` into whole numbers in proportion to the amounts.

    The numbers add up to `total`. An amount above 0 gets at least 1, as long as there are enough.
    """
    whole = sum(amounts.values())
    if whole <= 0 or total <= 0:
        return dict.fromkeys(amounts, 0)
    exact = {name: amount * total / whole for name, amount in amounts.items()}
    cells = {name: max(int(amount), 1 if amount else 0) for name, amount in exact.items()}
    while (rest := total - sum(cells.values())) > 0:
        name = max(cells, key=lambda name: exact[name] - cells[name])
        cells[name] += 1 if exact[name] else rest
    while sum(cells.values()) > total:
        name = max(cells, key=lambda name: (cells[name] > 1, cells[name] - exact[name]))
        cells[name] -= 1
    return cells
