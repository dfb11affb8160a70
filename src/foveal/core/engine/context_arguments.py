"""Arguments of `Context`: their types and their checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, cast

from foveal.core import wire
from foveal.core.compaction.summariser import Summarise, SummaryProgress, summariser_chain
from foveal.core.engine.settings import SettingArguments, resolve_settings
from foveal.core.engine.stored_messages import MESSAGE_FACTS
from foveal.core.log.events import Content, Dialect, Event, Instructed, Opened
from foveal.core.models.model import Model
from foveal.core.reduction.truncation import Limits
from foveal.errors import BadSetting, MalformedMessage

_UNKNOWN_MODEL: Final = "unknown"
"""Stands for a model that only the requests name."""


class ContextArguments(SettingArguments, total=False):
    """The keyword arguments of `Context` beside its model and its log.

    `Context.load` and the transports take them. The other fields are those of `SettingArguments`.

    Examples:
        ```python
        import foveal

        pool = foveal.transport.ConversationPool(window=32_000, policy="economy", dialect="anthropic")
        ```
    """

    dialect: Dialect
    """The format of the messages. Default: detected."""
    summarise: Summarise | Sequence[Summarise] | None
    """The callables that write summaries. Default: none; the log alone is summarised."""
    prompt: str
    """A text, or `file://…`, that replaces the task of the summary prompt."""
    progress: Callable[[SummaryProgress], None] | None
    """Called while a summary is written."""
    clock: Callable[[], float] | None
    """Returns the time in seconds since 1970. Default: `time.time`."""


def check_arguments(model: str | Model | None, arguments: Mapping[str, Any]) -> None:
    """Raise `BadSetting` for arguments that a `Context` would refuse, or fail with, later. `model` may be missing
    where each request names it."""
    own = ContextArguments.__annotations__.keys() - SettingArguments.__annotations__.keys()
    settings = {field: value for field, value in arguments.items() if field not in own}
    # Without a choice, the vocabulary depends on the model and is loaded with the first request.
    settings.setdefault("tokenizer", "estimate")
    resolve_settings(_UNKNOWN_MODEL if model in (None, "") else model, **cast(SettingArguments, settings))
    summariser_chain(arguments.get("summarise"))
    if not isinstance(arguments.get("prompt", ""), str):
        raise BadSetting("prompt", arguments["prompt"], "a text, or `file://…`")
    for field in ("progress", "clock"):
        given = arguments.get(field)
        if given is not None and not callable(given):
            raise BadSetting(field, given, "a function")


def checked_list(field: str, given: Iterable[Any]) -> list[Any]:
    """Return the items of a list; raises `BadSetting` for anything that is no list."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise BadSetting(field, given, "a list")
    return given if type(given) is list else list(given)


def check_limit(call_id: str, limits: Limits) -> None:
    """Raise `BadSetting` unless these are the id of a call and limits."""
    if not isinstance(call_id, str) or not call_id:
        raise BadSetting("call_id", call_id, "the id of a call")
    if not isinstance(limits, Limits):
        raise BadSetting("limits", limits, "`foveal.Limits(…)`")


def system_text(system: Any) -> Content:
    """Return the caller's system text (a string, a list of blocks, or Gemini's `systemInstruction`) as content."""
    try:
        system = wire.gemini.instruction_parts(system)
        is_bedrock = wire.detect_dialect((), system=system) == "bedrock"
        reader = wire.wire_for("bedrock" if is_bedrock else "anthropic")
        fact = next(reader.read([{"role": "system", "content": system}])).facts[0]
    except MalformedMessage as problem:
        raise BadSetting(
            "system", system, f"a text or a list of blocks; {problem.field}: {problem.problem}"
        ) from None
    assert isinstance(fact, Instructed)
    return fact.content


def model_of(log: Sequence[Event]) -> str:
    """Return the model that a log was recorded with last."""
    opened = (event.fact.model for event in reversed(log) if isinstance(event.fact, Opened))
    model = next(opened, "")
    if not model:
        raise BadSetting("saved", len(log), "what `save` returned; the log names no model")
    return model


def dialect_of(log: Sequence[Event]) -> Dialect:
    """Return the dialect of the newest message that belongs to one."""
    messages = (event.fact for event in reversed(log) if isinstance(event.fact, MESSAGE_FACTS))
    return next((fact.dialect for fact in messages if fact.dialect), "")
