"""Contract tests for every `Store`: inherit from `Contract` and `StoreMachine` and set `make`.

`make` opens the store at a path. Opening the same path again gives the same sessions, unless the store is in memory
(`in_memory = True`).
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from foveal.core.log import (
    AnyFact,
    Call,
    Clipped,
    Compacted,
    Equipped,
    Erased,
    Event,
    Instructed,
    Mask,
    Masked,
    Media,
    ModelSaid,
    Noted,
    Text,
    ToolReturned,
    Unknown,
    Used,
    UserSaid,
    encode,
    kind,
    raw,
)
from foveal.core.log.events import MEMORY_LOG_PREFIX
from foveal.errors import Conflict, StoreError, UnknownSession
from foveal.ports import Checkpoint, SessionEnd, SessionInfo, Store

T = TypeVar("T")
StoreFactory = Callable[[Path, Callable[[], float]], Store]


class Clock:
    """A clock that advances by a second each time it is read; `now` sets it."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def log(*facts: AnyFact, first: int = 0, at: float | None = 1_700_000_000.5) -> list[Event]:
    """Return events with these facts, a second apart."""
    return [Event(first + nr, fact, None if at is None else at + nr) for nr, fact in enumerate(facts)]


def said(count: int, *, first: int = 0, text: str = "word") -> list[Event]:
    facts = (UserSaid(content=f"{text} {first + nr}") for nr in range(count))
    return log(*facts, first=first, at=1_700_000_000.5 + first)


LONG_TEXT = "".join(f"line {nr}: the parser stops at token {nr * 7919 % 1000}\n" for nr in range(2_000))
RANDOM_TEXT = "".join(f"{nr * 2654435761 % 2**32:08x}" for nr in range(3_000))

UNUSUAL_FACTS: dict[str, AnyFact] = {
    "an empty text": UserSaid(content=""),
    "a long text": ToolReturned(call_id="c", content=LONG_TEXT),
    "a text of exactly 4096 bytes": UserSaid(content="x" * 4096),
    "a text that is just larger": UserSaid(content="y" * 4097),
    "quotes and backslashes around the limit": UserSaid(content='\\"' * 2048 + "\\"),
    "two long parts with a call between": ModelSaid(
        content=(
            Text(text=LONG_TEXT),
            Call(id="1", name="f", arguments='{"a":"' + RANDOM_TEXT + '"}'),
            Text(text=RANDOM_TEXT),
        )
    ),
    "a picture": UserSaid(
        content=(Media(native=raw({"url": "data:image/png;base64," + RANDOM_TEXT}), size=24_000),)
    ),
    "many tools, none of them large": Equipped(
        tools=raw([{"name": f"tool_{nr}", "description": "does " * 9} for nr in range(200)])
    ),
    "many small and one large": Masked(
        masks=(
            *(Mask(target=nr, text=f"[left out {nr}]") for nr in range(300)),
            Mask(target=300, text=LONG_TEXT),
        )
    ),
    "a large summary": Compacted(first=0, last=5, summary=LONG_TEXT, metrics=raw({"a": [1, None, True]})),
    "pieces and markers": Clipped(target=3, pieces=((0, 10), "…" * 5_000, (90, 100))),
    "a lone surrogate": Noted(text="\ud800 alone"),
    "a lone surrogate in a long text": UserSaid(content=LONG_TEXT + "\udfff"),
    "NUL and control characters": UserSaid(content="\x00\x01\x1b[31m\x7f\u202e\u200b" * 900),
    "other scripts": UserSaid(content="日本語テキスト 😀 한국어 العربية " * 300),
    "JSON inside JSON inside JSON": ToolReturned(
        call_id="j", content=json.dumps(json.dumps({"a": LONG_TEXT}))
    ),
    "a kind of a later version": Unknown(
        kind="dreamt", raw=raw({"kind": "dreamt", "of": RANDOM_TEXT}), version=7
    ),
    "a later version's small kind": Unknown(kind="hm", raw=raw({"kind": "hm"}), version=2),
    "numbers": Used(input=2**53, cache_read=3, output=0),
    "nested a hundred deep": Instructed(content="x", extra=raw(json.loads("[" * 100 + "]" * 100))),
}


async def pages(store: Store, *, limit: int, with_erased: bool) -> list[SessionInfo]:
    """Return all sessions, read page by page."""
    found: list[SessionInfo] = []
    while True:
        before = (found[-1].active, found[-1].id) if found else None
        page = await store.sessions(limit=limit, before=before, with_erased=with_erased)
        found += page
        if len(page) < limit:
            return found


class Contract:
    """Inherit from it in a class whose name starts with `Test`, and set `make`."""

    make: ClassVar[StoreFactory]
    in_memory: ClassVar[bool] = False

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "store.db"

    @asynccontextmanager
    async def open_store(self, path: Path, clock: Callable[[], float] | None = None) -> AsyncIterator[Store]:
        store = type(self).make(path, clock or Clock())
        try:
            yield store
        finally:
            await store.close()

    def run(self, path: Path, work: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
        async def open_and_run() -> T:
            async with self.open_store(path) as store:
                return await work(store)

        return asyncio.run(open_and_run())

    # ── Appending and reading ────────────────────────────────────────────────────────────────────────────

    def test_appended_events_are_read(self, path: Path) -> None:
        async def work(store: Store) -> None:
            await store.append("a", said(3))
            await store.append("a", said(2, first=3))
            assert await store.read("a") == said(5)
            assert await store.read("a", first=2) == said(5)[2:]
            assert await store.read("a", first=1, last=3) == said(5)[1:4]
            assert await store.read("a", first=-5, last=99) == said(5)
            assert await store.read("a", first=5) == await store.read("a", first=3, last=2) == []
            assert await store.read("a", last=-1) == await store.read("a", first=2**40) == []

        self.run(path, work)

    def test_appended_events_are_there_after_reopening(self, path: Path) -> None:
        if self.in_memory:
            pytest.skip("this store is in memory")

        async def write(store: Store) -> SessionInfo:
            await store.append("a", said(3))
            await store.rename("a", "A title")
            await store.keep_checkpoint("a", Checkpoint(seq=2, needed=(0, 1), state=b"\x00s"))
            return await store.info("a")

        async def read(store: Store) -> tuple[list[Event], SessionInfo, Checkpoint | None]:
            return await store.read("a"), await store.info("a"), await store.checkpoint("a")

        before = self.run(path, write)
        assert self.run(path, read) == (said(3), before, Checkpoint(seq=2, needed=(0, 1), state=b"\x00s"))

    @pytest.mark.parametrize("what", UNUSUAL_FACTS)
    def test_any_text_comes_back_byte_for_byte(self, path: Path, what: str) -> None:
        events = log(UNUSUAL_FACTS[what], UserSaid(content="between"), UNUSUAL_FACTS[what])

        async def work(store: Store) -> None:
            await store.append("a", events[:1])
            await store.append("a", events[1:])
            for found in (await store.read("a"), await store.pick("a", [0, 1, 2])):
                assert [encode(event) for event in found] == [encode(event) for event in events]
                assert [event.seq for event in found] == [0, 1, 2]

        self.run(path, work)

    def test_times_come_back_exactly_even_if_missing(self, path: Path) -> None:
        times = [None, 0.0, 0.1 + 0.2, 1_700_000_000.123456, -5.0, 1e300, None]
        events = [Event(nr, Noted(text="."), at) for nr, at in enumerate(times)]

        async def work(store: Store) -> None:
            for event in events:
                await store.append("a", [event])
            assert [event.at for event in await store.read("a")] == times

        self.run(path, work)

    def test_pick_returns_single_events_of_the_session_in_order(self, path: Path) -> None:
        async def work(store: Store) -> None:
            for session in "abc":
                await store.append(session, said(50, text=session))
            expected = said(50, text="b")
            assert await store.pick("b", [7, 3, 3, 49, 50, -1, 2**32, 2**32 + 1, -(2**32), 2**70]) == [
                expected[3],
                expected[7],
                expected[49],
            ]
            assert await store.pick("b", []) == []
            assert await store.pick("b", range(2_000)) == expected

        self.run(path, work)

    def test_appending_no_events_does_nothing(self, path: Path) -> None:
        async def work(store: Store) -> None:
            await store.append("a", [])
            assert await store.sessions() == []

        self.run(path, work)

    # ── Conflicts ────────────────────────────────────────────────────────────────────────────────────────

    @pytest.mark.parametrize("first", [-1, 0, 1, 4, 2**32 + 2, 2**63])
    def test_a_seq_that_is_not_the_next_is_a_conflict(self, path: Path, first: int) -> None:
        async def work(store: Store) -> None:
            await store.append("other", said(9))
            await store.append("a", said(2))
            for count in (1, 2):
                with pytest.raises(Conflict) as caught:
                    await store.append("a", said(count, first=first))
                assert (caught.value.session, caught.value.given, caught.value.next_seq) == ("a", first, 2)
            with pytest.raises(Conflict):
                await store.append("new", said(1, first=1))
            assert await store.read("a") == said(2)
            assert {info.id for info in await store.sessions()} == {"a", "other"}

        self.run(path, work)

    def test_events_of_one_append_must_have_consecutive_seqs(self, path: Path) -> None:
        async def work(store: Store) -> None:
            await store.append("a", said(1))
            for batch in ([*said(1, first=1), *said(1, first=3)], [*said(1, first=1), *said(1, first=1)]):
                with pytest.raises(StoreError):
                    await store.append("a", batch)
            assert await store.read("a") == said(1)

        self.run(path, work)

    def test_exactly_one_of_many_concurrent_appends_wins_each_seq(self, path: Path) -> None:
        async def work(store: Store) -> None:
            async def writer(name: str) -> list[int]:
                won: list[int] = []
                seq = 0
                while len(won) < 12:
                    try:
                        await store.append("a", log(Noted(text=name), first=seq))
                        won.append(seq)
                        seq += 1
                    except Conflict as conflict:
                        seq = conflict.next_seq
                    await asyncio.sleep(0)
                return won

            won = await asyncio.gather(*(writer(f"writer {nr}") for nr in range(6)))
            events = await store.read("a")
            assert [event.seq for event in events] == list(range(72))
            assert sorted(seq for seqs in won for seq in seqs) == list(range(72))
            for nr, seqs in enumerate(won):
                assert {events[seq].fact for seq in seqs} == {Noted(text=f"writer {nr}")}

        self.run(path, work)

    # ── Sessions ─────────────────────────────────────────────────────────────────────────────────────────

    def test_every_call_for_an_unknown_session_raises(self, path: Path) -> None:
        async def work(store: Store) -> None:
            await store.append("a", said(1))
            calls: list[Awaitable[object]] = [
                store.read("b"),
                store.pick("b", [0]),
                store.checkpoint("b"),
                store.keep_checkpoint("b", Checkpoint(seq=0, needed=(), state=b"")),
                store.search("b", "word"),
                store.info("b"),
                store.end("b"),
                store.rename("b", "t"),
                store.fork("b", "c", at=0),
                store.erase("b"),
            ]
            for call in calls:
                with pytest.raises(UnknownSession, match="'b'"):
                    await call

        self.run(path, work)

    def test_sessions_lists_the_most_recently_active_first(self, path: Path) -> None:
        async def work(store: Store) -> None:
            await store.append("old", log(Noted(text="x"), at=100.0))
            await store.append("new", log(Noted(text="x"), at=300.0))
            await store.append("between", log(Noted(text="x"), Noted(text="y"), at=200.0))
            assert [info.id for info in await store.sessions()] == ["new", "between", "old"]
            await store.append("old", log(Noted(text="z"), first=1, at=400.0))
            await store.rename("between", "Über 😀")
            infos = await store.sessions()
            assert [(info.id, info.title, info.created, info.active, info.events) for info in infos] == [
                ("old", "", 100.0, 400.0, 2),
                ("new", "", 300.0, 300.0, 1),
                ("between", "Über 😀", 200.0, 201.0, 2),
            ]
            assert [await store.info(info.id) for info in infos] == infos

        self.run(path, work)

    def test_logs_of_memories_are_listed_apart(self, path: Path) -> None:
        async def work(store: Store) -> None:
            ids = [
                "a",
                f"{MEMORY_LOG_PREFIX}a",
                "foveal-memory",
                f"x{MEMORY_LOG_PREFIX}",
                f"{MEMORY_LOG_PREFIX}b",
            ]
            for id in ids:
                await store.append(id, said(2))
            await store.erase(f"{MEMORY_LOG_PREFIX}b")
            memories = {id for id in ids if id.startswith(MEMORY_LOG_PREFIX)}
            for limit in (None, 1, 10):
                found = await store.sessions(limit=limit), await store.sessions(limit=limit, memories=True)
                assert len(found[0]) == min(limit or 3, 3)
                assert {info.id for info in found[0]} <= {*ids} - memories
                assert {info.id for info in found[1]} <= memories
            kept = await store.sessions(memories=True, with_erased=False)
            assert [info.id for info in kept] == [f"{MEMORY_LOG_PREFIX}a"]

        self.run(path, work)

    def test_a_log_can_be_continued_after_it_was_erased(self, path: Path) -> None:
        """A memory is used again after its owner has erased it."""

        async def work(store: Store) -> None:
            await store.append("a", said(2))
            await store.erase("a")
            await store.append("a", said(1, first=2))
            events, erased = await store.read_new("a", first=0)
            assert erased
            assert [kind(event.fact) for event in events] == ["erased", "erased", "user_said"]
            await store.erase("a")
            assert {kind(event.fact) for event in await store.read("a")} == {"erased"}

        self.run(path, work)

    def test_pages_of_sessions_are_the_whole_list(self, path: Path) -> None:
        async def work(store: Store) -> None:
            times = [50.0, 10.0, 50.0, 49.5, 50.4, 0.0, 10.0, 51.2, 50.0]
            for number, at in enumerate(times):
                await store.append(f"s{number}", log(Noted(text="x"), at=at))
            await store.append("s1", log(Noted(text="later"), first=1, at=50.2))
            await store.append("s7", log(Noted(text="the clock was set back"), first=1, at=3.0))
            await store.append("untimed", [Event(0, Noted(text="x"), 7.0), Event(1, Noted(text="y"))])
            await store.fork("untimed", "copy", at=1)
            for erased in ("s2", "s6"):
                await store.erase(erased)
            for with_erased in (True, False):
                whole = [info for info in await store.sessions() if with_erased or not info.erased]
                places = [(info.active, info.id) for info in whole]
                assert places == sorted(places, reverse=True)
                assert await store.sessions(with_erased=with_erased) == whole
                for limit in (1, 2, 3, 100):
                    assert await pages(store, limit=limit, with_erased=with_erased) == whole
            assert await store.sessions(limit=0) == []
            assert await store.sessions(limit=5, before=(-1.0, "")) == []

        self.run(path, work)

    def test_events_without_a_time_use_the_store_s_clock(self, path: Path) -> None:
        async def work() -> None:
            clock = Clock(500.0)
            async with self.open_store(path, clock) as store:
                await store.append("a", log(Noted(text="x"), at=None))
                assert (await store.info("a")).created == (await store.info("a")).active == 501.0
                await store.append("a", log(Noted(text="x"), first=1, at=None))
                info = await store.info("a")
                assert (info.created, info.active) == (501.0, 502.0)

        asyncio.run(work())

    def test_times_that_go_backwards_change_nothing_else(self, path: Path) -> None:
        async def work(store: Store) -> None:
            for seq, at in enumerate((1000.0, 900.0, 0.0, -1.0)):
                await store.append("a", [Event(seq, Noted(text=str(seq)), at)])
            assert [event.fact for event in await store.read("a")] == [Noted(text=str(nr)) for nr in range(4)]
            info = await store.info("a")
            assert (info.created, info.active, info.events) == (1000.0, -1.0, 4)

        self.run(path, work)

    def test_a_session_id_may_be_any_text(self, path: Path) -> None:
        ids = [
            "",
            " ",
            "a",
            "A",
            "\u00e9",
            "e\u0301",
            "a\x00b",
            "a\x00c",
            "%",
            "'; DROP TABLE events; --",
            "x" * 5_000,
        ]

        async def work(store: Store) -> None:
            for nr, id in enumerate(ids):
                await store.append(id, said(1, text=f"of {nr}"))
            for nr, id in enumerate(ids):
                assert await store.read(id) == said(1, text=f"of {nr}")
            assert {info.id for info in await store.sessions()} == set(ids)

        self.run(path, work)

    def test_a_session_with_more_text_has_more_bytes(self, path: Path) -> None:
        async def work(store: Store) -> None:
            await store.append("small", said(1))
            await store.append("large", log(UserSaid(content=RANDOM_TEXT)))
            small, large = (await store.info("small")).bytes, (await store.info("large")).bytes
            assert 0 < small < 200
            assert large > 9_000

        self.run(path, work)

    # ── Fork, erase, checkpoints ─────────────────────────────────────────────────────────────────────────

    def test_a_fork_has_the_events_up_to_its_seq_and_is_independent(self, path: Path) -> None:
        async def work(store: Store) -> None:
            events = log(UserSaid(content=LONG_TEXT), *(Noted(text=str(nr)) for nr in range(4)))
            await store.append("a", events)
            await store.fork("a", "b", at=2)
            assert await store.read("b") == events[:3]
            await store.append("b", said(1, first=3))
            await store.append("a", said(1, first=5))
            assert await store.read("b") == events[:3] + said(1, first=3)
            assert await store.read("a") == events + said(1, first=5)

        self.run(path, work)

    def test_a_fork_to_an_existing_id_or_at_a_missing_seq_fails(self, path: Path) -> None:
        async def work(store: Store) -> None:
            await store.append("a", said(3))
            await store.append("b", said(2))
            for new, end in (("b", 2), ("a", 3)):
                with pytest.raises(Conflict) as caught:
                    await store.fork("a", new, at=1)
                assert caught.value.next_seq == end
            for at in (-1, 3, 2**40):
                with pytest.raises(StoreError):
                    await store.fork("a", "c", at=at)
            assert {info.id for info in await store.sessions()} == {"a", "b"}
            assert await store.read("b") == said(2)

        self.run(path, work)

    def test_a_fork_copies_a_checkpoint_of_the_events_it_has(self, path: Path) -> None:
        async def work(store: Store) -> None:
            checkpoint = Checkpoint(seq=2, needed=(1,), state=b"s")
            await store.append("a", said(5))
            await store.keep_checkpoint("a", checkpoint)
            await store.fork("a", "after", at=2)
            await store.fork("a", "before", at=1)
            assert await store.checkpoint("after") == checkpoint
            assert await store.checkpoint("before") is None

        self.run(path, work)

    def test_the_newest_checkpoint_replaces_the_older_one(self, path: Path) -> None:
        async def work(store: Store) -> None:
            await store.append("a", said(5))
            assert await store.checkpoint("a") is None
            for seq in (1, 4):
                checkpoint = Checkpoint(seq=seq, needed=tuple(range(seq)), state=bytes(range(256)))
                await store.keep_checkpoint("a", checkpoint)
                assert await store.checkpoint("a") == checkpoint

        self.run(path, work)

    def test_erasing_leaves_only_kinds_and_seqs(self, path: Path) -> None:
        facts = (*UNUSUAL_FACTS.values(), UserSaid(content="x"), Erased(was="noted"))

        async def work(store: Store) -> None:
            events = log(*facts)
            await store.append("a", events)
            await store.rename("a", "secret title")
            await store.keep_checkpoint("a", Checkpoint(seq=1, needed=(), state=b"secret"))
            await store.search("a", "parser")
            await store.erase("a")
            left = [Erased(was=kind(fact)) for fact in facts[:-1]] + [Erased(was="noted")]
            assert await store.read("a") == log(*left)
            info = await store.info("a")
            assert (info.title, info.erased, info.events) == ("", True, len(facts))
            assert info.bytes < 120 * len(facts)
            assert await store.checkpoint("a") is None
            assert await store.search("a", "parser") == []
            await store.append("a", said(1, first=len(facts)))
            await store.erase("a")
            assert [event.fact for event in await store.read("a", first=len(facts))] == [
                Erased(was="user_said")
            ]

        self.run(path, work)

    def test_news_returns_new_events_and_whether_the_session_was_erased(self, path: Path) -> None:
        async def work(store: Store) -> None:
            events = said(4)
            await store.append("a", events)
            await store.append("b", events)
            assert await store.read_new("a", first=2) == (events[2:], False)
            assert await store.read_new("a", first=4) == ([], False)
            await store.erase("a")
            assert await store.read_new("a", first=4) == ([], True)
            assert await store.read_new("b", first=0) == (events, False)
            with pytest.raises(UnknownSession):
                await store.read_new("unknown", first=0)

        self.run(path, work)

    def test_erasing_a_session_leaves_others_with_the_same_text(self, path: Path) -> None:
        async def work(store: Store) -> None:
            events = log(UserSaid(content=LONG_TEXT), Noted(text="x"))
            await store.append("a", events)
            await store.append("b", events)
            await store.fork("a", "c", at=0)
            await store.erase("a")
            assert await store.read("b") == events
            assert await store.read("c") == events[:1]
            assert not (await store.info("b")).erased

        self.run(path, work)

    # ── Search ───────────────────────────────────────────────────────────────────────────────────────────

    def test_a_search_finds_words_of_its_session_even_just_appended(self, path: Path) -> None:
        async def work(store: Store) -> None:
            await store.append(
                "a", log(UserSaid(content="the zebra crosses"), UserSaid(content="nothing here"))
            )
            await store.append("b", log(UserSaid(content="a zebra elsewhere"), UserSaid(content="okapi")))
            assert [hit.seq for hit in await store.search("a", "zebra")] == [0]
            assert await store.search("a", "okapi") == []
            await store.append("a", log(ToolReturned(call_id="1", content=LONG_TEXT + " okapi"), first=2))
            assert [hit.seq for hit in await store.search("a", "okapi")] == [2]
            assert len(await store.search("a", "zebra okapi nothing", limit=2)) == 2
            assert await store.search("a", "zebra", limit=0) == []
            await store.fork("b", "c", at=1)
            assert [hit.seq for hit in await store.search("c", "okapi")] == [1]

        self.run(path, work)

    @pytest.mark.parametrize(
        "query", ["", '"', "a AND OR (", "*", "\x00", "\ud800", "NEAR(", "x" * 50_000, "a:b ^"]
    )
    def test_any_text_is_a_valid_query(self, path: Path, query: str) -> None:
        async def work(store: Store) -> None:
            await store.append("a", said(3))
            assert isinstance(await store.search("a", query), list)

        self.run(path, work)

    def test_closing_twice_is_allowed(self, path: Path) -> None:
        async def work(store: Store) -> None:
            await store.append("a", said(1))
            assert await store.close() is None
            assert await store.close() is None

        self.run(path, work)


# ── A store compared with a model ────────────────────────────────────────────────────────────────────────

_LARGE_TEXTS = {
    "long": LONG_TEXT,
    "middle": LONG_TEXT[:5_000],
    "noise": RANDOM_TEXT,
    "just": "x" * 4_096,
    "accents": "é" * 2_049,
}
_texts = st.one_of(
    st.text(max_size=40),
    st.sampled_from(["", "\ud800", "\x00"]),
    st.sampled_from(sorted(_LARGE_TEXTS)).map(lambda name: _LARGE_TEXTS[name]),
)
_facts = st.one_of(
    st.builds(lambda text: UserSaid(content=text), _texts),
    st.builds(lambda a, b: ModelSaid(content=(Text(text=a), Text(text=b))), _texts, _texts),
    st.builds(lambda text: ToolReturned(call_id="c", content=text), _texts),
    st.builds(
        lambda text: Unknown(kind="odd", raw=raw({"kind": "odd", "x": text}), version=9), st.text(max_size=9)
    ),
)
_names = st.sampled_from(["a", "b", "c", "d"])


class _ExpectedSession:
    """The expected state of one session."""

    def __init__(self, events: list[Event], *, erased: bool = False) -> None:
        self.events = events
        self.title = ""
        self.erased = erased
        self.checkpoint: Checkpoint | None = None


class StoreMachine(RuleBasedStateMachine):
    """Calls the methods in any order; compares the store with plain lists after each step."""

    make: ClassVar[StoreFactory]
    in_memory: ClassVar[bool] = False

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.loop = asyncio.new_event_loop()
        self.model: dict[str, _ExpectedSession] = {}
        self.clock = Clock()
        self._open()

    def _open(self) -> None:
        self.store = type(self).make(Path(self.folder.name) / "store.db", self.clock)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def _fails(self, work: Coroutine[Any, Any, object], *errors: type[Exception]) -> None:
        with pytest.raises(errors):
            self.run(work)

    @rule(
        name=_names, facts=st.lists(_facts, min_size=1, max_size=4), off=st.sampled_from([0, 0, 0, 0, -1, 1])
    )
    def append(self, name: str, facts: list[AnyFact], off: int) -> None:
        known = self.model.get(name)
        end = len(known.events) if known else 0
        events = log(*facts, first=end + off)
        if off:
            self._fails(self.store.append(name, events), Conflict)
            return
        self.run(self.store.append(name, events))
        self.model.setdefault(name, _ExpectedSession([])).events.extend(events)

    @rule(name=_names, new=_names, at=st.integers(-1, 6))
    def fork(self, name: str, new: str, at: int) -> None:
        known = self.model.get(name)
        if known is None or new in self.model or not 0 <= at < len(known.events):
            self._fails(self.store.fork(name, new, at=at), StoreError)
            return
        self.run(self.store.fork(name, new, at=at))
        self.model[new] = copy = _ExpectedSession(known.events[: at + 1], erased=known.erased)
        if known.checkpoint and known.checkpoint.seq <= at:
            copy.checkpoint = known.checkpoint

    @rule(name=_names)
    def erase(self, name: str) -> None:
        if name not in self.model:
            self._fails(self.store.erase(name), UnknownSession)
            return
        self.run(self.store.erase(name))
        known = self.model[name]
        known.events = [
            event
            if isinstance(event.fact, Erased)
            else Event(event.seq, Erased(was=kind(event.fact)), event.at)
            for event in known.events
        ]
        known.title, known.erased, known.checkpoint = "", True, None

    @rule(name=_names, title=st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
    def rename(self, name: str, title: str) -> None:
        if name not in self.model:
            self._fails(self.store.rename(name, title), UnknownSession)
            return
        self.run(self.store.rename(name, title))
        self.model[name].title = title

    @rule(name=_names, seq=st.integers(0, 9), state=st.binary(max_size=9))
    def keep_checkpoint(self, name: str, seq: int, state: bytes) -> None:
        checkpoint = Checkpoint(seq=seq, needed=tuple(range(seq)), state=state)
        if name not in self.model:
            self._fails(self.store.keep_checkpoint(name, checkpoint), UnknownSession)
            return
        self.run(self.store.keep_checkpoint(name, checkpoint))
        self.model[name].checkpoint = checkpoint

    @rule(name=_names, first=st.integers(-2, 9), last=st.one_of(st.none(), st.integers(-2, 9)))
    def read(self, name: str, first: int, last: int | None) -> None:
        if name not in self.model:
            self._fails(self.store.read(name, first=first, last=last), UnknownSession)
            return
        expected = [e for e in self.model[name].events if e.seq >= first and (last is None or e.seq <= last)]
        assert self.run(self.store.read(name, first=first, last=last)) == expected

    @rule(name=_names, seqs=st.lists(st.integers(-2, 12), max_size=6))
    def pick(self, name: str, seqs: list[int]) -> None:
        if name in self.model:
            expected = [event for event in self.model[name].events if event.seq in seqs]
            assert self.run(self.store.pick(name, seqs)) == expected

    @rule(name=_names)
    def search(self, name: str) -> None:
        if name in self.model:
            found = {hit.seq for hit in self.run(self.store.search(name, "parser"))}
            expected = {e.seq for e in self.model[name].events if b"the parser stops" in encode(e)}
            assert found == expected

    @rule()
    def reopen(self) -> None:
        if not self.in_memory:
            self.run(self.store.close())
            self._open()

    @invariant()
    def the_store_equals_the_model(self) -> None:
        infos = {info.id: info for info in self.run(self.store.sessions())}
        assert infos.keys() == self.model.keys()
        for name, known in self.model.items():
            info = infos[name]
            assert (info.title, info.events, info.erased) == (known.title, len(known.events), known.erased)
            assert self.run(self.store.end(name)) == SessionEnd(info.events, info.erased)
            found = self.run(self.store.read(name))
            assert [encode(event) for event in found] == [encode(event) for event in known.events]
            assert self.run(self.store.checkpoint(name)) == known.checkpoint

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.run(self.store.close())
            self.loop.close()
            self.folder.cleanup()
