"""What a tool is, and the one way to call it: whatever happens, the model gets an answer.

    box = Toolbox([*files(folder), run(folder), *recalled(session)])
    offer(box.offered)
    output = await box.call(call.name, call.arguments)
    await session.append(ToolReturned(call_id=call.id, name=call.name, content=output.content, error=output.error))

1. What a model does wrong (an unknown tool, broken JSON, a wrong type) is answered with what is wrong and what is
   allowed. What goes wrong inside a tool is answered in one sentence. `call` raises only when it is cancelled.
2. A tool that takes longer than its `timeout` is stopped. What it had to say until then is the answer.
3. Nothing is shortened here below `MOST`: the session stores the whole answer, and clips what is shown of it.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from foveal.core.log.events import AnyPart, Content, Media, Text, raw
from foveal.core.reduction.truncation import Limits
from foveal.core.wire.media import measure, mime
from foveal.core.wire.safe_print import one_line
from foveal.errors import BadSetting
from foveal.tools.tool_arguments import InvalidArguments, fitted, parsed

# ── media ─────────────────────────────────────────────────────────────────────────────────────────
# Pictures, sounds and files that a tool returned, as parts of its answer.


def image(media_type: str, data: bytes | str) -> Media:
    """A picture, from its bytes or their Base64."""
    return _media({"type": "image", "source": _base64(media_type, data)})


def sound(media_type: str, data: str) -> Media:
    form = {"audio/mpeg": "mp3", "audio/x-wav": "wav"}.get(
        mime(media_type), mime(media_type).partition("/")[2]
    )
    return _media({"type": "input_audio", "input_audio": {"data": data, "format": form}})


def document(media_type: str, data: str, *, name: str) -> Media:
    """A file of any other media_type, from its Base64."""
    if mime(media_type).startswith("image/"):
        return image(media_type, data)
    kind = mime(media_type) or "application/octet-stream"
    return _media({"type": "file", "file": {"filename": name, "file_data": f"data:{kind};base64,{data}"}})


def _base64(media_type: str, data: bytes | str) -> dict[str, str]:
    text = data if isinstance(data, str) else b64encode(data).decode()
    return {"type": "base64", "media_type": mime(media_type), "data": text}


def _media(native: dict[str, Any]) -> Media:
    found = measure(native)
    return Media(native=raw(native), mime=found.mime, size=found.size, units=found.units)


# ── tool ──────────────────────────────────────────────────────────────────────────────────────────

MOST: Final = 100 * 1024 * 1024
"""Characters of an answer; of a longer one, the beginning and the end are kept."""
GRACE: Final = 5.0
"""Seconds that a tool has to end itself, once it was told to."""

Arguments = Mapping[str, Any]


class ToolOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool answers."""

    content: Content
    """Text, or parts with pictures among them."""
    error: bool = False
    touched: tuple[str, ...] = ()
    """Absolute paths of files and folders that it touched: their folders may have instructions of their own."""


def trouble(problem: str) -> ToolOutput:
    """The answer to a call that came to nothing."""
    return ToolOutput(content=problem, error=True)


class ToolInterrupted(asyncio.CancelledError):
    """A call was cancelled from outside; `output` is what the tool had to say until then."""

    def __init__(self, output: ToolOutput) -> None:
        super().__init__("the tool was stopped")
        self.output = output


def _nothing(_: Arguments) -> str:
    return ""


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a model can ask for.

    `run` gets arguments that fit `parameters`. When it is cancelled it must end what it began; it may then return
    what it has so far instead of raising.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    """The JSON schema of its arguments, an object."""
    run: Callable[[Arguments], Awaitable[ToolOutput]]
    describe: Callable[[Arguments], str]
    """One line for people, safe to print: what this call would do."""
    preview: Callable[[Arguments], str] = _nothing
    """More for people who are asked, safe to print: what exactly would change; "" when the line says it all."""
    changes: bool = False
    """It may change something, so somebody is asked before it runs, unless it is allowed."""
    limits: Limits | None = None
    """How much of its answer is shown, if not what is usual."""
    timeout: float = 120.0
    """Seconds."""


class Toolbox:
    """The tools of one agent, in the order in which they are offered."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            if tool.name in self._tools:
                raise BadSetting("tools", tool.name, "each tool needs a name of its own")
            self._tools[tool.name] = tool

    @property
    def offered(self) -> list[dict[str, Any]]:
        """Name, description and parameters of each, in no provider's form and always in the same order."""
        return [
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
            for tool in self._tools.values()
        ]

    @property
    def limits(self) -> dict[str, Limits]:
        """The tools that have clip limits of their own."""
        return {name: tool.limits for name, tool in self._tools.items() if tool.limits is not None}

    def get(self, name: str) -> Tool | None:
        return self._tools.get(name)

    def read(self, name: str, arguments: str) -> tuple[Tool, Arguments] | ToolOutput:
        """The tool and the arguments that a call means, or the answer that says what is wrong with it."""
        tool = self._tools.get(name)
        if tool is None:
            known = ", ".join(self._tools) or "none"
            return trouble(f"There is no tool {one_line(name)!r}. The tools are: {known}.")
        try:
            return tool, fitted(parsed(arguments), tool.parameters)
        except InvalidArguments as problem:
            return trouble(f"{name} was not run: {problem}")

    def changes(self, name: str, arguments: str) -> bool:
        """Somebody must be asked before this call runs, unless it is allowed. A call that cannot run changes
        nothing."""
        meant = self.read(name, arguments)
        return not isinstance(meant, ToolOutput) and meant[0].changes

    def describe(self, name: str, arguments: str) -> str:
        """One line for people, whatever the model wrote."""
        return self._told(name, arguments, "describe")

    def preview(self, name: str, arguments: str) -> str:
        """What exactly would change, for people who are asked; may be empty."""
        return self._told(name, arguments, "preview")

    async def call(self, name: str, arguments: str) -> ToolOutput:
        """Answer a call as the model made it."""
        meant = self.read(name, arguments)
        if isinstance(meant, ToolOutput):
            return meant
        tool, given = meant
        return bounded(await _ended(tool, given))

    def _told(self, name: str, arguments: str, what: str) -> str:
        meant = self.read(name, arguments)
        if isinstance(meant, ToolOutput):
            return one_line(f"{name} {arguments[:500]}") if what == "describe" else ""
        tool, given = meant
        try:
            return str(getattr(tool, what)(given))
        except Exception as problem:  # noqa: BLE001 - nobody should be left without an answer
            return one_line(f"{name} {arguments[:500]}") if what == "describe" else sentence(problem)


# ── running ──────────────────────────────────────────────────────────────────────────────────────────────


async def _ended(tool: Tool, given: Arguments) -> ToolOutput:
    """The answer of one run, in time or stopped."""
    task = asyncio.ensure_future(_safely(tool, given))
    try:
        done, _ = await asyncio.wait({task}, timeout=tool.timeout)
    except asyncio.CancelledError:
        raise ToolInterrupted(await _stopped(task, tool, "somebody stopped it")) from None
    if done:
        return _result(task, tool)
    return await _stopped(task, tool, f"it took longer than {tool.timeout:g} seconds")


async def _safely(tool: Tool, given: Arguments) -> ToolOutput:
    try:
        return await tool.run(given)
    except InvalidArguments as problem:
        return trouble(str(problem))
    except Exception as problem:  # noqa: BLE001 - whatever a tool raises is an answer to the model
        return trouble(f"{tool.name} failed: {sentence(problem)}")


def _result(task: asyncio.Future[ToolOutput], tool: Tool) -> ToolOutput:
    """What the task answered, or that it cancelled itself."""
    if task.cancelled():
        return trouble(f"{tool.name} was stopped before it had an answer.")
    return task.result()


async def _stopped(task: asyncio.Future[ToolOutput], tool: Tool, reason: str) -> ToolOutput:
    """End a run, and keep what it had to say."""
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=GRACE)
    note = f"[{tool.name} was stopped: {reason}]"
    if not done:
        task.add_done_callback(lambda late: late.cancelled() or late.exception())
    if not done or task.cancelled():
        return trouble(note)
    said = task.result()
    return replace(said, content=added(said.content, note), error=True)


def sentence(problem: BaseException) -> str:
    """What went wrong, in one line without a traceback."""
    if isinstance(problem, OSError) and problem.strerror:
        where = f": {problem.filename}" if isinstance(problem.filename, str) else ""
        return one_line(f"{problem.strerror}{where}", width=500)
    words = one_line(str(problem), width=500)
    return words or type(problem).__name__


# ── content ──────────────────────────────────────────────────────────────────────────────────────────────


def added(content: Content, note: str) -> Content:
    """A content with a line of ours after it."""
    if isinstance(content, str):
        return f"{content}{'' if not content or content.endswith(chr(10)) else chr(10)}{note}"
    return (*content, Text(text=note))


def bounded(output: ToolOutput) -> ToolOutput:
    """An answer of any size as one that can be stored."""
    if isinstance(output.content, str):
        if len(output.content) <= MOST:
            return output
        return replace(output, content=shortened(output.content, MOST))
    room = MOST
    parts: list[AnyPart] = []
    for part in output.content:
        size = _size(part)
        if size > room:
            part = Text(text=_less(part, size, room))
        room = max(0, room - size)
        parts.append(part)
    return replace(output, content=tuple(parts))


def _size(part: AnyPart) -> int:
    if isinstance(part, Text):
        return len(part.text)
    return part.size if isinstance(part, Media) else 0


def _less(part: AnyPart, size: int, room: int) -> str:
    if isinstance(part, Text) and room:
        return shortened(part.text, room)
    return f"[left out: {size:,} characters, because an answer may have {MOST:,}]"


def shortened(text: str, most: int) -> str:
    """The beginning and the end of a text that is too long to be stored."""
    half = most // 2
    note = f"[{len(text) - 2 * half:,} characters were left out here and not stored: an answer may have {MOST:,}]"
    return f"{text[:half]}\n{note}\n{text[len(text) - half :]}"
