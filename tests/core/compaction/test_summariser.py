"""Summarisers: replies that are read, failures, progress and requests, with and without an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from anthropic.types import Message
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from foveal.core.compaction import (
    Draft,
    DraftFailure,
    DraftRequest,
    Plan,
    Summariser,
    SummaryRequest,
)
from foveal.core.compaction.health import read_metrics
from foveal.core.compaction.summariser import DialogueRun, SummaryProgress, run_dialogue, summariser_chain
from foveal.core.compaction.summariser_protocol import (
    SummaryWriter,
    failure_from_error,
    read_reply,
    read_stream_chunk,
)
from foveal.core.compaction.summary import SummarySource
from foveal.core.compaction.summary_dialogue import summary_dialogue
from foveal.core.log import Compacted, Dialect, Event, ModelSaid, ToolReturned, UserSaid
from foveal.core.models.model import model
from foveal.core.tokens.counter import counter
from foveal.errors import BadSetting
from foveal.sessions.background_compaction import run_dialogue_async
from foveal.user_paths import prompt_text

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
    """A clock that advances by one second at each reading."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def dialogue(writers: int = 1) -> Any:
    source = SummarySource(plan=PLAN, events=EVENTS, counter=COUNT)
    return summary_dialogue(source, [SummaryWriter(model=GPT)] * writers)


def build_cold(request: DraftRequest) -> SummaryRequest:
    return SummaryRequest.cold(request, "openai_chat")


def run_of(
    calls: Sequence[Callable[[SummaryRequest], Any]],
    progress: Callable[[SummaryProgress], None] | None = None,
) -> DialogueRun:
    return DialogueRun(
        dialogue(len(calls)),
        summariser_chain(calls),
        build_request=build_cold,
        clock=Clock(),
        progress=progress,
    )


def summarise(
    *calls: Callable[[SummaryRequest], Any], progress: Callable[[SummaryProgress], None] | None = None
) -> Compacted:
    outcome = run_dialogue(run_of(calls, progress))
    assert isinstance(outcome, Compacted)
    return outcome


def summarise_async(
    *calls: Callable[[SummaryRequest], Any], progress: Callable[[SummaryProgress], None] | None = None
) -> Compacted:
    outcome = asyncio.run(run_dialogue_async(run_of(calls, progress)))
    assert isinstance(outcome, Compacted)
    return outcome


def is_by_model(fact: Compacted) -> bool:
    return fact.by == "gpt-4.1" and "Repair it." in fact.summary


# ── What a callable may return ──

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
    assert read_reply(reply, seconds=2.0) == Draft(
        text=SUMMARY, stop="end", input=500, cache_read=400, output=70, seconds=2.0
    )
    assert is_by_model(summarise(lambda request: reply))


def test_a_text_a_draft_a_stream_and_a_bare_message_are_accepted() -> None:
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
        assert is_by_model(summarise(call))
        assert is_by_model(summarise_async(call))


def test_in_an_event_loop_a_callable_may_be_async_or_return_an_awaitable() -> None:
    async def text(request: SummaryRequest) -> str:
        await asyncio.sleep(0)
        return SUMMARY

    async def stream(request: SummaryRequest) -> AsyncIterator[str]:
        for line in SUMMARY.splitlines(keepends=True):
            yield line

    async def stream_later(request: SummaryRequest) -> AsyncIterator[str]:
        return stream(request)

    for call in (text, stream, stream_later, lambda request: text(request)):
        assert is_by_model(summarise_async(call))


def test_a_blocking_callable_runs_in_a_thread() -> None:
    threads = []

    def call(request: SummaryRequest) -> Iterator[str]:
        threads.append(threading.current_thread())
        return iter([SUMMARY])

    assert is_by_model(summarise_async(call))
    assert threads != [threading.main_thread()]


@pytest.mark.parametrize(
    ("chunk", "text"),
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
def test_stream_chunks_of_all_dialects_are_read(chunk: object, text: str | None) -> None:
    assert read_stream_chunk(chunk) == text


def stop_reason(**fields: Any) -> str:
    draft = read_reply(fields)
    assert draft is not None
    return draft.stop


def test_the_stop_reason_is_read_in_every_dialect() -> None:
    def chat(reason: str, **message: Any) -> str:
        return stop_reason(choices=[{"finish_reason": reason, "message": {"content": "x", **message}}])

    assert chat("stop") == "end"
    assert chat("length") == "length"
    assert chat("tool_calls", tool_calls=[{"id": "1"}]) == "tools"
    assert chat("stop", tool_calls=[{"id": "1"}]) == "tools"
    assert chat("content_filter") == "refused"
    assert chat("stop", refusal="no") == "refused"
    assert chat("something new") == ""
    assert stop_reason(content=[{"type": "text", "text": "x"}], stop_reason="max_tokens") == "length"
    assert stop_reason(content=[{"type": "tool_use", "id": "1"}], stop_reason="tool_use") == "tools"
    assert stop_reason(content=[], stop_reason="refusal") == "refused"
    assert stop_reason(output=[{"type": "function_call"}], status="completed") == "tools"
    incomplete = {"reason": "max_output_tokens"}
    assert stop_reason(output=[], status="incomplete", incomplete_details=incomplete) == "length"
    refusal = {"type": "message", "content": [{"type": "refusal", "refusal": "no"}]}
    assert stop_reason(output=[refusal], status="completed") == "refused"


@pytest.mark.parametrize("reply", [None, 7, object(), b"bytes", [3, 4], {"no": "reply"}])
def test_an_unreadable_reply_is_a_failure_and_the_ledger_writes(reply: object) -> None:
    for fact in (summarise(lambda request: reply), summarise_async(lambda request: reply)):
        assert fact.by == "ledger"
        assert "gpt-4.1: " in read_metrics(fact).checks[0]


def test_an_async_callable_without_a_loop_fails_with_advice() -> None:
    async def call(request: SummaryRequest) -> str:
        return SUMMARY

    fact = summarise(call)
    assert fact.by == "ledger"
    assert "event loop" in read_metrics(fact).checks[0]


# ── Failures ──


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
def test_a_transient_error_is_retried_once(error: Exception) -> None:
    assert failure_from_error(error).transient
    script: list[Any] = [error, SUMMARY]

    def call(request: SummaryRequest) -> str:
        given = script.pop(0)
        if isinstance(given, Exception):
            raise given
        return str(given)

    assert is_by_model(summarise(call))


@pytest.mark.parametrize(
    "error", [ValueError("no"), KeyError("x"), HttpError(401), HttpError(400), HttpError(404)]
)
def test_after_a_permanent_error_the_next_summariser_is_called(error: Exception) -> None:
    called = []

    def first(request: SummaryRequest) -> str:
        called.append(request)
        raise error

    assert not failure_from_error(error).transient
    fact = summarise(first, lambda request: SUMMARY)
    assert is_by_model(fact)
    assert len(called) == 1
    assert read_metrics(fact).checks[0].startswith(f"gpt-4.1: {type(error).__name__}")


def test_a_refusal_for_size_carries_the_limit() -> None:
    message = (
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens."
    )
    assert failure_from_error(HttpError(400, message), seconds=1.0) == DraftFailure(
        problem=f"HttpError: {message}", overflow=True, limit=8192, seconds=1.0
    )


def test_an_error_whose_str_raises_is_a_failure() -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert failure_from_error(Unprintable()).problem == "Unprintable"


def test_a_callable_that_raises_stop_iteration_does_not_end_the_dialogue() -> None:
    def call(request: SummaryRequest) -> str:
        raise StopIteration("mine")

    assert summarise(call).by == "ledger"
    assert summarise_async(call).by == "ledger"


def test_a_broken_stream_is_a_failure_and_not_half_a_summary() -> None:
    def call(request: SummaryRequest) -> Iterator[str]:
        yield SUMMARY[:60]
        raise ConnectionResetError

    fact = summarise(call)
    assert fact.by == "ledger"
    assert read_metrics(fact).asked == 2


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_an_exit_propagates_and_no_other_summariser_is_called(stop: type[BaseException]) -> None:
    called = []

    def first(request: SummaryRequest) -> str:
        raise stop

    with pytest.raises(stop):
        summarise(first, lambda request: called.append(request))
    assert called == []


def test_a_cancelled_summary_does_not_fall_back_and_records_nothing() -> None:
    called = []
    started = asyncio.Event()

    async def slow(request: SummaryRequest) -> str:
        started.set()
        await asyncio.Event().wait()
        return SUMMARY

    async def scenario() -> None:
        pending = dialogue(2)
        calls = summariser_chain([slow, lambda request: called.append(request)])
        run = DialogueRun(pending, calls, build_request=build_cold, clock=Clock())
        task = asyncio.create_task(run_dialogue_async(run))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(StopIteration):
            next(pending)

    asyncio.run(scenario())
    assert called == []


# ── Progress ──


def test_progress_is_reported_as_a_stream_grows() -> None:
    seen: list[SummaryProgress] = []
    assert is_by_model(summarise(lambda request: [SUMMARY[:40], "", SUMMARY[40:]], progress=seen.append))
    assert seen == [
        SummaryProgress(stage="summary", asked=1, tokens=0),
        SummaryProgress(stage="summary", asked=1, tokens=10),
        SummaryProgress(stage="summary", asked=1, tokens=len(SUMMARY) // 4),
    ]


def test_errors_of_the_progress_observer_are_ignored() -> None:
    def broken(progress: SummaryProgress) -> None:
        raise ValueError("no screen")

    assert is_by_model(summarise(lambda request: SUMMARY, progress=broken))
    assert is_by_model(summarise_async(lambda request: SUMMARY, progress=broken))


def test_the_seconds_of_all_requests_are_added_up() -> None:
    assert read_metrics(summarise(lambda request: "", lambda request: SUMMARY)).seconds == 3.0


# ── Requests ──

REQUEST = DraftRequest(
    writer=0, form="cold", text="the text", system="the rules", max_tokens=99, stage="summary"
)


@pytest.mark.parametrize("dialect", ["", "openai_chat", "openai_responses"])
def test_a_cold_request_starts_with_its_system_text_and_has_no_tools(dialect: Dialect) -> None:
    request = SummaryRequest.cold(REQUEST, dialect)
    first, second = request.messages
    assert (first["role"], first["content"]) == ("system", "the rules")
    assert (second["role"], second["content"]) == ("user", "the text")
    assert (request.tools, request.system, request.max_tokens, request.form) == ([], "", 99, "cold")


def test_a_cold_request_for_anthropic_has_a_separate_system_text() -> None:
    request = SummaryRequest.cold(REQUEST, "anthropic")
    assert request.messages == [{"role": "user", "content": "the text"}]
    assert (request.system, request.tools) == ("the rules", [])


def test_requests_for_gemini_have_the_arguments_of_generate_content() -> None:
    cold = SummaryRequest.cold(REQUEST, "gemini")
    asked = {"role": "user", "parts": [{"text": "the text"}]}
    config = {"max_output_tokens": cold.max_tokens, "system_instruction": "the rules"}
    assert cold.arguments() == {"contents": [asked], "config": config}
    draft_request = DraftRequest(writer=0, form="shared", text="the text", max_tokens=99)
    said = [{"role": "user", "parts": [{"text": "go"}]}, {"role": "model", "parts": [{"text": "yes"}]}]
    tools = [{"functionDeclarations": [{"name": "bash"}]}]
    shared = SummaryRequest.shared(draft_request, "gemini", messages=said, system="", tools=tools)
    assert shared.arguments() == {
        "contents": [*said, asked],
        "config": {"max_output_tokens": 99, "tools": tools},
    }


def test_replies_of_gemini_are_read() -> None:
    parts = [{"text": "hm", "thought": True}, {"text": "the "}, {"text": "record"}]
    reply = {"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "MAX_TOKENS"}]}
    draft = read_reply(reply)
    assert draft is not None
    assert (draft.text, draft.stop) == ("the record", "length")
    assert read_stream_chunk(reply) == "the record"
    refused = read_reply({"candidates": [{"finish_reason": "SAFETY"}]})
    assert refused is not None
    assert (refused.text, refused.stop) == ("", "refused")


def test_requests_for_bedrock_have_the_arguments_of_converse() -> None:
    cold = SummaryRequest.cold(REQUEST, "bedrock")
    assert cold.arguments() == {
        "messages": [{"role": "user", "content": [{"text": "the text"}]}],
        "system": [{"text": "the rules"}],
        "inferenceConfig": {"maxTokens": cold.max_tokens},
    }
    point = {"cachePoint": {"type": "default"}}
    messages = [
        {"role": role, "content": [{"text": f"{n}"}, point]}
        for n, role in enumerate(["user", "assistant"] * 3)
    ]
    tools = [{"toolSpec": {"name": "bash"}}, point]
    draft_request = DraftRequest(writer=0, form="shared", text="the text", max_tokens=99)
    shared = SummaryRequest.shared(draft_request, "bedrock", messages=messages, system="sys", tools=tools)
    assert shared.arguments()["toolConfig"] == {"tools": tools}
    assert [len(message["content"]) for message in shared.messages] == [1, 1, 1, 2, 2, 2, 1]
    assert shared.messages[-1] == {"role": "user", "content": [{"text": "the text"}]}


@pytest.mark.parametrize("dialect", ["openai_chat", "openai_responses", "anthropic"])
def test_a_shared_request_begins_with_the_unchanged_conversation(
    dialect: Literal["openai_chat", "openai_responses", "anthropic"],
) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hi"},
    ]
    draft_request = DraftRequest(writer=0, form="shared", text="the text", max_tokens=99)
    tools = [{"name": "bash"}]
    request = SummaryRequest.shared(draft_request, dialect, messages=messages, system="sys", tools=tools)
    assert request.messages[:2] == messages
    assert request.messages[2]["content"] == "the text"
    assert (request.system, request.tools, request.form) == ("sys", tools, "shared")


def test_a_shared_request_keeps_the_messages_that_thinking_is_bound_to() -> None:
    asked = [{"role": "user", "content": text} for text in ("one", "two")]
    messages = [*asked, {"role": "assistant", "content": "Found."}]
    draft_request = DraftRequest(writer=0, form="shared", text="the text", max_tokens=99)
    request = SummaryRequest.shared(
        draft_request, "anthropic", messages=messages, system="", tools=[], binds_thinking=True
    )
    assert request.messages[:3] == messages


def test_a_shared_request_for_anthropic_keeps_roles_alternating() -> None:
    result = {"type": "tool_result", "tool_use_id": "1", "content": "ok"}
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "b", "input": {}}]},
        {"role": "user", "content": [result]},
    ]
    draft_request = DraftRequest(writer=0, form="shared", text="the text", max_tokens=99)
    request = SummaryRequest.shared(draft_request, "anthropic", messages=messages, system="", tools=[])
    assert request.messages[:2] == messages[:2]
    assert request.messages[2] == {"role": "user", "content": [result, {"type": "text", "text": "the text"}]}
    assert messages[2]["content"] == [result]


# ── Settings ──


def test_a_chain_has_none_one_or_several_summarisers() -> None:
    def call(request: SummaryRequest) -> str:
        return ""

    one = Summariser(call, model="gpt-4o")
    assert summariser_chain(None) == ()
    assert summariser_chain(one) == (one,)
    assert summariser_chain([one])[0] is one
    assert [item.model for item in summariser_chain((call, one))] == [None, model("gpt-4o")]
    assert summariser_chain(call)[0].call is call
    assert Summariser(call, model=GPT).model is GPT
    assert (one.name, Summariser(call, name="mine").name) == ("gpt-4o", "mine")


@pytest.mark.parametrize("given", ["gpt-4.1", 7, {"a": 1}, [7]])
def test_a_chain_with_something_not_callable_is_refused(given: Any) -> None:
    with pytest.raises(BadSetting, match="summarise"):
        summariser_chain(given)


def test_a_prompt_is_a_text_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "prompt.md"
    file.write_text("## Facts\nÜber alles", "utf-8")
    assert prompt_text("") == ""
    assert prompt_text("## Facts") == "## Facts"
    assert prompt_text(f"file://{file}") == "## Facts\nÜber alles"


def test_an_unusable_prompt_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * 70_000)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name in ("missing", "large", "binary", "."):
        with pytest.raises(BadSetting, match="prompt"):
            prompt_text(f"file://{tmp_path / name}")
