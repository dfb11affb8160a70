"""MCP servers: real ones, in processes of their own, over stdio and HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

import foveal
from foveal.core.log import Call, Media, ModelSaid, Text, ToolReturned, UserSaid, text_of
from foveal.core.policies import Policy
from foveal.core.reduction import Limits
from foveal.stores import MemoryStore
from foveal.tools import McpServers, Toolbox, ToolOutput, full_name

SERVER: Final = '''
"""A server with a tool of every sort."""
import os, sys, time
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import (
    AudioContent, BlobResourceContents, CallToolResult, EmbeddedResource, ImageContent, ResourceLink, TextContent,
    TextResourceContents,
)

server = MCPServer("odds and ends")
PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBgAAAABQABpfZFQAAAAABJRU5ErkJggg=="
)

FILE = BlobResourceContents(uri="file:///x.pdf", blob="JVBE", mime_type="application/pdf")


@server.tool()
def add(a: int, b: int = 0) -> str:
    """Add two numbers."""
    return str(a + b)


@server.tool()
def everything() -> CallToolResult:
    """One of each sort."""
    return CallToolResult(content=[
        TextContent(text="words"),
        ImageContent(data=PNG, mime_type="image/png"),
        AudioContent(data="AAAA", mime_type="audio/wav"),
        ResourceLink(uri="file:///a.txt", name="a.txt", description="a file"),
        EmbeddedResource(resource=TextResourceContents(uri="note://1", text="remember")),
        EmbeddedResource(resource=FILE),
    ])


@server.tool()
def structured() -> dict[str, int]:
    """Only data."""
    return {"answer": 42}


@server.tool()
def fails() -> str:
    """Raise."""
    raise ToolError("no such page")


@server.tool()
def much(size: int) -> str:
    """So many characters."""
    return "x" * size


@server.tool()
def slow() -> str:
    """Take a minute."""
    time.sleep(60)
    return "done"


@server.tool()
def secrets() -> str:
    """What the process knows."""
    return " ".join(sorted(os.environ))


@server.tool()
def dies() -> str:
    """End the process."""
    sys.stderr.write("fatal: out of coffee\\n")
    sys.stderr.flush()
    os._exit(3)


open(sys.argv[1], "w").write(str(os.getpid()))
if len(sys.argv) > 2:
    server.run("streamable-http", port=int(sys.argv[2]))
else:
    server.run("stdio")
'''


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mcp") / "server.py"
    path.write_text(SERVER)
    return path


@pytest.fixture
def pid(tmp_path: Path) -> Path:
    return tmp_path / "pid"


@pytest.fixture
def stdio(script: Path, pid: Path) -> dict[str, Any]:
    return {"odd": {"command": sys.executable, "args": [str(script), str(pid)]}}


@pytest.fixture(scope="module")
def http(script: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server on this machine; ended by its id."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("http")
    argv = [sys.executable, str(script), str(log / "pid"), str(port)]
    with (log / "said").open("w") as out, subprocess.Popen(argv, stdout=out, stderr=out) as child:
        try:
            until = time.monotonic() + 20
            while time.monotonic() < until:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            child.kill()


async def ask(box: Toolbox, name: str, **arguments: Any) -> ToolOutput:
    return await box.call(name, json.dumps(arguments))


def ended(pid: Path) -> bool:
    until = time.monotonic() + 5
    while time.monotonic() < until:
        try:
            os.kill(int(pid.read_text()), 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


class Talk(NamedTuple):
    """One conversation with a server, for tests that only look at its answers."""

    box: Toolbox
    outputs: dict[str, ToolOutput]
    notes: list[str]
    pid: Path


@pytest.fixture(scope="module")
def talk(script: Path, tmp_path_factory: pytest.TempPathFactory) -> Talk:
    pid = tmp_path_factory.mktemp("talk") / "pid"
    config = {"command": sys.executable, "args": [str(script), str(pid)], "env": {"WIKI_TOKEN": "for it"}}

    async def all_of_it() -> Talk:
        async with McpServers({"odd": config}, limits=Limits(tokens=100)) as servers:
            box = Toolbox(servers.tools)
            outputs = {
                name: await ask(box, f"odd__{name}")
                for name in ("everything", "structured", "fails", "secrets")
            }
            outputs["add"] = await ask(box, "odd__add", a=2, b="3")
            outputs["wrong"] = await ask(box, "odd__add", b=3)
            outputs["much"] = await ask(box, "odd__much", size=3_000_000)
            return Talk(box, outputs, servers.notes, pid)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "hush")
        return asyncio.run(all_of_it())


def test_tools_of_a_server_are_offered_and_answered_like_our_own(talk: Talk) -> None:
    box, outputs = talk.box, talk.outputs
    names = ("add", "dies", "everything", "fails", "much", "secrets", "slow", "structured")
    assert [tool["name"] for tool in box.offered] == [f"odd__{name}" for name in names]
    assert box.offered[0]["description"] == "Add two numbers."
    assert box.changes("odd__add", '{"a": 1}')
    assert box.describe("odd__add", '{"a": 1}') == 'odd__add {"a": 1}'
    assert outputs["add"] == ToolOutput(content="5")
    assert text_of(outputs["wrong"].content).startswith("odd__add was not run: the field 'a' is missing.")
    assert outputs["fails"].error
    assert "no such page" in text_of(outputs["fails"].content)
    assert json.loads(text_of(outputs["structured"].content)) == {"answer": 42}
    assert talk.notes == []
    assert ended(talk.pid)


def test_text_pictures_sounds_links_and_files_become_parts(talk: Talk) -> None:
    content = talk.outputs["everything"].content
    assert isinstance(content, tuple)
    words, picture, sound, link, note, file = content
    assert words == Text(text="words")
    assert isinstance(picture, Media)
    assert (picture.mime, picture.units) == ("image/png", 1)
    assert isinstance(sound, Media)
    assert sound.mime == "audio/wav"
    assert link == Text(text="[resource file:///a.txt: a.txt a file]")
    assert note == Text(text="[resource note://1]\nremember")
    assert isinstance(file, Media)
    assert file.mime == "application/pdf"
    fact = ToolReturned(call_id="c", name="odd__everything", content=content)
    for dialect in ("anthropic", "openai_chat", "openai_responses"):
        assert "remember" in json.dumps(foveal.core.wire.wire(dialect).write(fact))


def test_a_large_result_comes_whole_and_is_clipped_like_any_other(talk: Talk) -> None:
    async def shown_and_stored() -> tuple[str, str]:
        policy = Policy(name="mine", ladder="off", clip_tools=talk.box.limits)
        session = await foveal.Session.open(MemoryStore(), "s", model="gpt-4.1", policy=policy)
        call = Call(id="c", name="odd__much", arguments="{}")
        await session.append(UserSaid(content="go"), ModelSaid(content=(call,)))
        result = ToolReturned(call_id="c", name="odd__much", content=talk.outputs["much"].content)
        events = await session.append(result)
        shown = (await session.fit()).to_openai()[-1]["content"]
        return shown, await session.original(events[0].handle)

    shown, original = asyncio.run(shown_and_stored())
    assert original == "x" * 3_000_000
    assert "[foveal: kept " in shown
    assert len(shown) < 2_000


def test_a_server_gets_none_of_our_secrets_but_what_is_configured(talk: Talk) -> None:
    names = text_of(talk.outputs["secrets"].content).split()
    assert "OPENAI_API_KEY" not in names
    assert "WIKI_TOKEN" in names


def test_a_server_on_http_is_used_the_same_way(http: str) -> None:
    async def talk() -> None:
        async with McpServers({"web": {"url": http, "headers": {"x-test": "1"}}}) as servers:
            box = Toolbox(servers.tools)
            assert await ask(box, "web__add", a=20, b=22) == ToolOutput(content="42")
            assert text_of((await ask(box, "web__much", size=3_000_000)).content) == "x" * 3_000_000
            assert servers.notes == []

    asyncio.run(talk())


def test_a_call_that_takes_too_long_is_stopped_and_the_server_goes_on_with_others(
    stdio: dict[str, Any], http: str, pid: Path
) -> None:
    async def talk() -> None:
        stdio["odd"]["timeout"] = 0.5
        async with McpServers({**stdio, "web": {"url": http}}) as servers:
            box = Toolbox(servers.tools)
            slow = await ask(box, "odd__slow")
            assert slow == ToolOutput(
                content="[odd__slow was stopped: it took longer than 0.5 seconds]", error=True
            )
            assert await ask(box, "web__add", a=1) == ToolOutput(content="1")

    asyncio.run(talk())
    assert ended(pid)


def test_a_server_that_dies_is_a_note_and_the_rest_goes_on(
    stdio: dict[str, Any], http: str, pid: Path
) -> None:
    told: list[str] = []

    async def talk() -> None:
        async with McpServers({**stdio, "web": {"url": http}}, note=told.append) as servers:
            box = Toolbox(servers.tools)
            dead = await ask(box, "odd__dies")
            assert dead == ToolOutput(
                content="The MCP server odd has ended, so this call has no result.", error=True
            )
            again = await ask(box, "odd__add", a=1)
            assert again == ToolOutput(content="The MCP server odd is not running any more.", error=True)
            assert await ask(box, "web__add", a=1) == ToolOutput(content="1")

    asyncio.run(talk())
    assert told == ["MCP server odd: has ended (it said: fatal: out of coffee)."]
    assert ended(pid)


def test_a_server_that_is_killed_between_calls_is_noticed_at_the_next(
    stdio: dict[str, Any], pid: Path
) -> None:
    async def talk() -> list[str]:
        async with McpServers(stdio) as servers:
            box = Toolbox(servers.tools)
            os.kill(int(pid.read_text()), signal.SIGKILL)
            await asyncio.sleep(0.2)
            gone = await ask(box, "odd__add", a=1)
            assert gone.error
            assert "has ended" in text_of(gone.content)
            return servers.notes

    assert asyncio.run(talk()) == ["MCP server odd: has ended."]


def test_servers_that_do_not_start_are_notes_and_the_others_are_offered(
    stdio: dict[str, Any], tmp_path: Path
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    config = {
        "missing": {"command": "/no/such/program"},
        "broken": {"command": sys.executable, "args": ["-c", "raise SystemExit('no licence')"]},
        "chatty": {"command": sys.executable, "args": ["-c", "print('hello'); raise SystemExit(1)"]},
        "web": {"url": f"http://127.0.0.1:{port}/mcp"},
        "both": {"command": "x", "url": "y"},
        "typo": {"comand": "x"},
        "bad name!": {"command": "x"},
        **stdio,
    }

    async def talk() -> tuple[list[str], int]:
        async with McpServers(config) as servers:
            assert await ask(Toolbox(servers.tools), "odd__add", a=1) == ToolOutput(content="1")
            return servers.notes, len(servers.tools)

    notes, count = asyncio.run(talk())
    assert count == 8
    about = {note.split(":")[0].removeprefix("MCP server "): note for note in notes}
    assert sorted(about) == sorted(config.keys() - {"odd"})
    assert "No such file or directory" in about["missing"]
    assert "(it said: no licence)" in about["broken"]
    assert "either a command or a url" in about["both"]
    assert "the fields are command, args" in about["typo"]
    assert all("\n" not in note and "Traceback" not in note for note in notes)


def test_a_server_that_says_nothing_is_given_up_in_time() -> None:
    async def talk() -> list[str]:
        async with McpServers({"mute": {"command": "sleep", "args": ["60"]}}, start=0.3) as servers:
            assert servers.tools == []
            return servers.notes

    assert asyncio.run(talk()) == ["MCP server mute: did not answer within 0.3 seconds."]


def test_giving_up_while_servers_start_ends_those_that_did(stdio: dict[str, Any], pid: Path) -> None:
    async def talk() -> None:
        async with McpServers({**stdio, "mute": {"command": "sleep", "args": ["60"]}}):
            raise AssertionError

    async def impatient() -> None:
        task = asyncio.create_task(talk())
        while not pid.exists() or not pid.read_text():
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(impatient())
    assert ended(pid)


def test_without_servers_nothing_is_begun_and_nothing_is_imported() -> None:
    code = (
        "import asyncio, sys\nfrom foveal.tools.mcp import McpServers\n"
        "async def main():\n    async with McpServers({}) as servers: assert servers.tools == []\n"
        "asyncio.run(main()); assert 'mcp' not in sys.modules\n"
        "sys.modules['mcp'] = None\n"
        "async def main():\n    async with McpServers({'a': {'command': 'x'}}) as servers: print(servers.notes)\n"
        "asyncio.run(main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install foveal[mcp]" in done.stdout


def test_names_have_the_letters_and_the_length_that_providers_take() -> None:
    assert full_name("wiki", "get.page") == "wiki__get_page"
    long, other = full_name("wiki", "x" * 100), full_name("wiki", "x" * 101)
    assert len(long) == len(other) == 64
    assert long != other
