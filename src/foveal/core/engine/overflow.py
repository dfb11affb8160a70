"""What to say when a request does not fit, or does not stay small: the numbers, and what can be done."""

from __future__ import annotations

from collections.abc import Iterator

from foveal.core.compaction.health import REFILLS, REFUSALS
from foveal.core.models.budget import Budget
from foveal.core.policies import Policy, ladder
from foveal.core.tokens.calibration import Calibration
from foveal.core.view.view import View
from foveal.errors import ContextOverflow


def too_much_media(view: View, budget: Budget) -> bool:
    media = view.media
    if not media:
        return False
    return len(media) > budget.max_images or sum(m.size for m in media.values()) > budget.max_media_bytes


def available(budget: Budget, calibration: Calibration) -> int:
    """Tokens that the request may have: what it is compared with."""
    return min(budget.available, calibration.tokens(budget.hard + budget.fixed))


def overflow(
    view: View, budget: Budget, calibration: Calibration, policy: Policy, *, refused: str = ""
) -> ContextOverflow:
    """The error for a request that does not fit, or that a provider says does not."""
    total = view.units + budget.fixed
    droppable = 0
    if policy.ladder != "off":
        steps = ladder.droppable(view, keep_task=False, keep_open=False)
        droppable = sum(view.units_of(step) for step in steps)
    if refused:
        problem = _refused(view, budget, calibration, refused)
    elif view.units <= budget.hard:
        problem = _media(view, budget)
    else:
        problem = "; ".join(_too_large(view, budget, calibration, policy))
    return ContextOverflow(
        problem,
        needed=calibration.tokens(total),
        available=available(budget, calibration),
        window=budget.window,
        reserve=budget.reserve,
        margin=budget.margin,
        floor=calibration.tokens(total - droppable),
    )


def _refused(view: View, budget: Budget, calibration: Calibration, said: str) -> str:
    return (
        f"the provider has refused {REFUSALS + 1} requests in a row as too large, each smaller than the one "
        f"before; the last took {calibration.tokens(view.units + budget.fixed):,} tokens by our count, and it "
        f"said: {said}; "
        "send `max_tokens` as Foveal gives it, or give the true `window`"
    )


def _media(view: View, budget: Budget) -> str:
    size = sum(media.size for media in view.media.values())
    return (
        f"the request holds {len(view.media)} images with {size:,} bytes, but {budget.max_images} with "
        f"{budget.max_media_bytes:,} are allowed; the latest message must stay as it is: send fewer or "
        f"smaller ones, or raise max_images or max_media_bytes"
    )


def _too_large(view: View, budget: Budget, calibration: Calibration, policy: Policy) -> Iterator[str]:
    tokens = calibration.tokens
    latest = view.latest_user
    yield (
        f"context needs {tokens(view.units + budget.fixed):,} tokens but {available(budget, calibration):,} are "
        f"available (window {budget.window:,}, reserve {budget.reserve:,}, margin {budget.margin:,})"
    )
    if policy.ladder == "off":
        yield 'policy "off" reduces nothing: choose another, or start a new session'
    elif budget.fixed and tokens(budget.fixed) * 2 > budget.available:
        taken = tokens(budget.fixed)
        yield f"system text and tools alone take {taken:,}: shorten them, or offer fewer tools"
    elif view.permanent_units * 2 > budget.hard:
        taken = round(view.permanent_units * calibration.ratio)
        yield f"system messages and pinned rules alone take {taken:,}: shorten or unpin some of them"
    elif latest is not None and view.units_of(latest) * 2 > budget.hard:
        taken = round(view.units_of(latest) * calibration.ratio)
        yield f"the latest message alone takes {taken:,}: shorten it, raise `window`, or lower `reserve`"
    elif policy.ladder == "summary" and policy.mode == "off":
        yield (
            'mode "off" reduces nothing by itself: compact by hand with `compact()`, choose mode "auto" or '
            "another policy, go on with a model that holds more, or continue in a new session"
        )
    else:
        yield "what is left may not be cut: raise `window`, lower `reserve`, or unpin something"


def refilled(view: View, budget: Budget, calibration: Calibration) -> str:
    """Why no more summaries are made for now."""
    largest = sorted(view.steps, key=view.units_of, reverse=True)[:3]
    told = ", ".join(f"e{step.seq} ({round(view.units_of(step) * calibration.ratio):,})" for step in largest)
    return (
        f"The window has refilled {REFILLS} times in a row within a few calls of a summary, so no model is asked "
        f"for another until the user speaks; at the limit, records are written from the log alone. It takes "
        f"{calibration.tokens(view.units + budget.fixed):,} of {available(budget, calibration):,} tokens; the "
        f"largest steps are {told}. Read less at a time, lower the limits of tools (`clip`), raise the window, or "
        f"use the recall tools instead of reading again."
    )
