"""An agent that only refers to an earlier result still shows the model the text of that result."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import foveal
from foveal.core.log import Call, Clipped, Compacted, ToolReturned
from foveal.core.reduction.unchanged_answers import asks_for_same, is_unchanged_answer
from foveal.replay import answer_text
from foveal.replay.play import ReplaySetting
from foveal.replay.why import why
from foveal.transcripts import Transcript

WASTED = "Wasted call — file unchanged since your last Read. Refer to that earlier tool_result instead."
STILL_CURRENT = (
    "File unchanged since last read. The content from the earlier Read tool_result in this conversation is "
    "still current — refer to that instead of re-reading."
)
QWEN = (
    "[File src/a.py unchanged since last read in this session — the full content was provided earlier in this "
    "conversation. If you cannot retrieve that prior content (e.g. after context compaction) or you suspect the "
    "file was modified outside the read/edit tools (shell command, MCP tool, another process), re-read with "
    "explicit offset/limit to fetch current content.]"
)
FILES = 40
READS = 90
WINDOW = 24_000


def file_text(number: int) -> str:
    return "\n".join(
        f"{line}\tdef function_{number}_{line}(value): return value * {line}" for line in range(60)
    )


def read(number: int, call: int, answer: str | None = None) -> list[dict[str, Any]]:
    arguments = {"file_path": f"/work/src/file_{number}.py"}
    use = {"type": "tool_use", "id": f"toolu_{call}", "name": "Read", "input": arguments}
    text = file_text(number) if answer is None else answer
    result = {"type": "tool_result", "tool_use_id": use["id"], "content": text}
    return [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]


def reading_loop(*, reads: int = READS) -> list[list[dict[str, Any]]]:
    """Return the messages of each step of an agent that reads files in circles and sends each only once."""
    return [
        read(call % FILES, call, None if call < FILES else (WASTED, STILL_CURRENT)[call % 2])
        for call in range(reads)
    ]


@pytest.mark.parametrize("answer", [WASTED, STILL_CURRENT, QWEN])
def test_answers_of_known_agents_are_recognised(answer: str) -> None:
    assert is_unchanged_answer(ToolReturned(call_id="a", content=answer))


@pytest.mark.parametrize(
    "text",
    [
        "The tests are unchanged since the last release.",
        "12\t# unchanged since last read, see the earlier entry\n" * 40,
        "File written.",
        "",
    ],
)
def test_other_results_are_not(text: str) -> None:
    assert not is_unchanged_answer(ToolReturned(call_id="a", content=text))


def test_an_earlier_call_for_more_has_the_text() -> None:
    def call(**arguments: object) -> Call:
        return Call(id="a", name="Read", arguments=json.dumps(arguments))

    assert asks_for_same(call(file_path="/a"), call(file_path="/a", offset=10))
    assert not asks_for_same(call(file_path="/a", offset=10), call(file_path="/a"))
    assert not asks_for_same(call(file_path="/b"), call(file_path="/a"))


def test_after_every_such_answer_the_request_has_the_text() -> None:
    ctx = foveal.Context("claude-sonnet-4-5", window=WINDOW, reserve=2_000)
    history: list[dict[str, Any]] = [{"role": "user", "content": "Read all files, again and again."}]
    shown_again = 0
    for call, messages in enumerate(reading_loop()):
        history += messages
        sent = ctx.fit(history)
        result = sent[-1]["content"][-1]["content"]
        whole = result if isinstance(result, str) else result[0]["text"]
        assert whole == file_text(call % FILES) or file_text(call % FILES) in json.dumps(sent)
        shown_again += whole == file_text(call % FILES) and call >= FILES
    assert shown_again > 40
    masked = [text for text in json.dumps(sent).split("[foveal:")[1:] if "hidden" in text[:40]]
    assert masked
    assert not any("Wasted" in text or "unchanged" in text for text in masked)


def test_no_record_quotes_an_answer_that_only_refers_to_a_result() -> None:
    ctx = foveal.Context("claude-sonnet-4-5", window=WINDOW, reserve=2_000)
    history: list[dict[str, Any]] = [{"role": "user", "content": "Read all files, again and again."}]
    for messages in reading_loop():
        ctx.fit(history := history + messages)
    records = [event.fact.summary for event in ctx.log if isinstance(event.fact, Compacted)]
    assert any("def function_" in record for record in records)
    assert not [record for record in records if "Wasted" in record or "unchanged since" in record]


def test_a_result_that_is_shown_is_not_repeated() -> None:
    ctx = foveal.Context("claude-sonnet-4-5", window=WINDOW)
    history = [{"role": "user", "content": "Read it."}, *read(1, 1), *read(1, 2, WASTED)]
    assert ctx.fit(history) == history


def test_the_log_and_the_report_say_what_is_shown() -> None:
    ctx = foveal.Context("claude-sonnet-4-5", window=WINDOW, reserve=2_000)
    history: list[dict[str, Any]] = [{"role": "user", "content": "Read all files."}]
    for call in range(FILES):
        history += read(call, call)
        ctx.fit(history)
    history += read(0, FILES, WASTED)
    ctx.fit(history)
    (again,) = [event.fact for event in ctx.log if isinstance(event.fact, Clipped) and event.fact.again >= 0]
    original = next(event for event in ctx.log if isinstance(event.fact, ToolReturned))
    assert again.again == original.seq
    status = ctx.why(f"e{again.target}")
    assert (status.level, status.rule) == ("full", f"shows {original.handle} again")

    ctx.append({"role": "assistant", "content": "Done."})
    facts = tuple((event.fact, event.at) for event in ctx.log)
    recording = Transcript(id="own", source="foveal", facts=facts)
    line = "function_0_30(value)"
    found = why(recording, call=None, text=line, policy=None, setting=ReplaySetting())
    assert found.shown
    assert [place.handle for place in found.places] == [original.handle, f"e{again.target}"]
    assert f"rule shows {original.handle} again" in answer_text(found)


def test_a_session_finds_in_its_store_what_a_summary_hides() -> None:
    asyncio.run(find_in_store())


async def find_in_store() -> None:
    async with foveal.stores.MemoryStore() as store:
        session = await foveal.Session.open(
            store, "demo", model="claude-sonnet-4-5", window=WINDOW, reserve=2_000, policy="sliding-summary"
        )
        await session.append(foveal.UserSaid(content="Read all files."))
        for call in range(FILES):
            await say(session, read(call, call))
            await session.fit()
        await session.compact()
        await say(session, read(0, FILES, WASTED))
        sent = (await session.fit()).to_anthropic()
        assert sent[-1]["content"][-1]["content"] == file_text(0)
        other = await foveal.Session.open(
            store, "demo", model="claude-sonnet-4-5", window=WINDOW, reserve=2_000
        )
        assert (await other.fit()).to_anthropic() == sent


async def say(session: foveal.Session, messages: list[dict[str, Any]]) -> None:
    use, result = messages[0]["content"][0], messages[1]["content"][0]
    call = Call(id=use["id"], name="Read", arguments=json.dumps(use["input"]))
    await session.append(foveal.ModelSaid(content=(call,)))
    await session.append(ToolReturned(call_id=use["id"], content=result["content"]))
