"""Arguments of `Context`: their types and their checks."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, Final, cast

from msgspec.structs import replace

from foveal.core import wire
from foveal.core.compaction.summariser import Summarise, SummaryProgress, summariser_chain
from foveal.core.engine.reviews import ReductionHook
from foveal.core.engine.settings import (
    SettingArguments,
    changed_settings,
    lost_policy,
    resolve_settings,
    saved_settings,
    without_model_settings,
)
from foveal.core.engine.stored_messages import MESSAGE_FACTS
from foveal.core.engine.tool_deferral import DeferTools
from foveal.core.log.codec import decode
from foveal.core.log.events import (
    MEMORY_LOG_PREFIX,
    AnyFact,
    Content,
    Dialect,
    Event,
    Fact,
    Instructed,
    Opened,
    Unknown,
)
from foveal.core.models.budget import MAX_WINDOW_TOKENS
from foveal.core.models.model import Model
from foveal.core.reduction.truncation import Limits
from foveal.core.view.view import View
from foveal.errors import BadSetting, MalformedMessage, SettingsChanged, UnreadableEvent

_UNKNOWN_MODEL: Final = "unknown"
"""Stands for a model that only the requests name."""
_MAX_SEQ: Final = 2**62
"""Databases hold numbers of 64 bits."""


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
    on_reduction: ReductionHook | None
    """Sees each cut before it is made. Default: none."""
    clock: Callable[[], float] | None
    """Returns the time in seconds since 1970. Default: `time.time`."""
    defer_tools: DeferTools
    """Whether requests offer few tools, and `load_tools` for the others. Default: False. Only a loop that sends
    `Context.tools` can use it."""
    core_tools: Sequence[str]
    """The names of tools that are never deferred. Default: none."""
    memory: Any
    """A `foveal.Memory`, or several: what is known from earlier conversations. Default: none."""


def check_arguments(model: str | Model | None, arguments: Mapping[str, Any]) -> None:
    """Raise `BadSetting` for arguments that a `Context` would refuse, or fail with, later. `model` may be missing
    where each request names it."""
    own = ContextArguments.__annotations__.keys() - SettingArguments.__annotations__.keys()
    settings = {field: value for field, value in arguments.items() if field not in own}
    # Without a choice, the vocabulary depends on the model and is loaded with the first request.
    settings.setdefault("tokenizer", "estimate")
    if model is None or model == "":
        model = _UNKNOWN_MODEL
        if settings.get("window") is None:  # each request has its own: the largest one refuses no reserve
            settings["window"] = MAX_WINDOW_TOKENS + 1
    resolve_settings(model, **cast(SettingArguments, settings))
    if arguments.get("defer_tools"):
        raise BadSetting(
            "defer_tools", arguments["defer_tools"], "False here: your loop must send `Context.tools` itself"
        )
    summariser_chain(arguments.get("summarise"))
    check_extras(
        prompt=arguments.get("prompt", ""),
        progress=arguments.get("progress"),
        clock=arguments.get("clock"),
    )


def check_extras(*, prompt: object, progress: object, clock: object, on_reduction: object = None) -> None:
    """Raise `BadSetting` unless these are a text and three functions; None stands for no function."""
    check_text("prompt", prompt, "a text, or `file://…`")
    for field, given in (("progress", progress), ("clock", clock), ("on_reduction", on_reduction)):
        if given is not None and not callable(given):
            raise BadSetting(field, given, "a function")


def check_flag(field: str, value: object) -> bool:
    """Return a value that must be True or False."""
    if not isinstance(value, bool):
        raise BadSetting(field, value, "True or False")
    return value


def check_text(field: str, given: object, expected: str = "a text") -> str:
    """Return a text; raises `BadSetting` for anything else."""
    if not isinstance(given, str):
        raise BadSetting(field, given, expected)
    return given


def check_store(store: object, session: object, *, field: str = "session") -> None:
    """Raise `BadSetting` unless these are a store and the id of a session, which the argument `field` has."""
    if isinstance(store, type) or not all(hasattr(store, name) for name in ("append", "read", "end")):
        raise BadSetting("store", store, "a store, as `async with foveal.open_store(…) as store` gives it")
    check_session_id(field, session)


_ALLOWED_ID: Final = "the id of a session: at least one character, and none for control"


def check_session_id(field: str, given: object) -> None:
    """Raise `BadSetting` unless this can be the id of a session: the ids of memories are none."""
    id = check_text(field, given, "the id of a session, a text")
    if not id:
        raise BadSetting(field, given, _ALLOWED_ID)
    if id.startswith(MEMORY_LOG_PREFIX):
        raise BadSetting(
            field, given, f"the id of a session; ids with `{MEMORY_LOG_PREFIX}` are those of memories"
        )


def check_new_session_id(field: str, given: object) -> None:
    """Raise `BadSetting` unless a session can be created with this id. Earlier versions allowed control characters,
    and their sessions can still be opened."""
    check_session_id(field, given)
    if any(unicodedata.category(char) == "Cc" for char in str(given)):
        raise BadSetting(field, given, _ALLOWED_ID)


def check_recorded(view: View) -> None:
    """Raise `BadSetting` unless the view has messages to fit: no provider accepts an empty request."""
    if not view.steps:
        raise BadSetting(
            "messages",
            None,
            "a list of messages, because this context has recorded none: pass it, or call `append` first",
        )


def checked_log(log: object) -> Sequence[Event]:
    """Return the events of an earlier context; raises `BadSetting` for anything else."""
    events = checked_list("log", log)
    for place, event in enumerate(events):
        if not isinstance(event, Event):
            raise BadSetting(f"log[{place}]", event, "an `Event`, as `log` of a context holds them")
    return events


def checked_facts(field: str, facts: object) -> Sequence[AnyFact]:
    """Return the facts of a list; raises `BadSetting` for anything else."""
    found = checked_list(field, facts, "facts of `foveal.events`")
    for fact in found:
        if not isinstance(fact, Fact | Unknown):
            raise BadSetting(
                field,
                fact,
                "facts of `foveal.events`, such as `UserSaid`; messages of a provider go to `take`",
            )
        content = getattr(fact, "content", "")
        if not isinstance(content, str | Sequence):
            raise BadSetting("content", content, "a text, or parts of `foveal.events`")
    return found


def check_seq(field: str, given: object) -> None:
    """Raise `BadSetting` unless this is a whole number that every store can hold, such as that of an event."""
    if isinstance(given, bool) or not isinstance(given, int) or abs(given) > _MAX_SEQ:
        raise BadSetting(field, given, "a whole number, such as that of an event")


def checked_list(field: str, given: object, expected: str = "a list") -> list[Any]:
    """Return the items of a list; raises `BadSetting` for anything that is no list."""
    if isinstance(given, str | bytes | bytearray | Mapping | Set) or not isinstance(given, Iterable):
        raise BadSetting(field, given, expected)
    return given if type(given) is list else list(given)


def check_limit(call_id: str, limits: Limits) -> None:
    """Raise `BadSetting` unless these are the id of a call and limits."""
    if not isinstance(call_id, str) or not call_id:
        raise BadSetting("call_id", call_id, "the id of a call")
    if not isinstance(limits, Limits):
        raise BadSetting("limits", limits, "`foveal.Limits(…)`")


def system_text(system: Any) -> Content:
    """Return the caller's system text (a string, a list of blocks, or Gemini's `systemInstruction`) as content."""
    is_readable = isinstance(system, str | Mapping | Sequence) or hasattr(system, "model_dump")
    if not is_readable or isinstance(system, bytes | bytearray):
        raise BadSetting("system", system, "a text, a list of blocks, or None")
    given = system
    try:
        system = wire.gemini.instruction_parts(system)
        is_bedrock = wire.detect_dialect((), system=system) == "bedrock"
        reader = wire.wire_for("bedrock" if is_bedrock else "anthropic")
        fact = next(reader.read([{"role": "system", "content": system}])).facts[0]
    except MalformedMessage as problem:
        where = f"{problem.field}: " if problem.field else ""
        raise BadSetting(
            "system", given, f"a text, a list of blocks, or None; {where}{problem.problem}"
        ) from None
    assert isinstance(fact, Instructed)
    return fact.content


def recall_arguments(given: object) -> str | Mapping[str, Any]:
    """Return the arguments of a recall call. JSON other than an object is a mistake of the model, which is told so;
    raises `BadSetting` for a value that JSON does not have."""
    if isinstance(given, str | Mapping):
        return given
    if isinstance(given, bytes | bytearray):
        return given.decode("utf-8", "replace")
    return "" if given is None else bytes(wire.raw_setting(given, "arguments")).decode()


def last_opened(log: Sequence[Event]) -> Opened | None:
    """Return with which model, policy and settings a log was recorded last."""
    return next((event.fact for event in reversed(log) if isinstance(event.fact, Opened)), None)


def model_of(log: Sequence[Event]) -> str:
    """Return the model that a log was recorded with last."""
    opened = last_opened(log)
    if opened is None or not opened.model:
        raise BadSetting(
            "log", f"{len(log):,} events", "the log of a context, which names its model; or pass `model`"
        )
    return opened.model


def continued_arguments(
    log: Sequence[Event], model: str | Model | None, given: ContextArguments
) -> tuple[ContextArguments, SettingsChanged | None]:
    """Return the arguments of a context that continues a log, and a warning if settings have changed: what the
    caller does not give stays as it was saved, or as its default is now. A window is not kept for another model."""
    opened = last_opened(log)
    saved = before = {} if opened is None else saved_settings(opened)
    if opened is not None and model is not None and model != opened.model:
        saved = without_model_settings(saved)
    if given.get("max_output_tokens") is not None and saved.get("reserve") == saved.get("max_output_tokens"):
        # It was not given: the reserve follows the new number.
        saved = {name: value for name, value in saved.items() if name != "reserve"}
    arguments = saved | {name: value for name, value in given.items() if value is not None}
    if opened is None or not opened.model:
        return cast(ContextArguments, arguments), None
    now = {name: value for name, value in arguments.items() if name in SettingArguments.__annotations__}
    was = resolve_settings(opened.model, **cast(SettingArguments, before))
    is_now = resolve_settings(opened.model if model is None else model, **cast(SettingArguments, now))
    if (
        opened.policy and "policy" not in before
    ):  # a policy of the application's own, of which the name is known
        is_same = is_now.policy.name == opened.policy
        was = was._replace(policy=is_now.policy if is_same else replace(was.policy, name=opened.policy))
    changed = changed_settings(was, is_now, given=given)
    lost = lost_policy(opened, is_now.policy, given=arguments)
    warning = SettingsChanged(changed, lost_policy=lost) if changed else None
    return cast(ContextArguments, arguments), warning


def saved_events(saved: object) -> list[Event]:
    """Return the events of what `save` returned; raises `BadSetting` if it is something else, and
    `UnreadableEvent` with the line that is not an event."""
    if not isinstance(saved, bytes | bytearray | str):
        raise BadSetting("saved", saved, "the bytes that `save` returned")
    events: list[Event] = []
    # Not `splitlines`: a text may contain other line breaks, such as U+2028, inside an event.
    text = saved.encode("utf-8", "surrogatepass") if isinstance(saved, str) else bytes(saved)
    for number, line in enumerate(text.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            event = decode(line)
        except UnreadableEvent as problem:
            raise UnreadableEvent(f"saved, line {number:,}: {problem}; give what `save` returned") from None
        if event.seq != len(events):
            raise UnreadableEvent(
                f"saved, line {number:,}: event {event.seq:,}, where event {len(events):,} is expected: lines are "
                "missing, or come from another context; give what `save` returned"
            )
        events.append(event)
    if not events:
        raise BadSetting("saved", saved, "the bytes that `save` returned; they hold no event")
    return events


def dialect_of(log: Sequence[Event]) -> Dialect:
    """Return the dialect of the newest message that belongs to one."""
    messages = (event.fact for event in reversed(log) if isinstance(event.fact, MESSAGE_FACTS))
    return next((fact.dialect for fact in messages if fact.dialect), "")
