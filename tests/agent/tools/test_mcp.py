"""MCP servers in their own processes, over stdio and HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

import foveal
from foveal.agent.tools import Toolbox, ToolOutput
from foveal.agent.tools.mcp import McpServers, describe_mcp_call, mcp_tool_name, preview_mcp_call
from foveal.core.log import Call, Media, ModelSaid, Text, ToolReturned, UserSaid, text_of
from foveal.core.policies import Policy
from foveal.core.reduction import Limits
from foveal.stores import MemoryStore
from support import warm_start
from support.warm_commands import arguments, warm_commands

SERVER: Final = '''
"""A server with all kinds of tools."""
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
    """One of each kind."""
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
    """A text of this length."""
    return "x" * size


@server.tool()
def slow() -> str:
    """Take a minute."""
    time.sleep(60)
    return "done"


@server.tool()
def secrets() -> str:
    """Names of the environment variables."""
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


@pytest.fixture(scope="module")
def warm() -> Iterator[Path]:
    with warm_commands() as address:
        yield address


@pytest.fixture
def stdio(warm: Path, script: Path, pid: Path) -> dict[str, Any]:
    return {"odd": {"command": sys.executable, "args": arguments(warm, script, pid)}}


@pytest.fixture(scope="module")
def http(script: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a server on this machine and yield its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("http")
    argv = [script, log / "pid", port]
    with (log / "output").open("w") as out, warm_start.start(argv, stdout=out, stderr=out) as child:
        try:
            until = time.monotonic() + 60
            while time.monotonic() < until:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            child.kill()


async def call(box: Toolbox, name: str, **arguments: Any) -> ToolOutput:
    return await box.call(name, json.dumps(arguments))


def ends(pid: Path) -> bool:
    """Return whether the process ends within 30 seconds."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            os.kill(int(pid.read_text()), 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


class Exchange(NamedTuple):
    """Calls to a server and their answers, for tests that only check the answers."""

    box: Toolbox
    outputs: dict[str, ToolOutput]
    notes: list[str]
    pid: Path


@pytest.fixture(scope="module")
def exchange(warm: Path, script: Path, tmp_path_factory: pytest.TempPathFactory) -> Exchange:
    pid = tmp_path_factory.mktemp("exchange") / "pid"
    args = arguments(warm, script, pid)
    config = {"command": sys.executable, "args": args, "env": {"WIKI_TOKEN": "for it"}}

    async def make_calls() -> Exchange:
        async with McpServers({"odd": config}, limits=Limits(tokens=100)) as servers:
            box = Toolbox(servers.tools)
            outputs = {
                name: await call(box, f"odd__{name}")
                for name in ("everything", "structured", "fails", "secrets")
            }
            outputs["add"] = await call(box, "odd__add", a=2, b="3")
            outputs["wrong"] = await call(box, "odd__add", b=3)
            outputs["much"] = await call(box, "odd__much", size=3_000_000)
            return Exchange(box, outputs, servers.notes, pid)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "hush")
        return asyncio.run(make_calls())


def test_tools_of_a_server_work_like_builtin_tools(exchange: Exchange) -> None:
    box, outputs = exchange.box, exchange.outputs
    names = ("add", "dies", "everything", "fails", "much", "secrets", "slow", "structured")
    assert [tool["name"] for tool in box.schemas] == [f"odd__{name}" for name in names]
    assert box.schemas[0]["description"] == "Add two numbers."
    assert box.needs_approval("odd__add", '{"a": 1}')
    assert box.describe("odd__add", '{"a": 1}') == 'odd__add {"a": 1}'
    assert box.preview("odd__add", '{"a": 1}') == ""
    assert outputs["add"] == ToolOutput(content="5")
    assert text_of(outputs["wrong"].content).startswith("odd__add was not run: the field 'a' is missing.")
    assert outputs["fails"].error
    assert "no such page" in text_of(outputs["fails"].content)
    assert json.loads(text_of(outputs["structured"].content)) == {"answer": 42}
    assert exchange.notes == []
    assert ends(exchange.pid)


def test_text_images_audio_links_and_files_become_parts(exchange: Exchange) -> None:
    content = exchange.outputs["everything"].content
    assert isinstance(content, tuple)
    text, image, audio, link, note, file = content
    assert text == Text(text="words")
    assert isinstance(image, Media)
    assert (image.mime, image.units) == ("image/png", 1)
    assert isinstance(audio, Media)
    assert audio.mime == "audio/wav"
    assert link == Text(text="[resource file:///a.txt: a.txt a file]")
    assert note == Text(text="[resource note://1]\nremember")
    assert isinstance(file, Media)
    assert file.mime == "application/pdf"
    fact = ToolReturned(call_id="c", name="odd__everything", content=content)
    for dialect in ("anthropic", "openai_chat", "openai_responses"):
        assert "remember" in json.dumps(foveal.core.wire.wire_for(dialect).write(fact))


def test_a_large_result_is_stored_whole_and_truncated(exchange: Exchange) -> None:
    async def shown_and_stored() -> tuple[str, str]:
        policy = Policy(name="mine", ladder="off", clip_tools=exchange.box.limits)
        session = await foveal.Session.open(MemoryStore(), "s", model="gpt-4.1", policy=policy)
        call = Call(id="c", name="odd__much", arguments="{}")
        await session.append(UserSaid(content="go"), ModelSaid(content=(call,)))
        result = ToolReturned(call_id="c", name="odd__much", content=exchange.outputs["much"].content)
        events = await session.append(result)
        shown = (await session.fit()).to_openai()[-1]["content"]
        return shown, await session.original(events[0].handle)

    shown, original = asyncio.run(shown_and_stored())
    assert original == "x" * 3_000_000
    assert "[foveal: kept " in shown
    assert len(shown) < 2_000


def test_a_server_gets_only_the_configured_secrets(exchange: Exchange) -> None:
    names = text_of(exchange.outputs["secrets"].content).split()
    assert "OPENAI_API_KEY" not in names
    assert "WIKI_TOKEN" in names


def test_a_server_on_http_is_used_the_same_way(http: str) -> None:
    async def work() -> None:
        async with McpServers({"web": {"url": http, "headers": {"x-test": "1"}}}) as servers:
            box = Toolbox(servers.tools)
            assert await call(box, "web__add", a=20, b=22) == ToolOutput(content="42")
            assert text_of((await call(box, "web__much", size=3_000_000)).content) == "x" * 3_000_000
            assert servers.notes == []

    asyncio.run(work())


def test_a_slow_call_is_stopped_and_other_servers_continue(script: Path, http: str, pid: Path) -> None:
    """The server is no warm one: it does not end by itself, so the process that was started is killed."""

    async def work() -> None:
        odd = {"command": sys.executable, "args": [str(script), str(pid)], "timeout": 0.5}
        async with McpServers({"odd": odd, "web": {"url": http}}) as servers:
            box = Toolbox(servers.tools)
            slow = await call(box, "odd__slow")
            assert slow == ToolOutput(
                content="[odd__slow was stopped: it took longer than 0.5 seconds]", error=True
            )
            assert await call(box, "web__add", a=1) == ToolOutput(content="1")

    asyncio.run(work())
    assert ends(pid)


def test_a_server_that_dies_is_noted_and_the_others_continue(
    stdio: dict[str, Any], http: str, pid: Path
) -> None:
    notes: list[str] = []

    async def work() -> None:
        async with McpServers({**stdio, "web": {"url": http}}, note=notes.append) as servers:
            box = Toolbox(servers.tools)
            dead = await call(box, "odd__dies")
            assert dead == ToolOutput(
                content="The MCP server odd has ended, so this call has no result.", error=True
            )
            again = await call(box, "odd__add", a=1)
            assert again == ToolOutput(content="The MCP server odd is not running any more.", error=True)
            assert await call(box, "web__add", a=1) == ToolOutput(content="1")

    asyncio.run(work())
    assert notes == ["MCP server odd: has ended (it said: fatal: out of coffee)."]
    assert ends(pid)


def test_a_server_killed_between_calls_is_noted_at_the_next_call(stdio: dict[str, Any], pid: Path) -> None:
    async def work() -> list[str]:
        async with McpServers(stdio) as servers:
            box = Toolbox(servers.tools)
            os.kill(int(pid.read_text()), signal.SIGKILL)
            assert await asyncio.to_thread(ends, pid)
            gone = await call(box, "odd__add", a=1)
            assert gone.error
            assert "has ended" in text_of(gone.content)
            return servers.notes

    assert asyncio.run(work()) == ["MCP server odd: has ended."]


def test_servers_that_do_not_start_are_noted_and_the_others_used(
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

    async def work() -> tuple[list[str], int]:
        async with McpServers(config) as servers:
            assert await call(Toolbox(servers.tools), "odd__add", a=1) == ToolOutput(content="1")
            return servers.notes, len(servers.tools)

    notes, count = asyncio.run(work())
    assert count == 8
    about = {note.split(":")[0].removeprefix("MCP server "): note for note in notes}
    assert sorted(about) == sorted(config.keys() - {"odd"})
    assert "No such file or directory" in about["missing"]
    assert "(it said: no licence)" in about["broken"]
    assert "either a command or a url" in about["both"]
    assert "the fields are command, args" in about["typo"]
    assert all("\n" not in note and "Traceback" not in note for note in notes)


SILENT: Final = {"silent": {"command": "sh", "args": ["-c", "cat > /dev/null"]}}
"""It answers nothing, and ends with its input, so that nothing waits until it is killed."""


def test_a_silent_server_is_given_up_in_time() -> None:
    async def work() -> list[str]:
        async with McpServers(SILENT, start_timeout_s=0.3) as servers:
            assert servers.tools == []
            return servers.notes

    assert asyncio.run(work()) == ["MCP server silent: did not answer within 0.3 seconds."]


def test_cancelling_the_start_ends_the_started_servers(stdio: dict[str, Any], pid: Path) -> None:
    async def work() -> None:
        async with McpServers({**stdio, **SILENT}):
            raise AssertionError

    async def cancel_start() -> None:
        task = asyncio.create_task(work())
        while not pid.exists() or not pid.read_text():
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel_start())
    assert ends(pid)


def test_without_servers_the_library_is_not_imported(tmp_path: Path) -> None:
    code = """
import asyncio, sys

for name in [*sys.modules]:  # as in a new interpreter, where these packages are missing
    if name.partition(".")[0] in ("mcp", "mcp_types"):
        sys.modules[name] = None
    elif name.startswith("foveal.agent."):
        del sys.modules[name]
sys.modules["mcp"] = sys.modules["mcp_types"] = None

from foveal.agent.tools.mcp import McpServers

async def main():
    async with McpServers({}) as servers:
        assert servers.tools == []
    async with McpServers({"a": {"command": "x"}}) as servers:
        print(servers.notes)

asyncio.run(main())
"""
    (tmp_path / "program.py").write_text(code)
    done = warm_start.run([tmp_path / "program.py"], encoding="utf-8")
    assert (done.returncode, done.stderr) == (0, "")
    assert "pip install mcp mcp-types" in done.stdout


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"q": "x" * 990, "z": "rm -rf / HIDDEN"}, '  "z": "rm -rf / HIDDEN"\n}'),
        ({"q": "a\u00a0b"}, '{\n  "q": "a⟨U+00A0⟩b"\n}'),
        ({"q": "a  b"}, '{\n  "q": "a  b"\n}'),
    ],
)
def test_arguments_that_do_not_fit_on_a_line_are_previewed_in_full(given: dict[str, Any], shown: str) -> None:
    described = describe_mcp_call("odd__add")(given)
    assert described.startswith("odd__add {")
    assert len(described) <= 80
    assert preview_mcp_call(given).endswith(shown)


@pytest.mark.parametrize("name", ["github_", "github__evil", "a__", "_a", "__"])
def test_a_server_name_cannot_pass_for_another_server(name: str) -> None:
    async def start() -> list[str]:
        async with McpServers({name: {"command": "true"}}) as servers:
            return servers.notes

    (note,) = asyncio.run(start())
    assert "a name of at most 32 letters, digits, - and _, without __ and without _ at its ends" in note


def test_tool_names_fit_every_provider() -> None:
    assert mcp_tool_name("wiki", "get.page") == "wiki__get_page"
    long, other = mcp_tool_name("wiki", "x" * 100), mcp_tool_name("wiki", "x" * 101)
    assert len(long) == len(other) == 64
    assert long != other
