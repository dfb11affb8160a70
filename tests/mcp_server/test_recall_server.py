"""`foveal mcp` in its own process, with the client of the mcp package over stdio and HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any, Final

import httpx2
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from foveal import Memory
from foveal.core.log import Event, UserSaid
from foveal.mcp_server.recall_server import recall_server
from foveal.memory import MemoryEntry
from foveal.recall import tools
from foveal.recall.archive import Archive, TranscriptSource
from foveal.stores import open_store
from support import warm_start
from support.effort import rest_in_soak
from support.paths import TESTS
from support.warm_commands import command as warm_command
from support.warm_commands import warm_commands

TRANSCRIPTS: Final = TESTS / "data/transcripts"
COMMAND: Final = [sys.executable, "-m", "foveal.cli", "mcp"]
Scene = Callable[[Client], Awaitable[Any]]


def environment(home: Path, **variables: str) -> dict[str, str]:
    """An environment in which no agent has sessions outside of `home`."""
    ours = {
        "HOME": str(home),
        "XDG_DATA_HOME": str(home / "data"),
        "XDG_CACHE_HOME": str(home / "cache"),
        **variables,
    }
    unset = ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "PI_CODING_AGENT_DIR", "FOVEAL_STORE", "FOVEAL_MCP_TOKEN")
    return {**{name: value for name, value in os.environ.items() if name not in unset}, **ours}


def over_stdio(home: Path, scene: Scene, *arguments: object, command: Sequence[str] = ()) -> Any:
    """Run a scene against a server in its own process; `command` starts it as a new interpreter."""

    async def run(*words: str) -> Any:
        given = [*words[1:], *map(str, arguments)]
        parameters = StdioServerParameters(command=words[0], args=given, env=environment(home))
        async with Client(stdio_client(parameters)) as client:
            return await scene(client)

    if command:
        return asyncio.run(run(*command))
    with warm_commands() as address:
        return asyncio.run(run(*shlex.split(warm_command(address, "foveal.cli")), "mcp"))


def in_process(scene: Scene, *paths: Path) -> Any:
    """Run a scene against a server in this process: a process of its own takes a second to start."""

    async def run() -> Any:
        async with Client(recall_server(Archive([TranscriptSource(path) for path in paths]))) as client:
            return await scene(client)

    return asyncio.run(run())


async def call(client: Client, name: str, **arguments: Any) -> str:
    """Return the answer of a tool; an error begins with `error: `."""
    result = await client.call_tool(name, arguments)
    (block,) = result.content
    return ("error: " if result.is_error else "") + block.text  # type: ignore[union-attr]


def test_the_tools_have_the_arguments_of_the_library() -> None:
    async def scene(client: Client) -> dict[str, Any]:
        return {tool.name: tool for tool in (await client.list_tools()).tools}

    offered = in_process(scene, TRANSCRIPTS)
    assert list(offered) == ["recall_sessions", "recall_search", "recall_read"]
    for schema in tools("anthropic"):
        ours = offered[schema["name"]].input_schema
        assert schema["input_schema"]["properties"].items() <= ours["properties"].items()
        assert ours["additionalProperties"] is False
    assert offered["recall_read"].input_schema["required"] == ["session", "handle"]
    assert all(tool.annotations.read_only_hint for tool in offered.values())


@pytest.mark.parametrize("command", rest_in_soak([[], COMMAND]), ids=["fork", "new"])
def test_transcripts_of_all_agents_are_listed_searched_and_read(
    tmp_path: Path, command: Sequence[str]
) -> None:
    async def scene(client: Client) -> list[str]:
        return [
            await call(client, "recall_sessions"),
            await call(client, "recall_search", query="test", limit=3),
            await call(client, "recall_read", session="codex", handle="e0-e3"),
        ]

    listed, found, read = over_stdio(tmp_path, scene, TRANSCRIPTS, command=command)
    assert {"claude_code;", "codex;", "pi;"} <= set(listed.split())
    assert found.startswith("[foveal recall: ")
    assert read.startswith("[foveal recall: e")


@pytest.mark.parametrize(
    ("name", "arguments", "advice"),
    [
        ("recall_read", {"session": "codex"}, "missing required field `handle`"),
        ("recall_read", {"session": "codex", "handle": "e1", "colour": 1}, "unknown field `colour`"),
        ("recall_read", {"session": "codex", "handle": "e1", "lines": "x"}, "lines must be like"),
        ("recall_read", {"session": "none", "handle": "e1"}, "recall_sessions lists them"),
        ("recall_search", {"query": " "}, "a search needs a query"),
        ("recall_sessions", {"since": "soon"}, "a day or a time such as"),
        ("recall_forget", {}, "there is no tool recall_forget"),
    ],
)
def test_a_wrong_call_is_a_tool_error_with_advice(name: str, arguments: dict[str, Any], advice: str) -> None:
    answer = in_process(lambda client: call(client, name, **arguments), TRANSCRIPTS)
    assert answer.startswith("error: [foveal recall: ")
    assert advice in answer


def test_numbers_may_come_as_text_and_null_is_absent() -> None:
    async def scene(client: Client) -> str:
        return await call(client, "recall_sessions", limit="1", text=None)

    assert "[foveal recall: 1 session" in in_process(scene, TRANSCRIPTS)


def test_progress_is_reported_while_files_are_read() -> None:
    reported: list[tuple[float, float | None, str | None]] = []

    async def note(done: float, total: float | None, about: str | None) -> None:
        reported.append((done, total, about))

    async def scene(client: Client) -> None:
        await client.call_tool("recall_search", {"query": "test"}, progress_callback=note)

    in_process(scene, TRANSCRIPTS)
    assert reported
    assert all(about is not None and about.startswith("reading ") for _, _, about in reported)


def test_the_default_places_of_the_agents_are_found(tmp_path: Path) -> None:
    for name, folder in (
        ("claude_code", ".claude/projects/-home-me"),
        ("codex", ".codex/sessions/2026/10/01"),
        ("pi", ".pi/agent/sessions/--home-me--"),
    ):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / f"{name}.jsonl").write_bytes((TRANSCRIPTS / f"{name}.jsonl").read_bytes())

    async def fill() -> None:
        (tmp_path / "data/foveal").mkdir(parents=True)
        async with open_store(tmp_path / "data/foveal/sessions.db") as store:
            await store.append("own", [Event(0, UserSaid(content="An own zebra"), 1.0)])

    asyncio.run(fill())
    listed = over_stdio(tmp_path, lambda client: call(client, "recall_sessions"))
    assert {"claude_code;", "codex;", "pi;", "foveal;"} <= set(listed.split())


def test_a_server_folder_has_the_stores_of_its_tenants(tmp_path: Path) -> None:
    async def fill() -> None:
        (tmp_path / "srv/tenants").mkdir(parents=True)
        async with open_store(tmp_path / "srv/tenants/alice.db") as store:
            await store.append("own", [Event(0, UserSaid(content="A zebra of Alice"), 1.0)])

    asyncio.run(fill())
    (tmp_path / "srv/service.db").write_bytes(b"not a store")
    found = over_stdio(
        tmp_path, lambda client: call(client, "recall_search", query="zebra"), "--store", tmp_path / "srv"
    )
    assert "> A zebra of Alice" in found
    assert "could not be read" not in found


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["/does/not/exist"], "there is no file or folder /does/not/exist"),
        (["--store", "mysql://me:secret@host/x"], "a path, or a postgresql:// URL"),
        (["--tokens", "10"], "--tokens 10 is not allowed"),
        (["--http", "70000"], "a port from 0 to 65,535"),
        ([], "no sessions of Claude Code, Codex, pi or Foveal were found"),
    ],
)
def test_a_wrong_command_line_is_an_error(tmp_path: Path, arguments: list[str], problem: str) -> None:
    given = [*arguments, str(TRANSCRIPTS)] if arguments[:1] == ["--tokens"] else arguments
    done = warm_start.run([*COMMAND[1:], *given], env=environment(tmp_path), encoding="utf-8")
    assert done.returncode == 1
    assert problem in done.stderr
    assert "secret" not in done.stderr
    assert done.stdout == ""


def test_the_server_ends_with_its_input(tmp_path: Path) -> None:
    done = warm_start.run([*COMMAND[1:], TRANSCRIPTS], env=environment(tmp_path), encoding="utf-8")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_cannot_be_read_is_said_at_the_start(tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("Buy milk\n")
    stores = ["--store", str(notes), "--store", "postgresql://me:s3cret-word@127.0.0.1:1/none"]
    with warm_start.start(
        [*COMMAND[1:], TRANSCRIPTS, *stores], env=environment(tmp_path),
        stdin=PIPE, stdout=PIPE, stderr=PIPE, encoding="utf-8",
    ) as server:  # fmt: skip
        assert server.stderr is not None
        database, file = server.stderr.readline(), server.stderr.readline()
        server.communicate("", timeout=240)
    assert file == f"foveal mcp: {notes}, line 1: this is not JSON: invalid character (byte 0 of the line)\n"
    assert database.startswith("foveal mcp: postgresql://127.0.0.1:1/none cannot be reached: ")
    assert "s3cret-word" not in database
    assert server.returncode == 0


def test_an_index_that_cannot_be_used_is_said_and_the_server_goes_on(tmp_path: Path) -> None:
    (tmp_path / "cache/foveal").mkdir(parents=True)
    (tmp_path / "cache/foveal/recall").symlink_to(tmp_path)

    async def scene(client: Client) -> str:
        return await call(client, "recall_search", query="barn")

    assert "> Look into the barn" in over_stdio(tmp_path, scene, TRANSCRIPTS)
    done = warm_start.run([*COMMAND[1:], TRANSCRIPTS], env=environment(tmp_path), encoding="utf-8")
    assert done.stderr == (
        f"foveal mcp: {tmp_path}/cache/foveal/recall is not a folder: remove it; "
        "until then the index is in memory and ends with the server\n"
    )
    assert not (tmp_path / "sessions.db").exists()


def test_a_port_in_use_is_an_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = warm_start.run(
            [*COMMAND[1:], TRANSCRIPTS, "--http", port], env=environment(tmp_path), encoding="utf-8"
        )
    problem = (
        f"port {port} of 127.0.0.1 is used by another program: choose another with --http (0: any free one)"
    )
    assert done.returncode == 1
    assert problem in done.stderr


# ── HTTP ─────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def http_server(home: Path, **variables: str) -> Iterator[tuple[str, str]]:
    """Yield the URL, and the line that the server prints."""
    process = warm_start.start(
        [*COMMAND[1:], TRANSCRIPTS, "--http", "0"], env=environment(home, **variables), stderr=PIPE,
        encoding="utf-8",
    )  # fmt: skip
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/mcp", line)
        assert found, line
        yield found.group(), line
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(240)
        assert process.stderr is not None
        process.stderr.close()


async def sessions_over_http(url: str, token: str) -> str:
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, trust_env=False) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        return await call(client, "recall_sessions")


def test_http_needs_the_token(tmp_path: Path) -> None:
    with http_server(tmp_path) as (url, line):
        token = line.split()[-1]
        assert "sessions, the most recently active first" in asyncio.run(sessions_over_http(url, token))
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
        for headers in ({}, {"Authorization": f"Bearer {token}x"}):
            refused = httpx2.post(url, content=body, headers=headers, trust_env=False)
            assert refused.status_code == 401
            assert "Authorization: Bearer TOKEN" in refused.text


def test_the_token_can_be_given(tmp_path: Path) -> None:
    with http_server(tmp_path, FOVEAL_MCP_TOKEN="given-token") as (url, line):
        assert "given-token" not in line
        assert "sessions, the most recently" in asyncio.run(sessions_over_http(url, "given-token"))


# ── Memories ─────────────────────────────────────────────────────────────────────────────────────────────


def with_memory(home: Path, scene: Scene, *arguments: str, environ: Mapping[str, str] | None = None) -> Any:
    """Run a scene against `foveal mcp` with the user's own store below a home folder."""

    async def run(*words: str) -> Any:
        env = {**environment(home), "FOVEAL_STORE": str(home / "chats.db"), **(environ or {})}
        parameters = StdioServerParameters(
            command=words[0], args=[*words[1:], "mcp", *arguments], env=env, cwd=str(home)
        )
        async with Client(stdio_client(parameters)) as client:
            return await scene(client)

    with warm_commands() as address:
        return asyncio.run(run(*shlex.split(warm_command(address, "foveal.cli"))))


async def remembered(home: Path, *texts: str) -> None:
    async with open_store(home / "chats.db") as store:
        for text in texts:
            await Memory("user", store=store).remember(text)


async def all_entries(home: Path) -> list[MemoryEntry]:
    async with open_store(home / "chats.db") as store:
        return await Memory("user", store=store).entries(all=True)


def test_a_client_reads_the_memory_and_cannot_write_it(tmp_path: Path) -> None:
    asyncio.run(remembered(tmp_path, "I prefer tabs.", "The port is 8081."))

    async def scene(client: Client) -> tuple[list[str], list[str]]:
        names = [tool.name for tool in (await client.list_tools()).tools]
        return names, [
            await call(client, "memory_list"),
            await call(client, "memory_list", limit=1),
            await call(client, "memory_search", query="which port?"),
            await call(client, "memory_search", query="zebra"),
            await call(client, "memory_search"),
            await call(client, "memory_suggest", text="The user allows deploys."),
        ]

    names, answers = with_memory(tmp_path, scene)
    assert names[3:] == ["memory_list", "memory_search"]
    listed, newest, found, none, wrong, refused = answers
    assert listed == "[memory m0; preference]\n> I prefer tabs.\n[memory m1; fact]\n> The port is 8081."
    assert newest.startswith("[memory: 1 older entries: memory_search finds them]\n[memory m1;")
    assert found == "[memory m1; fact]\n> The port is 8081."
    assert none == "[memory: no entries]"
    assert wrong.startswith("error: [foveal recall: wrong arguments: ")
    assert refused.startswith("error: [foveal recall: there is no tool memory_suggest")
    assert len(asyncio.run(all_entries(tmp_path))) == 2


def test_a_memory_that_begins_after_the_server_is_read(tmp_path: Path) -> None:
    (tmp_path / ".claude/projects/-home-me").mkdir(parents=True)
    shutil.copy(TRANSCRIPTS / "claude_code.jsonl", tmp_path / ".claude/projects/-home-me")

    async def scene(client: Client) -> list[str]:
        before = await call(client, "memory_list")
        await remembered(tmp_path, "I prefer tabs.")
        return [before, await call(client, "memory_list")]

    assert with_memory(tmp_path, scene) == [
        "[memory: no entries]",
        "[memory m0; preference]\n> I prefer tabs.",
    ]


def test_the_tools_of_recall_need_no_folder_for_a_memory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / ".claude/projects/-home-me").mkdir(parents=True)
    shutil.copy(TRANSCRIPTS / "claude_code.jsonl", tmp_path / ".claude/projects/-home-me")

    async def names(client: Client) -> list[str]:
        return [tool.name for tool in (await client.list_tools()).tools]

    store = {"FOVEAL_STORE": str(tmp_path / "file" / "chats.db")}
    assert with_memory(tmp_path, names, environ=store) == ["recall_sessions", "recall_search", "recall_read"]


def test_what_a_client_suggests_waits_for_the_user(tmp_path: Path) -> None:
    async def scene(client: Client) -> list[str]:
        return [
            await call(client, "memory_suggest", text="The user allows deploys."),
            await call(client, "memory_list"),
            await call(client, "memory_suggest", text=" "),
        ]

    suggested, listed, empty = with_memory(tmp_path, scene, "--write")
    assert suggested == "[memory: suggested m0: The user allows deploys.; it counts once the user accepts it]"
    assert listed == "[memory: no entries]"
    assert empty.startswith("error: ")
    [entry] = asyncio.run(all_entries(tmp_path))
    assert (entry.proposed, entry.origin.by) == (True, "an MCP client")


def test_the_memory_is_not_offered_if_it_is_off_or_other_places_are_named(tmp_path: Path) -> None:
    asyncio.run(remembered(tmp_path, "I prefer tabs."))

    async def names(client: Client) -> list[str]:
        return [tool.name for tool in (await client.list_tools()).tools]

    without = ["recall_sessions", "recall_search", "recall_read"]
    assert with_memory(tmp_path, names, environ={"FOVEAL_MEMORY_ENABLED": "false"}) == without
    assert with_memory(tmp_path, names, str(TRANSCRIPTS)) == without
