"""Overflow: limits learned from providers, and errors that say what to do.

1. A refused request, or one whose prompt the provider cut silently, is recorded as `Overflowed`.
2. `ProviderLimits` folds these facts: the window and the input limit of each model, in Foveal's own count of tokens
   (a provider may count differently), and what the next answer may take.
3. `BudgetTerms` plans the budget of a request within these limits.
4. A request that cannot fit raises `ContextOverflow` with the numbers and advice.

`foveal.core.wire.overflow_errors` recognises the errors of providers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from foveal.core.compaction.health import MAX_REFILLS
from foveal.core.log.events import AnyFact, Instructed, Overflowed, Used
from foveal.core.models.budget import Budget, Caps, plan_budget, reserve_for
from foveal.core.models.model import Model
from foveal.core.policies import Policy, ladder
from foveal.core.tokens.calibration import Calibration
from foveal.core.view.view import View
from foveal.core.wire.overflow_errors import ProviderOverflow
from foveal.core.wire.safe_print import counted, one_line
from foveal.errors import ContextOverflow

MAX_RESENDS: Final = 4
"""How often a refused request is made smaller and sent again."""
GUESSED_LIMIT_SHARE: Final = 0.9
"""A provider that does not state its limit is assumed to accept this share of what it refused."""
MIN_REFUSED_TOKENS: Final = 8
"""A request with fewer tokens cannot have been too large."""
LEARNED_FROM_REFUSAL: Final = "learned from a refused request"
LEARNED_FROM_USAGE: Final = "learned from reported usage"
"""Sources of a window: what the provider refused, or counted."""

# ── Learning ─────────────────────────────────────────────────────────────────────────────────────────────


class ShortReport(msgspec.Struct, frozen=True, kw_only=True):
    """A report of far fewer tokens than the request was estimated to have."""

    units: int
    """Units of the request."""
    prompt: int
    predicted: int


class ProviderLimits(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    rename={
        "refusals": "refused",
        "windows": "limits",
        "unconfirmed_window": "stated",
        "max_answer": "trimmed",
    },
):
    """Limits that providers turned out to have, folded from the log. The JSON names are those of old
    checkpoints."""

    refusals: int = 0
    """Refused requests in a row."""
    windows: dict[str, int] = {}
    """The window that a provider stated, by model."""
    inputs: dict[str, int] = {}
    """The input tokens that a provider is assumed to accept where it stated no limit, by model."""
    unconfirmed_window: tuple[str, int] = ("", 0)
    """A model and its window, stated when only the answer was too large; learned when the next request succeeds."""
    reserves: dict[str, int] = {}
    """Output tokens that the caller asked for, by model."""
    max_answer: int = 0
    """Most tokens for the answer to the next request; 0 when no provider stated a limit."""
    media_bytes: int = 0
    """Most bytes of images; 0 when no provider refused any."""
    least_counted: dict[str, int] = {}
    """The smallest prompt that a provider reported about as large as it was estimated, by model."""
    short_reports: dict[str, ShortReport] = {}
    """The newest report if it was far below the estimate, by model."""
    seen_cuts: tuple[str, ...] = ()
    """Models whose window was learned from reported usage."""

    def after(self, fact: AnyFact) -> ProviderLimits:
        """Return the limits after one more fact."""
        if isinstance(fact, Overflowed):
            return self._after_overflow(fact)
        if not isinstance(fact, Used):
            return self
        limits = self._with_report(fact)
        if self.refusals:
            return replace(limits._with_confirmed_window(), refusals=0, max_answer=0)
        return limits

    def _with_report(self, fact: Used) -> ProviderLimits:
        """Return the limits with what a report says about the provider's counting."""
        model, prompt = fact.model, fact.prompt
        if is_far_below(prompt, fact.predicted):
            # The first one stays: the request must have grown since.
            if model in self.short_reports:
                return self
            short = ShortReport(units=fact.units, prompt=prompt, predicted=fact.predicted)
            return replace(self, short_reports=self.short_reports | {model: short})
        least, limits = self.least_counted.get(model, 0), self
        if prompt and (not least or prompt < least):
            limits = replace(limits, least_counted=self.least_counted | {model: prompt})
        if model in self.short_reports:
            kept = {name: short for name, short in self.short_reports.items() if name != model}
            limits = replace(limits, short_reports=kept)
        return limits

    def _with_confirmed_window(self) -> ProviderLimits:
        model, window = self.unconfirmed_window
        if not window:
            return self
        return replace(self, windows=self.windows | {model: window}, unconfirmed_window=("", 0))

    def _after_overflow(self, fact: Overflowed) -> ProviderLimits:
        limits = replace(self, refusals=self.refusals + 1)
        match fact.limit_kind:
            case "output" if not self.max_answer and 0 < (fact.needed or fact.sent) < fact.limit:
                left = fact.limit - (fact.needed or fact.sent)
                return replace(limits, max_answer=left, unconfirmed_window=(fact.model, fact.limit))
            case "output" if fact.output and fact.limit:
                limits = replace(limits, unconfirmed_window=(fact.model, fact.limit))._with_confirmed_window()
                return replace(limits, reserves=self.reserves | {fact.model: fact.output})
            case "bytes" if fact.limit:
                return replace(limits, media_bytes=fact.limit)
            case _:
                return limits._with_input_limit(fact)

    def _with_input_limit(self, fact: Overflowed) -> ProviderLimits:
        """Return the limits with the one that a refusal implies, in tokens as Foveal counts them."""
        limit = fact.limit
        if limit and fact.needed > fact.sent > 0:  # the provider counts more tokens than Foveal does
            limit = limit * fact.sent // fact.needed
        if limit and limit < fact.sent:
            cuts = (*self.seen_cuts, fact.model) if fact.limit_kind == "silent" else self.seen_cuts
            return replace(self, windows=self.windows | {fact.model: max(1, limit)}, seen_cuts=cuts)
        if fact.sent < MIN_REFUSED_TOKENS:  # the provider cannot mean the messages that were sent
            return self
        return replace(self, inputs=self.inputs | {fact.model: int(fact.sent * GUESSED_LIMIT_SHARE)})

    def limit_model(self, model: Model) -> Model:
        """Return the model with the window and the input limit that were learned."""
        window = min(model.window, self.windows.get(model.name, model.window))
        max_input = min(window, model.max_input, self.inputs.get(model.name, window))
        if (window, max_input) == (model.window, model.max_input):
            return model
        source = LEARNED_FROM_USAGE if model.name in self.seen_cuts else LEARNED_FROM_REFUSAL
        sources = model.sources | {"window": source}
        return replace(model, window=window, max_input=max_input, sources=sources)

    def limit_caps(self, caps: Caps, model: Model) -> Caps:
        """Return the caps with the reserve and the media limit that were learned."""
        if model.name in self.windows:  # the reserve was chosen for a larger window
            wanted = max(reserve_for(model, caps), self.reserves.get(model.name, 0))
            caps = replace(caps, reserve=min(wanted, model.window // 4))
        if self.media_bytes:
            caps = replace(caps, max_media_bytes=min(caps.max_media_bytes, self.media_bytes))
        return caps


class BudgetTerms(NamedTuple):
    """All that the budget depends on. From one turn to the next, little of it changes."""

    policy: Policy
    model: Model
    caps: Caps
    provider_limits: ProviderLimits
    calibration: Calibration
    fixed: int
    instructed: int

    def plan(self) -> Budget:
        """Return the budget of the next request."""
        caps, policy = self.caps, self.policy
        if caps.max_history_tokens is None:
            caps = replace(caps, max_history_tokens=policy.max_history_tokens)
        return plan_budget(
            self.model,
            self.provider_limits.limit_caps(caps, self.model),
            self.calibration,
            warn=policy.warn,
            act=policy.act,
            shares_of=policy.shares_of,
            act_tokens=policy.act_tokens,
            fixed=self.fixed,
            instructed=self.instructed,
        )


def refused_request(
    found: ProviderOverflow, *, model: str, sent: int, estimate: int, media_bytes: int
) -> Overflowed:
    """Return the fact for a refused request of `sent` tokens and `media_bytes` of images. `sent` is 0 when another
    process sent the request; `estimate`, the size of the request as it would be now, replaces it."""
    kind, limit = found.kind, found.limit
    if kind == "bytes":  # images can be left out; without images, the text must become shorter
        kind, limit = ("bytes", media_bytes // 2) if media_bytes else ("tokens", 0)
    if kind == "tokens" and not limit and found.over:  # the provider states only the excess
        limit = max(0, sent - found.over)
    return Overflowed(
        model=model,
        limit=limit,
        needed=found.needed,
        output=found.output,
        sent=sent or estimate,
        limit_kind=kind,
        problem=found.message,
    )


def silent_overflow(used: Used, *, limits: ProviderLimits, model: Model, stop: str) -> Overflowed | None:
    """Return the fact for a prompt that the provider cut, or answered beyond its window, without an error.
    `limits` are those before this report.

    One report below the estimate is no proof of a cut, and neither is a number that is reported for requests
    of any size, as by stand-ins of providers in tests. It takes two such reports, the second of them for a
    larger request, by a provider that has reported another size where the estimate was right.
    """
    problem = silent_overflow_reason(
        prompt=used.prompt, predicted=used.predicted, window=model.window, stop=stop
    )
    if not problem or used.prompt > 2 * used.predicted:  # the latter: another request's usage, or a sum
        return None
    was_cut = used.prompt < used.predicted
    if is_far_below(used.prompt, used.predicted) and stop not in FULL_WINDOW_STOPS:
        before, counted = limits.short_reports.get(used.model), limits.least_counted.get(used.model, 0)
        if before is None or used.units <= before.units or counted in (0, used.prompt):
            return None
        problem = (
            f"the provider counted {before.prompt:,} tokens of about {before.predicted:,}, then "
            f"{used.prompt:,} of about {used.predicted:,}: it has cut both requests"
        )
    limit, needed = (used.prompt, 0) if was_cut else (model.window, used.prompt)
    return Overflowed(
        model=model.name,
        limit=limit,
        needed=needed,
        sent=used.predicted,
        limit_kind="silent",
        problem=problem,
    )


# ── Reporting ────────────────────────────────────────────────────────────────────────────────────────────


def available_tokens(budget: Budget, calibration: Calibration) -> int:
    """Return the tokens that a request may take."""
    return min(budget.available, calibration.tokens(budget.hard + budget.fixed))


def check_irreducible(view: View, budget: Budget, calibration: Calibration, policy: Policy) -> None:
    """Raise `ContextOverflow` if the request cannot fit whatever is reduced, before anything is tried.

    With reported usage, the limit in units depends on what is shown, so a reduction could raise it."""
    if view.units <= budget.hard or calibration.spans or policy.ladder == "off":
        return
    units = ladder.irreducible_units(view)
    if units > budget.hard:
        raise overflow_error(view, budget, calibration, policy, floor=units)


def overflow_error(
    view: View,
    budget: Budget,
    calibration: Calibration,
    policy: Policy,
    *,
    floor: int | None = None,
    refusal: str = "",
) -> ContextOverflow:
    """Return the error for a request that does not fit, or that a provider refused with the text `refusal`.

    `floor` are the units that alone are too many; without it, what could go has gone already."""
    units = view.units if floor is None else floor
    droppable = 0
    if floor is None and policy.ladder != "off":
        droppable = sum(map(view.units_of, ladder.last_resort_steps(view)))
    if refusal:
        problem = _refused_too_often(view, budget, calibration, refusal)
    elif view.units <= budget.hard:
        problem = _too_much_media(view, budget)
    else:
        problem = "; ".join(_too_many_tokens(view, budget, calibration, policy, units=units))
    return _error(problem, budget, calibration, units=units, floor=units - droppable)


def whole_overflow_error(units: int, budget: Budget, calibration: Calibration) -> ContextOverflow:
    """Return the error for a history of `units` that the provider shall compact, and that it cannot read whole."""
    problem = (
        f"{_sizes(budget, calibration, units=units)}; the provider compacts only what it can read whole: ask for "
        "the compaction earlier, raise `window`, or leave out the `compaction_trigger`, and Foveal reduces it"
    )
    return _error(problem, budget, calibration, units=units, floor=units)


def _error(
    problem: str, budget: Budget, calibration: Calibration, *, units: int, floor: int
) -> ContextOverflow:
    """Return the error for messages of `units`, of which no reduction leaves less than `floor`."""
    margin, capped = _unused_tokens(budget, calibration)
    return ContextOverflow(
        problem,
        needed=calibration.tokens(units + budget.fixed),
        available=available_tokens(budget, calibration),
        window=budget.window,
        reserve=budget.reserve,
        margin=margin,
        capped=capped,
        floor=calibration.tokens(floor + budget.fixed),
    )


def _sizes(budget: Budget, calibration: Calibration, *, units: int) -> str:
    """Return what messages of `units` need, and what is available."""
    margin, capped = _unused_tokens(budget, calibration)
    cap = f" − {capped:,} for {budget.limited_by}" if capped else ""
    return (
        f"context needs {calibration.tokens(units + budget.fixed):,} tokens but "
        f"{available_tokens(budget, calibration):,} are available "
        f"(window {budget.window:,} − reserve {budget.reserve:,} − margin {margin:,}{cap})"
    )


def _unused_tokens(budget: Budget, calibration: Calibration) -> tuple[int, int]:
    """Return the margin and what a limit leaves unused: with the reserve and the available tokens, they add up to
    the window. What the conversion from units to tokens rounds off is part of the margin."""
    unused = budget.window - budget.reserve - available_tokens(budget, calibration)
    margin = min(budget.margin, unused) if budget.limited_by else unused
    return margin, unused - margin


def _refused_too_often(view: View, budget: Budget, calibration: Calibration, refusal: str) -> str:
    return (
        f"the provider has refused {MAX_RESENDS + 1} requests in a row as too large, each smaller "
        f"than the one before; Foveal counts {calibration.tokens(view.units + budget.fixed):,} tokens in the "
        f"last one; the provider's error: {refusal}; "
        "send `max_tokens` as Foveal gives it, or give the true `window`"
    )


def _too_much_media(view: View, budget: Budget) -> str:
    size = sum(media.size for media in view.media.values())
    return (
        f"the request holds {counted(len(view.media), 'image')} with {size:,} bytes, but {budget.max_images} with "
        f"{budget.max_media_bytes:,} are allowed; the latest message must stay as it is: send fewer or "
        f"smaller ones, or raise max_images or max_media_bytes"
    )


def _too_many_tokens(
    view: View, budget: Budget, calibration: Calibration, policy: Policy, *, units: int
) -> Iterator[str]:
    tokens = calibration.tokens
    latest, needed = view.latest_user, calibration.tokens(units + budget.fixed)
    yield _sizes(budget, calibration, units=units)
    if policy.ladder == "off":
        yield 'policy "off" reduces nothing: choose another, or start a new session'
    elif budget.fixed and tokens(budget.fixed) * 2 > budget.available:
        taken = min(needed, tokens(budget.fixed))
        yield f"system text and tools alone take {taken:,}: shorten them, or offer fewer tools"
    elif view.permanent_units * 2 > budget.hard:
        yield _too_much_permanent(view, calibration)
    elif latest is not None and view.units_of(latest) * 2 > budget.hard:
        taken = min(needed, round(view.units_of(latest) * calibration.ratio))
        yield f"the latest message alone takes {taken:,}: shorten it, raise `window`, or lower `reserve`"
    elif policy.ladder == "summary" and policy.mode == "off":
        yield (
            'mode "off" does not summarise automatically: call `compact()`, choose mode "auto" or another policy, '
            "switch to a model with a larger window, or continue in a new session"
        )
    elif sum(_instruction_units(view).values()) * 4 > budget.hard:
        yield _too_much_permanent(view, calibration)
    else:
        yield "what is left may not be cut: raise `window`, lower `reserve`, or undo a pin"


def _too_much_permanent(view: View, calibration: Calibration) -> str:
    """Return which of the texts that no reduction may cut take the room, and what to do about them."""
    sizes = _instruction_units(view)
    if sum(sizes.values()) * 2 <= view.permanent_units:
        taken = round(view.permanent_units * calibration.ratio)
        return f"system messages and pinned rules alone take {taken:,}: shorten them, or undo a pin"
    largest = max(sizes, key=lambda source: sizes[source])
    return (
        f"instructions alone take {round(sum(sizes.values()) * calibration.ratio):,}, of which "
        f"{one_line(largest, width=200)} takes {round(sizes[largest] * calibration.ratio):,}: shorten that file, "
        "lower `instructions.max_bytes`, or raise `window`"
    )


def _instruction_units(view: View) -> dict[str, int]:
    """Return the units of instructions by the file that they come from."""
    sizes: dict[str, int] = {}
    for step in view.permanent_steps:
        fact = step.utterance.fact
        if step.kind == "instructed" and isinstance(fact, Instructed) and fact.source:
            sizes[fact.source] = sizes.get(fact.source, 0) + view.units_of(step)
    return sizes


def refill_note(view: View, budget: Budget, calibration: Calibration) -> str:
    """Return the note that says why summaries pause. The text enters the log and must not change."""
    largest = sorted(view.steps, key=view.units_of, reverse=True)[:3]
    sizes = ", ".join(f"e{step.seq} ({round(view.units_of(step) * calibration.ratio):,})" for step in largest)
    return (
        f"The window has refilled {MAX_REFILLS} times in a row within a few calls of a summary, so no model is "
        f"asked for another until the user speaks; at the limit, records are written from the log alone. It takes "
        f"{calibration.tokens(view.units + budget.fixed):,} of {available_tokens(budget, calibration):,} tokens; "
        f"the largest steps are {sizes}. Read less at a time, lower the limits of tools (`clip`), raise the "
        f"window, or use the recall tools instead of reading again."
    )


# ── Silent overflow ──────────────────────────────────────────────────────────────────────────────────

_ROUND_SIZES: Final = {
    unit << power for unit in (512, 1_000, 1_536, 2_560, 3_000, 5_000) for power in range(12)
}
"""Windows that local servers are commonly started with."""


FULL_WINDOW_STOPS: Final = ("model_context_window_exceeded", "model_length")
"""Stop reasons of a reply that ends because the window was full."""


def is_far_below(prompt: int, predicted: int) -> bool:
    """Return whether a provider reported so few tokens that it can have cut the request."""
    return predicted >= 1_000 and 0 < prompt < 0.6 * predicted


def silent_overflow_reason(*, prompt: int, predicted: int, window: int, stop: str = "") -> str:
    """Return why a successful reply shows that the request did not fit; "" if it does not show that.

    A silently cut prompt is recognised by its size: under 60 % of a prediction of at least 1,000 tokens, *and* a
    size to which servers cut: up to 2 % less than the window, or a round number (Ollama's `num_ctx`, or half of it
    and a few tokens). A wrong prediction alone, or a report without the cached tokens, does not count.
    """
    if stop in FULL_WINDOW_STOPS:
        return f"the reply stopped because the window was full ({stop})"
    if 0 < window < prompt:
        return f"the provider counted {prompt:,} tokens, more than the window of {window:,}"
    is_cut_size = 0 <= window - prompt <= window // 50 or any(
        prompt - few in _ROUND_SIZES for few in range(-2, 7)
    )
    if is_far_below(prompt, predicted) and is_cut_size:
        return f"the provider counted {prompt:,} tokens of about {predicted:,}: it has cut the request"
    return ""
