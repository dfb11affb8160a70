"""The local model with its real weights and server: start, requests, refusals, stop.

The weights are taken from the user's cache folder, or downloaded into it if that takes less than a minute.
FOVEAL_SOAK=1 runs the long tests.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

import pytest

import foveal
from foveal import Session, UserSaid
from foveal.core.log import REDUCTIONS, Call, Instructed, ModelSaid, Overflowed, ToolReturned, Used
from foveal.errors import ProviderError
from foveal.ports import PromptProgress, Reply, ReplyPiece
from foveal.providers import selection
from foveal.providers.local import download, watchdog
from foveal.providers.local import model as local_model
from foveal.providers.local.download import DownloadProgress
from foveal.providers.local.model import LocalModel
from foveal.stores import MemoryStore

READ: Final = {
    "name": "read_file",
    "description": "Read a file.",
    "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
}

needs_server = pytest.mark.skipif(
    importlib.util.find_spec("dasllama") is None, reason="the server is missing: pip install 'foveal[local]'"
)
linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux ends a process with its parent"
)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


@pytest.fixture(scope="module")
def cache() -> Path:
    """Return the folder that contains the weights."""
    folder = download.weights_folder(os.environ)
    try:
        run(asyncio.wait_for(download.fetch(download.QWEN_05B, folder), 60))
    except (ProviderError, TimeoutError) as problem:
        pytest.skip(f"the local model cannot be downloaded: {problem or 'it takes longer than a minute'}")
    return folder


async def ask(session: Session, provider: LocalModel, max_tokens: int) -> Reply:
    items = [item async for item in provider.send(await session.fit(), max_tokens=max_tokens)]
    reply = items[-1]
    assert isinstance(reply, Reply)
    assert all(isinstance(item, ReplyPiece | PromptProgress) for item in items[:-1])
    await session.take(reply.message, dialect=provider.dialect)
    await session.observe(reply.usage)
    return reply


def ends(pid: int, within_s: float) -> bool:
    """Return whether a process ends within some seconds; a zombie has ended."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


# ── The real model ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.soak
@needs_server
def test_the_local_model_answers_caches_and_refuses_long_requests(cache: Path) -> None:
    """One test for start, two answers, a refusal and the stop, because starting takes seconds."""

    async def work() -> None:
        reported: list[DownloadProgress] = []
        provider = LocalModel(download.QWEN_05B, cache=cache, window=1_024, progress=reported.append)
        try:
            await provider.start()
            assert [step.stage for step in reported] == ["starting", "ready"]
            assert provider.server is not None
            pid = provider.server.pid
            async with MemoryStore() as store:
                session = await Session.open(store, "one", model=provider.model)
                await session.append(Instructed(content="You answer briefly."))
                await session.append(UserSaid(content="What is the capital of France?"))
                first = await ask(session, provider, 12)
                assert "Paris" in first.message["content"]
                await session.append(UserSaid(content="And of Italy?"))
                second = await ask(session, provider, 12)
                assert "Rome" in second.message["content"]
                used = [event.fact for event in await session.events() if isinstance(event.fact, Used)]
                assert used[1].cache_read >= used[0].prompt - 2
                too_long = await Session.open(store, "two", model=foveal.model(provider.name, window=8_000))
                await too_long.append(UserSaid(content="word " * 2_000))
                with pytest.raises(Exception, match="the model context is 1024") as caught:
                    await ask(too_long, provider, 12)
                assert await too_long.overflowed(caught.value)
                refused = (await too_long.events())[-1].fact
                assert isinstance(refused, Overflowed)
                assert refused.limit == 1_024
                assert refused.needed > 2_000
        finally:
            await provider.close()
        assert ends(pid, 3)

    run(work())


HOLDER: Final = textwrap.dedent(
    """
    import asyncio, sys
    from pathlib import Path
    from foveal.providers.local.model import LocalServer
    async def main():
        server = await LocalServer.start(Path(sys.argv[1]), window=256, home=Path(sys.argv[2]))
        print(server.pid, flush=True)
        await asyncio.sleep(600)
    asyncio.run(main())
    """
)


@needs_server
@linux
def test_the_server_ends_when_its_parent_is_killed(cache: Path, tmp_path: Path) -> None:
    gguf = str(cache / download.QWEN_05B.file)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, gguf, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        pid = int(holder.stdout.readline())
        assert not ends(pid, 0.1)
        os.kill(holder.pid, signal.SIGKILL)
        assert ends(pid, 5)


@needs_server
def test_a_file_that_the_server_cannot_load_is_reported_with_its_log(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\0" * 100)
    provider = selection.provider(f"local/{broken}", environment={"HOME": str(tmp_path)})
    assert isinstance(provider, LocalModel)
    with pytest.raises(ProviderError, match=r"the local model did not start: .*its log is") as caught:
        run(provider.start())
    assert caught.value.code == "server"
    assert provider.server is None


@pytest.mark.soak
@needs_server
def test_a_dead_server_is_restarted_with_the_next_request(cache: Path) -> None:
    async def work() -> None:
        provider = LocalModel(download.QWEN_05B, cache=cache, window=512)
        async with MemoryStore() as store:
            session = await Session.open(store, "one", model=provider.model)
            await session.append(UserSaid(content="Say yes."))
            await ask(session, provider, 4)
            assert provider.server is not None
            os.kill(provider.server.pid, signal.SIGKILL)
            assert ends(provider.server.pid, 3)
            while provider.server.is_running:
                await asyncio.sleep(0.01)
            await session.append(UserSaid(content="Say no."))
            assert (await ask(session, provider, 4)).message["content"]
        await provider.close()

    run(work())


@pytest.mark.soak
@needs_server
def test_a_conversation_with_tools_outgrows_the_window_without_refusal(cache: Path) -> None:
    """Results of 250 tokens in a window of 1,024; the system instruction is still in the last request."""

    async def work() -> None:
        provider = LocalModel(download.QWEN_05B, cache=cache, window=1_024)
        async with MemoryStore() as store:
            session = await Session.open(store, "long", model=provider.model)
            await session.append(Instructed(content="Never say the word banana."))
            await session.equip([READ])
            called = 0
            for turn in range(8):
                await session.append(UserSaid(content=f"Read the file part{turn}.txt"))
                reply = await ask(session, provider, 40)
                called += bool(reply.message.get("tool_calls"))
                for call in reply.message.get("tool_calls") or [await append_missing_call(session, turn)]:
                    lines = "\n".join(f"part {turn}, line {line}: {line * 7919}" for line in range(20))
                    await session.append(ToolReturned(call_id=call["id"], name="read_file", content=lines))
                await ask(session, provider, 20)
            facts = [event.fact for event in await session.events()]
            assert called >= 1
            assert any(isinstance(fact, REDUCTIONS) for fact in facts)
            assert not any(isinstance(fact, Overflowed) for fact in facts)
            assert "banana" in str((await session.fit()).to_openai()[0])
        await provider.close()

    run(work())


async def append_missing_call(session: Session, turn: int) -> dict[str, Any]:
    """Append the call that the small model did not make."""
    call = Call(id=f"mine_{turn}", name="read_file", arguments=f'{{"path": "part{turn}.txt"}}')
    await session.append(ModelSaid(content=(call,)))
    return {"id": call.id}


@pytest.mark.soak
@needs_server
def test_the_weights_are_downloaded_from_the_index_into_an_empty_folder(tmp_path: Path) -> None:
    reported: list[DownloadProgress] = []
    path = run(download.fetch(download.QWEN_05B, tmp_path, progress=reported.append))
    assert path.stat().st_size == download.QWEN_05B.size
    assert {step.part for step in reported} == {1, 2, 3, 4, 5, 6}


# ── The watchdog ──────────────────────────────────────────────────────────────────────────────────────────


def start_watched(*command: str) -> tuple[subprocess.Popen[str], int]:
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(watchdog.__file__), *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def test_a_watched_program_ends_with_the_pipe() -> None:
    process, pid = start_watched("sleep", "100")
    with process:
        assert not ends(pid, 0.2)
        assert process.stdin is not None
        process.stdin.close()
        assert ends(pid, 3)


IGNORING: Final = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).touch()
time.sleep(100)
"""


def test_a_watched_program_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    process, pid = start_watched(sys.executable, "-c", IGNORING, str(ready))
    with process:
        deadline = time.monotonic() + 120
        while not ready.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert ready.exists()
        assert process.stdin is not None
        process.stdin.close()
        assert ends(pid, watchdog.STOP_TIMEOUT_S + 3)


@linux
def test_a_watched_program_ends_with_its_watchdog() -> None:
    process, pid = start_watched("sleep", "100")
    with process:
        process.kill()
        assert ends(pid, 3)


def test_the_watchdog_ends_with_its_program() -> None:
    process, _ = start_watched(sys.executable, "-c", "raise SystemExit(7)")
    with process:
        assert process.wait(10) == 7


# ── Calls written as text ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "read_file", "arguments": {"path": "a"}}',
        '```json\n{"name": "read_file", "arguments": {"path": "a"}}\n```',
        '```\n{"name": "read_file", "parameters": {"path": "a"}}\n```\n',
        '<tool_call>\n{"name": "read_file", "arguments": {"path": "a"}}\n</tool_call>',
        '<tools>\n{"name": "read_file", "arguments": {"path": "a"}}\n</tools>',
        '[{"type": "function", "function": {"name": "read_file", "arguments": {"path": "a"}}}]',
    ],
)
def test_a_call_is_parsed_in_all_its_forms(text: str) -> None:
    assert local_model.parse_calls(text, {"read_file"}) == [("read_file", '{"path": "a"}')]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Hello.",
        '{"name": "say_hello", "arguments": {}}',
        '{"name": "read_file", "arguments": 7}',
        'I will read it:\n{"name": "read_file", "arguments": {"path": "a"}}',
        '{"name": "read_file", "arguments": {"path": "a"}} and then I stop',
        '```python\nprint("read_file")\n```',
        '{"name": "read_file", "arguments": {"path": ',
        "[" * 5_000,
    ],
)
def test_other_text_is_not_a_call(text: str) -> None:
    assert local_model.parse_calls(text, {"read_file"}) == []


def test_a_repeated_call_counts_once_and_a_cut_one_is_ignored() -> None:
    call = '{"name": "read_file", "arguments": {"path": "a"}}'
    cut = f'{call}\n{call}\n{{"name": "read_fi'
    assert local_model.parse_calls(cut, {"read_file"}) == [("read_file", '{"path": "a"}')]


def test_an_answered_call_is_recognised() -> None:
    call = Call(id="c", name="read_file", arguments='{"path": "a"}')
    facts = (
        UserSaid(content="Read a."),
        ModelSaid(content=(call,)),
        ToolReturned(call_id="c", content="4711"),
    )
    answered = local_model.answered_calls(facts)
    assert answered == {("read_file", '{"path":"a"}')}
    assert local_model.repeats_calls(reply_with('{"path":  "a"}'), answered)
    assert not local_model.repeats_calls(reply_with('{"path": "b"}'), answered)
    assert not local_model.repeats_calls(
        Reply(message={"role": "assistant", "content": "It is 4711."}), answered
    )
    assert local_model.answered_calls((*facts, UserSaid(content="Again."))) == set()
    assert local_model.answered_calls(()) == set()


def reply_with(arguments: str) -> Reply:
    call = {"id": "d", "type": "function", "function": {"name": "read_file", "arguments": arguments}}
    return Reply(message={"role": "assistant", "content": None, "tool_calls": [call]})


def parse(*texts: str, tools: tuple[str, ...] = ("read_file",)) -> list[ReplyPiece | Reply]:
    parser = local_model.TextCallParser(tools, position=3)
    whole = Reply(message={"role": "assistant", "content": "".join(texts)}, stop="stop")
    return [
        item for piece in (*(ReplyPiece(text=text) for text in texts), whole) for item in parser.feed(piece)
    ]


def test_text_is_passed_on_at_once_and_calls_are_held_back() -> None:
    assert parse("He", "llo") == [
        ReplyPiece(text="He"),
        ReplyPiece(text="llo"),
        Reply(message={"role": "assistant", "content": "Hello"}, stop="stop"),
    ]
    name, reply = parse('{"name": "read', '_file", "arguments"', ': {"path": "a"}}')
    assert name == ReplyPiece(text="read_file", kind="call")
    assert isinstance(reply, Reply)
    assert (reply.stop, reply.message["content"]) == ("tool_calls", None)
    assert reply.message["tool_calls"][0]["function"] == {"name": "read_file", "arguments": '{"path": "a"}'}
    again = parse('{"name": "read_file", "arguments": {"path": "a"}}')[1]
    assert isinstance(again, Reply)
    assert again.message == reply.message, "its id is derived, not random"


def test_text_that_looked_like_a_call_is_passed_on_at_the_end() -> None:
    text = '{"answer": 42}'
    assert parse(text)[0] == ReplyPiece(text=text)
    assert parse("``", "`py\nx = 1\n", "```")[:-1] == [ReplyPiece(text="```py\nx = 1\n```")]
    assert parse(text, tools=())[0] == ReplyPiece(text=text)
