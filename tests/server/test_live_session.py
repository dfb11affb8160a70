"""Tests of live sessions: messages are stored, answered once and in order, also across crashes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from msgspec import structs

from foveal.agent.events import ModelAnswered, TextStreamed, TurnFinished, UserMessageStored
from foveal.config import Config, load
from foveal.core.engine.operations import OPERATIONS, OperationRequest
from foveal.core.log import Compacted, Erased, Event, Instructed, ModelSaid, Noted, UserSaid, text_of
from foveal.core.tokens.counter import _load_counter
from foveal.errors import (
    AnsweredElsewhere,
    BadSetting,
    Busy,
    KeyReused,
    NotCompacted,
    NothingToAsk,
    ProviderError,
    SessionExists,
    StoreError,
    StoreUnusable,
    UnknownSession,
)
from foveal.ports import Reply, ReplyPiece
from foveal.server import (
    PROXY_ORIGIN,
    EventsStored,
    InboxCounted,
    LiveSession,
    Service,
    ServiceEvent,
    TurnBegan,
    TurnEnded,
    turns,
)
from foveal.server.inbox import SessionSetup
from foveal.server.turns import TURN_NOTE_TOPIC
from foveal.sessions import Session
from foveal.testing import Scripted
from support import warm_start
from support.gated_provider import GatedProvider, run
from support.legality import check_chat
from support.paths import SUPPORT
from support.provided import provided
from support.service_process import KILL_POINTS, script
from support.warm_start import WarmProcess

UNDO = OperationRequest(operation="undo")


def configured(tmp_path: Path, **flags: Any) -> Config:
    return load(tmp_path, flags=flags, environ={}, user_folder=tmp_path / "empty")


@asynccontextmanager
async def opened(
    tmp_path: Path, *answers: Any, provider: Scripted | None = None, other: Scripted | None = None
) -> AsyncIterator[Service]:
    """Open a service; `other` is a second model, by its name."""
    providers = provided(provider or Scripted(*answers), {other.model.name: other} if other else None)
    async with Service.open(
        configured(tmp_path), folder=tmp_path / "served", environment={}, make_provider=providers
    ) as service:
        yield service


async def events(live: LiveSession) -> list[Event]:
    return await live.events()


def spoken(log: list[Event]) -> list[str]:
    said = (e.fact for e in log if isinstance(e.fact, UserSaid | ModelSaid))
    return [text_of(fact.content) for fact in said]


@run
async def test_estimating_tokens_loads_no_vocabulary(tmp_path: Path) -> None:
    _load_counter.cache_clear()
    config = configured(tmp_path, tokenizer="estimate")
    async with Service.open(
        config, folder=tmp_path / "served", environment={}, make_provider=provided(Scripted("Hello."))
    ) as service:
        await service.tenant("default").create("demo")
    assert _load_counter.cache_info().currsize == 1


# ── Submitting ────────────────────────────────────────────────────────────────────────────────────────


@run
async def test_a_message_is_stored_then_answered_and_late_readers_get_all_events(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, "Hello to you.") as service:
        live = await service.tenant("default").create("demo")
        turn = await live.submit("Hello.")
        outcome = await turn.outcome()
        assert (outcome.why, outcome.text) == ("answered", "Hello to you.")
        emitted = [event async for event in turn.events()]
        assert [type(event) for event in emitted] == [
            UserMessageStored,
            TextStreamed,
            TextStreamed,  # redaction holds the last word back until the answer ends
            ModelAnswered,
            TurnFinished,
        ]
        assert spoken(await events(live)) == ["Hello.", "Hello to you."]


@run
async def test_a_reader_gets_every_piece_and_can_resume_where_it_left(
    tmp_path: Path,
) -> None:
    provider = GatedProvider("one\ntwo\nthree")
    async with opened(tmp_path, provider=provider) as service:
        live = await service.tenant("default").create("demo")
        turn = await live.submit("Count.")
        seen: list[int] = []
        async for number, _ in turn.numbered_events():
            seen.append(number)
            provider.gate.set()
            if len(seen) == 2:
                break
        rest = [(number, type(h)) async for number, h in turn.numbered_events(after=seen[-1])]
        assert [number for number, _ in rest] == list(range(3, 3 + len(rest)))
        assert rest[-1][1] is TurnFinished
        assert (await turn.outcome()).text == "one\ntwo\nthree"


@run
async def test_concurrent_messages_are_answered_in_the_order_of_storing(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, *(f"answer {n}" for n in range(5))) as service:
        live = await service.tenant("default").create("demo")
        turns = [await live.submit(f"question {n}") for n in range(5)]
        outcomes = [await turn.outcome() for turn in turns]
        assert [outcome.text for outcome in outcomes] == [f"answer {n}" for n in range(5)]
        asked = [f"{kind} {n}" for n in range(5) for kind in ("question", "answer")]
        assert spoken(await events(live)) == asked


@run
async def test_the_same_key_returns_the_same_turn(tmp_path: Path) -> None:
    async with opened(tmp_path, "Once.") as service:
        live = await service.tenant("default").create("demo")
        first = await live.submit("Do it.", key="k1")
        await first.outcome()
        assert await live.submit("Do it.", key="k1") is first
        assert spoken(await events(live)) == ["Do it.", "Once."]


@run
async def test_a_key_of_an_earlier_process_returns_its_outcome(tmp_path: Path) -> None:
    async with opened(tmp_path, "Once.") as service:
        live = await service.tenant("default").create("demo")
        await (await live.submit("Do it.", key="k1")).outcome()
    async with opened(tmp_path) as service:
        live = await service.tenant("default").session("demo")
        outcome = await (await live.submit("Do it.", key="k1")).outcome()
        assert (outcome.why, outcome.text) == ("answered", "Once.")
        assert spoken(await events(live)) == ["Do it.", "Once."]


@run
async def test_a_key_with_another_text_is_refused(tmp_path: Path) -> None:
    provider = GatedProvider("Once.")
    async with opened(tmp_path, provider=provider) as service:
        live = await service.tenant("default").create("demo")
        turn = await live.submit("Do it.", key="k1")
        for text in ("Do that.", ""):
            with pytest.raises(KeyReused, match="use a new key"):
                await live.submit(text, key="k1")
        provider.gate.set()
        await turn.outcome()
        with pytest.raises(KeyReused):
            await live.submit("Do that.", key="k1")
        assert await live.submit("Do it.", key="k1") is turn
        assert spoken(await events(live)) == ["Do it.", "Once."]


@run
async def test_a_secret_reaches_neither_the_inbox_nor_the_log(tmp_path: Path) -> None:
    secret = "sk-proj-" + "Ab3dEf6hIj9lMn2pQr5tUv8xYz1b" * 2
    async with opened(tmp_path, "Noted.") as service:
        live = await service.tenant("default").create("demo")
        await (await live.submit(f"My key is {secret}, keep it.")).outcome()
        assert secret not in str(await events(live))
    for path in (tmp_path / "served").rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path


# ── Errors ────────────────────────────────────────────────────────────────────────────────────────────


@run
async def test_a_provider_error_ends_the_turn_and_the_model_can_be_asked_again(
    tmp_path: Path,
) -> None:
    fault = ProviderError("no connection: check it", code="connection")
    async with opened(tmp_path, fault, "Here I am.") as service:
        live = await service.tenant("default").create("demo")
        outcome = await (await live.submit("Hello?")).outcome()
        assert (outcome.why, outcome.code, outcome.problem) == (
            "failed",
            "connection",
            "no connection: check it",
        )
        again = await live.retry()
        assert (await again.outcome()).text == "Here I am."
        assert spoken(await events(live)) == ["Hello?", "Here I am."]
        with pytest.raises(NothingToAsk, match="answered"):
            await live.retry()


@run
async def test_an_unexpected_error_ends_the_turn_without_showing_its_message(tmp_path: Path) -> None:
    class Strange(Scripted):
        async def send(self, request: Any, *, max_tokens: int) -> AsyncIterator[ReplyPiece | Reply]:
            raise BaseExceptionGroup("secret words", [KeyboardInterrupt()])
            yield

    async with opened(tmp_path, provider=Strange()) as service:
        live = await service.tenant("default").create("demo")
        outcome = await (await live.submit("Hello?")).outcome()
        assert outcome.why == "failed"
        assert "secret words" not in outcome.problem


@run
async def test_calls_that_broke_off_or_came_without_usage_are_counted_without_a_price(tmp_path: Path) -> None:
    class Unreported(Scripted):
        async def send(self, request: Any, *, max_tokens: int) -> AsyncIterator[ReplyPiece | Reply]:
            async for item in super().send(request, max_tokens=max_tokens):
                if not isinstance(item, Reply) or len(self.requests) == 1:
                    yield item
                elif len(self.requests) == 2:
                    raise ProviderError("the connection broke off", code="connection")
                else:
                    yield structs.replace(item, usage=None)

    provider = Unreported("Hello.", "The beginning", "All of it.", name="openai/gpt-4.1")
    async with opened(tmp_path, provider=provider) as service:
        live = await service.tenant("default").create("demo", SessionSetup(user="ada"))
        for why in ("answered", "failed", "answered"):
            assert (await (await live.submit("Hello?")).outcome()).why == why
        (row,) = await service.runtime.usage.rows(["user"])
        assert (row.user, row.calls, row.unpriced) == ("ada", 3, 2)
        assert (await live.usage()).unknown_calls == 2


@run
async def test_a_call_that_a_user_stopped_is_counted_without_a_price(tmp_path: Path) -> None:
    provider = Scripted("The beginning\n" * 50, delay=0.05)
    async with opened(tmp_path, provider=provider) as service:
        live = await service.tenant("default").create("demo")
        turn = await live.submit("Hello?")
        async for event in turn.events():
            if isinstance(event, TextStreamed):
                turn.stop()
        (row,) = await service.runtime.usage.rows([])
        assert (row.calls, row.unpriced) == (1, 1)


@run
async def test_a_stopped_turn_keeps_its_text_and_the_session_continues(tmp_path: Path) -> None:
    provider = GatedProvider("never", "Yes.")
    async with opened(tmp_path, provider=provider) as service:
        live = await service.tenant("default").create("demo")
        turn = await live.submit("Begin.")
        await provider.asked_once.wait()
        turn.stop()
        assert (await turn.outcome()).why == "stopped"
        provider.gate.set()
        assert (await (await live.submit("Still there?")).outcome()).why == "answered"


@run
async def test_a_turn_stopped_before_it_began_still_logs_its_message(
    tmp_path: Path,
) -> None:
    provider = GatedProvider("first", "second")
    async with opened(tmp_path, provider=provider) as service:
        live = await service.tenant("default").create("demo")
        first, second = await live.submit("One."), await live.submit("Two.")
        await provider.asked_once.wait()
        second.stop()
        provider.gate.set()
        assert (await first.outcome()).why == "answered"
        assert (await second.outcome()).why == "stopped"
        assert spoken(await events(live)) == ["One.", "first", "Two."]


@run
async def test_a_message_that_cannot_be_stored_raises(tmp_path: Path) -> None:
    async with opened(tmp_path) as service:
        live = await service.tenant("default").create("demo")
        await service.runtime.database.close()
        with pytest.raises(StoreError):
            await live.submit("Hello.")


# ── Changing a session ────────────────────────────────────────────────────────────────────────────────


@run
async def test_a_busy_session_refuses_compact_append_and_undo(tmp_path: Path) -> None:
    provider = GatedProvider("late")
    async with opened(tmp_path, provider=provider) as service:
        live = await service.tenant("default").create("demo")
        turn = await live.submit("Begin.")
        operations = [partial(live.perform, OperationRequest(operation=name)) for name in OPERATIONS]
        for steer in (live.compact, lambda: live.append(Noted(text="x")), *operations):
            with pytest.raises(Busy, match="demo"):
                await steer()
        provider.gate.set()
        await turn.outcome()
        await live.append(Noted(text="x"))


@run
async def test_a_compaction_reports_tokens_and_can_be_undone(tmp_path: Path) -> None:
    answers = [f"The answer to question {n} is {n * 7}. " * 40 for n in range(8)]
    async with opened(tmp_path, *answers, *("A summary that is none.",) * 20) as service:
        live = await service.tenant("default").create("demo")
        with pytest.raises(NotCompacted):
            await live.compact()
        for n in range(8):
            await (await live.submit(f"Question {n}?")).outcome()
        done = await live.compact()
        assert isinstance(done.event.fact, Compacted)
        assert done.after.used < done.before.used
        assert (await live.perform(UNDO)).named == done.event.handle
        # Within a token: the offer of the recall tools, taken back by the undo, makes the number an estimate again.
        assert abs((await live.report()).used - done.before.used) <= 1


@run
async def test_a_message_during_a_summary_is_stored_at_once_and_answered_later(
    tmp_path: Path,
) -> None:
    answers = [f"The answer to question {n} is {n * 7}. " * 40 for n in range(8)]
    provider = GatedProvider(*answers, *("A summary that is none.",) * 3, *("And now?",) * 20)
    async with opened(tmp_path, provider=provider) as service:
        live = await service.tenant("default").create("demo")
        provider.gate.set()
        for n in range(8):
            await (await live.submit(f"Question {n}?")).outcome()
        provider.gate.clear()
        provider.asked_once.clear()
        compacting = asyncio.create_task(live.compact())
        await provider.asked_once.wait()
        turn = await live.submit("What next?")
        assert turn.state == "waiting"
        assert await service.runtime.inbox.unfinished() == [("default", "demo", 1)]
        provider.gate.set()
        done = await compacting
        assert (await turn.outcome()).why == "answered"
        log = await events(live)
        asked = next(e.seq for e in log if isinstance(e.fact, UserSaid) and e.fact.content == "What next?")
        assert done.event.seq < asked


@run
async def test_recall_tools_are_offered_after_the_first_reduction_and_stay(
    tmp_path: Path,
) -> None:
    answers = [f"The answer to question {n} is {n * 7}. " * 40 for n in range(8)]
    provider = Scripted(*answers, *("A summary that is none.",) * 3, *("And now?",) * 20)
    async with opened(tmp_path, provider=provider) as service:
        live = await service.tenant("default").create("demo")
        for n in range(8):
            await (await live.submit(f"Question {n}?")).outcome()
        assert [asked.tools for asked in provider.requests] == [[]] * 8
        await live.compact()
        await (await live.submit("What was it?")).outcome()
        assert [tool["name"] for tool in provider.requests[-1].tools] == ["recall_search", "recall_read"]
        await live.perform(UNDO)
        await (await live.submit("And now?")).outcome()
        assert len(provider.requests[-1].tools) == 2
    async with opened(tmp_path, provider=provider) as service:
        live = await service.tenant("default").session("demo")
        await (await live.submit("And after a restart?")).outcome()
        assert len(provider.requests[-1].tools) == 2


@run
async def test_settings_of_one_session_do_not_affect_others(tmp_path: Path) -> None:
    second = Scripted("other", name="scripted/other", window=9_000)
    async with opened(tmp_path, "one", "two", other=second) as service:
        tenant = service.tenant("default")
        plain = await tenant.create("plain")
        other = await tenant.create("other", SessionSetup("scripted/other"), system="Speak French.")
        assert [live.model for live in (plain, other)] == ["scripted/model", "scripted/other"]
        assert (await (await other.submit("Hello.")).outcome()).text == "other"
        assert (await (await plain.submit("Hello.")).outcome()).text == "one"
        windows = [(await live.report()).window for live in (plain, other)]
        assert windows == [128_000, 9_000]
        assert "French" not in str(await events(plain))


@run
async def test_an_existing_or_erased_id_cannot_be_created_again(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, "Yes.") as service:
        tenant = service.tenant("default")
        live = await tenant.create("demo", title="A demo", system="Be kind.")
        await (await live.submit("A secret plan.")).outcome()
        with pytest.raises(SessionExists):
            await tenant.create("demo")
        assert [info.title for info in await tenant.sessions()] == ["A demo"]
        first = next(e.fact for e in await events(live) if isinstance(e.fact, Instructed))
        assert first.content == "Be kind."
        await tenant.delete("demo")
        assert await tenant.sessions() == []
        for act in (tenant.session, tenant.delete, tenant.ensure):
            with pytest.raises(UnknownSession):
                await act("demo")
        with pytest.raises(SessionExists):
            await tenant.create("demo")
        assert {type(e.fact) for e in await tenant.store.read("demo")} == {Erased}


@run
async def test_deleting_a_busy_session_ends_its_turn_and_leaves_no_text(
    tmp_path: Path,
) -> None:
    provider = GatedProvider("never")
    async with opened(tmp_path, provider=provider) as service:
        tenant = service.tenant("default")
        live = await tenant.create("demo")
        turns = [await live.submit("The canary sings."), await live.submit("The canary sings again.")]
        await provider.asked_once.wait()
        deleting = asyncio.create_task(tenant.delete("demo"))
        provider.gate.set()
        await deleting
        for turn in turns:
            assert (await turn.outcome()).why in ("stopped", "answered")
    for path in (tmp_path / "served").rglob("*"):
        if path.is_file():
            assert b"canary" not in path.read_bytes(), path


@run
async def test_a_fork_does_not_change_its_origin(tmp_path: Path) -> None:
    async with opened(tmp_path, "one", "two", "three") as service:
        tenant = service.tenant("default")
        live = await tenant.create("demo")
        await (await live.submit("first")).outcome()
        other = await tenant.fork("demo", "branch")
        await (await other.submit("second")).outcome()
        assert spoken(await events(other)) == ["first", "one", "second", "two"]
        assert spoken(await events(live)) == ["first", "one"]


@run
async def test_tenants_do_not_see_sessions_of_others_with_the_same_id(tmp_path: Path) -> None:
    async with opened(tmp_path, "for a", "for b") as service:
        a, b = service.tenant("a"), service.tenant("b")
        await (await (await a.create("same")).submit("I am a.")).outcome()
        with pytest.raises(UnknownSession):
            await b.session("same")
        live = await b.create("same")
        await (await live.submit("I am b.")).outcome()
        assert spoken(await events(live)) == ["I am b.", "for b"]


@pytest.mark.parametrize("name", ["", "A", "../x", "a/b", "a" * 64, "-a", "ä", "a\n"])
def test_a_tenant_name_cannot_leave_its_folder(name: str, tmp_path: Path) -> None:
    async def act() -> None:
        async with opened(tmp_path) as service:
            with pytest.raises(BadSetting):
                service.tenant(name)

    asyncio.run(act())


@pytest.mark.parametrize("id", ["a/b", "x" * 201, "a\nb", "a\x00b", "\ud800", "..", " a", "a\u202eb"])
def test_an_invalid_session_id_is_refused(id: str, tmp_path: Path) -> None:
    async def act() -> None:
        async with opened(tmp_path) as service:
            for make in (service.tenant("default").create, service.tenant("default").ensure):
                with pytest.raises(BadSetting):
                    await make(id)

    asyncio.run(act())


# ── Observers and listeners ───────────────────────────────────────────────────────────────────────────


@run
async def test_observers_get_turns_stored_events_and_the_inbox_count(tmp_path: Path) -> None:
    seen: list[ServiceEvent] = []
    async with opened(tmp_path, "Hello.") as service:
        service.runtime.add_observer(seen.append)
        live = await service.tenant("default").create("demo")
        await (await live.submit("Hi.")).outcome()
        await live.wait_idle()
        async with asyncio.timeout(120):
            while not any(isinstance(o, InboxCounted) and o.count == 0 for o in seen):
                await asyncio.sleep(0.02)
    kinds = [type(occurrence) for occurrence in seen]
    assert kinds.index(TurnBegan) < kinds.index(TurnEnded)
    assert [o.why for o in seen if isinstance(o, TurnEnded)] == ["answered"]
    assert sum(len(o.events) for o in seen if isinstance(o, EventsStored)) >= 4
    assert [o.count for o in seen if isinstance(o, InboxCounted)][-1] == 0


@run
async def test_turn_listeners_are_called_and_their_errors_are_ignored(tmp_path: Path) -> None:
    answers: list[tuple[str, str]] = []

    async def listen(live: LiveSession, turn: Any) -> None:
        answers.append((live.id, turn.text))
        raise ValueError("mine")

    async with opened(tmp_path, "one", "two") as service:
        tenant = service.tenant("default")
        tenant.add_turn_listener(listen)
        live = await tenant.create("demo")
        for text in ("a", "b"):
            await (await live.submit(text)).outcome()
        await live.wait_idle()
    assert answers == [("demo", "one"), ("demo", "two")]


@run
async def test_a_needed_summary_is_requested_from_the_worker(
    tmp_path: Path,
) -> None:
    asked: list[tuple[str, str, int]] = []

    async def later(tenant: str, session: str, seq: int) -> None:
        asked.append((tenant, session, seq))

    answers = [f"Item {n} has the number {n * 13}. " * 60 for n in range(20)]
    async with opened(tmp_path, provider=Scripted(*answers, window=6_000)) as service:
        service.runtime.delegate_summaries(later)
        live = await service.tenant("default").create("demo")
        for n in range(20):
            await (await live.submit(f"Item {n}?")).outcome()
            await live.wait_idle()
            if asked:
                break
        assert asked == [("default", "demo", live.session.last)]
        event = await live.prepare()
        assert event is not None
        assert isinstance(event.fact, Compacted)
        assert await live.prepare() is None


# ── Shutdown ──────────────────────────────────────────────────────────────────────────────────────────


@run
async def test_a_turn_that_a_shutdown_stops_is_answered_after_the_next_start(tmp_path: Path) -> None:
    provider = GatedProvider("never stored")
    async with opened(tmp_path, provider=provider) as service:
        live = await service.tenant("default").create("demo")
        turn = await live.submit("first", key="k")
        await provider.asked_once.wait()
        await service.end_turns(grace=0.0)
        outcome = await turn.outcome()
        assert (outcome.why, outcome.code, outcome.is_pending) == ("stopped", "stopping", True)
    async with opened(tmp_path, "the answer") as service:
        assert await service.recover() == 1
        live = await service.tenant("default").session("demo")
        assert (await (await live.submit("first", key="k")).outcome()).text == "the answer"
        assert spoken(await events(live)) == ["first", "the answer"]


@run
async def test_shutdown_waits_for_the_turn_and_keeps_the_next_message(
    tmp_path: Path,
) -> None:
    provider = GatedProvider("first answer")
    async with opened(tmp_path, provider=provider) as service:
        live = await service.tenant("default").create("demo")
        first = await live.submit("first")
        await provider.asked_once.wait()
        second = await live.submit("second")
        ending = asyncio.create_task(service.end_turns(grace=30.0))
        await asyncio.sleep(0)
        provider.gate.set()
        await ending
        assert (await first.outcome()).text == "first answer"
        assert (await second.outcome()).code == "stopping"
        assert (await (await live.submit("third")).outcome()).code == "stopping"
    async with opened(tmp_path, "second answer", "third answer") as service:
        assert await service.recover() == 2
        live = await service.tenant("default").session("demo")
        await live.wait_idle()
        asked = ["first", "first answer", "second", "second answer", "third", "third answer"]
        assert spoken(await events(live)) == asked


# ── Several processes ─────────────────────────────────────────────────────────────────────────────────


def process(folder: Path, *arguments: str) -> WarmProcess:
    return warm_start.start([SUPPORT / "service_process.py", folder, *arguments], stdout=PIPE, stdin=PIPE)


@pytest.mark.parametrize("point", KILL_POINTS)
def test_a_turn_of_a_killed_process_is_resumed_once_and_stays_legal(point: str, tmp_path: Path) -> None:
    with process(tmp_path, "die", point) as dying:
        assert dying.wait(60) != 0

    @run
    async def recovered() -> None:
        provider = script()
        async with opened(tmp_path, provider=provider) as service:
            await service.recover()
            live = await service.tenant("default").session("demo")
            await live.wait_idle()
            log = await events(live)
            assert [text for text in spoken(log) if text == "Do the work."] == ["Do the work."]
            assert spoken(log)[-1] == "It is done."
            assert sum(isinstance(e.fact, Noted) and e.fact.topic == TURN_NOTE_TOPIC for e in log) == 1
            assert check_chat((await live.session.fit()).to_openai()) == []
            assert await live.session.open_calls() == []
            assert await service.recover() == 0

    recovered()


def test_two_processes_answer_each_message_once_in_one_order(tmp_path: Path) -> None:
    crowd = [process(tmp_path, "say", name, "6") for name in ("a", "b")]
    outputs = [one.communicate(timeout=120)[0].decode() for one in crowd]
    assert [one.returncode for one in crowd] == [0, 0]

    @run
    async def looked() -> None:
        async with opened(tmp_path) as service:
            log = await service.tenant("default").store.read("demo")
            texts = spoken(log)
            questions, answers = texts[::2], texts[1::2]
            assert sorted(questions) == sorted(f"{name} {n}" for name in ("a", "b") for n in range(6))
            for name in ("a", "b"):
                mine = [text for text in questions if text.startswith(name)]
                assert mine == [f"{name} {n}" for n in range(6)]
            assert answers == [f"echo of {text}" for text in questions]

    looked()
    for name, output in zip(("a", "b"), outputs, strict=True):
        assert output.splitlines() == [f"echo of {name} {n}" for n in range(6)]


def test_late_readers_get_the_pieces_of_a_short_answer_only() -> None:
    async def act() -> None:
        for count, kept in ((10, 10), (turns.MAX_KEPT_TURN_EVENTS + 1, 0)):
            turn = turns.Turn("t1", tenant="default", session="demo", key="k")
            for n in range(count):
                turn.emit(TextStreamed(piece=ReplyPiece(text=str(n))))
            turn.end(turns.TurnOutcome(why="answered"))
            assert len([h async for h in turn.events()]) == kept
            turn.discard_streamed_text()
            assert [h async for h in turn.events()] == []

    asyncio.run(act())


def test_only_the_owner_can_read_the_data_folder(tmp_path: Path) -> None:
    async def act() -> None:
        async with opened(tmp_path, "Yes.") as service:
            live = await service.tenant("default").create("demo")
            await (await live.submit("Hello.")).outcome()
            for path in [tmp_path / "served", *(tmp_path / "served").rglob("*")]:
                assert os.stat(path).st_mode & 0o077 == 0, path

    asyncio.run(act())


# ── Found by reviewers ────────────────────────────────────────────────────────────────────────────────


@run
async def test_a_message_that_could_not_be_logged_is_answered_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, "Here.", "And here.") as service:
        live = await service.tenant("default").create("demo")

        async def full(*_: object) -> None:
            raise StoreUnusable("the disk is full")

        with monkeypatch.context() as patched:
            patched.setattr(live.session, "append", full)
            first = await (await live.submit("Are you there?", key="k")).outcome()
            assert (first.why, first.is_pending) == ("failed", True)
            await live.wait_idle()
        again = await live.submit("Are you there?", key="k")
        assert (await again.outcome()).text == "Here."
        await live.append(Noted(text="the session is no longer busy"))
        assert spoken(await events(live)) == ["Are you there?", "Here."]


@run
async def test_a_failing_observer_changes_nothing(tmp_path: Path) -> None:
    def fail(_: ServiceEvent) -> None:
        raise ValueError("mine")

    async with opened(tmp_path, "Fine.") as service:
        service.runtime.add_observer(fail)
        live = await service.tenant("default").create("demo")
        assert (await (await live.submit("Hello.")).outcome()).text == "Fine."
        await live.append(Noted(text="x"))


@run
async def test_an_unexpected_inbox_error_ends_the_waiting_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, "Fine.") as service:
        live = await service.tenant("default").create("demo")

        async def odd(*_: object, **__: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(service.runtime.inbox, "take", odd)
        outcome = await (await live.submit("Hello.")).outcome()
        assert (outcome.why, outcome.code, outcome.is_pending) == ("failed", "ZeroDivisionError", True)


@run
async def test_deleting_a_session_does_not_answer_its_waiting_messages(tmp_path: Path) -> None:
    provider = GatedProvider(*("never",) * 9)
    async with opened(tmp_path, provider=provider) as service:
        tenant = service.tenant("default")
        live = await tenant.create("demo")
        turns = [await live.submit(f"message {n}") for n in range(5)]
        await provider.asked_once.wait()
        await tenant.delete("demo")
        assert [(await turn.outcome()).why for turn in turns] == ["stopped"] * 5
        assert provider.requests == []
        late = await live.submit("I did not know.")  # by a caller that still holds the session
        assert (await late.outcome()).code == "deleted"
        await live.wait_idle()
        assert await service.runtime.inbox.unfinished() == []
        with pytest.raises(UnknownSession):
            await tenant.session("demo")


@run
async def test_a_session_deleted_by_another_process_is_unknown_here(tmp_path: Path) -> None:
    async with opened(tmp_path, "Yes.") as here, opened(tmp_path) as there:
        live = await here.tenant("default").create("demo")
        await (await live.submit("Hello.")).outcome()
        await there.tenant("default").delete("demo")
        with pytest.raises(UnknownSession):
            await here.tenant("default").session("demo")


@run
async def test_a_session_that_cannot_be_opened_does_not_block_recovery_of_others(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, provider=GatedProvider("never")) as service:
        sessions = [await service.tenant(name).create("demo") for name in ("stuck", "other")]
        service.runtime.begin_closing()
        for live in sessions:
            await live.submit("waits")
    broken = tmp_path / "served" / "tenants" / "stuck.db"
    broken.write_bytes(b"not a store at all" * 100)
    async with opened(tmp_path, "Here.") as service:
        assert await service.recover() == 1
        live = await service.tenant("other").session("demo")
        await live.wait_idle()
        assert spoken(await events(live)) == ["waits", "Here."]
        assert [tenant for tenant, _, _ in await service.runtime.inbox.unfinished()] == ["stuck"]


@run
async def test_a_session_whose_model_lost_its_key_can_be_read_and_erased(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, "x", other=Scripted("Yes.", name="openai/gpt-4o")) as service:
        live = await service.tenant("default").create("demo", SessionSetup("openai/gpt-4o"))
        await (await live.submit("Hello?")).outcome()
    async with opened(tmp_path) as service:
        live = await service.tenant("default").session("demo")
        assert spoken(await events(live)) == ["Hello?", "Yes."]
        assert (await live.report()).window == 128_000
        outcome = await (await live.submit("And now?")).outcome()
        assert (outcome.why, outcome.code) == ("failed", "key")
        assert "OPENAI_API_KEY" in outcome.problem
        await service.tenant("default").delete("demo")


@run
async def test_a_proxied_session_shows_its_model_and_accepts_no_messages(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, "mine") as service:
        tenant = service.tenant("default")
        session = await Session.open(tenant.fast_store, "d-1", model="gpt-4.1", origin=PROXY_ORIGIN)
        await session.append(UserSaid(content="Hello."), ModelSaid(content="Hi."))
        before = session.last
        live = await tenant.session("d-1")
        assert (live.model, (await live.report()).window) == ("gpt-4.1", 1_047_576)
        assert (await live.info()).events == before + 1
        with pytest.raises(AnsweredElsewhere, match="fork"):
            await live.submit("Are you there?")
        assert (await live.info()).events == before + 1
        fork = await tenant.fork("d-1", "mine")
        assert (await (await fork.submit("Are you there?")).outcome()).text == "mine"
        assert spoken(await events(fork)) == ["Hello.", "Hi.", "Are you there?", "mine"]


@run
async def test_stopping_while_another_task_holds_the_lock_ends_the_turn(tmp_path: Path) -> None:
    provider = GatedProvider("one", "two")
    async with opened(tmp_path, provider=provider) as service:
        live = await service.tenant("default").create("demo")
        async with service.runtime.locks.lock("default", "demo"):
            turn = await live.submit("Hello.")
            live.stop()
        assert (await turn.outcome()).why == "stopped"
        provider.gate.set()
        assert (await (await live.submit("Again.")).outcome()).why == "answered"


@run
async def test_a_secret_key_is_stored_as_a_hash_and_still_finds_its_turn(tmp_path: Path) -> None:
    secret = "sk-proj-" + "Ab3dEf6hIj9lMn2pQr5tUv8xYz1b" * 2
    async with opened(tmp_path, "Paid.") as service:
        live = await service.tenant("default").create("demo")
        await (await live.submit("Pay the bill.", key=secret)).outcome()
    async with opened(tmp_path, "Paid twice.") as service:
        live = await service.tenant("default").session("demo")
        assert (await (await live.submit("Pay the bill.", key=secret)).outcome()).text == "Paid."
        assert spoken(await events(live)) == ["Pay the bill.", "Paid."]
    for path in (tmp_path / "served").rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path


HOLDER = """
import asyncio, sys
from pathlib import Path
from foveal.stores.session_locks import SessionLocks

async def main():
    async with SessionLocks(Path(sys.argv[1])).lock("default", "demo"):
        print("held", flush=True)
        await asyncio.sleep(3600)

asyncio.run(main())
"""


@run
async def test_a_service_closes_while_another_process_holds_a_session_lock(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, "Yes.") as service:
        live = await service.tenant("default").create("demo")
        program = tmp_path / "holder.py"
        program.write_text(HOLDER)
        with warm_start.start([program, tmp_path / "served" / "turnstile.lock"], stdout=PIPE) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            turn = await live.submit("Hello.")
            await service.end_turns(grace=0.0)
            assert (await turn.outcome()).is_pending
            holder.kill()
    async with opened(tmp_path, "Yes.") as service:
        assert await service.recover() == 1
        await (await service.tenant("default").session("demo")).wait_idle()
        assert spoken(await service.tenant("default").store.read("demo")) == ["Hello.", "Yes."]


@run
async def test_a_message_left_by_another_process_is_answered_periodically(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foveal.server.service.RECOVERY_INTERVAL_S", 0.05)
    async with opened(tmp_path, "Found.") as service:
        live = await service.tenant("default").create("demo")
        message, now = UserSaid(content="Left behind."), service.runtime.clock()
        await service.runtime.inbox.put("default", "demo", key="k", message=message, now=now)
        while spoken(await events(live)) != ["Left behind.", "Found."]:
            await asyncio.sleep(0.01)


def test_a_slow_reader_gets_the_events_that_come_while_it_reads() -> None:
    async def read() -> list[str]:
        turn = turns.Turn("t1", tenant="default", session="demo", key="k")
        turn.emit(UserMessageStored(handle="e1"))
        found = []
        async for event in turn.events():
            found.append(type(event).__name__)
            if len(found) == 1:  # the turn ends while its first event is being sent
                turn.emit(ModelAnswered(text="Fine.", calls=0, handle="e2"))
                turn.end(turns.TurnOutcome(why="answered", text="Fine."))
        return found

    assert asyncio.run(read()) == ["UserMessageStored", "ModelAnswered"]
