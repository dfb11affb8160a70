"""Rooms: what is said is stored, answered once and in order, whoever dies or goes away meanwhile."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from foveal.agent import ModelAnswered, TextStreamed, TurnFinished, UserMessageHeard
from foveal.config import Config, load
from foveal.core.log import Compacted, Erased, Event, Instructed, ModelSaid, Noted, UserSaid, text_of
from foveal.errors import (
    AnsweredElsewhere,
    BadSetting,
    Busy,
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
    DROP_IN,
    EventsStored,
    LiveSession,
    LockWaited,
    Service,
    ServiceEvent,
    TurnBegan,
    TurnEnded,
    turns,
)
from foveal.server import service as rooms
from foveal.server.turns import TOPIC
from foveal.sessions import Session
from foveal.testing import Scripted
from support.gated_provider import Gated, run
from support.legality import check_chat
from support.paths import SUPPORT
from support.service_process import DYING, script


def configured(tmp_path: Path, **flags: Any) -> Config:
    return load(tmp_path, flags=flags, environ={}, user_folder=tmp_path / "nobody")


@asynccontextmanager
async def opened(tmp_path: Path, *answers: Any, provider: Scripted | None = None) -> AsyncIterator[Service]:
    made = provider or Scripted(*answers)
    async with Service.open(configured(tmp_path), folder=tmp_path / "served", environment={}) as service:
        service.ground._providers[""] = made
        yield service


async def events(room: LiveSession) -> list[Event]:
    return await room.events()


def spoken(log: list[Event]) -> list[str]:
    said = (e.fact for e in log if isinstance(e.fact, UserSaid | ModelSaid))
    return [text_of(fact.content) for fact in said]


# ── saying ───────────────────────────────────────────────────────────────────────────────────────────────


@run
async def test_a_message_is_stored_then_answered_and_told_from_the_beginning_to_whoever_comes_late(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, "Hello to you.") as service:
        room = await service.tenant("default").create("demo")
        turn = await room.say("Hello.")
        outcome = await turn.outcome()
        assert (outcome.why, outcome.text) == ("answered", "Hello to you.")
        told = [happening async for happening in turn.follow()]
        assert [type(h) for h in told] == [UserMessageHeard, TextStreamed, ModelAnswered, TurnFinished]
        assert spoken(await events(room)) == ["Hello.", "Hello to you."]


@run
async def test_who_follows_from_the_start_hears_every_piece_and_who_left_goes_on_where_he_was(
    tmp_path: Path,
) -> None:
    provider = Gated("one\ntwo\nthree")
    async with opened(tmp_path, provider=provider) as service:
        room = await service.tenant("default").create("demo")
        turn = await room.say("Count.")
        seen: list[int] = []
        async for number, _ in turn.numbered():
            seen.append(number)
            provider.gate.set()
            if len(seen) == 2:
                break
        rest = [(number, type(h)) async for number, h in turn.numbered(after=seen[-1])]
        assert [number for number, _ in rest] == list(range(3, 3 + len(rest)))
        assert rest[-1][1] is TurnFinished
        assert (await turn.outcome()).text == "one\ntwo\nthree"


@run
async def test_messages_that_come_at_once_are_answered_one_after_the_other_in_the_order_of_their_storing(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, *(f"answer {n}" for n in range(5))) as service:
        room = await service.tenant("default").create("demo")
        turns = [await room.say(f"question {n}") for n in range(5)]
        outcomes = [await turn.outcome() for turn in turns]
        assert [outcome.text for outcome in outcomes] == [f"answer {n}" for n in range(5)]
        asked = [f"{kind} {n}" for n in range(5) for kind in ("question", "answer")]
        assert spoken(await events(room)) == asked


@run
async def test_the_same_key_is_the_same_turn_and_nothing_is_said_twice(tmp_path: Path) -> None:
    async with opened(tmp_path, "Once.") as service:
        room = await service.tenant("default").create("demo")
        first = await room.say("Do it.", key="k1")
        await first.outcome()
        assert await room.say("Do it.", key="k1") is first
        assert spoken(await events(room)) == ["Do it.", "Once."]


@run
async def test_a_key_of_an_earlier_process_still_tells_its_outcome(tmp_path: Path) -> None:
    async with opened(tmp_path, "Once.") as service:
        room = await service.tenant("default").create("demo")
        await (await room.say("Do it.", key="k1")).outcome()
    async with opened(tmp_path) as service:
        room = await service.tenant("default").room("demo")
        outcome = await (await room.say("", key="k1")).outcome()
        assert (outcome.why, outcome.text) == ("answered", "Once.")
        assert spoken(await events(room)) == ["Do it.", "Once."]


@run
async def test_a_secret_in_a_message_reaches_neither_the_desk_nor_the_log(tmp_path: Path) -> None:
    secret = "sk-proj-" + "Ab3dEf6hIj9lMn2pQr5tUv8xYz1b" * 2
    async with opened(tmp_path, "Noted.") as service:
        room = await service.tenant("default").create("demo")
        await (await room.say(f"My key is {secret}, keep it.")).outcome()
        assert secret not in str(await events(room))
    for path in (tmp_path / "served").rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path


# ── when something goes wrong ────────────────────────────────────────────────────────────────────────────


@run
async def test_a_provider_that_fails_ends_the_turn_with_its_reason_and_the_model_can_be_asked_again(
    tmp_path: Path,
) -> None:
    fault = ProviderError("no connection: check it", code="connection")
    async with opened(tmp_path, fault, "Here I am.") as service:
        room = await service.tenant("default").create("demo")
        outcome = await (await room.say("Hello?")).outcome()
        assert (outcome.why, outcome.code, outcome.problem) == (
            "failed",
            "connection",
            "no connection: check it",
        )
        again = await room.again()
        assert (await again.outcome()).text == "Here I am."
        assert spoken(await events(room)) == ["Hello?", "Here I am."]
        with pytest.raises(NothingToAsk, match="answered"):
            await room.again()


@run
async def test_an_error_that_nobody_foresaw_ends_the_turn_without_telling_its_words(tmp_path: Path) -> None:
    class Strange(Scripted):
        async def send(self, request: Any, *, max_tokens: int) -> AsyncIterator[ReplyPiece | Reply]:
            raise BaseExceptionGroup("secret words", [KeyboardInterrupt()])
            yield

    async with opened(tmp_path, provider=Strange()) as service:
        room = await service.tenant("default").create("demo")
        outcome = await (await room.say("Hello?")).outcome()
        assert outcome.why == "failed"
        assert "secret words" not in outcome.problem


@run
async def test_a_turn_that_is_stopped_keeps_what_was_said_and_the_room_goes_on(tmp_path: Path) -> None:
    provider = Gated("never", "Yes.")
    async with opened(tmp_path, provider=provider) as service:
        room = await service.tenant("default").create("demo")
        turn = await room.say("Begin.")
        await provider.asked_once.wait()
        turn.stop()
        assert (await turn.outcome()).why == "stopped"
        provider.gate.set()
        assert (await (await room.say("Still there?")).outcome()).why == "answered"


@run
async def test_a_turn_that_is_stopped_before_it_began_has_its_words_in_the_log_nevertheless(
    tmp_path: Path,
) -> None:
    provider = Gated("first", "second")
    async with opened(tmp_path, provider=provider) as service:
        room = await service.tenant("default").create("demo")
        first, second = await room.say("One."), await room.say("Two.")
        await provider.asked_once.wait()
        second.stop()
        provider.gate.set()
        assert (await first.outcome()).why == "answered"
        assert (await second.outcome()).why == "stopped"
        assert spoken(await events(room)) == ["One.", "first", "Two."]


@run
async def test_who_cannot_store_a_message_is_told_so_and_not_that_it_was_heard(tmp_path: Path) -> None:
    async with opened(tmp_path) as service:
        room = await service.tenant("default").create("demo")
        await service.ground.database.close()
        with pytest.raises(StoreError):
            await room.say("Hello.")


# ── steering ─────────────────────────────────────────────────────────────────────────────────────────────


@run
async def test_a_room_that_answers_is_not_compacted_appended_to_or_undone(tmp_path: Path) -> None:
    provider = Gated("late")
    async with opened(tmp_path, provider=provider) as service:
        room = await service.tenant("default").create("demo")
        turn = await room.say("Begin.")
        for steer in (room.compact, room.undo, lambda: room.append(Noted(text="x")), lambda: room.pin("x")):
            with pytest.raises(Busy, match="demo"):
                await steer()
        provider.gate.set()
        await turn.outcome()
        await room.append(Noted(text="x"))


@run
async def test_a_compaction_tells_the_tokens_before_and_after_and_can_be_undone(tmp_path: Path) -> None:
    answers = [f"The answer to question {n} is {n * 7}. " * 40 for n in range(8)]
    async with opened(tmp_path, *answers, *("A summary that is none.",) * 20) as service:
        room = await service.tenant("default").create("demo")
        with pytest.raises(NotCompacted):
            await room.compact()
        for n in range(8):
            await (await room.say(f"Question {n}?")).outcome()
        done = await room.compact()
        assert isinstance(done.event.fact, Compacted)
        assert done.after < done.before
        assert (await room.undo()).seq == done.event.seq
        assert (await room.report()).used == done.before


@run
async def test_a_message_that_comes_while_a_summary_is_written_is_stored_at_once_and_answered_afterwards(
    tmp_path: Path,
) -> None:
    answers = [f"The answer to question {n} is {n * 7}. " * 40 for n in range(8)]
    provider = Gated(*answers, *("A summary that is none.",) * 3, *("And now?",) * 20)
    async with opened(tmp_path, provider=provider) as service:
        room = await service.tenant("default").create("demo")
        provider.gate.set()
        for n in range(8):
            await (await room.say(f"Question {n}?")).outcome()
        provider.gate.clear()
        provider.asked_once.clear()
        compacting = asyncio.create_task(room.compact())
        await provider.asked_once.wait()
        turn = await room.say("What next?")
        assert turn.state == "waiting"
        assert await service.ground.desk.waiting() == [("default", "demo", 1)]
        provider.gate.set()
        done = await compacting
        assert (await turn.outcome()).why == "answered"
        log = await events(room)
        asked = next(e.seq for e in log if isinstance(e.fact, UserSaid) and e.fact.content == "What next?")
        assert done.event.seq < asked


@run
async def test_tools_that_look_back_are_offered_when_there_is_something_to_look_back_at_and_then_stay(
    tmp_path: Path,
) -> None:
    answers = [f"The answer to question {n} is {n * 7}. " * 40 for n in range(8)]
    provider = Scripted(*answers, *("A summary that is none.",) * 3, *("And now?",) * 20)
    async with opened(tmp_path, provider=provider) as service:
        room = await service.tenant("default").create("demo")
        for n in range(8):
            await (await room.say(f"Question {n}?")).outcome()
        assert [asked.tools for asked in provider.asked] == [[]] * 8
        await room.compact()
        await (await room.say("What was it?")).outcome()
        assert [tool["name"] for tool in provider.asked[-1].tools] == ["recall_search", "recall_read"]
        await room.undo()
        await (await room.say("And now?")).outcome()
        assert len(provider.asked[-1].tools) == 2
    async with opened(tmp_path, provider=provider) as service:
        room = await service.tenant("default").room("demo")
        await (await room.say("And after a restart?")).outcome()
        assert len(provider.asked[-1].tools) == 2


@run
async def test_what_is_set_for_one_session_changes_no_other(tmp_path: Path) -> None:
    async with opened(tmp_path, "one", "two") as service:
        tenant = service.tenant("default")
        service.ground._providers["scripted/other"] = Scripted("other", name="scripted/other", window=9_000)
        plain = await tenant.create("plain")
        other = await tenant.create("other", model="scripted/other", system="Speak French.")
        assert [room.model for room in (plain, other)] == ["scripted/model", "scripted/other"]
        assert (await (await other.say("Hello.")).outcome()).text == "other"
        assert (await (await plain.say("Hello.")).outcome()).text == "one"
        windows = [(await room.report()).window for room in (plain, other)]
        assert windows == [128_000, 9_000]
        assert "French" not in str(await events(plain))


@run
async def test_a_session_that_exists_or_existed_is_not_made_again_and_an_erased_one_is_unknown(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, "Yes.") as service:
        tenant = service.tenant("default")
        room = await tenant.create("demo", title="A demo", system="Be kind.")
        await (await room.say("A secret plan.")).outcome()
        with pytest.raises(SessionExists):
            await tenant.create("demo")
        assert [info.title for info in await tenant.sessions()] == ["A demo"]
        first = next(e.fact for e in await events(room) if isinstance(e.fact, Instructed))
        assert first.content == "Be kind."
        await tenant.delete("demo")
        assert await tenant.sessions() == []
        for act in (tenant.room, tenant.delete, tenant.ensure):
            with pytest.raises(UnknownSession):
                await act("demo")
        with pytest.raises(SessionExists):
            await tenant.create("demo")
        assert {type(e.fact) for e in await tenant.store.read("demo")} == {Erased}


@run
async def test_a_session_that_is_deleted_while_it_answers_ends_its_turn_and_leaves_no_text(
    tmp_path: Path,
) -> None:
    provider = Gated("never")
    async with opened(tmp_path, provider=provider) as service:
        tenant = service.tenant("default")
        room = await tenant.create("demo")
        turns = [await room.say("The canary sings."), await room.say("The canary sings again.")]
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
async def test_a_fork_has_its_own_future(tmp_path: Path) -> None:
    async with opened(tmp_path, "one", "two", "three") as service:
        tenant = service.tenant("default")
        room = await tenant.create("demo")
        await (await room.say("first")).outcome()
        other = await tenant.fork("demo", "branch")
        await (await other.say("second")).outcome()
        assert spoken(await events(other)) == ["first", "one", "second", "two"]
        assert spoken(await events(room)) == ["first", "one"]


@run
async def test_tenants_do_not_see_each_others_sessions_even_under_the_same_id(tmp_path: Path) -> None:
    async with opened(tmp_path, "for a", "for b") as service:
        a, b = service.tenant("a"), service.tenant("b")
        await (await (await a.create("same")).say("I am a.")).outcome()
        with pytest.raises(UnknownSession):
            await b.room("same")
        room = await b.create("same")
        await (await room.say("I am b.")).outcome()
        assert spoken(await events(room)) == ["I am b.", "for b"]


@pytest.mark.parametrize("name", ["", "A", "../x", "a/b", "a" * 64, "-a", "ä", "a\n"])
def test_the_name_of_a_tenant_cannot_leave_its_folder(name: str, tmp_path: Path) -> None:
    async def act() -> None:
        async with opened(tmp_path) as service:
            with pytest.raises(BadSetting):
                service.tenant(name)

    asyncio.run(act())


@pytest.mark.parametrize("id", ["a/b", "x" * 201, "a\nb", "a\x00b", "\ud800", "..", " a", "a\u202eb"])
def test_an_id_that_would_confuse_somebody_is_refused(id: str, tmp_path: Path) -> None:
    async def act() -> None:
        async with opened(tmp_path) as service:
            for make in (service.tenant("default").create, service.tenant("default").ensure):
                with pytest.raises(BadSetting):
                    await make(id)

    asyncio.run(act())


# ── telling ──────────────────────────────────────────────────────────────────────────────────────────────


@run
async def test_watchers_are_told_of_turns_of_what_is_stored_and_of_what_waits(tmp_path: Path) -> None:
    seen: list[ServiceEvent] = []
    async with opened(tmp_path, "Hello.") as service:
        service.ground.watchers.append(seen.append)
        room = await service.tenant("default").create("demo")
        await (await room.say("Hi.")).outcome()
        await room.at_rest()
    kinds = [type(occurrence) for occurrence in seen]
    assert kinds.index(TurnBegan) < kinds.index(TurnEnded)
    assert [o.why for o in seen if isinstance(o, TurnEnded)] == ["answered"]
    assert sum(len(o.events) for o in seen if isinstance(o, EventsStored)) >= 4
    assert [o.count for o in seen if isinstance(o, LockWaited)][-1] == 0


@run
async def test_whoever_listens_to_answers_is_told_and_his_troubles_are_his_own(tmp_path: Path) -> None:
    told: list[tuple[str, str]] = []

    async def listen(room: LiveSession, turn: Any) -> None:
        told.append((room.id, turn.text))
        raise ValueError("mine")

    async with opened(tmp_path, "one", "two") as service:
        tenant = service.tenant("default")
        tenant.answered.append(listen)
        room = await tenant.create("demo")
        for text in ("a", "b"):
            await (await room.say(text)).outcome()
        await room.at_rest()
    assert told == [("demo", "one"), ("demo", "two")]


@run
async def test_a_summary_that_will_be_needed_is_asked_for_when_somebody_does_background_work(
    tmp_path: Path,
) -> None:
    asked: list[tuple[str, str, int]] = []

    async def later(tenant: str, session: str, seq: int) -> None:
        asked.append((tenant, session, seq))

    answers = [f"Item {n} has the number {n * 13}. " * 60 for n in range(20)]
    async with opened(tmp_path, provider=Scripted(*answers, window=6_000)) as service:
        service.ground.later = later
        room = await service.tenant("default").create("demo")
        for n in range(20):
            await (await room.say(f"Item {n}?")).outcome()
            await room.at_rest()
            if asked:
                break
        assert asked == [("default", "demo", room.session.last)]
        event = await room.prepare()
        assert event is not None
        assert isinstance(event.fact, Compacted)
        assert await room.prepare() is None


# ── ends ─────────────────────────────────────────────────────────────────────────────────────────────────


@run
async def test_a_service_that_ends_waits_for_the_turn_and_leaves_the_next_message_for_the_next_start(
    tmp_path: Path,
) -> None:
    provider = Gated("first answer")
    async with opened(tmp_path, provider=provider) as service:
        room = await service.tenant("default").create("demo")
        first = await room.say("first")
        await provider.asked_once.wait()
        second = await room.say("second")
        ending = asyncio.create_task(service.end_turns(grace=30.0))
        await asyncio.sleep(0)
        provider.gate.set()
        await ending
        assert (await first.outcome()).text == "first answer"
        assert (await second.outcome()).code == "stopping"
        assert (await (await room.say("third")).outcome()).code == "stopping"
    async with opened(tmp_path, "second answer", "third answer") as service:
        assert await service.recover() == 2
        room = await service.tenant("default").room("demo")
        await room.at_rest()
        asked = ["first", "first answer", "second", "second answer", "third", "third answer"]
        assert spoken(await events(room)) == asked


@run
async def test_a_turn_that_outlasts_the_grace_is_stopped_and_stored(tmp_path: Path) -> None:
    provider = Gated("never")
    async with opened(tmp_path, provider=provider) as service:
        room = await service.tenant("default").create("demo")
        turn = await room.say("first")
        await provider.asked_once.wait()
        await service.end_turns(grace=0.0)
        assert (await turn.outcome()).why == "stopped"
    async with opened(tmp_path) as service:
        assert await service.recover() == 0


# ── several processes ────────────────────────────────────────────────────────────────────────────────────


def process(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(SUPPORT / "service_process.py"), str(folder), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE)


@pytest.mark.parametrize("point", DYING)
def test_a_turn_that_a_killed_process_left_is_taken_up_once_and_leaves_a_legal_session(
    point: str, tmp_path: Path
) -> None:
    with process(tmp_path, "die", point) as dying:
        assert dying.wait(60) != 0

    @run
    async def recovered() -> None:
        provider = script()
        async with opened(tmp_path, provider=provider) as service:
            await service.recover()
            room = await service.tenant("default").room("demo")
            await room.at_rest()
            log = await events(room)
            assert [text for text in spoken(log) if text == "Do the work."] == ["Do the work."]
            assert spoken(log)[-1] == "It is done."
            assert sum(isinstance(e.fact, Noted) and e.fact.topic == TOPIC for e in log) == 1
            assert check_chat((await room.session.fit()).to_openai()) == []
            assert await room.session.open_calls() == []
            assert await service.recover() == 0

    recovered()


def test_two_processes_answer_each_message_once_and_in_one_order(tmp_path: Path) -> None:
    crowd = [process(tmp_path, "say", name, "6") for name in ("a", "b")]
    outputs = [one.communicate(timeout=120)[0].decode() for one in crowd]
    assert [one.returncode for one in crowd] == [0, 0]

    @run
    async def looked() -> None:
        async with opened(tmp_path) as service:
            log = await service.tenant("default").store.read("demo")
            said = spoken(log)
            questions, answers = said[::2], said[1::2]
            assert sorted(questions) == sorted(f"{name} {n}" for name in ("a", "b") for n in range(6))
            for name in ("a", "b"):
                mine = [text for text in questions if text.startswith(name)]
                assert mine == [f"{name} {n}" for n in range(6)]
            assert answers == [f"echo of {text}" for text in questions]

    looked()
    for name, output in zip(("a", "b"), outputs, strict=True):
        assert output.splitlines() == [f"echo of {name} {n}" for n in range(6)]


def test_the_pieces_of_a_short_answer_are_told_to_whoever_comes_late_and_those_of_a_long_one_are_not_kept() -> (
    None
):
    async def act() -> None:
        for count, kept in ((10, 10), (turns.PIECES + 1, 0)):
            turn = turns.Turn("t1", tenant="default", session="demo", key="k")
            for n in range(count):
                turn.tell(TextStreamed(piece=ReplyPiece(text=str(n))))
            turn.end(turns.TurnOutcome(why="answered"))
            assert len([h async for h in turn.follow()]) == kept
            turn.thin()
            assert [h async for h in turn.follow()] == []

    asyncio.run(act())


def test_the_folder_and_its_files_are_their_owners_only(tmp_path: Path) -> None:
    async def act() -> None:
        async with opened(tmp_path, "Yes.") as service:
            room = await service.tenant("default").create("demo")
            await (await room.say("Hello.")).outcome()
            for path in [tmp_path / "served", *(tmp_path / "served").rglob("*")]:
                assert os.stat(path).st_mode & 0o077 == 0, path

    asyncio.run(act())


# ── found by reviewers ───────────────────────────────────────────────────────────────────────────────────


@run
async def test_a_message_whose_words_could_not_be_put_into_the_log_is_answered_when_they_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, "Here.", "And here.") as service:
        room = await service.tenant("default").create("demo")

        async def full(*_: object) -> None:
            raise StoreUnusable("the disk is full")

        with monkeypatch.context() as patched:
            patched.setattr(room.session, "append", full)
            first = await (await room.say("Are you there?", key="k")).outcome()
            assert (first.why, first.kept) == ("failed", True)
            await room.at_rest()
        again = await room.say("Are you there?", key="k")
        assert (await again.outcome()).text == "Here."
        await room.append(Noted(text="the room is not busy for ever"))
        assert spoken(await events(room)) == ["Are you there?", "Here."]


@run
async def test_a_watcher_that_fails_changes_nothing(tmp_path: Path) -> None:
    def fail(_: ServiceEvent) -> None:
        raise ValueError("mine")

    async with opened(tmp_path, "Fine.") as service:
        service.ground.watchers.append(fail)
        room = await service.tenant("default").create("demo")
        assert (await (await room.say("Hello.")).outcome()).text == "Fine."
        await room.append(Noted(text="x"))


@run
async def test_nobody_waits_for_ever_when_the_desk_fails_in_a_way_that_nobody_foresaw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, "Fine.") as service:
        room = await service.tenant("default").create("demo")

        async def odd(*_: object, **__: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(service.ground.desk, "take", odd)
        outcome = await (await room.say("Hello.")).outcome()
        assert (outcome.why, outcome.code, outcome.kept) == ("failed", "ZeroDivisionError", True)


@run
async def test_deleting_a_session_does_not_answer_what_waits_in_it(tmp_path: Path) -> None:
    provider = Gated(*("never",) * 9)
    async with opened(tmp_path, provider=provider) as service:
        tenant = service.tenant("default")
        room = await tenant.create("demo")
        turns = [await room.say(f"message {n}") for n in range(5)]
        await provider.asked_once.wait()
        await tenant.delete("demo")
        assert [(await turn.outcome()).why for turn in turns] == ["stopped"] * 5
        assert provider.asked == []
        late = await room.say("I did not know.")  # a face that still has the room
        assert (await late.outcome()).code == "deleted"
        await room.at_rest()
        assert await service.ground.desk.waiting() == []
        with pytest.raises(UnknownSession):
            await tenant.room("demo")


@run
async def test_a_session_that_was_deleted_by_another_process_is_unknown_here_too(tmp_path: Path) -> None:
    async with opened(tmp_path, "Yes.") as here, opened(tmp_path) as there:
        room = await here.tenant("default").create("demo")
        await (await room.say("Hello.")).outcome()
        await there.tenant("default").delete("demo")
        with pytest.raises(UnknownSession):
            await here.tenant("default").room("demo")


@run
async def test_a_session_that_cannot_be_opened_does_not_keep_the_others_from_being_taken_up(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, provider=Gated("never")) as service:
        rooms = [await service.tenant(name).create("demo") for name in ("stuck", "other")]
        service.ground.closing = True
        for room in rooms:
            await room.say("waits")
    broken = tmp_path / "served" / "tenants" / "stuck.db"
    broken.write_bytes(b"not a store at all" * 100)
    async with opened(tmp_path, "Here.") as service:
        assert await service.recover() == 1
        room = await service.tenant("other").room("demo")
        await room.at_rest()
        assert spoken(await events(room)) == ["waits", "Here."]
        assert [tenant for tenant, _, _ in await service.ground.desk.waiting()] == ["stuck"]


@run
async def test_a_room_whose_model_has_no_key_any_more_can_be_read_and_erased_and_says_so_when_it_is_asked(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, "x") as service:
        service.ground._providers["openai/gpt-4o"] = Scripted("Yes.", name="openai/gpt-4o")
        room = await service.tenant("default").create("demo", model="openai/gpt-4o")
        await (await room.say("Hello?")).outcome()
    async with opened(tmp_path) as service:
        room = await service.tenant("default").room("demo")
        assert spoken(await events(room)) == ["Hello?", "Yes."]
        assert (await room.report()).window == 128_000
        outcome = await (await room.say("And now?")).outcome()
        assert (outcome.why, outcome.code) == ("failed", "key")
        assert "OPENAI_API_KEY" in outcome.problem
        await service.tenant("default").delete("demo")


@run
async def test_a_session_of_a_drop_in_client_is_shown_with_its_own_model_and_not_spoken_in(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, "mine") as service:
        tenant = service.tenant("default")
        session = await Session.open(tenant.quick, "d-1", model="gpt-4.1", origin=DROP_IN)
        await session.append(UserSaid(content="Hello."), ModelSaid(content="Hi."))
        before = session.last
        room = await tenant.room("d-1")
        assert (room.model, (await room.report()).window) == ("gpt-4.1", 1_047_576)
        assert (await room.info()).events == before + 1
        with pytest.raises(AnsweredElsewhere, match="fork"):
            await room.say("Are you there?")
        assert (await room.info()).events == before + 1
        fork = await tenant.fork("d-1", "mine")
        assert (await (await fork.say("Are you there?")).outcome()).text == "mine"
        assert spoken(await events(fork)) == ["Hello.", "Hi.", "Are you there?", "mine"]


@run
async def test_stopping_a_room_whose_turn_waits_for_another_process_ends_the_turn(tmp_path: Path) -> None:
    provider = Gated("one", "two")
    async with opened(tmp_path, provider=provider) as service:
        room = await service.tenant("default").create("demo")
        async with service.ground.turnstile.hold("default", "demo"):
            turn = await room.say("Hello.")
            room.stop()
        assert (await turn.outcome()).why == "stopped"
        provider.gate.set()
        assert (await (await room.say("Again.")).outcome()).why == "answered"


@run
async def test_a_key_that_looks_like_a_secret_is_not_stored_and_still_names_its_turn(tmp_path: Path) -> None:
    secret = "sk-proj-" + "Ab3dEf6hIj9lMn2pQr5tUv8xYz1b" * 2
    async with opened(tmp_path, "Paid.") as service:
        room = await service.tenant("default").create("demo")
        await (await room.say("Pay the bill.", key=secret)).outcome()
    async with opened(tmp_path, "Paid twice.") as service:
        room = await service.tenant("default").room("demo")
        assert (await (await room.say("Pay the bill.", key=secret)).outcome()).text == "Paid."
        assert spoken(await events(room)) == ["Pay the bill.", "Paid."]
    for path in (tmp_path / "served").rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path


HOLDER = """
import asyncio, sys
from pathlib import Path
from foveal.server.locks import SessionLocks

async def main():
    async with SessionLocks(Path(sys.argv[1])).hold("default", "demo"):
        print("held", flush=True)
        await asyncio.sleep(3600)

asyncio.run(main())
"""


@run
async def test_a_service_ends_although_another_process_works_on_a_session_that_somebody_waits_for(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, "Yes.") as service:
        room = await service.tenant("default").create("demo")
        command = [sys.executable, "-c", HOLDER, str(tmp_path / "served" / "turnstile.lock")]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            turn = await room.say("Hello.")
            await service.end_turns(grace=0.0)
            assert (await turn.outcome()).kept
            holder.kill()
    async with opened(tmp_path, "Yes.") as service:
        assert await service.recover() == 1
        await (await service.tenant("default").room("demo")).at_rest()
        assert spoken(await service.tenant("default").store.read("demo")) == ["Hello.", "Yes."]


@run
async def test_a_message_that_another_process_has_left_is_taken_up_while_the_server_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooms, "CARE", 0.05)
    async with opened(tmp_path, "Found.") as service:
        room = await service.tenant("default").create("demo")
        left = {"key": "k", "content": "Left behind.", "dialect": ""}
        await service.ground.desk.put("default", "demo", now=service.ground.clock(), **left)
        while spoken(await events(room)) != ["Left behind.", "Found."]:
            await asyncio.sleep(0.01)
