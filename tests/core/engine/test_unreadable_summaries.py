"""Summaries of a provider that the model of a conversation cannot read: the log has what they stand for."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

import foveal
from foveal.core.log.events import UNREADABLE, Compacted, ForeignSummary, Noted, ThinkingLeftOut
from foveal.core.tokens.counter import counter
from foveal.core.tokens.message_tokens import MessageTokens
from foveal.core.view.checkpoint import needed_seqs, restore_view, take_checkpoint
from foveal.core.view.fold import fold
from foveal.core.view.request import render_view
from foveal.core.wire import wire_for
from foveal.inspector.sessions.actions import action_result
from foveal.inspector.sessions.source import SessionAction
from foveal.sessions.perform import perform

ITEM: Final = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAA" * 40}
NEWER: Final = {"type": "compaction", "id": "cmp_2", "encrypted_content": "gBBB" * 40}
SECRET: Final = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gCCC"}
MESSAGE: Final = (
    "The encrypted content gAAA... could not be verified. Reason: Encrypted content organization_id did not "
    "match the target organization."
)
REFUSAL: Final = {
    "status_code": 400,
    "body": {
        "error": {"message": MESSAGE, "type": "invalid_request_error", "code": "invalid_encrypted_content"}
    },
}


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _turn(number: int) -> list[dict[str, Any]]:
    return [
        _user(f"Task {number}: look at file_{number}.py"),
        {"type": "function_call", "call_id": f"c{number}", "name": "bash", "arguments": '{"command": "ls"}'},
        {"type": "function_call_output", "call_id": f"c{number}", "output": f"src/found_{number}.py:17"},
        {"role": "assistant", "content": f"Done with {number}: the bound in parser_{number}.py was wrong."},
    ]


TURNS: Final = [item for number in range(10) for item in _turn(number)]
USERS: Final = [item for item in TURNS if item.get("role") == "user"]
COMPACTED: Final = [*USERS, ITEM]
"""What a client keeps that lets the provider compact: the messages of the user, and the item."""


def _context(model: str = "gpt-5", **settings: Any) -> foveal.Context:
    return foveal.Context(model, window=24_000, reserve=1_000, dialect="openai_responses", **settings)


def _compacted_context() -> foveal.Context:
    ctx = _context()
    ctx.fit(TURNS)
    assert ctx.fit([*COMPACTED, _user("Go on.")]) == [*COMPACTED, _user("Go on.")]
    return ctx


def _text(messages: list[Any]) -> str:
    return "\n".join(str(message.get("content", "")) for message in messages)


def _records(ctx: foveal.Context) -> list[foveal.Event]:
    found = (event for event in ctx.log if isinstance(event.fact, Compacted))
    return [event for event in found if event.fact.reason == UNREADABLE]


def test_a_refused_item_gives_way_to_a_record_of_what_the_client_no_longer_sends() -> None:
    ctx = _compacted_context()
    history = [*COMPACTED, _user("Go on.")]
    assert ctx.overflowed(REFUSAL)
    sent = ctx.fit(history)
    assert ITEM not in sent
    assert [message for message in sent if message in history] == [*USERS, _user("Go on.")]
    assert "parser_7.py" in _text(sent)
    assert "found_9.py" in _text(sent)
    assert sent[-1] == _user("Go on.")
    assert not ctx.overflowed(REFUSAL)


def test_the_log_says_what_the_provider_said() -> None:
    ctx = _compacted_context()
    ctx.overflowed(REFUSAL)
    notes = [event.fact for event in ctx.log if isinstance(event.fact, Noted)]
    assert [MESSAGE in note.text for note in notes] == [True]
    assert not ctx.binds_thinking


def test_recall_reads_what_the_record_stands_for() -> None:
    ctx = _compacted_context()
    ctx.overflowed(REFUSAL)
    ctx.fit([*COMPACTED, _user("Go on.")])
    said = next(event for event in ctx.log if "found_3.py" in str(event.fact))
    assert "found_3.py:17" in ctx.recall("recall_read", {"handle": said.handle})


def test_encrypted_reasoning_is_left_out() -> None:
    history = [*_turn(0)[:1], SECRET, *_turn(0)[1:], _user("Go on.")]
    ctx = _context()
    assert ctx.fit(history) == history
    assert ctx.overflowed(REFUSAL)
    assert ctx.fit(history) == [item for item in history if item != SECRET]
    assert [event.fact for event in ctx.log if isinstance(event.fact, ThinkingLeftOut)] == [ThinkingLeftOut()]
    assert not ctx.binds_thinking
    assert not ctx.overflowed(REFUSAL)


def test_reasoning_after_the_refusal_is_sent_again() -> None:
    history = [_user("Look."), SECRET, {"role": "assistant", "content": "I look."}, _user("Go on.")]
    ctx = _context()
    ctx.fit(history)
    ctx.overflowed(REFUSAL)
    newer = {**SECRET, "id": "rs_2", "encrypted_content": "gDDD"}
    history += [newer, {"role": "assistant", "content": "Done."}, _user("Good.")]
    assert ctx.fit(history) == [item for item in history if item != SECRET]


@pytest.mark.parametrize("history", [TURNS, [_user("Go on.")]])
def test_with_nothing_to_take_back_the_error_is_the_callers(history: list[Any]) -> None:
    ctx = _context()
    ctx.fit(history)
    count = len(ctx.log)
    assert not ctx.overflowed(REFUSAL)
    assert len(ctx.log) == count


def test_messages_that_are_still_there_are_shown_again() -> None:
    history = [*TURNS, ITEM, _user("Go on.")]
    ctx = _context()
    assert ctx.fit(history) == history
    assert ctx.overflowed(REFUSAL)
    assert ctx.fit(history) == [*TURNS, _user("Go on.")]


def test_why_says_that_the_item_cannot_be_read() -> None:
    ctx = _context()
    ctx.fit([*TURNS, ITEM, _user("Go on.")])
    ctx.overflowed(REFUSAL)
    item = next(event for event in ctx.log if isinstance(event.fact, ForeignSummary))
    (record,) = _records(ctx)
    assert "cannot read it" in ctx.why(item.handle).rule
    assert ctx.why(record.handle).rule == f"gpt-5 cannot read {item.handle}"
    assert ctx.why("e5").level == "full"
    with pytest.raises(foveal.errors.UnknownHandle, match="hides nothing"):
        ctx.expand(record.handle)


def test_an_item_that_the_log_knows_nothing_about_leaves_a_notice() -> None:
    ctx = _context()
    ctx.fit([ITEM, _user("Go on.")])
    assert ctx.overflowed(REFUSAL)
    sent = ctx.fit([ITEM, _user("Go on.")])
    assert ITEM not in sent
    assert "not shown" in _text(sent[:1])
    assert sent[-1] == _user("Go on.")


def test_another_model_gets_the_record_too() -> None:
    ctx = _compacted_context()
    ctx.use("gpt-4.1", window=24_000)
    sent = ctx.fit([*COMPACTED, _user("Go on.")])
    assert ITEM not in sent
    assert "parser_7.py" in _text(sent)


def test_the_report_warns_with_numbers() -> None:
    ctx = _compacted_context()
    ctx.use("gpt-4.1", window=24_000)
    ctx.fit([*COMPACTED, _user("Go on.")])
    (record,) = _records(ctx)
    (warning,) = ctx.report().warnings
    item = next(event for event in ctx.log if isinstance(event.fact, ForeignSummary))
    assert f"gpt-4.1 cannot read {item.handle}" in warning
    assert "record of 30 messages" in warning
    assert record.handle in warning
    assert warning in str(ctx.report())


def test_undo_shows_the_item_again() -> None:
    ctx = _compacted_context()
    history = [*COMPACTED, _user("Go on.")]
    ctx.overflowed(REFUSAL)
    ctx.fit(history)
    (record,) = _records(ctx)
    ctx.undo(record.handle)
    assert ctx.fit(history) == history
    assert ctx.report().warnings == ()
    assert ctx.overflowed(REFUSAL)
    assert ITEM not in ctx.fit(history)


def test_the_second_item_stands_for_what_the_first_stood_for() -> None:
    ctx = _compacted_context()
    more = [item for number in range(20, 24) for item in _turn(number)]
    ctx.fit([*COMPACTED, _user("Go on."), *more])
    users = [item for item in more if item.get("role") == "user"]
    history = [*USERS, _user("Go on."), *users, NEWER, _user("And now?")]
    assert ctx.fit(history) == history
    ctx.overflowed(REFUSAL)
    text = _text(ctx.fit(history))
    assert "parser_7.py" in text
    assert "parser_22.py" in text


def test_an_item_twice_in_one_list_has_one_record() -> None:
    ctx = _context()
    ctx.fit(TURNS)
    history = [*COMPACTED, ITEM, _user("Go on.")]
    assert ctx.fit(history) == history
    ctx.overflowed(REFUSAL)
    sent = ctx.fit(history)
    assert ITEM not in sent
    assert len(sent) == len(USERS) + 2
    assert len(_records(ctx)) == 2


def test_what_the_user_took_back_stays_away() -> None:
    ctx = _context()
    ctx.fit([*_turn(0), _user("Delete everything."), {"role": "assistant", "content": "Deleted."}])
    history = [*_turn(0), _user("Delete nothing."), ITEM, {"role": "assistant", "content": "Fine."}]
    ctx.fit([*history, _user("Go on.")])
    ctx.overflowed(REFUSAL)
    sent = ctx.fit([*history, _user("Go on.")])
    assert sent == [*_turn(0), _user("Delete nothing."), history[-1], _user("Go on.")]


@pytest.mark.long
@pytest.mark.parametrize("policy", ["economy", "sliding-summary"])
def test_the_record_survives_a_summary_of_it(policy: str) -> None:
    ctx = _context(policy=policy)
    ctx.fit(TURNS)
    history = [*COMPACTED, _user("Go on.")]
    ctx.fit(history)
    ctx.overflowed(REFUSAL)
    (record,) = _records(ctx)
    for number in range(30, 400, 16):
        history += [message for each in range(number, number + 16) for message in _turn(each)]
        sent = ctx.fit(history)
        if all(summary.handle != record.handle for summary in ctx.report().summaries):
            break
    else:
        pytest.fail("no summary has taken over the record")
    assert "parser_9.py" in _text(sent)
    assert "record of 30 messages" in ctx.report().warnings[0]


def test_a_log_that_is_loaded_again_shows_the_same() -> None:
    ctx = _compacted_context()
    history = [*COMPACTED, _user("Go on.")]
    ctx.overflowed(REFUSAL)
    sent = ctx.fit(history)
    again = foveal.Context.load(ctx.save(), model="gpt-5", window=24_000, reserve=1_000)
    assert again.fit(history) == sent
    assert again.fit([*history, *_turn(11)])[: len(sent)] == sent


def test_a_restored_view_shows_the_same() -> None:
    ctx = _compacted_context()
    ctx.overflowed(REFUSAL)
    sent = ctx.fit([*COMPACTED, _user("Go on.")])
    meter = MessageTokens(counter("auto"))
    view = fold(ctx.log, meter)
    events = [event for event in ctx.log if event.seq in needed_seqs(view)]
    restored = restore_view(events, take_checkpoint(view), meter)
    assert render_view(view, wire_for("openai_responses"))[0] == sent
    assert render_view(restored, wire_for("openai_responses"))[0] == sent
    assert restored.unreadable == view.unreadable != []


def test_an_edit_behind_the_record_keeps_it() -> None:
    ctx = _compacted_context()
    ctx.overflowed(REFUSAL)
    before = ctx.fit([*COMPACTED, _user("Go on.")])
    assert ctx.fit([*COMPACTED, _user("Go back.")]) == [*before[:-1], _user("Go back.")]


@pytest.mark.parametrize("policy", ["economy", "handoff", "recent", "rolling", "sliding-summary", "off"])
def test_every_policy_shows_the_record(policy: str) -> None:
    ctx = _context(policy=policy)
    ctx.fit(TURNS)
    ctx.fit([*COMPACTED, _user("Go on.")])
    ctx.overflowed(REFUSAL)
    assert "parser_9.py" in _text(ctx.fit([*COMPACTED, _user("Go on.")]))


@pytest.mark.parametrize("dialect", ["anthropic", "openai_chat"])
def test_another_dialect_gets_the_record(dialect: Any) -> None:
    log = _compacted_context().log
    ctx = foveal.Context("gpt-5", window=24_000, reserve=1_000, dialect=dialect, log=log)
    assert "parser_7.py" in _text(ctx.fit())


def test_a_session_reads_what_was_lost_from_its_store() -> None:
    asyncio.run(_refused_session())


async def _refused_session() -> None:
    async with foveal.stores.MemoryStore() as store:
        session = await foveal.Session.open(store, "demo", model="gpt-5", window=24_000)
        events = await session.take(*TURNS)
        await session.append(foveal.events.Rewound(to=events[0].seq, keep_state=True, keep_reductions=True))
        await session.take(*COMPACTED[1:], _user("Go on."))
        assert (await session.fit()).to_responses() == [*COMPACTED, _user("Go on.")]
        assert await session.overflowed(REFUSAL)
        request = await session.fit()
        assert ITEM not in request.to_responses()
        assert "parser_7.py" in _text(request.to_responses())
        assert not request.intact
        assert not await session.overflowed(REFUSAL)
        report = await session.report()
        assert "record of 30 messages" in report.warnings[0]
        await session.close()
        session = await foveal.Session.open(store, "demo", model="gpt-4.1", window=24_000)
        assert "parser_7.py" in _text((await session.fit()).to_responses())
        await session.close()


def test_undo_warns_that_the_provider_may_refuse_the_item_again() -> None:
    asyncio.run(_undone_session())


async def _undone_session() -> None:
    async with foveal.stores.MemoryStore() as store:
        session = await foveal.Session.open(store, "demo", model="gpt-5", window=24_000)
        await session.take(*TURNS, ITEM, _user("Go on."))
        assert await session.overflowed(REFUSAL)
        asked = SessionAction(operation="undo")
        done = await perform(session, asked)
        (item,) = (event for event in await session.events() if isinstance(event.fact, ForeignSummary))
        again = "and the next request has it again: the provider may refuse that request"
        assert done.warning == f"gpt-5 cannot read {item.handle}, {again}"
        assert done.warning in (await action_result(session, asked, done)).text
        assert ITEM in (await session.fit()).to_responses()
        assert (await perform(session, SessionAction(operation="pin", text="Be brief."))).warning == ""
        await session.close()


def test_a_session_with_another_model_does_so_too() -> None:
    asyncio.run(_switched_session())


async def _switched_session() -> None:
    async with foveal.stores.MemoryStore() as store:
        session = await foveal.Session.open(store, "demo", model="gpt-5", window=24_000)
        events = await session.take(*TURNS)
        await session.append(foveal.events.Rewound(to=events[0].seq, keep_state=True, keep_reductions=True))
        await session.take(*COMPACTED[1:], _user("Go on."))
        await session.close()
        session = await foveal.Session.open(store, "demo", model="claude-sonnet-4-5", window=24_000)
        assert "parser_7.py" in _text((await session.fit()).to_anthropic())
        assert "record of 30 messages" in (await session.report()).warnings[0]
        await session.close()


@pytest.mark.parametrize("dialect", ["openai_chat", "openai_responses", "gemini"])
def test_a_readable_summary_reaches_another_provider_as_a_text(dialect: Any) -> None:
    block = {"type": "compaction", "content": "The bug is in parser.py, line 7.", "signature": "c2ln"}
    history = [
        {"role": "user", "content": "Why is CI red?"},
        {"role": "assistant", "content": [block, {"type": "text", "text": "ok"}]},
        {"role": "user", "content": "next"},
    ]
    ctx = foveal.Context("claude-opus-5-5", dialect="anthropic")
    assert ctx.fit(history) == history
    other = foveal.Context.load(ctx.save(), dialect=dialect)
    other.use("gpt-4.1")
    sent = str(other.fit())
    assert "The bug is in parser.py, line 7." in sent
    assert "Why is CI red?" in sent
    (warning,) = other.report().warnings
    assert "its text is shown as a message" in warning
