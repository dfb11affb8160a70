"""Those who write summaries, asked with and without an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from anthropic.types import Message
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from foveal.core.compaction import (
    Ask,
    Draft,
    Failure,
    Plan,
    Summariser,
    SummaryProgress,
    SummaryRequest,
    SummaryWriter,
    awrite,
    chain,
    dialogue,
    failure,
    measures,
    piece,
    write,
)
from foveal.core.compaction.protocol import draft
from foveal.core.log import Compacted, Dialect, Event, ModelSaid, ToolReturned, UserSaid
from foveal.core.models.model import model
from foveal.core.tokens.counter import counter
from foveal.errors import BadSetting
from foveal.project.prompt_file import prompt_text

GPT = model("gpt-4.1")
COUNT = counter("estimate")
SUMMARY = (
    "<summary>\n## Goal\nRepair it.\n## Decisions\n-\n## State\n-\n## Next\n-\n## Dead ends\n-\n</summary>"
)
EVENTS = [
    Event(1, UserSaid(content="Repair the clock, please.")),
    *(Event(n, ToolReturned(call_id="c", content=f"line {n}\n" * 50)) for n in range(2, 12)),
    Event(12, ModelSaid(content="I am at it.")),
]
PLAN = Plan(
    first=1, last=12, turns=1, events=12, before=3_000, room=800, total=4_000, reason="tokens", rule="test"
)


class Clock:
    """One second passes each time that somebody looks."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def talk(writers: int = 1) -> Any:
    return dialogue(PLAN, EVENTS, writers=[SummaryWriter(model=GPT)] * writers, counter=COUNT)


def cold(ask: Ask) -> SummaryRequest:
    return SummaryRequest.cold(ask, "openai_chat")


def written(
    *calls: Callable[[SummaryRequest], Any], progress: Callable[[SummaryProgress], None] | None = None
) -> Compacted:
    outcome = write(talk(len(calls)), chain(calls), requests=cold, clock=Clock(), progress=progress)
    assert isinstance(outcome, Compacted)
    return outcome


def awritten(
    *calls: Callable[[SummaryRequest], Any], progress: Callable[[SummaryProgress], None] | None = None
) -> Compacted:
    work = awrite(talk(len(calls)), chain(calls), requests=cold, clock=Clock(), progress=progress)
    outcome = asyncio.run(work)
    assert isinstance(outcome, Compacted)
    return outcome


def by_model(fact: Compacted) -> bool:
    return fact.by == "gpt-4.1" and "Repair it." in fact.summary


# ── what a callable may give back ──

CHAT = {
    "id": "x", "object": "chat.completion", "created": 1, "model": "gpt-4.1",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": SUMMARY}}],
    "usage": {"prompt_tokens": 900, "completion_tokens": 70, "total_tokens": 970,
              "prompt_tokens_details": {"cached_tokens": 400}},
}  # fmt: skip
RESPONSE = {
    "id": "r", "object": "response", "created_at": 1, "model": "gpt-4.1", "status": "completed", "tools": [],
    "parallel_tool_calls": True, "tool_choice": "auto",
    "output": [
        {"id": "rs", "type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"id": "m", "type": "message", "role": "assistant", "status": "completed",
         "content": [{"type": "output_text", "text": SUMMARY, "annotations": []}]},
    ],
    "usage": {"input_tokens": 900, "output_tokens": 70, "total_tokens": 970,
              "input_tokens_details": {"cached_tokens": 400}, "output_tokens_details": {"reasoning_tokens": 0}},
}  # fmt: skip
MESSAGE = {
    "id": "m", "type": "message", "role": "assistant", "model": "claude", "stop_reason": "end_turn",
    "stop_sequence": None,
    "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": SUMMARY}],
    "usage": {"input_tokens": 500, "cache_read_input_tokens": 400, "output_tokens": 70},
}  # fmt: skip


def replies() -> list[Any]:
    return [
        CHAT,
        RESPONSE,
        MESSAGE,
        ChatCompletion.model_validate(CHAT),
        Response.model_construct(**RESPONSE),
        Message.model_validate(MESSAGE),
    ]


@pytest.mark.parametrize("reply", replies())
def test_a_reply_of_any_dialect_is_read_with_its_usage(reply: Any) -> None:
    assert draft(reply, seconds=2.0) == Draft(
        text=SUMMARY, stop="end", input=500, cache_read=400, output=70, seconds=2.0
    )
    assert by_model(written(lambda request: reply))


def test_a_text_a_draft_a_stream_and_a_bare_message_will_do() -> None:
    def stream(request: SummaryRequest) -> Iterator[str]:
        yield from SUMMARY.splitlines(keepends=True)

    for call in (
        lambda request: SUMMARY,
        lambda request: Draft(text=SUMMARY, stop="end"),
        lambda request: {"role": "assistant", "content": SUMMARY},
        lambda request: SimpleNamespace(
            choices=[SimpleNamespace(message=SimpleNamespace(content=SUMMARY), finish_reason="stop")],
            usage=None,
        ),
        lambda request: [SUMMARY[:40], SUMMARY[40:]],
        stream,
    ):
        assert by_model(written(call))
        assert by_model(awritten(call))


def test_where_there_is_a_loop_a_callable_may_be_async_or_give_something_to_wait_for() -> None:
    async def text(request: SummaryRequest) -> str:
        await asyncio.sleep(0)
        return SUMMARY

    async def stream(request: SummaryRequest) -> AsyncIterator[str]:
        for line in SUMMARY.splitlines(keepends=True):
            yield line

    async def stream_later(request: SummaryRequest) -> AsyncIterator[str]:
        return stream(request)

    for call in (text, stream, stream_later, lambda request: text(request)):
        assert by_model(awritten(call))


def test_a_callable_that_blocks_runs_beside_the_loop() -> None:
    threads = []

    def call(request: SummaryRequest) -> Iterator[str]:
        threads.append(threading.current_thread())
        return iter([SUMMARY])

    assert by_model(awritten(call))
    assert threads != [threading.main_thread()]


@pytest.mark.parametrize(
    ("chunk", "words"),
    [
        ("a", "a"),
        ({"choices": [{"delta": {"content": "a"}}]}, "a"),
        ({"choices": [{"delta": {"content": None}}]}, ""),
        ({"choices": []}, ""),
        ({"type": "response.output_text.delta", "delta": "a"}, "a"),
        ({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}}, "a"),
        ({"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "a"}}, ""),
        ({"type": "message_stop"}, ""),
        (3, None),
    ],
)
def test_pieces_of_the_streams_of_all_dialects_are_read(chunk: object, words: str | None) -> None:
    assert piece(chunk) == words


def stopped(**fields: Any) -> str:
    found = draft(fields)
    assert found is not None
    return found.stop


def test_why_an_answer_ended_is_read_in_every_dialect() -> None:
    def chat(reason: str, **message: Any) -> str:
        return stopped(choices=[{"finish_reason": reason, "message": {"content": "x", **message}}])

    assert chat("stop") == "end"
    assert chat("length") == "length"
    assert chat("tool_calls", tool_calls=[{"id": "1"}]) == "tools"
    assert chat("stop", tool_calls=[{"id": "1"}]) == "tools"
    assert chat("content_filter") == "refused"
    assert chat("stop", refusal="no") == "refused"
    assert chat("something new") == ""
    assert stopped(content=[{"type": "text", "text": "x"}], stop_reason="max_tokens") == "length"
    assert stopped(content=[{"type": "tool_use", "id": "1"}], stop_reason="tool_use") == "tools"
    assert stopped(content=[], stop_reason="refusal") == "refused"
    assert stopped(output=[{"type": "function_call"}], status="completed") == "tools"
    incomplete = {"reason": "max_output_tokens"}
    assert stopped(output=[], status="incomplete", incomplete_details=incomplete) == "length"
    refusal = {"type": "message", "content": [{"type": "refusal", "refusal": "no"}]}
    assert stopped(output=[refusal], status="completed") == "refused"


@pytest.mark.parametrize("given", [None, 7, object(), b"bytes", [3, 4], {"no": "reply"}])
def test_what_cannot_be_read_is_a_failure_and_the_ledger_writes(given: object) -> None:
    for fact in (written(lambda request: given), awritten(lambda request: given)):
        assert fact.by == "ledger"
        assert "gpt-4.1: " in measures(fact).checks[0]


def test_an_async_callable_without_a_loop_is_a_failure_that_says_what_to_do() -> None:
    async def call(request: SummaryRequest) -> str:
        return SUMMARY

    fact = written(call)
    assert fact.by == "ledger"
    assert "event loop" in measures(fact).checks[0]


# ── failures ──


class HttpError(Exception):
    def __init__(self, status_code: int, message: str = "") -> None:
        super().__init__(message or f"status {status_code}")
        self.status_code = status_code


class APIConnectionError(Exception):
    pass


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError(),
        ConnectionResetError(),
        APIConnectionError(),
        *map(HttpError, (408, 409, 429, 500, 529)),
    ],
)
def test_what_may_pass_is_tried_once_more(error: Exception) -> None:
    assert failure(error).transient
    script: list[Any] = [error, SUMMARY]

    def call(request: SummaryRequest) -> str:
        given = script.pop(0)
        if isinstance(given, Exception):
            raise given
        return str(given)

    assert by_model(written(call))


@pytest.mark.parametrize(
    "error", [ValueError("no"), KeyError("x"), HttpError(401), HttpError(400), HttpError(404)]
)
def test_what_will_not_pass_goes_to_the_next_in_the_chain(error: Exception) -> None:
    asked = []

    def first(request: SummaryRequest) -> str:
        asked.append(request)
        raise error

    assert not failure(error).transient
    fact = written(first, lambda request: SUMMARY)
    assert by_model(fact)
    assert len(asked) == 1
    assert measures(fact).checks[0].startswith(f"gpt-4.1: {type(error).__name__}")


def test_a_refusal_for_size_carries_its_limit() -> None:
    words = (
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens."
    )
    assert failure(HttpError(400, words), seconds=1.0) == Failure(
        problem=f"HttpError: {words}", overflow=True, limit=8192, seconds=1.0
    )


def test_an_error_that_cannot_be_printed_is_a_failure_too() -> None:
    class Nasty(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert failure(Nasty()).problem == "Nasty"


def test_whoever_raises_stop_iteration_does_not_end_the_dialogue() -> None:
    def call(request: SummaryRequest) -> str:
        raise StopIteration("mine")

    assert written(call).by == "ledger"
    assert awritten(call).by == "ledger"


def test_a_stream_that_breaks_off_is_a_failure_and_not_half_a_summary() -> None:
    def call(request: SummaryRequest) -> Iterator[str]:
        yield SUMMARY[:60]
        raise ConnectionResetError

    fact = written(call)
    assert fact.by == "ledger"
    assert measures(fact).asked == 2


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_program_goes_through_and_nobody_else_is_asked(stop: type[BaseException]) -> None:
    asked = []

    def first(request: SummaryRequest) -> str:
        raise stop

    with pytest.raises(stop):
        written(first, lambda request: asked.append(request))
    assert asked == []


def test_a_cancelled_summary_never_falls_back_and_leaves_nothing() -> None:
    asked = []

    async def slow(request: SummaryRequest) -> str:
        await asyncio.sleep(60)
        return SUMMARY

    async def scenario() -> None:
        work = talk(2)
        calls = chain([slow, lambda request: asked.append(request)])
        task = asyncio.create_task(awrite(work, calls, requests=cold, clock=Clock()))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(StopIteration):
            next(work)

    asyncio.run(scenario())
    assert asked == []


# ── progress ──


def test_progress_is_told_as_a_stream_grows() -> None:
    seen: list[SummaryProgress] = []
    assert by_model(written(lambda request: [SUMMARY[:40], "", SUMMARY[40:]], progress=seen.append))
    assert seen == [
        SummaryProgress(stage="summary", asked=1, tokens=0),
        SummaryProgress(stage="summary", asked=1, tokens=10),
        SummaryProgress(stage="summary", asked=1, tokens=len(SUMMARY) // 4),
    ]


def test_whoever_watches_cannot_spoil_the_work() -> None:
    def broken(progress: SummaryProgress) -> None:
        raise ValueError("no screen")

    assert by_model(written(lambda request: SUMMARY, progress=broken))
    assert by_model(awritten(lambda request: SUMMARY, progress=broken))


def test_the_time_of_all_requests_is_added_up() -> None:
    assert measures(written(lambda request: "", lambda request: SUMMARY)).seconds == 3.0


# ── requests ──

ASK = Ask(writer=0, form="cold", text="the text", system="the rules", max_tokens=99, stage="summary")


@pytest.mark.parametrize("dialect", ["", "openai_chat", "openai_responses"])
def test_a_cold_request_has_its_rules_in_front_and_no_tools(dialect: Dialect) -> None:
    request = SummaryRequest.cold(ASK, dialect)
    first, second = request.messages
    assert (first["role"], first["content"]) == ("system", "the rules")
    assert (second["role"], second["content"]) == ("user", "the text")
    assert (request.tools, request.system, request.max_tokens, request.form) == ([], "", 99, "cold")


def test_a_cold_request_for_anthropic_has_its_rules_beside() -> None:
    request = SummaryRequest.cold(ASK, "anthropic")
    assert request.messages == [{"role": "user", "content": "the text"}]
    assert (request.system, request.tools) == ("the rules", [])


@pytest.mark.parametrize("dialect", ["openai_chat", "openai_responses", "anthropic"])
def test_a_shared_request_begins_with_the_conversation_as_it_is(
    dialect: Literal["openai_chat", "openai_responses", "anthropic"],
) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hi"},
    ]
    ask = Ask(writer=0, form="shared", text="the text", max_tokens=99)
    tools = [{"name": "bash"}]
    request = SummaryRequest.shared(ask, dialect, messages=messages, system="sys", tools=tools)
    assert request.messages[:2] == messages
    assert request.messages[2]["content"] == "the text"
    assert (request.system, request.tools, request.form) == ("sys", tools, "shared")


def test_a_shared_request_for_anthropic_keeps_roles_alternating_and_earlier_blocks_as_they_are() -> None:
    result = {"type": "tool_result", "tool_use_id": "1", "content": "ok"}
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "b", "input": {}}]},
        {"role": "user", "content": [result]},
    ]
    ask = Ask(writer=0, form="shared", text="the text", max_tokens=99)
    request = SummaryRequest.shared(ask, "anthropic", messages=messages, system="", tools=[])
    assert request.messages[:2] == messages[:2]
    assert request.messages[2] == {"role": "user", "content": [result, {"type": "text", "text": "the text"}]}
    assert messages[2]["content"] == [result]


# ── settings ──


def test_a_chain_is_none_one_or_several() -> None:
    def call(request: SummaryRequest) -> str:
        return ""

    one = Summariser(call, model="gpt-4o")
    assert chain(None) == ()
    assert chain(one) == (one,)
    assert chain([one])[0] is one
    assert [item.model for item in chain((call, one))] == [None, model("gpt-4o")]
    assert chain(call)[0].call is call
    assert Summariser(call, model=GPT).model is GPT
    assert (one.name, Summariser(call, name="mine").name) == ("gpt-4o", "mine")


@pytest.mark.parametrize("given", ["gpt-4.1", 7, {"a": 1}, [7]])
def test_a_chain_of_what_cannot_be_called_is_refused(given: Any) -> None:
    with pytest.raises(BadSetting, match="summarise"):
        chain(given)


def test_a_prompt_is_a_text_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "prompt.md"
    file.write_text("## Facts\nÜber alles", "utf-8")
    assert prompt_text("") == ""
    assert prompt_text("## Facts") == "## Facts"
    assert prompt_text(f"file://{file}") == "## Facts\nÜber alles"


def test_a_prompt_file_that_is_missing_too_large_not_text_or_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * 70_000)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name in ("missing", "large", "binary", "."):
        with pytest.raises(BadSetting, match="prompt"):
            prompt_text(f"file://{tmp_path / name}")
