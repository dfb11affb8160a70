"""Tools of MCP servers, as tools of an agent. Needs `pip install foveal[mcp]`.

    config = {"files": {"command": "npx", "args": ["server-filesystem", "."]}, "wiki": {"url": "https://…/mcp"}}
    async with McpServers(config, note=print) as servers:
        box = Toolbox([*builtin_tools("."), *servers.tools])

1. A tool is called `server__tool`, and the name of a server has no `__`, so that the first one ends it. The user is
   asked before a tool runs: a server's own claim that a tool is harmless is not trusted.
2. A server that does not start, or ends, is reported as a note; the others continue. Its tools then answer that it
   has ended.
3. The tools of a server are listed once and sorted by name, so that the prompt's prefix does not move.
4. Leaving the `with` block ends the processes that it started.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, assert_never

from foveal.agent.tool import (
    MAX_OUTPUT_CHARS,
    Arguments,
    Tool,
    ToolOutput,
    audio_part,
    describe_error,
    document_part,
    error_output,
    image_part,
)
from foveal.agent.tools.process_group import OutputPipe
from foveal.core.log.events import AnyPart, Content, Text
from foveal.core.reduction.truncation import Limits
from foveal.core.wire.safe_print import one_line, seconds_text, visible
from foveal.errors import BadSetting

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import (
        BlobResourceContents,
        CallToolResult,
        ContentBlock,
        ResourceLink,
        TextResourceContents,
    )
    from mcp_types import Tool as ListedTool

MCP_START_TIMEOUT_S: Final = 20.0
"""Seconds until a server must have listed its tools."""
MCP_CLOSE_TIMEOUT_S: Final = 10.0
"""Seconds until all servers must have ended."""
MCP_SERVER_FIELDS: Final = ("command", "args", "env", "cwd", "url", "headers", "timeout")
_MAX_TOOL_PAGES: Final = 100
_MAX_DESCRIPTION_CHARS: Final = 4_000
_MAX_DESCRIBED_CHARS: Final = 60
"""Length of arguments that are described on one line; longer ones are previewed."""
_MAX_ERROR_BYTES: Final = 4_096
"""Bytes of a server's standard error that are kept."""
_SERVER_NAME: Final = re.compile(r"(?!.*__|.{33})[A-Za-z0-9](?:[A-Za-z0-9_-]*[A-Za-z0-9-])?")
_NAME_RULE: Final = "a name of at most 32 letters, digits, - and _, without __ and without _ at its ends"
"""The first `__` in the name of a tool is where the name of its server ends."""


class McpServers:
    """The MCP servers of an agent; a context manager."""

    def __init__(
        self,
        config: Mapping[str, Mapping[str, Any]],
        *,
        note: Callable[[str], None] | None = None,
        start_timeout_s: float = MCP_START_TIMEOUT_S,
        call_timeout_s: float = 120.0,
        limits: Limits | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.tools: list[Tool] = []
        self.notes: list[str] = []
        """Problems, one sentence each."""
        self._on_note = note
        self._start_timeout_s = start_timeout_s
        self._call_timeout_s = call_timeout_s
        self._limits = limits
        self._servers = [
            _McpConnection(name, dict(fields), cwd, self._note) for name, fields in config.items()
        ]

    async def __aenter__(self) -> Self:
        if self._servers and not _is_installed():
            install = f"{sys.executable} -m pip install mcp mcp-types"
            self._note(f"MCP servers need the library mcp ({install}); their tools are not offered.")
            return self
        try:
            await asyncio.gather(*(server.start(self._start_timeout_s) for server in self._servers))
        except BaseException:
            await self.__aexit__()
            raise
        for server in self._servers:
            for listed in sorted(server.tools, key=lambda tool: tool.name):
                self._add_tool(server, listed)
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            server.stop()
        tasks = [server.task for server in self._servers if server.task is not None]
        if tasks:
            _done, late = await asyncio.wait(tasks, timeout=MCP_CLOSE_TIMEOUT_S)
            for task in late:
                task.cancel()

    def _note(self, text: str) -> None:
        self.notes.append(text)
        if self._on_note is not None:
            self._on_note(text)

    def _add_tool(self, server: _McpConnection, listed: ListedTool) -> None:
        name = mcp_tool_name(server.name, listed.name)
        if any(tool.name == name for tool in self.tools):
            self._note(f"MCP server {server.name}: a second tool {name} is not offered.")
            return
        self.tools.append(
            Tool(
                name=name,
                description=_bounded_description(listed.description or listed.title or listed.name),
                parameters=listed.input_schema,
                run=server.runner(listed.name),
                describe=describe_mcp_call(name),
                preview=preview_mcp_call,
                needs_approval=True,
                limits=self._limits,
                timeout=server.fields.get("timeout", self._call_timeout_s),
            )
        )


def mcp_tool_name(server: str, tool: str) -> str:
    """Return `server__tool` in the characters and the length (64) that every provider accepts."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", f"{server}__{tool}")
    if len(name) <= 64:
        return name
    return f"{name[:55]}_{blake2b(name.encode(), digest_size=4).hexdigest()}"


def _bounded_description(text: str) -> str:
    if len(text) <= _MAX_DESCRIPTION_CHARS:
        return text
    left_out = len(text) - _MAX_DESCRIPTION_CHARS
    return f"{text[:_MAX_DESCRIPTION_CHARS]}… ({left_out:,} characters left out)"


def describe_mcp_call(name: str) -> Callable[[Arguments], str]:
    """Return a tool's `describe`: the beginning of the arguments on one line."""
    return lambda given: f"{name} {one_line(_json(given), width=_MAX_DESCRIBED_CHARS)}"


def preview_mcp_call(given: Arguments) -> str:
    """Return all arguments with every character visible; "" if the description has all of them."""
    text = _json(given)
    if len(text) <= _MAX_DESCRIBED_CHARS and one_line(text) == visible(text) == text:
        return ""
    return visible(json.dumps(given, ensure_ascii=False, indent=2))


def _json(given: Arguments) -> str:
    return json.dumps(given, ensure_ascii=False)


def _is_installed() -> bool:
    try:
        import mcp  # noqa: F401
    except ImportError:
        return False
    logging.getLogger("mcp").addHandler(logging.NullHandler())  # else its warnings appear on the terminal
    return True


# ── Connections ───────────────────────────────────────────────────────────────────────────────────


class _McpConnection:
    """A connection to a server; one task opens and closes it, as the library requires."""

    def __init__(
        self, name: str, fields: dict[str, Any], cwd: Path | None, note: Callable[[str], None]
    ) -> None:
        self.name, self.fields, self.cwd = name, fields, cwd
        self.tools: list[ListedTool] = []
        self.task: asyncio.Task[None] | None = None
        self._stop_requested = asyncio.Event()
        self._cancel_start: Callable[[], None] | None = None
        self._is_ready = asyncio.Event()
        """Set when the connection is open, or has failed."""
        self._client: Client | None = None
        self._error_output = bytearray()
        """The end of the server's standard error."""
        self._note = note

    async def start(self, timeout_s: float) -> None:
        """Connect and list the tools; return when that is done or has failed."""
        self.task = asyncio.create_task(self._run(timeout_s), name=f"mcp-{self.name}")
        await self._is_ready.wait()

    def stop(self) -> None:
        """Close the connection, or stop opening it; the task ends when that is done."""
        self._stop_requested.set()
        if self._cancel_start is not None and not self._is_ready.is_set():
            self._cancel_start()

    async def _run(self, timeout_s: float) -> None:
        try:
            _check_config(self.name, self.fields)
            if not await self._connect(timeout_s) and not self._stop_requested.is_set():
                self._report_failure(f"did not answer within {seconds_text(timeout_s)}")
        except Exception as problem:  # noqa: BLE001 - the other servers continue after any error
            self._report_failure(describe_error(_root_cause(problem)))
        finally:
            self._client = None
            self._is_ready.set()

    async def _connect(self, timeout_s: float) -> bool:
        """Hold the connection until `stop`; return False if the server did not start in time."""
        import anyio
        from mcp import Client

        deadline = anyio.current_time() + timeout_s
        with OutputPipe(self) as errors, anyio.CancelScope(deadline=deadline) as scope:
            self._cancel_start = scope.cancel
            async with AsyncExitStack() as stack:
                transport = await self._transport(stack, errors)
                client = await stack.enter_async_context(Client(transport))
                errors.close_writer()
                self.tools = await _list_tools(client)
                scope.deadline = math.inf
                self._client = client
                self._is_ready.set()
                await self._stop_requested.wait()
        return not scope.cancelled_caught

    async def _transport(self, stack: AsyncExitStack, errors: OutputPipe) -> Any:
        fields = self.fields
        if "url" in fields:
            import httpx2
            from mcp.client.streamable_http import streamable_http_client

            timeout = httpx2.Timeout(30.0, read=600.0)
            http = httpx2.AsyncClient(headers=fields.get("headers"), timeout=timeout)
            await stack.enter_async_context(http)
            return streamable_http_client(
                fields["url"], http_client=http, max_sse_event_size=2 * MAX_OUTPUT_CHARS
            )
        from mcp.client.stdio import StdioServerParameters, stdio_client

        parameters = StdioServerParameters(
            command=fields["command"],
            args=list(fields.get("args", ())),
            env=fields.get("env"),
            cwd=fields.get("cwd", self.cwd),
        )
        return stdio_client(parameters, errlog=open(errors.writer, "w", closefd=False))

    def write(self, data: bytes) -> None:
        """Keep the end of the server's standard error."""
        self._error_output += data[-_MAX_ERROR_BYTES:]
        del self._error_output[:-_MAX_ERROR_BYTES]

    def _report_failure(self, problem: str) -> None:
        """Report a problem as a note, with the last line of the server's standard error."""
        self.tools = [] if not self._is_ready.is_set() else self.tools
        lines = self._error_output.decode("utf-8", "replace").split("\n")
        last = next((one_line(line, width=300) for line in reversed(lines) if line.strip()), "")
        self._note(f"MCP server {one_line(self.name)}: {problem}{f' (it said: {last})' if last else ''}.")

    def runner(self, tool: str) -> Callable[[Arguments], Awaitable[ToolOutput]]:
        """Return the function that calls a tool of the server."""

        async def run(given: Arguments) -> ToolOutput:
            from mcp.shared.exceptions import MCPError
            from mcp_types import CONNECTION_CLOSED

            if self._client is None:
                return error_output(f"The MCP server {self.name} is not running any more.")
            try:
                result = await self._client.call_tool(tool, dict(given))
            except MCPError as problem:
                if problem.code == CONNECTION_CLOSED:
                    return self._ended_output()
                return error_output(f"The MCP server {self.name} refused: {describe_error(problem)}")
            except Exception as problem:
                if type(problem).__name__ in ("ClosedResourceError", "BrokenResourceError"):
                    return self._ended_output()
                raise
            return ToolOutput(content=to_content(result), error=result.is_error)

        return run

    def _ended_output(self) -> ToolOutput:
        """Report once that the server has ended, and return the answer to the call."""
        if self._client is not None:
            self._client = None
            self._report_failure("has ended")
            self._stop_requested.set()
        return error_output(f"The MCP server {self.name} has ended, so this call has no result.")


async def _list_tools(client: Client) -> list[ListedTool]:
    found: list[ListedTool] = []
    cursor: str | None = None
    for _ in range(_MAX_TOOL_PAGES):
        page = await client.list_tools(cursor=cursor)
        found.extend(page.tools)
        cursor = page.next_cursor
        if cursor is None:
            break
    return found


def _check_config(name: str, fields: Mapping[str, Any]) -> None:
    where = f"mcp.{name}"
    if not _SERVER_NAME.fullmatch(name):
        raise BadSetting("mcp", name, _NAME_RULE)
    for field in fields:
        if field not in MCP_SERVER_FIELDS:
            allowed = f"the fields are {', '.join(MCP_SERVER_FIELDS)}"
            raise BadSetting(f"{where}.{field}", fields[field], allowed)
    if ("command" in fields) == ("url" in fields):
        raise BadSetting(where, sorted(fields), "either a command or a url")


def _root_cause(problem: BaseException) -> BaseException:
    """Return the first error inside nested exception groups."""
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    return problem


# ── Content of results ────────────────────────────────────────────────────────────────────────────


def to_content(result: CallToolResult) -> Content:
    """Return a result as text, or as parts if it contains media; structured data counts only without other
    content."""
    parts = [_to_part(block) for block in result.content]
    if not parts and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False, indent=1)
    if all(isinstance(part, Text) for part in parts):
        return "\n".join(_texts(parts))
    return tuple(parts)


def _texts(parts: Sequence[AnyPart]) -> list[str]:
    return [part.text for part in parts if isinstance(part, Text)]


def _to_part(block: ContentBlock) -> AnyPart:
    match block.type:
        case "text":
            return Text(text=block.text)
        case "image":
            return image_part(block.mime_type, block.data)
        case "audio":
            return audio_part(block.mime_type, block.data)
        case "resource_link":
            return Text(text=_link_text(block))
        case "resource":
            return _resource_part(block.resource)
        case _:
            assert_never(block)


def _link_text(link: ResourceLink) -> str:
    about = " ".join(filter(None, (link.title or link.name, link.mime_type, link.description)))
    return f"[resource {one_line(str(link.uri), width=500)}: {one_line(about, width=500)}]"


def _resource_part(resource: TextResourceContents | BlobResourceContents) -> AnyPart:
    uri = one_line(str(resource.uri), width=500)
    blob = getattr(resource, "blob", None)
    if blob is not None:
        return document_part(resource.mime_type or "", blob, name=uri.rpartition("/")[2] or "file")
    return Text(text=f"[resource {uri}]\n{getattr(resource, 'text', '')}")
