"""Durable sessions: appended facts are stored, reopening shows the same view, memory stays small."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import foveal
from foveal.core.engine import Engine
from foveal.core.log import (
    AnyFact,
    Call,
    Compacted,
    CompactionFailed,
    Dropped,
    Event,
    Instructed,
    Masked,
    ModelSaid,
    Opened,
    Overflowed,
    Pinned,
    Rewound,
    SnapshotTaken,
    Text,
    ToolReturned,
    UserSaid,
    decode,
    encode,
    raw,
)
from foveal.core.view import effective_events
from foveal.errors import (
    BadSetting,
    Conflict,
    ContextOverflow,
    SessionExists,
    StoreError,
    UnknownHandle,
    UnknownSession,
)
from foveal.ports import Store
from foveal.sessions import Session, SessionOptions, events_in_memory
from foveal.stores import open_store
from foveal.stores.memory import MemoryStore
from support.legality import check_anthropic, check_chat, check_responses

MODEL = "gpt-4.1"
SMALL: dict[str, Any] = {"model": MODEL, "window": 6_000, "reserve": 500, "tokenizer": "estimate"}
SMALL_OPENED = Opened(model=MODEL, policy="economy", settings=raw({"window": 6_000, "reserve": 500}))
MASKING: dict[str, Any] = {**SMALL, "policy": {"preset": "rolling", "keep_last": 3}}
"""A small window in which old results are masked, not summarised."""


def run(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return wrapped


async def run_turns(session: Session, turns: int, *, start: int = 0, size: int = 300) -> None:
    """Append turns of a request, a call with a long result and an answer; fit before each answer."""
    for i in range(start, start + turns):
        await session.append(UserSaid(content=f"request {i}: look at file_{i}.py please"))
        await session.fit()
        call = Call(id=f"c{i}", name="read", arguments=f'{{"path": "file_{i}.py"}}')
        await session.append(ModelSaid(content=(Text(text="I read it."), call)))
        body = "\n".join(f"line {n} of file_{i}.py says value_{i}_{n}" for n in range(size // 10))
        await session.append(ToolReturned(call_id=f"c{i}", content=body))
        await session.fit()
        await session.append(ModelSaid(content=f"file_{i}.py is fine."))


async def full_engine(session: Session) -> Engine:
    """Return an engine folded from the whole stored log."""
    return Engine(session._writer.settings, log=await session.events())


def shown(engine: Engine) -> list[Any]:
    return [fact for step in engine.view.steps for fact in step.facts()]


@run
async def test_a_new_session_is_stored_with_its_first_facts(stores: Callable[[], Any]) -> None:
    async with stores() as store:
        session = await Session.open(store, "demo", origin="here", is_new=True, **SMALL)
        assert await store.sessions() == []
        events = await session.append(UserSaid(content="hello"))
        assert [(event.seq, event.fact) for event in events] == [(1, UserSaid(content="hello"))]
        first, *rest = await store.read("demo")
        assert isinstance(first.fact, Opened)
        assert (first.fact.origin, first.fact.model) == ("here", MODEL)
        assert rest == list(events)
        assert (await session.append(ModelSaid(content="hi")))[0].seq == 2


@run
async def test_tools_and_pins_of_a_new_session_follow_its_first_facts(stores: Callable[[], Any]) -> None:
    async with stores() as store:
        session = await Session.open(store, "demo", origin="here", is_new=True, **SMALL)
        await session.equip([{"type": "function", "function": {"name": "bash"}}])
        await session.pin("Never push to main.")
        await session.append(UserSaid(content="Hello."))
        kinds = [type(event.fact).__name__ for event in await store.read("demo")]
        assert kinds == ["Opened", "Equipped", "Pinned", "UserSaid"]


@run
async def test_a_session_that_is_not_new_after_all_is_continued(lasting_stores: Callable[[], Any]) -> None:
    async with lasting_stores() as store:
        earlier = await Session.open(store, "demo", **SMALL)
        await earlier.append(UserSaid(content="hello"))
        session = await Session.open(store, "demo", origin="here", is_new=True, **SMALL)
        await session.append(UserSaid(content="and then"))
        facts = [event.fact for event in await store.read("demo") if isinstance(event.fact, UserSaid)]
        assert facts == [UserSaid(content="hello"), UserSaid(content="and then")]


@run
async def test_the_view_after_reopening_equals_the_view_before(lasting_stores: Callable[[], Any]) -> None:
    async with lasting_stores() as store:
        session = await Session.open(store, "demo", **SMALL)
        await session.append(Instructed(content="Be brief."))
        await session.pin("Never touch main.py")
        await run_turns(session, 30)
        before = (await session.fit()).facts
    async with lasting_stores() as store:
        again = await Session.open(store, "demo", **SMALL)
        assert (await again.fit()).facts == before
        assert shown(await full_engine(again)) == list(before)


@run
async def test_requests_in_every_dialect_are_legal_and_hold_the_rules(stores: Callable[[], Any]) -> None:
    async with stores() as store:
        session = await Session.open(store, "demo", **SMALL)
        await session.append(Instructed(content="Be brief."))
        await session.pin("Never touch main.py")
        await run_turns(session, 25)
        await session.append(UserSaid(content="and now?"))
        fitted = await session.fit()
        assert check_chat(fitted.to_openai()) == []
        assert check_responses(fitted.to_responses()) == []
        assert check_anthropic(fitted.to_anthropic()) == []
        assert "Be brief." in fitted.system
        for messages in (fitted.to_openai(), fitted.to_responses(), (fitted.system, fitted.to_anthropic())):
            assert "Never touch main.py" in str(messages)
            assert "and now?" in str(messages)
        assert fitted.tokens <= fitted.limit


@pytest.mark.long
@run
async def test_only_what_the_view_needs_is_in_memory(lasting_stores: Callable[[], Any]) -> None:
    async with lasting_stores() as store:
        session = await Session.open(store, "demo", **SMALL)
        limit = events_in_memory(session._writer.settings.model)
        for i in range(250):
            await session.append(UserSaid(content=f"m{i}"), ModelSaid(content=f"answer {i}"))
            await session.fit()
            assert session._writer.engine is not None
            assert len(session._writer.engine.log) <= limit
        assert len(await session.events()) > 500 > 2 * limit
        assert shown(await full_engine(session)) == list((await session.fit()).facts)


@pytest.mark.parametrize(
    ("window", "events"), [(1_000, 100), (32_000, 320), (128_000, 1_280), (1_000_000, 2_000)]
)
def test_the_number_of_events_in_memory_follows_the_window(window: int, events: int) -> None:
    from foveal.core.models.model import model

    assert events_in_memory(model("x", window=window)) == events


@run
async def test_opening_reads_only_what_the_view_needs(tmp_path: Path) -> None:
    class Watched:
        """A store that records which events were read."""

        def __init__(self, store: Store) -> None:
            self.store = store
            self.firsts: list[int] = []

        def __getattr__(self, name: str) -> Any:
            return getattr(self.store, name)

        async def read(self, session: str, *, first: int = 0, last: int | None = None) -> list[Event]:
            self.firsts.append(first)
            return await self.store.read(session, first=first, last=last)

    summarising: Any = {**SMALL, "policy": "handoff"}  # a trace that stays must be read
    async with open_store(tmp_path / "chats.db", durability="normal") as store:
        session = await Session.open(store, "demo", **summarising)
        await run_turns(session, 60)
        last = session.last
        watched = Watched(store)
        again = await Session.open(watched, "demo", **summarising)
        await again.fit()
        assert min(watched.firsts) > last - 100


@run
async def test_a_mask_is_undone_after_later_turns(stores: Callable[[], Any]) -> None:
    async with stores() as store:
        session = await Session.open(store, "demo", **MASKING)
        await run_turns(session, 12)
        masked = next(e for e in await session.events() if isinstance(e.fact, Masked))
        target = masked.fact.masks[0].target
        await run_turns(session, 1, start=12)
        assert await session.undo(masked.handle) == masked.handle
        found = (await session._writer.refresh()).view.find(target)
        assert found is None or found[1].level == "full"
        assert shown(await full_engine(session)) == shown(await session._writer.refresh())


@run
async def test_an_undone_compaction_shows_its_messages_again(stores: Callable[[], Any]) -> None:
    async with stores() as store:
        session = await Session.open(store, "demo", model=MODEL, window=100_000, tokenizer="estimate")
        await run_turns(session, 4)
        before = (await session.fit()).facts
        (made,) = await session.append(Compacted(first=1, last=6, summary="They read some files."))
        assert "They read some files." in str((await session.fit()).to_openai())
        await session.append(UserSaid(content="later"))
        await session.undo(made.handle)
        assert (await session.fit()).facts == (*before, UserSaid(content="later"))


@run
async def test_a_window_that_the_caller_sets_is_recorded_with_the_model(
    lasting_stores: Callable[[], Any],
) -> None:
    async with lasting_stores() as store:
        for window, policy in ((6_000, "economy"), (9_000, "economy"), (None, "recent"), (9_000, "off")):
            await Session.open(store, "demo", **{**SMALL, "window": window}, policy=policy)
        facts = [event.fact for event in await store.read("demo")]
        assert facts == [
            SMALL_OPENED,
            Opened(model=MODEL, policy="recent", settings=raw({"reserve": 500})),
            Opened(model=MODEL, policy="off", settings=raw({"window": 9_000, "reserve": 500})),
        ]
        other = await Session.open(store, "demo", **{**SMALL, "window": 12_000}, policy="off")
        assert len(await store.read("demo")) == len(facts), "nothing has happened with this window"
        await other.append(UserSaid(content="hi"))
        opened, _ = [event.fact for event in await store.read("demo", first=len(facts))]
        assert opened == replace(facts[-1], settings=raw({"window": 12_000, "reserve": 500}))


@run
async def test_undo_without_a_name_takes_back_the_newest_reduction(stores: Callable[[], Any]) -> None:
    async with stores() as store:
        session = await Session.open(store, "demo", **SMALL)
        await session.append(UserSaid(content="hi"))
        with pytest.raises(UnknownHandle, match="nothing"):
            await session.undo()
        await run_turns(session, 12)
        newest = [e for e in effective_events(await session.events()) if isinstance(e.fact, Compacted)][-1]
        wide = await Session.open(store, "demo", **{**SMALL, "window": 100_000})
        log = await session.events()
        with pytest.raises(ContextOverflow) as problem:
            await session.undo()
        assert re.search(
            rf"^{newest.handle} was not taken back: the request would take [\d.]+ % of the window "
            r"\([\d,]+ tokens\), and at most [\d.]+ % \([\d,]+\) fit; `expand` a single event .*"
            rf', or take it back all the same with `undo\("{newest.handle}"\)`: the next request is reduced again$',
            str(problem.value),
        )
        assert await session.events() == log, "nothing is recorded"
        assert await wide.undo() == newest.handle, "with a larger window it fits"


@run
async def test_a_request_that_cannot_be_reduced_can_be_returned_as_it_is(stores: Callable[[], Any]) -> None:
    async with stores() as store:
        session = await Session.open(store, "demo", **SMALL)
        await run_turns(session, 6)
        long = UserSaid(content="word " * 20_000)
        await session.append(long)
        with pytest.raises(ContextOverflow):
            await session.fit()
        fitted = await session.fit(may_exceed=True)
        assert fitted.facts[-1] == long
        assert fitted.reduced, "what can be reduced is: the provider may accept the rest"
        assert fitted.tokens > fitted.limit
        assert check_chat(fitted.to_openai()) == []
        again = await Session.open(store, "demo", **SMALL)
        assert (await again.fit(may_exceed=True)).facts == fitted.facts


@run
async def test_the_reserve_can_be_changed_while_a_session_is_open(stores: Callable[[], Any]) -> None:
    async with stores() as store:
        session = await Session.open(
            store, "demo", model="gpt-4.1", window=20_000, reserve=1_000, margin=0.05
        )
        await session.append(UserSaid(content="hi"))
        before = (await session.fit()).limit
        await session.set_reserve(5_000)
        assert (await session.fit()).limit == before - 4_000
        await session.set_reserve(1_000)
        assert (await session.fit()).limit == before


@run
async def test_undo_takes_back_the_newest_rewind_and_the_messages_return_in_log_order(
    stores: Callable[[], Any],
) -> None:
    async with stores() as store:
        session = await Session.open(store, "demo", **SMALL)
        await run_turns(session, 2)
        first = next(e.seq for e in await session.events() if isinstance(e.fact, UserSaid))
        summary = (await session.append(Compacted(first=first, last=first + 2, summary="short")))[0].handle
        await session.append(UserSaid(content="second"), ModelSaid(content="two"))
        before = (await session.fit()).facts
        await session.rewind(session.last - 2)
        rewound = session.last
        assert len((await session.fit()).facts) == len(before) - 2
        assert await session.undo() == f"e{rewound}", "the rewind, not the summary before it"
        assert (await session.fit()).facts == before
        assert shown(await full_engine(session)) == list((await session.fit()).facts)
        with pytest.raises(UnknownHandle, match="was undone before"):
            await session.undo(rewound)
        assert await session.undo() == summary, "the next one is the summary"

        await session.rewind(first - 1)
        rewound = session.last
        await session.append(UserSaid(content="instead"))
        assert (await session.fit()).facts[-1] == UserSaid(content="instead")
        assert await session.undo(rewound) == f"e{rewound}"
        newest = (UserSaid(content="second"), ModelSaid(content="two"), UserSaid(content="instead"))
        assert (await session.fit()).facts[-3:] == newest, "before what was said since"
        assert shown(await full_engine(session)) == list((await session.fit()).facts)


@run
async def test_a_rewind_for_an_edited_history_cannot_be_undone() -> None:
    session = await Session.open(MemoryStore(), "demo", **SMALL)
    await session.append(UserSaid(content="one"), ModelSaid(content="two"))
    await session.append(Rewound(to=1, keep_state=True, keep_reductions=True))
    with pytest.raises(UnknownHandle, match="nothing has been reduced, superseded or rewound"):
        await session.undo()
    with pytest.raises(UnknownHandle, match="records an edit of the messages"):
        await session.undo(session.last)


@run
async def test_rewind_shows_an_earlier_state_and_keeps_the_log(stores: Callable[[], Any]) -> None:
    async with stores() as store:
        session = await Session.open(store, "demo", **SMALL)
        await run_turns(session, 2)
        at, then = session.last, (await session.fit()).facts
        await run_turns(session, 10, start=2)
        count = len(await session.events())
        await session.rewind(at)
        assert (await session.fit()).facts == then
        assert isinstance((await session.events())[count].fact, Rewound)
        with pytest.raises(UnknownHandle, match="no event has the handle 99999"):
            await session.rewind(99_999)


@run
async def test_a_fork_is_independent_and_records_its_origin(lasting_stores: Callable[[], Any]) -> None:
    async with lasting_stores() as store:
        session = await Session.open(store, "demo", **SMALL)
        await run_turns(session, 3)
        at = session.last
        await run_turns(session, 3, start=3)
        fork = await session.fork("other", at=at)
        await fork.append(UserSaid(content="elsewhere"))
        facts = [event.fact for event in await fork.events()]
        assert facts[: at + 1] == [event.fact for event in await session.events(last=at)]
        assert facts[at + 1] == replace(SMALL_OPENED, origin=f"demo@{at}")
        assert "elsewhere" not in str(await session.events())
        assert "elsewhere" in str((await fork.fit()).to_openai())


@run
async def test_a_fork_into_an_id_that_is_in_use_is_refused_as_elsewhere(stores: Callable[[], Any]) -> None:
    async with stores() as store:
        session = await Session.open(store, "demo", **SMALL)
        await run_turns(session, 1)
        other = await Session.open(store, "other", **SMALL)
        for id in ("other", "demo"):
            before = await store.read(id)
            with pytest.raises(SessionExists, match=f"a session '{id}' exists") as caught:
                await session.fork(id)
            assert caught.value.session == id
            assert await store.read(id) == before
        await other.delete()
        with pytest.raises(SessionExists, match="'other'"):
            await session.fork("other")


@run
async def test_a_deleted_session_has_no_text_but_a_gapless_log(lasting_stores: Callable[[], Any]) -> None:
    async with lasting_stores() as store:
        session = await Session.open(store, "demo", **SMALL)
        await run_turns(session, 3)
        count = len(await session.events())
        await session.delete()
        events = await session.events()
        assert [event.seq for event in events] == list(range(count))
        assert "request" not in str(events)


@run
async def test_nothing_is_appended_to_an_erased_session(lasting_stores: Callable[[], Any]) -> None:
    async with lasting_stores() as store:
        session = await Session.open(store, "demo", **SMALL)
        await run_turns(session, 1)
        other = await Session.open(store, "demo", **SMALL)
        await session.delete()
        events = await session.events()
        for erased in (session, other):
            with pytest.raises(UnknownSession):
                await erased.fit()
            with pytest.raises(UnknownSession):
                await erased.append(UserSaid(content="more"))
        with pytest.raises(SessionExists, match="was erased: choose another id"):
            await Session.open(store, "demo", **SMALL)
        assert await store.read("demo") == events


@run
async def test_a_session_continues_from_another_with_its_rules_and_summary(
    lasting_stores: Callable[[], Any],
) -> None:
    async with lasting_stores() as store:
        old = await Session.open(store, "old", **SMALL)
        await old.pin("Answer in French")
        await run_turns(old, 3)
        await old.append(Compacted(first=2, last=8, summary="We had read three files."))
        new = await Session.continue_from(store, "old", "new", **SMALL)
        await new.append(UserSaid(content="go on"))
        text = str((await new.fit()).to_openai())
        assert "Answer in French" in text
        assert "We had read three files." in text
        assert "go on" in text
        assert (await new.events())[0].fact == replace(SMALL_OPENED, origin="old")
        with pytest.raises(UnknownSession):
            await Session.continue_from(store, "nowhere", "x", **SMALL)


@run
async def test_a_session_without_summary_passes_on_its_user_requests(stores: Callable[[], Any]) -> None:
    async with stores() as store:
        await run_turns(await Session.open(store, "old", **SMALL), 3)
        new = await Session.continue_from(store, "old", "new", **SMALL)
        assert "request 2: look at file_2.py" in str((await new.fit()).to_openai())


@run
async def test_two_sessions_on_one_log_both_store_their_messages(lasting_stores: Callable[[], Any]) -> None:
    async with lasting_stores() as store:
        one = await Session.open(store, "demo", **SMALL)
        two = await Session.open(store, "demo", **SMALL)

        async def say(session: Session, name: str) -> None:
            for i in range(40):
                await session.append(UserSaid(content=f"{name} {i}"))

        await asyncio.gather(say(one, "one"), say(two, "two"))
        said = [event.fact.content for event in await one.events() if isinstance(event.fact, UserSaid)]
        assert sorted(map(str, said)) == sorted(f"{name} {i}" for name in ("one", "two") for i in range(40))
        assert [text for text in said if str(text).startswith("one")] == [f"one {i}" for i in range(40)]
        assert (await one.fit()).facts == (await two.fit()).facts


@run
async def test_a_failed_append_leaves_no_trace_in_memory(lasting_stores: Callable[[], Any]) -> None:
    class Failing:
        def __init__(self, store: Store) -> None:
            self.store, self.fail = store, False

        def __getattr__(self, name: str) -> Any:
            return getattr(self.store, name)

        async def append(self, session: str, events: Any) -> None:
            if self.fail:
                raise OSError("disk full")
            await self.store.append(session, events)

    async with lasting_stores() as inner:
        store = Failing(inner)
        session = await Session.open(store, "demo", **SMALL)
        await session.append(UserSaid(content="first"))
        store.fail = True
        with pytest.raises(OSError, match="disk full"):
            await session.append(UserSaid(content="lost"))
        store.fail = False
        await session.append(UserSaid(content="second"))
        assert (await session.fit()).facts == (UserSaid(content="first"), UserSaid(content="second"))


@run
async def test_a_cancelled_append_is_stored_whole_or_not_at_all(
    lasting_stores: Callable[[], Any],
) -> None:
    async with lasting_stores() as store:
        session = await Session.open(store, "demo", **SMALL)
        for i in range(20):
            task = asyncio.create_task(session.append(UserSaid(content=f"maybe {i}")))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await session.append(UserSaid(content="surely"))
        events = await session.events()
        assert [event.seq for event in events] == list(range(len(events)))
        assert shown(await full_engine(session)) == list((await session.fit()).facts)


@run
async def test_usage_is_added_up_and_survives_reopening(lasting_stores: Callable[[], Any]) -> None:
    async with lasting_stores() as store:
        session = await Session.open(store, "demo", **SMALL)
        await run_turns(session, 40)
        for _ in range(3):
            await session.append(UserSaid(content="x"))
            await session.fit()
            await session.observe({"prompt_tokens": 900, "completion_tokens": 50})
        used = await session.usage()
        assert (used.calls, used.unknown_calls, used.input, used.output) == (83, 80, 2_700, 150)
    async with lasting_stores() as store:
        assert await (await Session.open(store, "demo", **SMALL)).usage() == used


@run
async def test_a_request_that_cannot_fit_raises_and_loses_nothing(
    stores: Callable[[], Any],
) -> None:
    async with stores() as store:
        session = await Session.open(store, "demo", **SMALL)
        await session.append(UserSaid(content="word " * 9_000))
        with pytest.raises(ContextOverflow, match="the latest message alone takes"):
            await session.fit()
        assert len(await session.events()) == 2


@run
async def test_every_original_can_be_read_and_why_names_its_cover(stores: Callable[[], Any]) -> None:
    async with stores() as store:
        session = await Session.open(store, "demo", **SMALL)
        await run_turns(session, 30)
        first = next(e for e in await session.events() if isinstance(e.fact, ToolReturned))
        assert await session.original(first.handle) == first.fact.content
        assert (await session.why(first.handle)).level in ("dropped", "summarised")
        assert any(hit.seq == first.seq for hit in await session.search("value_0_7"))
        with pytest.raises(UnknownHandle):
            await session.original("e99999")


@run
async def test_a_snapshot_is_never_sent_and_survives_every_reduction(stores: Callable[[], Any]) -> None:
    async with stores() as store:
        session = await Session.open(store, "demo", **SMALL)
        handle = await session.snapshot({"commit": "abc123"}, label="git")
        await run_turns(session, 30)
        assert "abc123" not in str((await session.fit()).to_openai())
        kept = (await session.pick([int(handle[1:])]))[0].fact
        assert isinstance(kept, SnapshotTaken)
        assert bytes(kept.data) == b'{"commit":"abc123"}'


@run
async def test_a_change_of_model_is_recorded_and_reduces_before_the_next_call(
    lasting_stores: Callable[[], Any],
) -> None:
    async with lasting_stores() as store:
        session = await Session.open(store, "demo", model=MODEL, window=100_000, tokenizer="estimate")
        await run_turns(session, 20)
        large = await session.fit()
        smaller = await Session.open(store, "demo", **{**SMALL, "model": "gpt-4o"})
        fitted = await smaller.fit()
        assert fitted.tokens <= fitted.limit < large.tokens
        models = [e.fact.model for e in await smaller.events() if isinstance(e.fact, Opened)]
        assert models == [MODEL, "gpt-4o"]


@run
async def test_sessions_are_listed_with_their_newest_activity_first(
    lasting_stores: Callable[[], Any],
) -> None:
    async with lasting_stores() as store:
        clock = iter(range(1_000, 2_000))
        for name in ("a", "b"):
            await Session.open(store, name, **SMALL, clock=lambda: float(next(clock)))
        session = await Session.open(store, "a", **SMALL, clock=lambda: float(next(clock)))
        await session.append(UserSaid(content="again"))
        await session.rename("The first")
        listed = await store.sessions()
        assert [(info.id, info.title, info.events) for info in listed] == [
            ("a", "The first", 2),
            ("b", "", 1),
        ]
        assert listed[0].bytes > 0


@run
async def test_a_pin_can_be_undone(stores: Callable[[], Any]) -> None:
    async with stores() as store:
        session = await Session.open(store, "demo", **SMALL)
        handle = await session.pin("rule one")
        await session.append(UserSaid(content="hi"))
        await session.undo(handle)
        assert "rule one" not in str((await session.fit()).to_openai())
        pinned = [event for event in await session.events() if isinstance(event.fact, Pinned)]
        assert len(pinned) == 1


@run
async def test_a_prefix_break_names_the_rewind_or_the_undo_that_caused_it(stores: Callable[[], Any]) -> None:
    async with stores() as store:
        session = await Session.open(store, "demo", **SMALL)
        await session.append(UserSaid(content="a"), ModelSaid(content="b"), UserSaid(content="c"))
        await session.fit()
        await session.rewind("e2")
        await session.fit()
        await session.undo()
        await session.fit()
        pin = await session.pin("rule one")
        await session.fit()
        await session.undo(pin)
        await session.fit()
        report = await session.report()
        assert [(one.call, one.cause, one.why) for one in report.breaks] == [
            (2, "e4", "rewound"),
            (5, "e7", "reverted"),
        ]
        assert str(report).endswith("2 prefix breaks in 5 requests, the last by e7: reverted")


@run
async def test_a_prefix_break_names_the_event_of_another_process(lasting_stores: Callable[[], Any]) -> None:
    async with lasting_stores() as store:
        session = await Session.open(store, "demo", **SMALL)
        await session.append(UserSaid(content="a"), ModelSaid(content="b"), UserSaid(content="c"))
        await session.fit()
        other = await Session.open(store, "demo", **SMALL)
        await other.append(ModelSaid(content="d"))
        await other.rewind("e2")
        await session.fit()
        assert [(one.cause, one.why) for one in (await session.report()).breaks] == [("e5", "rewound")]


@run
async def test_provider_messages_and_tools_are_stored_as_they_are(stores: Callable[[], Any]) -> None:
    async with stores() as store:
        session = await Session.open(store, "demo", **SMALL)
        call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        said = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "ok"},
        ]
        await session.take(*said)
        tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
        await session.equip(tools)
        await session.equip(tools)
        fitted = await session.fit()
        assert fitted.to_openai()[0] == said[0]
        assert check_chat(fitted.to_openai()) == []
        assert fitted.tools == tools
        assert len(await session.events()) == 5
        with pytest.raises(BadSetting, match="take"):
            await session.append({"role": "user", "content": "hi"})  # type: ignore[arg-type]


@run
async def test_an_existing_session_is_no_target_of_continue_from(stores: Callable[[], Any]) -> None:
    async with stores() as store:
        for name in ("old", "new"):
            await run_turns(await Session.open(store, name, **SMALL), 1)
        with pytest.raises(SessionExists, match="choose another id"):
            await Session.continue_from(store, "old", "new", **SMALL)


@pytest.mark.long
@run
async def test_a_writer_that_loses_every_conflict_gets_an_error() -> None:
    class Losing:
        def __init__(self, store: Store) -> None:
            self.store, self.lose = store, False

        def __getattr__(self, name: str) -> Any:
            return getattr(self.store, name)

        async def append(self, session: str, events: Any) -> None:
            if self.lose:
                raise Conflict(session, given=events[0].seq, next_seq=events[0].seq + 1)
            await self.store.append(session, events)

    store = Losing(MemoryStore())
    session = await Session.open(store, "demo", **SMALL)
    await session.append(*(UserSaid(content="word " * 400) for _ in range(20)))
    store.lose = True
    for attempt in (session.fit(), session.rewind(2), session.append(UserSaid(content="x"))):
        with pytest.raises(StoreError, match="conflicts in a row"):
            await attempt


# ── Options ────────────────────────────────────────────────────────────────────────────────────────────────


@run
async def test_everything_is_redacted_before_it_is_stored_or_compared(
    tmp_path: Path,
) -> None:
    def redact(fact: AnyFact) -> AnyFact:
        return decode(encode(Event(0, fact)).replace(b"hunter2", b"[gone]")).fact

    stored: list[Event] = []
    options = SessionOptions(redact=redact, on_stored=stored.extend)
    async with open_store(tmp_path / "a.db") as store:
        session = await Session.open(store, "a", model="gpt-4.1", options=options)
        await session.append(UserSaid(content="the password is hunter2"))
        await session.take({"role": "assistant", "content": "hunter2, I see"})
        await session.pin("never say hunter2")
        tools = [{"name": "login", "description": "with hunter2", "parameters": {}}]
        await session.equip(tools)
        last = session.last
        await session.equip(tools)
        assert session.last == last
        fork = await session.fork("b")
        await fork.append(UserSaid(content="hunter2 again"))
        await session.rewind(2)
        for id in ("a", "b"):
            assert "hunter2" not in str(await store.read(id))
        assert len(stored) == (await store.info("a")).events + 2
        assert "hunter2" not in str((await session.fit()).to_openai())


# ── Checkpoints ──────────────────────────────────────────────────────────────────────────────────────────


@run
async def test_a_checkpoint_keeps_the_json_names_of_the_first_version() -> None:
    store = MemoryStore()
    session = await Session.open(store, "demo", **SMALL)
    for limit in (5_000, 4_000):
        await session.append(Overflowed(model=MODEL, limit=limit, needed=7_000, sent=7_000))
    await run_turns(session, 12)
    failed = CompactionFailed(first=1, last=2, problem="no answer", metrics=raw({"asked": 1}))
    newest = [e for e in await session.events() if isinstance(e.fact, Masked | Dropped)][-1]
    await session.append(failed)
    await session.undo(newest.handle)
    checkpoint = await store.checkpoint("demo")
    assert checkpoint is not None
    state = json.loads(checkpoint.state)
    first = {"seq", "carried", "calibration", "accounts", "unreduced", "record"}
    assert set(state) == first | {"past_calls", "counts"}
    said = state["record"].pop("said")
    assert state["record"] == {"failures": 1, "refused": 2, "limits": {MODEL: 4_000}}
    assert said == (await full_engine(session)).compaction_health.said
    again = await Session.open(store, "demo", **SMALL)
    assert (await again._writer.load()).provider_limits == (await full_engine(session)).provider_limits
    assert (await again._writer.load()).compaction_health == (await full_engine(session)).compaction_health


def test_a_deleted_session_makes_no_request_and_a_number_is_no_content() -> None:
    async def check() -> None:
        async with foveal.stores.MemoryStore() as store:
            session = await foveal.Session.open(store, "demo", model="gpt-4.1")
            with pytest.raises(foveal.BadSetting, match="content = 5 is not allowed"):
                await session.append(foveal.UserSaid(content=5))  # type: ignore[arg-type]
            await session.append(foveal.UserSaid(content="Hello."))
            with pytest.raises(foveal.UnknownHandle, match="the log has e0 to e1"):
                await session.drop(None)  # type: ignore[arg-type]
            await session.delete()
            with pytest.raises(foveal.UnknownSession):
                await session.fit()

    asyncio.run(check())


@run
@pytest.mark.parametrize("id", ["", "a\nb", "\x00", "a\x7f"])
async def test_a_session_needs_an_id_without_control_characters(id: str) -> None:
    async with foveal.stores.MemoryStore() as store:
        for is_new in (False, True):
            with pytest.raises(foveal.BadSetting, match="at least one character"):
                await Session.open(store, id, is_new=is_new, **SMALL)
        with pytest.raises(foveal.BadSetting, match="at least one character"):
            await foveal.Context(MODEL, log=[Event(0, UserSaid(content="hi"))]).save_to(store, id)
        assert await store.sessions() == []


@run
@pytest.mark.parametrize("id", ["a\nb", "\x00", "a\x7f"])
async def test_a_session_that_has_control_characters_in_its_id_can_be_used(
    stores: Callable[[], Any], id: str
) -> None:
    async with stores() as store:
        await store.append(id, [Event(0, SMALL_OPENED), Event(1, UserSaid(content="hi"))])
        session = await Session.open(store, id, **SMALL)
        await session.append(ModelSaid(content="hello"))
        assert (await session.fit()).facts == (UserSaid(content="hi"), ModelSaid(content="hello"))
        context = await foveal.Context.load_from(store, id)
        context.append({"role": "user", "content": "bye"})
        await context.save_to(store, id)
        later = await Session.continue_from(store, id, "later", **SMALL)
        assert (await later.end()).next_seq > 1
        with pytest.raises(foveal.BadSetting, match="none for control"):
            await session.fork("b\nc")
        await session.delete()
        assert [info.id for info in await store.sessions(with_erased=False)] == ["later"]
