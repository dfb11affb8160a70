"""The history that a caller passes in: origins, sliding windows, other conversations, saved contexts."""

from __future__ import annotations

import asyncio
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given

from foveal import Context
from foveal.core.engine.history_diff import KnownMessages
from foveal.core.engine.origins import Origin
from foveal.core.log.events import Clipped, Dropped, Rewound
from foveal.errors import (
    Busy,
    Conflict,
    ContextOverflow,
    HistoryDiverged,
    MalformedMessage,
    SummariserFailed,
    UnrelatedConversation,
)
from foveal.stores.memory import MemoryStore
from support.histories import (
    ScriptedHistory,
    events_of,
    make_script,
    scripted_histories,
    strings,
    write_script,
)
from support.waiting import DEADLINE_S

Message = dict[str, Any]
SYSTEM = {"role": "system", "content": "Be brief."}


def turn(number: int, *, size: int = 1) -> list[Message]:
    call = {"id": f"c{number}", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    return [
        {"role": "user", "content": f"question {number}", "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": f"line {number} of the file\n" * size},
        {"role": "assistant", "content": f"answer {number}"},
    ]


def turns(first: int, end: int, *, size: int = 1) -> list[Message]:
    return [message for number in range(first, end) for message in turn(number, size=size)]


# ── Origins ──────────────────────────────────────────────────────────────────────────────────────────────


def test_every_message_of_a_request_that_fits_is_a_given_one() -> None:
    history = [SYSTEM, *turns(0, 3)]
    fitted, origins = Context("gpt-4.1").fit_with_origins(history)
    assert fitted == history
    assert origins == [Origin(inputs=(index,), whole=True) for index in range(len(history))]


def test_reduced_messages_name_the_event_and_written_ones_have_no_input() -> None:
    history = [SYSTEM, *turns(0, 40, size=60)]
    ctx = Context("gpt-4.1", window=8_000, reserve=1_000)
    for end in range(5, len(history) + 1, 4):
        fitted, origins = ctx.fit_with_origins(history[:end])
    assert len(fitted) == len(origins)
    for message, origin in zip(fitted, origins, strict=True):
        if origin.input is not None:
            assert message == history[origin.input]
        else:
            assert origin.events
            assert all(message != history[index] for index in origin.inputs)
    assert any(not origin.inputs for origin in origins)
    assert {name for origin in origins for name in origin.events} <= {event.handle for event in ctx.log}
    assert [i for origin in origins for i in origin.inputs] == sorted(
        {i for origin in origins for i in origin.inputs}
    )


def test_joined_anthropic_messages_have_the_inputs_of_all() -> None:
    use = {"type": "tool_use", "id": "t1", "name": "read", "input": {}}
    history: list[Message] = [
        {"role": "user", "content": "one"},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": [{"type": "text", "text": "I read."}, use]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "text"},
                {"type": "text", "text": "and now?"},
            ],
        },
    ]
    fitted, origins = Context("claude-sonnet-4-5").fit_with_origins(history)
    assert [message["role"] for message in fitted] == ["user", "assistant", "user"]
    assert origins == [
        Origin(inputs=(0, 1)),
        Origin(inputs=(2,), whole=True),
        Origin(inputs=(3,), whole=True),
    ]


def test_a_message_in_front_of_an_answer_has_no_origin() -> None:
    history = [{"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Hi."}]
    fitted, origins = Context("claude-sonnet-4-5", dialect="anthropic").fit_with_origins(history)
    assert len(fitted) == 3
    assert origins == [Origin(), Origin(inputs=(0,), whole=True), Origin(inputs=(1,), whole=True)]


@given(scripted_histories())
def test_every_output_has_an_origin_and_whole_ones_show_their_input(history: ScriptedHistory) -> None:
    ctx = Context(
        "gpt-4.1", dialect=history.dialect, window=6_000, reserve=500, tokenizer="estimate", policy="economy"
    )
    try:
        fitted, origins = ctx.fit_with_origins(history.messages)
    except ContextOverflow:
        return
    assert len(fitted) == len(origins)
    for message, origin in zip(fitted, origins, strict=True):
        assert all(0 <= index < len(history.messages) for index in origin.inputs)
        if origin.input is not None:
            assert set(strings(history.messages[origin.input])) <= set(strings(message))


@given(scripted_histories(turns=6))
@example(write_script(make_script(0, 3, 3, 2), "openai_responses"))
def test_origins_do_not_depend_on_earlier_requests(history: ScriptedHistory) -> None:
    traced, other = (
        Context("gpt-4.1", dialect=history.dialect, window=3_000, reserve=300, tokenizer="estimate")
        for _ in range(2)
    )
    try:
        for end in history.calls:
            origins = traced.fit_with_origins(history.messages[:end])[1]
            other.fit(history.messages[:end])
        assert other.fit_with_origins(history.messages[:end])[1] == origins
    except ContextOverflow:
        return


def test_messages_that_a_join_brought_back_have_no_origin_in_the_history() -> None:
    ctx = Context("gpt-4.1")
    history = turn(0)
    ctx.fit(history)
    child = ctx.fork("Read the log of the build.")
    child.fit([*history, {"role": "assistant", "content": "The disk was full."}])
    ctx.undo(ctx.join(child, "The disk was full."))
    fitted, origins = ctx.fit_with_origins([*history, *turn(1)])
    [joined] = [at for at, message in enumerate(fitted) if message["content"] == "The disk was full."]
    assert origins[joined].inputs == ()
    given = [origin.input for at, origin in enumerate(origins) if at != joined]
    assert given == list(range(len(history) + len(turn(1))))


def test_items_of_one_utterance_keep_their_own_origins() -> None:
    items: list[Message] = [
        {"role": "user", "content": "hello"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "xyz"},
        {"type": "message", "id": "m1", "role": "assistant", "status": "completed"}
        | {"content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
        {"type": "function_call", "id": "f1", "call_id": "c1", "name": "read", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "text"},
    ]
    fitted, origins = Context("gpt-5").fit_with_origins(items)
    assert fitted == items
    assert origins == [Origin(inputs=(index,), whole=True) for index in range(5)]


def test_an_edited_system_message_keeps_its_origin() -> None:
    ctx = Context("gpt-4.1")
    ctx.fit([SYSTEM, *turns(0, 2)])
    edited = [{"role": "system", "content": "Be long."}, *turns(0, 2)]
    fitted, origins = ctx.fit_with_origins(edited)
    assert fitted == edited
    assert [origin.input for origin in origins] == list(range(len(edited)))


# ── Sliding windows and other conversations ──────────────────────────────────────────────────────────────


def test_a_sliding_window_of_the_caller_does_not_record_messages_again() -> None:
    ctx, history = Context("gpt-4.1"), turns(0, 60)
    for end in range(4, len(history) + 1, 4):
        window = [SYSTEM, *history[max(0, end - 12) : end]]
        assert ctx.fit(window) == window
    assert len(ctx.log) < 2 * len(history)
    assert not any(isinstance(event.fact, Rewound) for event in ctx.log)
    assert "line 3 of the file" in ctx.recall("recall_search", {"query": "line 3"})


def test_a_replaced_message_is_noticed_wherever_it_is_hidden() -> None:
    ctx = Context("gpt-4.1", window=2_000, reserve=100)
    messages = [SYSTEM, *(message for number in range(200) for message in turn(number))]
    ctx.fit(messages)
    messages.append({"role": "user", "content": "and now?"})
    ctx.fit(messages)
    assert events_of(ctx.log, Rewound) == []
    hidden = messages.index({"role": "assistant", "content": "answer 100"})
    messages[hidden] = {"role": "assistant", "content": "another answer"}
    ctx.fit(messages)
    assert events_of(ctx.log, Rewound) != []


class Incomparable(dict[str, Any]):
    def __eq__(self, other: object) -> bool:
        raise ValueError("no comparison")


def test_a_message_that_cannot_be_compared_leaves_the_known_ones_as_they_were() -> None:
    known = KnownMessages()
    messages: list[Any] = [SYSTEM, *turn(1)]
    known.add(messages, seq_before=0, seq_last=4)
    with pytest.raises(ValueError, match="no comparison"):
        known.is_prefix_of([Incomparable(SYSTEM), *messages[1:], *turn(2)])
    assert known.newest(len(messages) + 1) == messages
    assert known.is_prefix_of([*messages, *turn(2)])


def test_what_a_sliding_window_left_out_can_come_back() -> None:
    ctx, history = Context("gpt-4.1"), turns(0, 10)
    ctx.fit(history)
    ctx.fit(history[20:])
    assert any(isinstance(event.fact, Dropped) for event in ctx.log)
    assert ctx.fit(history) == history


def test_windows_of_two_lengths_in_turn_record_nothing_again() -> None:
    ctx, history = Context("gpt-4.1"), turns(0, 60)
    for end in range(4, len(history) + 1, 4):
        window = [SYSTEM, *history[max(0, end - (40 if end % 8 else 8)) : end]]
        fitted, origins = ctx.fit_with_origins(window)
        assert fitted == window
        assert [origin.input for origin in origins] == list(range(len(window)))
    assert not any(isinstance(event.fact, Rewound) for event in ctx.log)
    assert len(ctx.log) < 2 * len(history)


def test_what_was_left_out_stays_out_after_an_edit() -> None:
    ctx, history = Context("gpt-4.1"), turns(0, 4)
    ctx.fit(history)
    ctx.fit(history[8:])
    edited = [*history[8:12], {"role": "user", "content": "something else"}]
    assert ctx.fit(edited) == edited


def test_a_sliding_window_under_a_changing_system_text_records_nothing_again() -> None:
    ctx, history = (
        Context("claude-sonnet-4-5", dialect="anthropic"),
        [{"role": ("user", "assistant")[number % 2], "content": f"text {number}"} for number in range(121)],
    )
    for end in range(1, len(history) + 1, 2):
        window = history[max(0, end - 11) : end]
        assert ctx.fit(window, system=f"It is {end} o'clock.") == window
    assert not any(isinstance(event.fact, Rewound) for event in ctx.log)


def test_moved_cache_marks_are_no_edit_after_a_new_system_text() -> None:
    ctx = Context("claude-sonnet-4-5", dialect="anthropic")
    text = {"type": "text", "text": "hello"}
    marked = [{"role": "user", "content": [{**text, "cache_control": {"type": "ephemeral"}}]}]
    ctx.fit(marked, system="one")
    ctx.fit(marked, system="two")
    ctx.fit([{"role": "user", "content": [text]}], system="two")
    assert not any(isinstance(event.fact, Rewound) for event in ctx.log)


def test_messages_before_a_rewind_or_a_gap_are_still_whole() -> None:
    ctx, history = Context("gpt-4.1"), turns(0, 4)
    ctx.fit([SYSTEM, *history])
    edited = [SYSTEM, *history[:12], *turns(7, 8)]
    assert [origin.input for origin in ctx.fit_with_origins(edited)[1]] == list(range(17))
    window = [SYSTEM, *edited[5:]]
    assert [origin.input for origin in ctx.fit_with_origins(window)[1]] == list(range(13))


def test_another_conversation_is_told_and_recall_does_not_cross_it() -> None:
    ctx = Context("gpt-4.1")
    ctx.fit(
        [SYSTEM, {"role": "user", "content": "the secret is zebra"}, {"role": "assistant", "content": "ok"}]
    )
    other = [SYSTEM, {"role": "user", "content": "hello"}]
    with pytest.warns(UnrelatedConversation, match="one Context for each conversation"):
        assert ctx.fit(other) == other
    assert "secret is zebra" not in ctx.recall("recall_search", {"query": "zebra secret"})
    assert "zebra" not in ctx.recall("recall_read", {"handle": "e2"})


def test_a_second_user_who_begins_alike_is_told_and_does_not_recall_the_first() -> None:
    def said(name: str) -> list[Message]:
        texts = ["Hi", "Hello.", f"my password is SECRET-{name}", "Fine.", "continue"]
        return [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]

    ctx = Context("gpt-4.1")
    ctx.fit(said("ANN"), system="You talk to ANN-17.")
    with pytest.warns(HistoryDiverged, match="after 2 messages .* 3 recorded ones .* one Context for each"):
        assert ctx.fit(said("BOB"), system="You talk to BOB-18.") == said("BOB")
    assert "SECRET-BOB" in ctx.recall("recall_search", {"query": "password"})
    answers = [ctx.recall("recall_search", {"query": "my password is"})]
    answers += [ctx.recall("recall_read", {"handle": handle}) for handle in ("e0-e40", "e1", "e4")]
    assert "SECRET-ANN" not in "".join(answers)
    assert "ANN-17" not in "".join(answers[1:])


def test_recall_does_not_find_an_edited_message_in_a_loaded_log() -> None:
    ctx, hello = (
        Context("gpt-4.1"),
        [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}],
    )
    ctx.fit([*hello, {"role": "user", "content": "my password is SECRET-ANN"}])
    loaded = Context.load(ctx.save())
    loaded.fit([*hello, {"role": "user", "content": "my password is SECRET-BOB"}])
    for found in (loaded, Context.load(loaded.save())):
        answer = found.recall("recall_search", {"query": "password"})
        assert ("SECRET-ANN" in answer, "SECRET-BOB" in answer) == (False, True)


def test_an_edited_first_message_is_not_another_conversation() -> None:
    ctx, history = Context("gpt-4.1"), turns(0, 3)
    ctx.fit(history)
    edited = [{"role": "user", "content": "another question"}, *history[1:]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ctx.fit(edited) == edited


def test_a_new_conversation_that_is_announced_is_not_warned_about() -> None:
    ctx = Context("gpt-4.1")
    ctx.pin("Answer in German.")
    ctx.fit(turns(0, 3))
    ctx.new_conversation()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted = ctx.fit(turns(7, 9))
    assert [message for message in fitted if "Pinned rule" not in str(message)] == turns(7, 9)
    assert "> question 1" not in ctx.recall("recall_search", {"query": "question 1"})


# ── Saved contexts ───────────────────────────────────────────────────────────────────────────────────────


def long_context(history: list[Message]) -> Context:
    ctx = Context("gpt-4.1", window=8_000, reserve=1_000, clock=lambda: 0.0)
    for end in range(4, len(history) + 1, 4):
        ctx.fit([SYSTEM, *history[:end]])
    return ctx


def test_a_loaded_context_sends_what_the_saved_one_would() -> None:
    history = turns(0, 40, size=60)
    ctx = long_context(history)
    loaded = Context.load(ctx.save(), window=8_000, reserve=1_000, clock=lambda: 0.0)
    assert loaded.log == ctx.log
    more = [SYSTEM, *history, *turns(40, 41)]
    assert loaded.fit(more) == ctx.fit(more)
    assert loaded.log == ctx.log


@pytest.mark.parametrize("items_per_fit", [1, 2, 3])
def test_a_loaded_context_knows_items_of_responses_that_came_one_after_the_other(items_per_fit: int) -> None:
    said = [{"type": "output_text", "text": "I look."}]
    again = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]}
    history: list[Message] = [
        {"role": "user", "content": "Go."},
        {"type": "message", "role": "assistant", "content": said},
        {"type": "function_call", "call_id": "c1", "name": "bash", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "ok"},
        again,
        {"type": "function_call", "call_id": "c2", "name": "bash", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c2", "output": "ok"},
    ]
    ctx = Context("gpt-4.1")
    for end in range(1, len(history) + 1, items_per_fit):
        ctx.fit(history[:end])
    sent = ctx.fit(history)
    loaded = Context.load(ctx.save())
    assert loaded.fit(history) == sent
    assert len(loaded.log) == len(ctx.log)


def test_a_loaded_context_continues_after_an_edit() -> None:
    history = turns(0, 5)
    loaded = Context.load(long_context(history).save(), window=8_000, reserve=1_000)
    edited = [SYSTEM, *history[:12], {"role": "user", "content": "something else"}]
    with pytest.warns(HistoryDiverged, match="after 13 messages"):
        assert loaded.fit(edited) == edited


def test_a_loaded_context_knows_another_conversation() -> None:
    loaded = Context.load(long_context(turns(0, 5)).save(), window=8_000, reserve=1_000)
    with pytest.warns(UnrelatedConversation):
        assert loaded.fit([SYSTEM, *turns(8, 9)]) == [SYSTEM, *turns(8, 9)]


def test_a_loaded_context_recognises_a_window_that_has_moved_since() -> None:
    history = turns(0, 5)
    loaded = Context.load(long_context(history).save())
    window = [SYSTEM, *history[8:], *turns(5, 6)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted, origins = loaded.fit_with_origins(window)
    assert fitted == window
    assert [origin.input for origin in origins] == list(range(len(window)))
    assert not any(isinstance(event.fact, Rewound) for event in loaded.log)
    with pytest.warns(HistoryDiverged):
        assert loaded.fit([SYSTEM, *history[8:12]]) == [SYSTEM, *history[8:12]]


def test_a_loaded_context_continues_with_a_summary_that_the_caller_wrote() -> None:
    history = turns(0, 5)
    loaded = Context.load(long_context(history).save())
    summarised = [SYSTEM, {"role": "user", "content": "Summary: four questions."}, *history[16:]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert loaded.fit(summarised) == summarised


def test_a_loaded_context_survives_a_malformed_message() -> None:
    history = turns(0, 3)
    loaded = Context.load(long_context(history).save())
    with pytest.raises(MalformedMessage):
        loaded.fit([SYSTEM, *history[:4], {"role": "nobody"}])
    assert loaded.fit([SYSTEM, *history]) == [SYSTEM, *history]


def test_a_loaded_context_takes_appended_messages_and_then_a_history() -> None:
    history = turns(0, 3)
    loaded = Context.load(long_context(history).save())
    loaded.append({"role": "user", "content": "and now?"})
    whole = [SYSTEM, *history, {"role": "user", "content": "and now?"}]
    assert loaded.fit() == whole
    more = [*whole, {"role": "assistant", "content": "Done."}]
    assert loaded.fit(more) == more
    assert not any(isinstance(event.fact, Rewound) for event in loaded.log)


def test_a_context_is_saved_to_a_store_event_by_event() -> None:
    async def check() -> None:
        history = turns(0, 20, size=60)
        ctx = long_context(history)
        store = MemoryStore()
        await ctx.save_to(store, "a")
        ctx.fit([SYSTEM, *history, *turns(20, 21)])
        await ctx.save_to(store, "a")
        await ctx.save_to(store, "a")
        loaded = await Context.load_from(store, "a", window=8_000, reserve=1_000)
        assert loaded.log == ctx.log
        with pytest.raises(Conflict):
            await Context("gpt-4.1").save_to(store, "a")

    asyncio.run(check())


def test_two_conversations_that_end_alike_are_not_mixed_in_a_store() -> None:
    async def save_both() -> None:
        async with MemoryStore() as store:
            for words in (("first", "go on"), ("second", "go on", "more")):
                ctx = Context("gpt-4.1")
                ctx.append(*({"role": "user", "content": text} for text in words))
                await ctx.save_to(store, "a")

    with pytest.raises(Conflict):
        asyncio.run(save_both())


# ── Without blocking ─────────────────────────────────────────────────────────────────────────────────────


def test_an_async_summariser_runs_in_the_loop_of_the_caller() -> None:
    seen: list[asyncio.AbstractEventLoop] = []

    async def summarise(request: Any) -> str:
        seen.append(asyncio.get_running_loop())
        await asyncio.sleep(0)
        return "The user asked questions and got answers."

    async def check() -> None:
        ctx = Context("gpt-4.1", window=8_000, reserve=1_000, summarise=summarise)
        history = turns(0, 40, size=60)
        for end in range(4, len(history) + 1, 4):
            fitted = await ctx.afit(history[:end])
        assert fitted[-1] == history[-1]
        assert set(seen) == {asyncio.get_running_loop()}

    asyncio.run(check())


def test_the_loop_that_writes_a_summary_does_not_wait_for_itself() -> None:
    problems: list[Busy] = []

    async def summarise(request: Any) -> str:
        try:
            ctx.report()
        except Busy as problem:
            problems.append(problem)
        return "The user asked questions and got answers."

    ctx = Context("gpt-4.1", window=8_000, reserve=1_000, summarise=summarise)

    async def check() -> None:
        history = turns(0, 40, size=60)
        for end in range(4, len(history) + 1, 4):
            await ctx.afit(history[:end])

    asyncio.run(asyncio.wait_for(check(), DEADLINE_S))
    assert problems
    assert ctx.report().fitted > 1


def test_two_tasks_can_fit_the_same_history() -> None:
    async def summarise(request: Any) -> str:
        await asyncio.sleep(0.01)
        return "The user asked questions and got answers."

    async def check() -> None:
        ctx = Context("gpt-4.1", window=8_000, reserve=1_000, summarise=summarise)
        history = turns(0, 20, size=60)
        one, other = await asyncio.gather(ctx.afit(history), ctx.afit(history))
        assert one == other

    asyncio.run(asyncio.wait_for(check(), DEADLINE_S))


def test_a_cancelled_fit_leaves_no_lock_behind() -> None:
    async def check() -> None:
        started = asyncio.Event()

        async def summarise(request: Any) -> str:
            started.set()
            await asyncio.sleep(60)
            return "never"

        ctx = Context("gpt-4.1", window=8_000, reserve=1_000, summarise=summarise)
        fitting = asyncio.create_task(ctx.afit(turns(0, 40, size=60)))
        await started.wait()
        fitting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fitting
        with suppress(Busy):  # the thread may still write down what it has
            ctx.report()
        with pytest.warns(HistoryDiverged):
            assert await ctx.afit(turns(0, 1)) == turns(0, 1)

    asyncio.run(asyncio.wait_for(check(), DEADLINE_S))


def test_summaries_of_many_contexts_can_use_the_threads_of_the_loop() -> None:
    async def summarise(request: Any) -> str:
        await asyncio.sleep(0.1)
        return await asyncio.to_thread(lambda: "The user asked questions and got answers.")

    async def check() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        contexts = [Context("gpt-4.1", window=8_000, reserve=1_000, summarise=summarise) for _ in range(2)]
        history = turns(0, 40, size=60)
        for fitted in await asyncio.gather(*(ctx.afit(history) for ctx in contexts)):
            assert fitted[-1] == history[-1]
            assert len(fitted) < len(history)

    asyncio.run(asyncio.wait_for(check(), DEADLINE_S))


# ── Found by a first user ────────────────────────────────────────────────────────────────────────────────


def test_recall_does_not_show_the_only_message_of_another_conversation() -> None:
    ctx = Context("gpt-4.1")
    ctx.fit([SYSTEM, {"role": "user", "content": "The number of Alice is 7715."}])
    ctx.fit([SYSTEM, {"role": "user", "content": "Hello, I am Bob."}])
    assert "7715" not in ctx.recall("recall_search", {"query": "number of Alice"})


def test_a_shared_ok_does_not_make_two_conversations_one() -> None:
    def conversation(name: str) -> list[Message]:
        said = [f"I am {name}.", f"My number is {len(name)}{len(name)}."]
        users = [{"role": "user", "content": text} for text in said]
        return [SYSTEM, *users, {"role": "assistant", "content": "ok"}]

    ctx = Context("gpt-4.1")
    ctx.fit(conversation("Alice"))
    with pytest.warns(UnrelatedConversation, match="the 3 recorded ones"):
        ctx.fit(conversation("Bob"))
    assert "> My number is 55" not in ctx.recall("recall_search", {"query": "number Alice"})


def talk(*texts: str) -> list[Message]:
    return [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]


@pytest.mark.parametrize("is_loaded", [False, True])
@pytest.mark.parametrize(
    "shared",
    [["ok"] * 4, ["ok", "fine", "go on", "yes"], ["Hi", "Hello! How can I help you today?"]],
)
def test_what_anyone_may_say_is_no_sliding_window(shared: list[str], is_loaded: bool) -> None:
    ctx = Context("gpt-4.1")
    ctx.fit(talk("The number of Alice is 7715.", "Noted.", *shared))
    ctx = Context.load(ctx.save()) if is_loaded else ctx
    other = talk(*shared, "I am Bob.")
    with pytest.warns(UnrelatedConversation):
        assert ctx.fit(other) == other
    assert "7715" not in ctx.recall("recall_search", {"query": "number of Alice"})


@pytest.mark.parametrize("is_loaded", [False, True])
@pytest.mark.parametrize("beginning", [[], ["Hi", "Hello."]])
def test_a_pin_goes_with_the_conversation_it_was_made_in(beginning: list[str], is_loaded: bool) -> None:
    ctx = Context("gpt-4.1")
    ctx.pin("Answer in German.")
    ctx.fit(talk(*beginning, "I am Alice.", "Hello Alice.", "Go on."))
    ctx.pin("Alice lives in Berlin.")
    ctx = Context.load(ctx.save()) if is_loaded else ctx
    bob = talk(*beginning, "I am Bob.", "Hello Bob.", "What now?")
    with pytest.warns((UnrelatedConversation, HistoryDiverged)):
        fitted = ctx.fit(bob)
    assert ("Berlin" in str(fitted), "Answer in German." in str(fitted)) == (False, True)
    assert Context.load(ctx.save()).fit(bob) == fitted


def test_a_pin_stays_when_its_user_edits_the_latest_message() -> None:
    ctx = Context("gpt-4.1")
    ctx.fit(talk("Why is CI red?", "A test fails.", "Which?"))
    ctx.pin("Never push to main.")
    assert "Never push" in str(ctx.fit(talk("Why is CI red?", "A test fails.", "Which one?")))


def test_the_warning_after_a_load_counts_the_recorded_messages() -> None:
    ctx = Context("gpt-4.1")
    ctx.fit([SYSTEM, *turns(0, 3)])
    with pytest.warns(UnrelatedConversation, match="the 12 recorded ones"):
        Context.load(ctx.save()).fit([SYSTEM, *turns(8, 9)])


def test_a_summariser_that_always_fails_is_told_once() -> None:
    def summarise(request: Any) -> str:
        raise RuntimeError("no such model")

    ctx = Context("gpt-4.1", window=8_000, reserve=1_000, summarise=summarise)
    history = turns(0, 60, size=60)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for end in range(4, len(history) + 1, 4):
            ctx.fit(history[:end])
    assert [type(warning.message) for warning in told] == [SummariserFailed]
    assert "no such model" in str(told[0].message)


@pytest.mark.parametrize(("window", "is_searched"), [(100_000, True), (8_000, False)])
def test_a_history_of_several_windows_is_not_searched_for_repeated_lines(
    window: int, is_searched: bool
) -> None:
    """The cut that follows hides its results."""
    lines = "\n".join(f"line {number} of a file that is read again and again" for number in range(80))
    history = turns(0, 40)
    for message in history[2::4]:
        message["content"] = lines
    ctx = Context("gpt-4.1", window=window, reserve=1_000)
    ctx.fit(history)
    assert bool(events_of(ctx.log, Clipped)) is is_searched
