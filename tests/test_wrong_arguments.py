"""Obviously wrong arguments of the public functions: each is refused with an error of Foveal that names it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

import foveal
from foveal import BadSetting, Context, FovealError, MalformedMessage, Session, UnreadableEvent
from foveal.errors import MAX_SHOWN_CHARS
from foveal.stores import MemoryStore

HISTORY: Final[list[Any]] = [
    {"role": "user", "content": "Hello."},
    {"role": "assistant", "content": "Hello, reader."},
    {"role": "user", "content": "Why is CI red?"},
]


class Silent:
    """An object that has nothing, not even a usable `repr`."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


NO_TEXTS: Final[list[Any]] = [
    None,
    5,
    True,
    2.5,
    b"text",
    ["text"],
    {"text": 1},
    {1, 2},
    Silent(),
    float("nan"),
]
NO_LISTS: Final[list[Any]] = [5, True, 2.5, "text", "", b"text", {}, {"a": 1}, {1, 2}, Silent()]
NO_FUNCTIONS: Final[list[Any]] = [5, True, 2.5, "text", "", b"text", {}, [1], Silent()]
NO_STORES: Final[list[Any]] = [None, 5, "chats.db", b"x", {}, [], MemoryStore, Path("chats.db"), Silent()]


def context() -> Context:
    ctx = Context("gpt-4.1", tokenizer="estimate")
    ctx.fit(HISTORY)
    return ctx


def new(**settings: Any) -> Context:
    return Context("gpt-4.1", **{"tokenizer": "estimate", **settings})


def message(**fields: Any) -> Callable[[], object]:
    return lambda: context().fit([{"role": "user", "content": "Hello.", **fields}])


def wrong(field: str, values: list[Any], call: Callable[[Any], object]) -> list[Any]:
    """Return the cases of an argument; each third of its wrong values is tried outside of `make soak`."""
    return [
        pytest.param(call, value, field, id=f"{field}-{place}", marks=pytest.mark.soak if place % 3 else ())
        for place, value in enumerate(values)
    ]


IN_CONTEXT: Final = [
    *wrong(
        "dialect",
        [*NO_TEXTS, "html"],
        lambda v: new(dialect=v),
    ),
    *wrong("prompt", NO_TEXTS, lambda v: new(prompt=v)),
    *wrong("progress", NO_FUNCTIONS, lambda v: new(progress=v)),
    *wrong("clock", NO_FUNCTIONS, lambda v: new(clock=v)),
    *wrong("summarise", [*NO_FUNCTIONS[:-2], [1], "own"], lambda v: new(summarise=v)),
    *wrong(
        "tokenizer",
        [5, True, b"x", {}, Silent(), "many", type("Counter", (), {})],
        lambda v: new(tokenizer=v),
    ),
    *wrong("log", [None, *NO_LISTS], lambda v: new(log=v)),
    *wrong("log[0]", [[1], ["x"], [None], [{"seq": 0}]], lambda v: new(log=v)),
    *wrong("model", [5, True, b"x", {}, [], "", Silent()], lambda v: Context(v)),
    *wrong("model", [5, True, b"", {}, [], ""], lambda v: Context.load(context().save(), v)),
    *wrong("saved", [None, 5, 2.5, {}, [], Silent(), b"", b"\n \n", ""], Context.load),
    *wrong("max_output_tokens", [0, -1, 2.5, "many"], lambda v: new(max_output_tokens=v)),
    *wrong(
        "max_output_tokens", [0, -1, 2.5, "many"], lambda v: Context(foveal.model("x"), max_output_tokens=v)
    ),
    *wrong("messages", NO_LISTS, lambda v: context().fit(v)),
    *wrong("messages", [None], lambda v: new().fit(v)),
    *wrong("tools", [*NO_LISTS, [1], [None], [{}]], lambda v: context().fit(HISTORY, tools=v)),
    *wrong(
        "system", [5, True, 2.5, b"x", {1}, Silent(), {}, [5]], lambda v: context().fit(HISTORY, system=v)
    ),
    *wrong("usage", [{}, 5, "x", [], b"", {"a": 1}, object()], lambda v: context().observe(v)),
    *wrong("reserve", [-1, 2.5, "x", 10**9, 2_000_000], lambda v: context().set_reserve(v)),
    *wrong("text", NO_TEXTS, lambda v: context().pin(v)),
    *wrong("label", NO_TEXTS, lambda v: context().snapshot(1, label=v)),
    *wrong("focus", NO_TEXTS, lambda v: context().compact(v)),
    *wrong("name", NO_TEXTS, lambda v: context().recall(v, {})),
    *wrong("arguments", [Silent(), float("nan")], lambda v: context().recall("recall_search", v)),
    *wrong("store", NO_STORES, lambda v: asyncio.run(Context.load_from(v, "a"))),
    *wrong("store", NO_STORES, lambda v: asyncio.run(context().save_to(v, "a"))),
    *wrong("session", NO_TEXTS, lambda v: asyncio.run(Context.load_from(MemoryStore(), v))),
    *wrong("session", NO_TEXTS, lambda v: asyncio.run(context().save_to(MemoryStore(), v))),
]
IN_FUNCTIONS: Final = [
    *wrong("path", [None, 5, 2.5, b"x", {}, [], Silent(), ""], foveal.open_store),
    *wrong("timeout", [None, "5", True, -1, float("nan")], lambda v: foveal.open_store("a.db", timeout=v)),
    *wrong("durability", [None, 5, "much", []], lambda v: foveal.open_store("a.db", durability=v)),
    *wrong("tenant", [None, 5, b"x"], lambda v: foveal.open_store("a.db", tenant=v)),
    *wrong("policy", [None, 5, b"x", [], "", "thrifty", Silent()], foveal.policy),
    *wrong("ladder", [None, 5, "z"], lambda v: foveal.policy("economy", ladder=v)),
    *wrong("mode", [None, 5, "z"], lambda v: foveal.policy("economy", mode=v)),
    *wrong("clip", [5, "x", {"line": 3}, {"lines": "x"}], lambda v: foveal.policy("economy", clip=v)),
    *wrong(
        "clip_tools", [None, 5, {"bash": 3}, {"bash": {"line": 3}}], lambda v: foveal.policy(clip_tools=v)
    ),
    *wrong("exempt_tools", [5, "bash", [1]], lambda v: foveal.policy(exempt_tools=v)),
    *wrong("keep_last", [None, 2.5, "x", -1], lambda v: foveal.policy(keep_last=v)),
    *wrong("model", [None, 5, b"x", {}, "", "  ", Silent()], foveal.model),
    *wrong("window", [0, 2.5, "x", True], lambda v: foveal.model("x", window=v)),
]


def check(call: Callable[[Any], object], value: Any, field: str) -> None:
    with pytest.raises(BadSetting) as caught:
        call(value)
    assert caught.value.field == field
    shown, _, expected = str(caught.value).partition(" is not allowed: ")
    assert shown.startswith(f"{field} = ")
    assert len(shown) <= MAX_SHOWN_CHARS + len(field) + 3
    assert len(expected) > 5


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("call", "value", "field"), IN_CONTEXT)
def test_a_wrong_argument_of_a_context_is_named(
    call: Callable[[Any], object], value: Any, field: str
) -> None:
    check(call, value, field)


@pytest.mark.parametrize(("call", "value", "field"), IN_FUNCTIONS)
def test_a_wrong_argument_of_a_function_is_named(
    call: Callable[[Any], object], value: Any, field: str
) -> None:
    check(call, value, field)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (message(content=5), r"messages\[0\].content: must be a text, or a list of parts, not 5 \(int\)"),
        (message(content={"a": 1}), r"content: must be a text, or a list of parts, not {'a': 1} \(dict\)"),
        (message(content=b"x"), r"content: must be a text, or a list of parts, not b'x' \(bytes\)"),
        (
            message(content=[5]),
            r"content\[0\]: must be a dict or an object of a client library, not 5 \(int\)",
        ),
        (
            message(role="boss"),
            r"role: 'boss' is not a role of chat messages: one of system, developer, user",
        ),
        (message(role=5), r"role: 5 is not a role of chat messages: one of system, developer, user"),
        (
            lambda: context().fit([*HISTORY, 5]),
            r"messages\[3\]: must be a dict or an object .* not 5 \(int\)",
        ),
        (lambda: context().append("Hello."), r"messages\[3\]: must be a dict or an .* not 'Hello.' \(str\)"),
        (lambda: context().append(HISTORY), r"messages\[3\]: must be a dict .* not \[{'role': .* \(list\)"),
        (
            lambda: new(dialect="gemini").fit([{"role": "user", "parts": 5}]),
            r"parts: must be a list, not 5 \(int\)",
        ),
        (lambda: new(dialect="anthropic").fit([{"role": "tool", "content": ""}]), "one of user, assistant"),
    ],
)
def test_a_malformed_message_is_shown_with_what_is_expected(wrong: Callable[[], object], told: str) -> None:
    with pytest.raises(MalformedMessage, match=told):
        wrong()


@pytest.mark.parametrize(
    ("saved", "told"),
    [
        (
            b"not an event",
            r"saved, line 1: not an event: .*it begins b'not an event'; give what `save` returned",
        ),
        (
            json.dumps({"messages": []}).encode(),
            r"saved, line 1: not an event: .*missing required field `seq`",
        ),
        (json.dumps(HISTORY).encode(), r"saved, line 1: not an event"),
        (b"\x89PNG\r\n\x1a\n\x00", r"saved, line 1: not an event"),
        (lambda whole: whole[:-5], r"saved, line 4: not an event"),
        (
            lambda whole: whole.partition(b"\n")[2],
            r"saved, line 1: event 1, where event 0 is expected: lines are mis",
        ),
        (lambda whole: whole + b"\n" + whole, r"saved, line 5: event 0, where event 4 is expected"),
    ],
)
def test_what_save_did_not_return_is_refused_with_its_line(saved: Any, told: str) -> None:
    with pytest.raises(UnreadableEvent, match=told):
        Context.load(saved(context().save()) if callable(saved) else saved)


def test_a_saved_context_is_loaded_from_bytes_and_text_whatever_line_breaks_it_contains() -> None:
    ctx = new()
    history: list[Any] = [{"role": "user", "content": "a\u2028b\x85c"}]
    ctx.fit(history)
    saved = ctx.save()
    for given in (saved, bytearray(saved), saved.decode(), saved + b"\n"):
        assert Context.load(given).fit(history) == history  # type: ignore[arg-type]


def test_json_that_is_no_object_is_answered_to_the_model() -> None:
    for arguments in ([1], 5, "5", None, b"[]"):
        assert context().recall("recall_search", arguments).startswith("[foveal recall: ")  # type: ignore[arg-type]


def test_a_long_value_is_shortened_in_the_message_and_whole_in_the_error() -> None:
    text = "x" * 10_000
    with pytest.raises(BadSetting) as caught:
        new(policy=text)
    assert len(str(caught.value)) < 500
    assert caught.value.value == text
    with pytest.raises(FovealError) as unknown:
        context().why(text)
    assert len(str(unknown.value)) < 500


async def _session() -> Session:
    session = await Session.open(MemoryStore(), "demo", model="gpt-4.1", tokenizer="estimate")
    await session.take(*HISTORY)
    return session


def opened(**arguments: Any) -> Any:
    given = {"store": MemoryStore(), "id": "demo", "model": "gpt-4.1", "tokenizer": "estimate", **arguments}
    return Session.open(given.pop("store"), given.pop("id"), **given)


async def _call(name: str, *arguments: Any, **named: Any) -> object:
    made = getattr(await _session(), name)(*arguments, **named)
    return await made if hasattr(made, "__await__") else made


NO_NUMBERS: Final[list[Any]] = [None, True, 2.5, "1", b"1", [], {}, Silent(), 10**30]
IN_SESSION: Final = [
    *wrong("store", NO_STORES, lambda v: opened(store=v)),
    *wrong("id", NO_TEXTS, lambda v: opened(id=v)),
    *wrong("model", [None, 5, b"x", {}, ""], lambda v: opened(model=v)),
    *wrong("origin", NO_TEXTS, lambda v: opened(origin=v)),
    *wrong("folder", NO_TEXTS, lambda v: opened(folder=v)),
    *wrong("prompt", NO_TEXTS, lambda v: opened(prompt=v)),
    *wrong("progress", NO_FUNCTIONS, lambda v: opened(progress=v)),
    *wrong("clock", NO_FUNCTIONS, lambda v: opened(clock=v)),
    *wrong("options", [None, 5, {}, "x"], lambda v: opened(options=v)),
    *wrong("begin", [None, *NO_LISTS, [1], HISTORY], lambda v: opened(begin=v)),
    *wrong("is_new", [None, 5, "yes"], lambda v: opened(is_new=v)),
    *wrong("reserve", [2_000_000], lambda v: opened(reserve=v)),
    *wrong(
        "facts", [None, 5, "Hello.", HISTORY[0], [foveal.UserSaid(content="x")]], lambda v: _call("append", v)
    ),
    *wrong("dialect", [None, 5, "html", []], lambda v: _call("take", HISTORY[0], dialect=v)),
    *wrong("tools", [None, *NO_LISTS, [1], [{}]], lambda v: _call("equip", v)),
    *wrong("reserve", [-1, 2.5, "x", 2_000_000], lambda v: _call("set_reserve", v)),
    *wrong("usage", [{}, 5, "x"], lambda v: _call("observe", v)),
    *wrong("query", NO_TEXTS, lambda v: _call("search", v)),
    *wrong("limit", NO_NUMBERS, lambda v: _call("search", "x", v)),
    *wrong("first", NO_NUMBERS, lambda v: _call("events", first=v)),
    *wrong("last", NO_NUMBERS[1:], lambda v: _call("events", last=v)),
    *wrong("seqs", [None, 5, "x", ["x"], [10**30]], lambda v: _call("pick", v)),
    *wrong("seq", NO_NUMBERS, lambda v: _call("visible", v)),
    *wrong("fact", [None, 5, HISTORY[0]], lambda v: _call("redacted", v)),
    *wrong("text", NO_TEXTS, lambda v: _call("pin", v)),
    *wrong("label", NO_TEXTS, lambda v: _call("snapshot", 1, label=v)),
    *wrong("focus", NO_TEXTS, lambda v: _call("compact", v)),
    *wrong("title", NO_TEXTS, lambda v: _call("rename", v)),
    *wrong("id", NO_TEXTS, lambda v: _call("fork", v)),
    *wrong("origin", NO_TEXTS, lambda v: Session.continue_from(MemoryStore(), v, "b", model="gpt-4.1")),
    *wrong("id", NO_TEXTS, lambda v: Session.continue_from(MemoryStore(), "a", v, model="gpt-4.1")),
]


@pytest.mark.parametrize(("call", "value", "field"), IN_SESSION)
def test_a_wrong_argument_of_a_session_is_named(call: Callable[[Any], Any], value: Any, field: str) -> None:
    check(lambda given: asyncio.run(call(given)), value, field)


@pytest.mark.parametrize("given", [5.5, True, b"e1", [], {}, "e99", "", 10**30, object()])
def test_what_is_no_handle_cannot_be_superseded_or_supersede(given: Any) -> None:
    for name, by in ((given, "e1"), ("e1", given)):
        with pytest.raises(foveal.UnknownHandle, match=r"no event has the handle .*; the log has e0 to e3"):
            context().supersede(name, by=by)


@pytest.mark.parametrize("name", ["why", "original", "drop", "expand", "undo"])
@pytest.mark.parametrize("given", [5.5, True, b"e1", [], {}, "e99", "", 10**30, object()])
def test_what_is_no_handle_is_refused(name: str, given: Any) -> None:
    with pytest.raises(foveal.UnknownHandle, match=r"no event has the handle .*; the log has e0 to e3"):
        getattr(context(), name)(given)
