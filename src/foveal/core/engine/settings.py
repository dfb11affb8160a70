"""Settings of a conversation: what a user passes, and what the engine gets.

`resolve_settings` checks the keyword arguments of `Context` and `Session` and turns them into the model, policy,
caps and counter of an `Engine`; `check_room` refuses a reserve that leaves no room for messages. `result_limits`
combines the limits of a call, a tool and the policy, and `clips_within` returns the clips that enforce them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypedDict, Unpack, cast

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from foveal.core.log.events import Clipped, Event, Opened, Text, ToolReturned, extras, raw
from foveal.core.models.budget import Caps, check_whole_number, reserve_for
from foveal.core.models.model import Model, counter_for, model
from foveal.core.models.spending import LimitText
from foveal.core.policies import Policy, policy
from foveal.core.policies.presets import PRESETS, PresetName
from foveal.core.reduction import truncation
from foveal.core.reduction.truncation import UNLIMITED, Limits, clip_parts
from foveal.core.tokens.counter import Counter
from foveal.core.wire.bound_thinking import BINDING_SETTING
from foveal.errors import BadSetting

# ── Limits of tool results ─────────────────────────────────────────────────────────────────────────────


def result_limits(policy: Policy, tool: str, call_limits: Limits | None, *, hard_limit: int) -> Limits:
    """Return the limits of a tool's result. `call_limits` are those of this call and take precedence."""
    default = policy.clip or UNLIMITED
    limits = truncation.choose_limits(default, per_tool=policy.clip_tools, tool=tool, call=call_limits)
    if policy.clip_share < 1 and limits != UNLIMITED:
        max_tokens = int(hard_limit * policy.clip_share)
        limits = replace(
            limits, tokens=max_tokens if limits.tokens is None else min(max_tokens, limits.tokens)
        )
    return limits


def clips_within(
    limits: Limits, event: Event, fact: ToolReturned, counter: Counter, *, rule: str
) -> Iterable[Clipped]:
    """Return the clips that bring a result within its limits: one for plain text, one for each part otherwise."""
    if isinstance(fact.content, str):
        cut = truncation.clip(fact.content, limits, handle=event.handle, counter=counter)
        return [] if cut is None else [cut.to_fact(event.seq, -1, rule=rule)]
    places = [place for place, part in enumerate(fact.content) if isinstance(part, Text)]
    texts = [part.text for part in fact.content if isinstance(part, Text)]
    cuts = clip_parts(texts, limits, handle=event.handle, counter=counter)
    return [
        cut.to_fact(event.seq, place, rule=rule)
        for place, cut in zip(places, cuts, strict=True)
        if cut is not None
    ]


# ── Settings ───────────────────────────────────────────────────────────────────────────────────────────


class SettingArguments(TypedDict, total=False):
    """Keyword arguments that `Context` and `Session` share; each is optional.

    None means that a setting is not given.

    Examples:
        ```python
        import foveal

        ctx = foveal.Context("gpt-4.1", policy="rolling", window=32_000, reserve=4_000, tokenizer="estimate")
        ```
    """

    policy: PresetName | Mapping[str, Any] | Policy
    """The name of a preset, a table of its values, or a `Policy`. Default: `"economy"`."""
    window: int | None
    """Tokens in the model's window. Default: what is known of the model."""
    reserve: int | None
    """Tokens kept free for the answer; fewer than the window has. Default: what the model may write, at most an
    eighth of the window.
    """
    margin: float | None
    """Share of the window that stays unused. Default: the measured error of counting, from 1 to 10 %."""
    max_input_tokens: int | None
    """Most tokens that a request may take. Default: what the model accepts."""
    max_output_tokens: int | None
    """Most tokens that the model may write; also the reserve, unless that is given, and then fewer than the window
    has. Default: what is known of the model.
    """
    max_history_tokens: int | None
    """Most tokens for messages other than instructions; 0 is no limit. Default: that of the policy."""
    max_images: int
    """Most images in a request. Default: 100."""
    max_media_bytes: int
    """Most encoded bytes of images, audio and files in a request. Default: 20,000,000."""
    tokenizer: str | Counter
    """The name of a vocabulary, `"auto"`, `"estimate"`, or a counter. Default: `"auto"`."""
    limit: LimitText | None
    """Most dollars or tokens that the conversation may use, such as `"5 USD"`, `"2M tokens per day"`, or several; a
    number is dollars. `fit` raises `BudgetExceeded` for a request that would exceed it. Default: no limit.
    """
    tell_budget: bool
    """Whether the model is told how much of `limit` is left: a line at the end of the request, whenever another
    half, quarter, tenth, twentieth or fiftieth is reached. Default: False.
    """
    binds_thinking: bool | None
    """Whether the provider refuses thinking once anything before it has changed. Then requests leave it out.
    Default: what is known of the model.
    """


_COUNTER_NAMES: Final = ("name", "exact", "count", "count_all")
"""What a counter of the caller must have; see `Counter`."""


class EngineSettings(NamedTuple):
    """What an `Engine` is made of, beside its log."""

    model: Model
    policy: Policy
    caps: Caps
    counter: Counter


def resolve_settings(model: str | Model, **settings: Unpack[SettingArguments]) -> EngineSettings:
    """Return the settings of an engine; raises `BadSetting` with the name of the wrong field. None means that a
    setting is not given."""
    given: dict[str, Any] = {field: value for field, value in settings.items() if value is not None}
    for field in given:
        if field not in SettingArguments.__annotations__:
            raise BadSetting(
                field,
                given[field],
                f"no such setting; there are {', '.join(SettingArguments.__annotations__)}",
            )
    window, output = given.get("window"), given.get("max_output_tokens")
    if not isinstance(model, str | Model):
        raise BadSetting("model", model, 'a name such as "gpt-4.1", or a `foveal.Model`')
    known = (
        _find_model(model, window, output) if isinstance(model, str) else _with_limits(model, window, output)
    )
    known = _with_binding(known, given.get(BINDING_SETTING))
    caps = {field: given[field] for field in Caps.__struct_fields__ if field in given}
    if output is not None:
        caps.setdefault("reserve", output)
    limits = Caps(**caps)
    check_room(known, limits, field="max_output_tokens" if "reserve" not in given else "reserve")
    return EngineSettings(
        known,
        policy(given.get("policy", "economy")),
        limits,
        _counter(known.name, given.get("tokenizer", "auto")),
    )


def check_room(model: Model, caps: Caps, *, field: str = "reserve") -> None:
    """Raise `BadSetting` if the reserve, which the setting `field` has set, or the margin leave no room for
    messages. A reserve that is not given is a part of the window."""
    window, reserve = model.window, caps.reserve
    if reserve is not None and reserve >= window:
        also = "; or set `reserve`, which is this number unless it is given" if field != "reserve" else ""
        raise BadSetting(
            field,
            reserve,
            f"fewer tokens than the window of {model.name}, which has {window:,}: a reserve of {reserve:,} for the "
            f"answer leaves none for messages; lower `{field}`, or set a larger `window`{also}",
        )
    reserve = reserve_for(model, caps)
    if caps.margin is not None and (margin := int(window * caps.margin)) >= window - reserve:
        raise BadSetting(
            "margin",
            caps.margin,
            f"a share that leaves room for messages: window {window:,} − reserve {reserve:,} − margin {margin:,} "
            "leaves none; lower `margin` or `reserve`, or set a larger `window`",
        )


def _counter(model: str, tokenizer: object) -> Counter:
    if isinstance(tokenizer, str):
        try:
            return counter_for(model, tokenizer)
        except BadSetting as problem:
            raise BadSetting("tokenizer", problem.value, problem.allowed) from problem.__cause__
    if isinstance(tokenizer, type) or any(not hasattr(tokenizer, name) for name in _COUNTER_NAMES):
        raise BadSetting(
            "tokenizer",
            tokenizer,
            f"the name of a vocabulary, or an object with {', '.join(_COUNTER_NAMES)}",
        )
    return cast(Counter, tokenizer)


def _find_model(name: str, window: int | None, output: int | None) -> Model:
    try:
        return model(name, window=window, max_output=output)
    except BadSetting as problem:
        if problem.field == "max_output":  # the setting has another name than the field of the model
            raise BadSetting("max_output_tokens", problem.value, problem.allowed) from None
        raise


def _with_limits(given: Model, window: int | None, output: int | None) -> Model:
    if window is not None:
        known = model(given.name, window=window)  # checks the value
        sources = {**given.sources, "window": "yours"}
        given = replace(given, window=window, max_input=min(known.max_input, window), sources=sources)
    if output is not None:
        check_whole_number("max_output_tokens", output, least=1)
        given = replace(given, max_output=min(output, given.window))
    return given


def _with_binding(given: Model, binds: object) -> Model:
    if binds is None:
        return given
    if not isinstance(binds, bool):
        raise BadSetting(BINDING_SETTING, binds, "True or False")
    return replace(given, binds_thinking=binds, sources={**given.sources, BINDING_SETTING: "yours"})


# ── Settings in the log ───────────────────────────────────────────────────────────────────────────


def opened_fact(
    model: Model,
    rules: Policy,
    *,
    origin: str = "",
    folder: str = "",
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> Opened:
    """Return the fact that a session starts, or continues, with a model and a policy. What the caller has set is
    recorded too: without a window, nothing but the caller knows how large a request could be, and what is shown of
    the model's thinking depends on whether it is bound. `settings` are others to record."""
    window = model.window if model.sources.get("window") == "yours" else None
    about: dict[str, Any] = {name: value for name, value in (("folder", folder), ("window", window)) if value}
    if model.sources.get(BINDING_SETTING) == "yours":
        about[BINDING_SETTING] = model.binds_thinking
    about |= settings
    return Opened(model=model.name, policy=rules.name, settings=raw(about) if about else UNSET, origin=origin)


def opens_anew(opened: Opened, before: Opened) -> bool:
    """Return whether a session continues with another model or policy, or with another setting for its thinking.
    Another window or reserve alone is recorded only with the next fact: a session that is only looked at does not
    change."""
    bindings = (extras(fact.settings).get(BINDING_SETTING) for fact in (opened, before))
    return (opened.model, opened.policy) != (before.model, before.policy) or len(set(bindings)) > 1


def has_other_limits(opened: Opened, before: Opened) -> bool:
    """Return whether a session continues with another reserve or window. A log without a window may be older than
    the record of it, and stays as it is."""
    window = recorded_window(before)
    has_other_window = window is not None and recorded_window(opened) != window
    return has_other_window or recorded_reserve(opened) != recorded_reserve(before)


def has_other_settings(opened: Opened, before: Opened) -> bool:
    """Return whether a context continues with other settings than its log records; the folder is of a session."""
    given, recorded = (dict(extras(fact.settings)) for fact in (opened, before))
    recorded.pop("folder", None)
    return given != recorded


def recorded_reserve(opened: Opened) -> int | None:
    """Return the tokens that the caller kept free for the answer; None for the default, and in older logs."""
    reserve = extras(opened.settings).get("reserve")
    return reserve if isinstance(reserve, int) and reserve >= 0 else None


def recorded_window(opened: Opened) -> int | None:
    """Return the window that the caller had set; None if it is the known one of the model, or in older logs."""
    window = extras(opened.settings).get("window")
    return window if isinstance(window, int) and window > 0 else None


# ── Settings of a saved context ───────────────────────────────────────────────────────────────────

_MODEL_SETTINGS: Final = frozenset({"window", "max_output_tokens", "tokenizer", BINDING_SETTING})
"""Settings that are about one model, and do not hold for another."""


def settings_to_save(resolved: EngineSettings, given: SettingArguments) -> dict[str, Any]:
    """Return what `opened_fact` records of a context's settings beside those of its model, so that `Context.load`
    has them: those that differ from the defaults, and that JSON can hold."""
    caps: dict[str, Any] = msgspec.to_builtins(resolved.caps)
    saved = {name: value for name, value in caps.items() if name in SettingArguments.__annotations__}
    if resolved.caps.limit:
        saved["limit"] = [str(limit) for limit in resolved.caps.limit]
    # The values of a class of the application's own would be a policy that decides something else.
    if not resolved.policy.is_own and resolved.policy != PRESETS.get(cast(PresetName, resolved.policy.name)):
        saved["policy"] = resolved.policy.values()
    if (output := given.get("max_output_tokens")) is not None:
        saved["max_output_tokens"] = output
    if isinstance(tokenizer := given.get("tokenizer"), str) and tokenizer != "auto":
        saved["tokenizer"] = tokenizer
    return saved


def without_model_settings(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the saved settings that also hold for another model."""
    return {name: value for name, value in saved.items() if name not in _MODEL_SETTINGS}


def saved_settings(opened: Opened) -> dict[str, Any]:
    """Return the settings that a log was recorded with. A policy of the application's own is missing in logs of
    older versions, which recorded its name alone."""
    saved = {
        name: value
        for name, value in extras(opened.settings).items()
        if name in SettingArguments.__annotations__
    }
    if opened.policy in PRESETS:
        saved.setdefault("policy", opened.policy)
    return saved


def changed_settings(before: EngineSettings, now: EngineSettings, *, given: Collection[str]) -> list[str]:
    """Return, in words, which settings are others than before: of those that the caller has `given`, and of the
    model, the policy, the window and the reserve, whose defaults change with one another."""
    old, new = _told_settings(before), _told_settings(now)
    if before.policy != now.policy and old["policy"] == new["policy"]:
        new["policy"] += " with other values"
    return [
        f"{name}: {_in_words(old[name])} → {_in_words(value)}"
        for name, value in new.items()
        if value != old[name] and (name in given or name in _ALWAYS_TOLD)
    ]


def lost_policy(before: Opened, now: Policy, *, given: Collection[str]) -> str:
    """Return the name of the policy of the application's own that a log was recorded with, if the caller has not
    `given` one and another policy is used; "" if nothing is lost."""
    is_lost = before.policy not in {"", now.name, *PRESETS} and "policy" not in given
    return before.policy if is_lost else ""


_ALWAYS_TOLD: Final = frozenset({"model", "policy", "window", "reserve"})


def _told_settings(settings: EngineSettings) -> dict[str, Any]:
    """Return the values that are in effect, by the names of the settings."""
    model, caps = settings.model, settings.caps
    limits = {name: getattr(caps, name) for name in Caps.__struct_fields__ if name != "reserve"}
    limits["limit"] = ", ".join(map(str, caps.limit)) or "none"
    return {
        "model": model.name,
        "policy": settings.policy.name,
        "window": model.window,
        "reserve": reserve_for(model, caps),
        **limits,
        "max_output_tokens": model.max_output,
        "tokenizer": settings.counter.name,
        BINDING_SETTING: model.binds_thinking,
    }


def _in_words(value: object) -> str:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return (
        f"{value:,}"
        if is_number
        else str(value)
        if isinstance(value, str | float | bool)
        else type(value).__name__
    )
