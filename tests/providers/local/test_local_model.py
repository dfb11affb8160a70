"""The local model for real: fetched, started on loopback, asked, refused, and ended with us.

The weights are taken from the user's cache folder, or fetched into it if that takes less than a minute.
FOVEAL_SOAK=1 runs the long ones.
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
from foveal.ports import Reply, ReplyPiece
from foveal.providers import selection
from foveal.providers.local import download, local_model, watchdog
from foveal.providers.local.download import DownloadProgress
from foveal.providers.local.local_model import LocalModel
from foveal.stores import MemoryStore

SOAK: Final = bool(os.environ.get("FOVEAL_SOAK"))
READ: Final = {
    "name": "read_file",
    "description": "Read a file.",
    "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
}

needs_server = pytest.mark.skipif(
    importlib.util.find_spec("dasllama") is None, reason="the server is missing: pip install 'foveal[local]'"
)
slow = pytest.mark.skipif(not SOAK, reason="takes minutes: FOVEAL_SOAK=1 runs it")
linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux ends a process with its parent"
)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


@pytest.fixture(scope="module")
def cache() -> Path:
    """The folder with the weights in it."""
    folder = download.folder(os.environ)
    try:
        run(asyncio.wait_for(download.fetch(download.QWEN_05B, folder), 60))
    except (ProviderError, TimeoutError) as problem:
        pytest.skip(f"the local model cannot be fetched: {problem or 'it takes longer than a minute'}")
    return folder


async def ask(session: Session, provider: LocalModel, max_tokens: int) -> Reply:
    came = [item async for item in provider.send(await session.fit(), max_tokens=max_tokens)]
    reply = came[-1]
    assert isinstance(reply, Reply)
    assert all(isinstance(item, ReplyPiece) for item in came[:-1])
    await session.take(reply.message, dialect=provider.dialect)
    await session.observe(reply.usage)
    return reply


def gone(pid: int, within: float) -> bool:
    """The process ends in so many seconds; one that nobody has waited for yet is a zombie, and has ended."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


# ── the real thing ───────────────────────────────────────────────────────────────────────────────────────


@needs_server
def test_the_local_model_answers_reads_its_cache_and_refuses_what_is_too_long(cache: Path) -> None:
    """Started, asked twice, refused once, ended: one test, because starting takes seconds."""

    async def work() -> None:
        told: list[DownloadProgress] = []
        provider = LocalModel(download.QWEN_05B, cache=cache, window=1_024, progress=told.append)
        try:
            await provider.start()
            assert [step.stage for step in told] == ["starting", "ready"]
            assert provider.engine is not None
            pid = provider.engine.pid
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
        assert gone(pid, 3)

    run(work())


HOLDER: Final = textwrap.dedent(
    """
    import asyncio, sys
    from pathlib import Path
    from foveal.providers.local.local_server import LocalServer
    async def main():
        engine = await LocalServer.start(Path(sys.argv[1]), window=256, home=Path(sys.argv[2]))
        print(engine.pid, flush=True)
        await asyncio.sleep(600)
    asyncio.run(main())
    """
)


@needs_server
@linux
def test_the_server_ends_when_we_are_killed(cache: Path, tmp_path: Path) -> None:
    gguf = str(cache / download.QWEN_05B.file)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, gguf, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        pid = int(holder.stdout.readline())
        assert not gone(pid, 0.1)
        os.kill(holder.pid, signal.SIGKILL)
        assert gone(pid, 5)


@needs_server
def test_a_file_that_the_server_cannot_load_is_told_with_its_words(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\0" * 100)
    provider = selection.provider(f"local/{broken}", environment={"HOME": str(tmp_path)})
    assert isinstance(provider, LocalModel)
    with pytest.raises(ProviderError, match=r"the local model did not start: .*its log is") as caught:
        run(provider.start())
    assert caught.value.code == "server"
    assert provider.engine is None


@slow
@needs_server
def test_a_server_that_died_is_started_again_with_the_next_request(cache: Path) -> None:
    async def work() -> None:
        provider = LocalModel(download.QWEN_05B, cache=cache, window=512)
        async with MemoryStore() as store:
            session = await Session.open(store, "one", model=provider.model)
            await session.append(UserSaid(content="Say yes."))
            await ask(session, provider, 4)
            assert provider.engine is not None
            os.kill(provider.engine.pid, signal.SIGKILL)
            assert gone(provider.engine.pid, 3)
            await asyncio.sleep(0.5)
            await session.append(UserSaid(content="Say no."))
            assert (await ask(session, provider, 4)).message["content"]
        await provider.close()

    run(work())


@slow
@needs_server
def test_a_conversation_with_tools_goes_past_the_window_and_is_never_refused(cache: Path) -> None:
    """Results of 250 tokens in a window of 1,024: the rule of the beginning is in the last request."""

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
                for call in reply.message.get("tool_calls") or [await forgotten(session, turn)]:
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


async def forgotten(session: Session, turn: int) -> dict[str, Any]:
    """The call that so small a model should have made."""
    call = Call(id=f"mine_{turn}", name="read_file", arguments=f'{{"path": "part{turn}.txt"}}')
    await session.append(ModelSaid(content=(call,)))
    return {"id": call.id}


@slow
@needs_server
def test_everything_is_fetched_from_the_index_into_an_empty_folder(tmp_path: Path) -> None:
    told: list[DownloadProgress] = []
    path = run(download.fetch(download.QWEN_05B, tmp_path, progress=told.append))
    assert path.stat().st_size == download.QWEN_05B.size
    assert {step.part for step in told} == {1, 2, 3, 4, 5, 6}


# ── the watcher ──────────────────────────────────────────────────────────────────────────────────────────


def watched(*command: str) -> tuple[subprocess.Popen[str], int]:
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(watchdog.__file__), *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def test_a_watched_program_ends_with_the_pipe() -> None:
    process, pid = watched("sleep", "100")
    with process:
        assert not gone(pid, 0.2)
        assert process.stdin is not None
        process.stdin.close()
        assert gone(pid, 3)


def test_a_watched_program_that_does_not_want_to_end_is_killed() -> None:
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(100)"
    process, pid = watched(sys.executable, "-c", stubborn)
    with process:
        time.sleep(0.5)
        assert process.stdin is not None
        process.stdin.close()
        assert gone(pid, watchdog.GRACE + 3)


@linux
def test_a_watched_program_ends_with_its_watcher() -> None:
    process, pid = watched("sleep", "100")
    with process:
        process.kill()
        assert gone(pid, 3)


def test_the_watcher_ends_with_the_program_it_watches() -> None:
    process, _ = watched(sys.executable, "-c", "raise SystemExit(7)")
    with process:
        assert process.wait(10) == 7


# ── calls that are written as text ───────────────────────────────────────────────────────────────────────


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
def test_a_call_is_heard_in_whatever_way_it_is_written(text: str) -> None:
    assert local_model.called(text, {"read_file"}) == [("read_file", '{"path": "a"}')]


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
def test_what_is_anything_else_stays_text(text: str) -> None:
    assert local_model.called(text, {"read_file"}) == []


def test_the_same_call_twice_is_one_and_one_that_was_cut_off_is_none() -> None:
    call = '{"name": "read_file", "arguments": {"path": "a"}}'
    cut = f'{call}\n{call}\n{{"name": "read_fi'
    assert local_model.called(cut, {"read_file"}) == [("read_file", '{"path": "a"}')]


def test_a_call_that_has_its_result_already_is_known_again() -> None:
    call = Call(id="c", name="read_file", arguments='{"path": "a"}')
    facts = (
        UserSaid(content="Read a."),
        ModelSaid(content=(call,)),
        ToolReturned(call_id="c", content="4711"),
    )
    made = local_model.made(facts)
    assert made == {("read_file", '{"path":"a"}')}
    assert local_model.repeated(reply_with('{"path":  "a"}'), made)
    assert not local_model.repeated(reply_with('{"path": "b"}'), made)
    assert not local_model.repeated(Reply(message={"role": "assistant", "content": "It is 4711."}), made)
    assert local_model.made((*facts, UserSaid(content="Again."))) == set()
    assert local_model.made(()) == set()


def reply_with(arguments: str) -> Reply:
    call = {"id": "d", "type": "function", "function": {"name": "read_file", "arguments": arguments}}
    return Reply(message={"role": "assistant", "content": None, "tool_calls": [call]})


def heard(*texts: str, tools: tuple[str, ...] = ("read_file",)) -> list[ReplyPiece | Reply]:
    listener = local_model.TextCallParser(tools, place=3)
    whole = Reply(message={"role": "assistant", "content": "".join(texts)}, stop="stop")
    return [
        item for piece in (*(ReplyPiece(text=text) for text in texts), whole) for item in listener.hear(piece)
    ]


def test_words_are_passed_on_at_once_and_calls_are_held_back() -> None:
    assert heard("He", "llo") == [
        ReplyPiece(text="He"),
        ReplyPiece(text="llo"),
        Reply(message={"role": "assistant", "content": "Hello"}, stop="stop"),
    ]
    name, reply = heard('{"name": "read', '_file", "arguments"', ': {"path": "a"}}')
    assert name == ReplyPiece(text="read_file", kind="call")
    assert isinstance(reply, Reply)
    assert (reply.stop, reply.message["content"]) == ("tool_calls", None)
    assert reply.message["tool_calls"][0]["function"] == {"name": "read_file", "arguments": '{"path": "a"}'}
    again = heard('{"name": "read_file", "arguments": {"path": "a"}}')[1]
    assert isinstance(again, Reply)
    assert again.message == reply.message, "its id is derived, not random"


def test_what_only_looked_like_a_call_is_told_in_the_end() -> None:
    text = '{"answer": 42}'
    assert heard(text)[0] == ReplyPiece(text=text)
    assert heard("``", "`py\nx = 1\n", "```")[:-1] == [ReplyPiece(text="```py\nx = 1\n```")]
    assert heard(text, tools=())[0] == ReplyPiece(text=text)
