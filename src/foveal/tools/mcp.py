"""Tools of MCP servers, through the same door as our own. Needs `pip install foveal[mcp]`.

    config = {"files": {"command": "npx", "args": ["server-filesystem", "."]}, "wiki": {"url": "https://…/mcp"}}
    async with Servers(config, note=print) as servers:
        box = Toolbox([*ours, *servers.tools])

1. A tool is called `server__tool`, and asks before it runs: what a server says about its own harmlessness is not
   believed.
2. A server that does not start, or ends, is a note; everything else goes on. Its tools then answer that it is gone.
3. What a server offers is asked once, and sorted by name, so that the prompt's prefix does not move.
4. Leaving the `with` ends the processes that it began.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, assert_never

from foveal.core.log.events import AnyPart, Content, Text
from foveal.core.wire.safe_print import one_line
from foveal.tools.tool import document, image, sound

if TYPE_CHECKING:
    from mcp_types import (
        BlobResourceContents,
        CallToolResult,
        ContentBlock,
        ResourceLink,
        TextResourceContents,
    )
import asyncio
import logging
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from foveal.core.reduction.truncation import Limits
from foveal.errors import BadSetting
from foveal.tools.process_group import OutputPipe
from foveal.tools.tool import MOST, Arguments, Tool, ToolOutput, sentence, trouble

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import Tool as Offered

# ── mcp content ───────────────────────────────────────────────────────────────────────────────────
# What an MCP server answers, as content of ours: text, pictures, sounds and files, in their order.


def content(result: CallToolResult) -> Content:
    """All of a result. Text alone is plain text; what is structured counts only when there is nothing else."""
    parts = [_part(block) for block in result.content]
    if not parts and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False, indent=1)
    if all(isinstance(part, Text) for part in parts):
        return "\n".join(_texts(parts))
    return tuple(parts)


def _texts(parts: Sequence[AnyPart]) -> list[str]:
    return [part.text for part in parts if isinstance(part, Text)]


def _part(block: ContentBlock) -> AnyPart:
    match block.type:
        case "text":
            return Text(text=block.text)
        case "image":
            return image(block.mime_type, block.data)
        case "audio":
            return sound(block.mime_type, block.data)
        case "resource_link":
            return Text(text=_link(block))
        case "resource":
            return _resource(block.resource)
        case _:
            assert_never(block)


def _link(link: ResourceLink) -> str:
    about = " ".join(filter(None, (link.title or link.name, link.mime_type, link.description)))
    return f"[resource {one_line(str(link.uri), width=500)}: {one_line(about, width=500)}]"


def _resource(resource: TextResourceContents | BlobResourceContents) -> AnyPart:
    uri = one_line(str(resource.uri), width=500)
    blob = getattr(resource, "blob", None)
    if blob is not None:
        return document(resource.mime_type or "", blob, name=uri.rpartition("/")[2] or "file")
    return Text(text=f"[resource {uri}]\n{getattr(resource, 'text', '')}")


# ── mcp ───────────────────────────────────────────────────────────────────────────────────────────

START: Final = 20.0
"""Seconds that a server has to say what it offers."""
CLOSE: Final = 10.0
"""Seconds that all of them have to end."""
FIELDS: Final = ("command", "args", "env", "cwd", "url", "headers", "timeout")
_PAGES: Final = 100
_DESCRIPTION: Final = 4_000
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")


class McpServers:
    """The MCP servers of one agent, while the `with` lasts."""

    def __init__(
        self,
        config: Mapping[str, Mapping[str, Any]],
        *,
        note: Callable[[str], None] | None = None,
        start: float = START,
        timeout: float = 120.0,
        limits: Limits | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.tools: list[Tool] = []
        self.notes: list[str] = []
        """What went wrong, one sentence each."""
        self._tell = note
        self._start = start
        self._timeout = timeout
        self._limits = limits
        self._servers = [
            _McpConnection(name, dict(fields), cwd, self._note) for name, fields in config.items()
        ]

    async def __aenter__(self) -> Self:
        if self._servers and not _installed():
            self._note("MCP servers need `pip install foveal[mcp]`; their tools are not offered.")
            return self
        try:
            await asyncio.gather(*(server.begin(self._start) for server in self._servers))
        except BaseException:
            await self.__aexit__()
            raise
        for server in self._servers:
            for offered in sorted(server.offered, key=lambda tool: tool.name):
                self._add(server, offered)
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            server.end()
        tasks = [server.task for server in self._servers if server.task is not None]
        if tasks:
            waited = await asyncio.wait(tasks, timeout=CLOSE)
            for late in waited[1]:
                late.cancel()

    def _note(self, text: str) -> None:
        self.notes.append(text)
        if self._tell is not None:
            self._tell(text)

    def _add(self, server: _McpConnection, offered: Offered) -> None:
        name = full_name(server.name, offered.name)
        if any(tool.name == name for tool in self.tools):
            self._note(f"MCP server {server.name}: a second tool {name} is not offered.")
            return
        self.tools.append(
            Tool(
                name=name,
                description=_described(offered.description or offered.title or offered.name),
                parameters=offered.input_schema,
                run=server.runner(offered.name),
                describe=_told(name),
                changes=True,
                limits=self._limits,
                timeout=server.fields.get("timeout", self._timeout),
            )
        )


def full_name(server: str, tool: str) -> str:
    """`server__tool` in the letters that every provider takes, and no longer than they take it."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", f"{server}__{tool}")
    if len(name) <= 64:
        return name
    return f"{name[:55]}_{blake2b(name.encode(), digest_size=4).hexdigest()}"


def _described(text: str) -> str:
    if len(text) <= _DESCRIPTION:
        return text
    return f"{text[:_DESCRIPTION]}… ({len(text) - _DESCRIPTION:,} characters left out)"


def _told(name: str) -> Callable[[Arguments], str]:
    return lambda given: f"{name} {one_line(json.dumps(given, ensure_ascii=False), width=1_000)}"


def _installed() -> bool:
    try:
        import mcp  # noqa: F401
    except ImportError:
        return False
    logging.getLogger("mcp").addHandler(logging.NullHandler())  # else its warnings land on the terminal
    return True


# ── one server ───────────────────────────────────────────────────────────────────────────────────────────


class _McpConnection:
    """One connection, opened and closed by one task, as the library demands."""

    def __init__(
        self, name: str, fields: dict[str, Any], cwd: Path | None, note: Callable[[str], None]
    ) -> None:
        self.name, self.fields, self.cwd = name, fields, cwd
        self.offered: list[Offered] = []
        self.task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._give_up: Callable[[], None] | None = None
        self._ready = asyncio.Event()
        self._client: Client | None = None
        self._said = bytearray()
        """The end of what it wrote to its standard error."""
        self._note = note

    async def begin(self, seconds: float) -> None:
        """Connect, and ask what it offers; return when that is done or has failed."""
        self.task = asyncio.create_task(self._live(seconds), name=f"mcp-{self.name}")
        await self._ready.wait()

    def end(self) -> None:
        """Close the connection, or stop trying to open it; the task ends when that is done."""
        self._stop.set()
        if self._give_up is not None and not self._ready.is_set():
            self._give_up()

    async def _live(self, seconds: float) -> None:
        try:
            _check(self.name, self.fields)
            if not await self._connected(seconds) and not self._stop.is_set():
                self._failed(f"did not answer within {seconds:g} seconds")
        except Exception as problem:  # noqa: BLE001 - whatever it is, the others go on
            self._failed(sentence(_cause(problem)))
        finally:
            self._client = None
            self._ready.set()

    async def _connected(self, seconds: float) -> bool:
        """Live until told to stop; False when it did not begin in time."""
        import anyio
        from mcp import Client

        with OutputPipe(self) as errors, anyio.CancelScope(deadline=anyio.current_time() + seconds) as scope:
            self._give_up = scope.cancel
            async with AsyncExitStack() as stack:
                transport = await self._transport(stack, errors)
                client = await stack.enter_async_context(Client(transport))
                errors.begin()
                self.offered = await _listed(client)
                scope.deadline = math.inf
                self._client = client
                self._ready.set()
                await self._stop.wait()
        return not scope.cancelled_caught

    async def _transport(self, stack: AsyncExitStack, errors: OutputPipe) -> Any:
        fields = self.fields
        if "url" in fields:
            import httpx2
            from mcp.client.streamable_http import streamable_http_client

            waiting = httpx2.Timeout(30.0, read=600.0)
            http = httpx2.AsyncClient(headers=fields.get("headers"), timeout=waiting)
            await stack.enter_async_context(http)
            return streamable_http_client(fields["url"], http_client=http, max_sse_event_size=2 * MOST)
        from mcp.client.stdio import StdioServerParameters, stdio_client

        how = StdioServerParameters(
            command=fields["command"],
            args=list(fields.get("args", ())),
            env=fields.get("env"),
            cwd=fields.get("cwd", self.cwd),
        )
        return stdio_client(how, errlog=open(errors.writer, "w", closefd=False))

    def write(self, data: bytes) -> None:
        """What it says on standard error; only the end is kept."""
        self._said += data[-4_096:]
        del self._said[:-4_096]

    def _failed(self, problem: str) -> None:
        """Say so once; what it said last may tell why."""
        self.offered = [] if not self._ready.is_set() else self.offered
        lines = self._said.decode("utf-8", "replace").split("\n")
        last = next((one_line(line, width=300) for line in reversed(lines) if line.strip()), "")
        self._note(f"MCP server {one_line(self.name)}: {problem}{f' (it said: {last})' if last else ''}.")

    # ── calls ────────────────────────────────────────────────────────────────────────────────────────────

    def runner(self, tool: str) -> Callable[[Arguments], Awaitable[ToolOutput]]:
        async def run(given: Arguments) -> ToolOutput:
            from mcp.shared.exceptions import MCPError
            from mcp_types import CONNECTION_CLOSED

            if self._client is None:
                return trouble(f"The MCP server {self.name} is not running any more.")
            try:
                result = await self._client.call_tool(tool, dict(given))
            except MCPError as problem:
                if problem.code == CONNECTION_CLOSED:
                    return self._gone()
                return trouble(f"The MCP server {self.name} refused: {sentence(problem)}")
            except Exception as problem:
                if type(problem).__name__ in ("ClosedResourceError", "BrokenResourceError"):
                    return self._gone()
                raise
            return ToolOutput(content=content(result), error=result.is_error)

        return run

    def _gone(self) -> ToolOutput:
        if self._client is not None:
            self._client = None
            self._failed("has ended")
            self._stop.set()
        return trouble(f"The MCP server {self.name} has ended, so this call has no result.")


async def _listed(client: Client) -> list[Offered]:
    found: list[Offered] = []
    cursor: str | None = None
    for _ in range(_PAGES):
        page = await client.list_tools(cursor=cursor)
        found.extend(page.tools)
        cursor = page.next_cursor
        if cursor is None:
            break
    return found


def _check(name: str, fields: Mapping[str, Any]) -> None:
    where = f"mcp.{name}"
    if not _NAME.fullmatch(name):
        raise BadSetting("mcp", name, "a name of at most 32 letters, digits, - and _")
    for field in fields:
        if field not in FIELDS:
            raise BadSetting(f"{where}.{field}", fields[field], f"the fields are {', '.join(FIELDS)}")
    if ("command" in fields) == ("url" in fields):
        raise BadSetting(where, sorted(fields), "either a command or a url")


def _cause(problem: BaseException) -> BaseException:
    """What went wrong, out of the groups that it comes in."""
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    return problem
