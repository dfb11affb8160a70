"""Tools, their arguments, and the toolbox, which answers every call of a model.

    box = Toolbox([*file_tools(workspace), shell_tool(workspace), *recall_tools(session)])
    await session.equip(box.schemas)
    output = await box.call(call.name, call.arguments)
    await session.append(ToolReturned(call_id=call.id, name=call.name, content=output.content, error=output.error))

1. A wrong call (an unknown tool, broken JSON, a wrong type) gets an answer that says what is wrong and what is
   allowed. An error inside a tool becomes an answer of one sentence. `call` raises only when it is cancelled.
2. A tool that takes longer than its `timeout` is stopped; its output until then is the answer.
3. An answer up to `MAX_OUTPUT_CHARS` is returned whole: the session stores it whole and truncates what the model
   sees.

`parse_arguments` and `check_arguments` read the arguments of a call:

1. A schema may use `type`, `enum`, `minimum`, `maximum`, `minLength`, `maxLength`, `properties`, `required`,
   `additionalProperties: false` and `items`. Other keywords are not checked here (MCP servers check their own).
2. A number or boolean may be written as text, and an optional field may be null.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from math import isfinite
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from foveal.core.log.events import AnyPart, Content, Dialect, Media, Text, raw, unraw
from foveal.core.reduction.truncation import Limits
from foveal.core.wire.media import measure_media, mime_type
from foveal.core.wire.safe_print import TERMINAL_SEQUENCE, one_line, readable, seconds_text
from foveal.errors import BadSetting, PicklableError

MAX_OUTPUT_CHARS: Final = 16 * 1024 * 1024
"""Most characters of an answer; of a longer one, the beginning and the end are kept. It bounds the memory and the
disk that one call takes."""
TOOL_STOP_TIMEOUT_S: Final = 5.0
"""Seconds that a cancelled tool has to finish."""

Arguments = Mapping[str, Any]
OutputListener = Callable[[bytes], None]
"""Gets what a running tool prints, piece by piece."""


class ToolOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a tool."""

    content: Content
    """Text, or parts with media among them."""
    error: bool = False
    touched: tuple[str, ...] = ()
    """Absolute paths of files and folders that the call used; their folders may contain instructions."""


def error_output(problem: str) -> ToolOutput:
    """Return the answer to a call that failed."""
    return ToolOutput(content=problem, error=True)


class ToolInterrupted(PicklableError, asyncio.CancelledError):
    """A call was cancelled; `output` is the tool's answer until then."""

    def __init__(self, output: ToolOutput) -> None:
        super().__init__("the tool was stopped")
        self.output = output


def _no_preview(_: Arguments) -> str:
    return ""


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that a model can call.

    `run` gets arguments that match `parameters`. When it is cancelled it must stop what it started; it may then
    return its output so far instead of raising.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    """The JSON schema of the arguments, an object."""
    run: Callable[[Arguments], Awaitable[ToolOutput]]
    describe: Callable[[Arguments], str]
    """Returns what a call would do, in one line that is safe to print."""
    preview: Callable[[Arguments], str] = _no_preview
    """Returns what exactly a call would change, safe to print, for the user who is asked; "" if `describe`
    suffices."""
    check: Callable[[Arguments], object] | None = None
    """Raises `InvalidArguments` for a call that cannot succeed, about which the user is not asked."""
    run_live: Callable[[Arguments, OutputListener], Awaitable[ToolOutput]] | None = None
    """Does the same as `run` and reports the output while it is printed; None if the tool cannot."""
    needs_approval: bool = False
    """Whether a call may change something, so that the user is asked before it runs."""
    limits: Limits | None = None
    """Truncation limits of the answer, None for the default."""
    timeout: float = 120.0
    """Seconds."""
    is_parallel: bool = False
    """Whether calls of it that follow each other in one answer run at the same time."""
    is_offered: bool = True
    """Whether the toolbox offers it; a tool that it does not offer can still be called."""


class Toolbox:
    """The tools of an agent, in the order in which the model gets them."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            if tool.name in self._tools:
                raise BadSetting("tools", tool.name, "each tool needs a name of its own")
            self._tools[tool.name] = tool

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """Name, description and parameters of each tool, in the neutral form and always in the same order."""
        return [
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
            for tool in self._tools.values()
            if tool.is_offered
        ]

    @property
    def limits(self) -> dict[str, Limits]:
        """Truncation limits of the tools that have their own."""
        return {name: tool.limits for name, tool in self._tools.items() if tool.limits is not None}

    def get(self, name: str) -> Tool | None:
        """Return a tool by its name."""
        return self._tools.get(name)

    def parse_call(self, name: str, arguments: str) -> tuple[Tool, Arguments] | ToolOutput:
        """Return the tool and the checked arguments of a call, or the answer that says what is wrong with it."""
        tool = self._tools.get(name)
        if tool is None:
            known = ", ".join(self._tools) or "none"
            return error_output(f"There is no tool {one_line(name)!r}. The tools are: {known}.")
        try:
            return tool, check_arguments(parse_arguments(arguments), tool.parameters)
        except InvalidArguments as problem:
            return error_output(f"{name} was not run: {problem}")

    def needs_approval(self, name: str, arguments: str) -> bool:
        """Return whether the user must be asked before a call; a wrong call, which cannot run, needs no
        approval."""
        parsed = self.parse_call(name, arguments)
        return not isinstance(parsed, ToolOutput) and parsed[0].needs_approval

    def find_problem(self, name: str, arguments: str) -> ToolOutput | None:
        """Return the answer to a call that cannot succeed as things are, None for one that may."""
        parsed = self.parse_call(name, arguments)
        if isinstance(parsed, ToolOutput):
            return parsed
        tool, given = parsed
        try:
            if tool.check is not None:
                tool.check(given)
        except InvalidArguments as problem:
            return error_output(str(problem))
        except OSError as problem:
            return error_output(f"{name} failed: {describe_error(problem)}")
        return None

    def describe(self, name: str, arguments: str) -> str:
        """Return what a call would do in one line, also for a wrong call."""
        return self._call_text(name, arguments, "describe")

    def preview(self, name: str, arguments: str) -> str:
        """Return what exactly a call would change, for the user who is asked; may be empty."""
        return self._call_text(name, arguments, "preview")

    def reports_output(self, name: str) -> bool:
        """Return whether a tool can report its output while it runs."""
        tool = self._tools.get(name)
        return tool is not None and tool.run_live is not None

    async def call(self, name: str, arguments: str, *, on_output: OutputListener | None = None) -> ToolOutput:
        """Return the answer to a call as the model wrote it; `on_output` gets the output of a tool that can
        report it."""
        parsed = self.parse_call(name, arguments)
        if isinstance(parsed, ToolOutput):
            return parsed
        tool, given = parsed
        return bound_output(await _run_with_timeout(tool, given, on_output))

    def _call_text(self, name: str, arguments: str, method: Literal["describe", "preview"]) -> str:
        parsed = self.parse_call(name, arguments)
        if isinstance(parsed, ToolOutput):
            return one_line(f"{name} {arguments[:500]}") if method == "describe" else ""
        tool, given = parsed
        try:
            return str(getattr(tool, method)(given))
        except Exception as problem:  # noqa: BLE001 - the user is asked even if a tool cannot describe the call
            return one_line(f"{name} {arguments[:500]}") if method == "describe" else describe_error(problem)


# ── Running ──────────────────────────────────────────────────────────────────────────────────────────────


async def _run_with_timeout(tool: Tool, given: Arguments, on_output: OutputListener | None) -> ToolOutput:
    """Run a tool; stop it after its timeout or when the caller is cancelled."""
    task = asyncio.ensure_future(_run_safely(tool, given, on_output))
    try:
        done, _ = await asyncio.wait({task}, timeout=tool.timeout)
    except asyncio.CancelledError:
        raise ToolInterrupted(await _stop(task, tool, "the turn was interrupted")) from None
    if done:
        return _result(task, tool)
    return await _stop(task, tool, f"it took longer than {seconds_text(tool.timeout)}")


async def _run_safely(tool: Tool, given: Arguments, on_output: OutputListener | None) -> ToolOutput:
    try:
        if tool.run_live is not None and on_output is not None:
            return await tool.run_live(given, on_output)
        return await tool.run(given)
    except InvalidArguments as problem:
        return error_output(str(problem))
    except Exception as problem:  # noqa: BLE001 - every error of a tool becomes an answer to the model
        return error_output(f"{tool.name} failed: {describe_error(problem)}")


def _result(task: asyncio.Future[ToolOutput], tool: Tool) -> ToolOutput:
    """Return the answer of a finished task, which may have cancelled itself."""
    if task.cancelled():
        return error_output(f"{tool.name} was stopped before it had an answer.")
    return task.result()


async def _stop(task: asyncio.Future[ToolOutput], tool: Tool, reason: str) -> ToolOutput:
    """Cancel a run and return its answer with a note."""
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=TOOL_STOP_TIMEOUT_S)
    note = f"[{tool.name} was stopped: {reason}]"
    if not done:
        task.add_done_callback(lambda late: late.cancelled() or late.exception())
    if not done or task.cancelled():
        return error_output(note)
    output = task.result()
    return replace(output, content=append_note(output.content, note), error=True)


def describe_error(problem: BaseException) -> str:
    """Return an error in one line, without a traceback."""
    if isinstance(problem, OSError) and problem.strerror:
        where = f": {problem.filename}" if isinstance(problem.filename, str) else ""
        return one_line(f"{problem.strerror}{where}", width=500)
    words = one_line(str(problem), width=500)
    return words or type(problem).__name__


# ── Bounding ──────────────────────────────────────────────────────────────────────────────────────────────


def append_note(content: Content, note: str) -> Content:
    """Return a content with a note after it."""
    if isinstance(content, str):
        return f"{content}{'' if not content or content.endswith(chr(10)) else chr(10)}{note}"
    return (*content, Text(text=note))


def bound_output(output: ToolOutput) -> ToolOutput:
    """Shorten an answer to what can be stored."""
    if isinstance(output.content, str):
        if len(output.content) <= MAX_OUTPUT_CHARS:
            return output
        return replace(output, content=shorten(output.content, MAX_OUTPUT_CHARS))
    room = MAX_OUTPUT_CHARS
    parts: list[AnyPart] = []
    for part in output.content:
        size = _part_chars(part)
        if size > room:
            part = Text(text=_shorten_part(part, size, room))
        room = max(0, room - size)
        parts.append(part)
    return replace(output, content=tuple(parts))


def _part_chars(part: AnyPart) -> int:
    if isinstance(part, Text):
        return len(part.text)
    return part.size if isinstance(part, Media) else 0


def _shorten_part(part: AnyPart, size: int, room: int) -> str:
    if isinstance(part, Text) and room:
        return shorten(part.text, room)
    return f"[left out: {_characters(size)}, because an answer may have {MAX_OUTPUT_CHARS:,}]"


def _characters(count: int) -> str:
    return f"{count:,} character{'' if count == 1 else 's'}"


def shorten(text: str, max_chars: int) -> str:
    """Return the beginning and the end of a text that is too long to be stored."""
    half = max_chars // 2
    left_out = len(text) - 2 * half
    note = f"[{left_out:,} characters were left out here and not stored: an answer may have {MAX_OUTPUT_CHARS:,}]"
    return f"{text[:half]}\n{note}\n{text[len(text) - half :]}"


# ── Media parts of an answer ──────────────────────────────────────────────────────────────────────────────


def image_part(media_type: str, data: bytes | str) -> Media:
    """Return an image part from bytes or their Base64."""
    return _media({"type": "image", "source": _base64(media_type, data)})


def audio_part(media_type: str, data: str) -> Media:
    """Return an audio part from its Base64."""
    audio_format = {"audio/mpeg": "mp3", "audio/x-wav": "wav"}.get(
        mime_type(media_type), mime_type(media_type).partition("/")[2]
    )
    return _media({"type": "input_audio", "input_audio": {"data": data, "format": audio_format}})


def document_part(media_type: str, data: str, *, name: str) -> Media:
    """Return a file part from its Base64; an image becomes an image part."""
    if mime_type(media_type).startswith("image/"):
        return image_part(media_type, data)
    kind = mime_type(media_type) or "application/octet-stream"
    return _media({"type": "file", "file": {"filename": name, "file_data": f"data:{kind};base64,{data}"}})


def media_dialect(content: Content) -> Dialect:
    """Return the dialect of the media that the functions above make, "" for text. A fact with media names it, so
    that the other dialects write the media in their own form."""
    media = [part for part in content if isinstance(part, Media)] if not isinstance(content, str) else []
    if not media:
        return ""
    return "anthropic" if any(unraw(part.native).get("type") == "image" for part in media) else "openai_chat"


def _base64(media_type: str, data: bytes | str) -> dict[str, str]:
    text = data if isinstance(data, str) else b64encode(data).decode()
    return {"type": "base64", "media_type": mime_type(media_type), "data": text}


def _media(native: dict[str, Any]) -> Media:
    found = measure_media(native)
    return Media(native=raw(native), mime=found.mime, size=found.size, units=found.units)


# ── A running call ───────────────────────────────────────────────────────────────────────────────────

MAX_LIVE_LINES: Final = 20
"""Most lines of a running command that an event has."""
MAX_LIVE_LINE_CHARS: Final = 500
_MAX_TAIL_BYTES: Final = 16 * 1024
_REPORT_INTERVAL_S: Final = 1.0
"""Seconds after which the time is reported although nothing was printed."""


class RunningCall:
    """Collects what a running tool prints, and says when there is something new to show."""

    def __init__(self) -> None:
        self._tail = b""
        self._started: float | None = None
        self._ended: float | None = None
        self._has_news = False
        self._reported = 0.0

    def start(self) -> None:
        """Start the clock: from now on the tool runs."""
        self._started = self._reported = time.monotonic()

    def end(self) -> None:
        """Stop the clock."""
        self._ended = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds for which the tool has run so far; 0 if it did not start."""
        if self._started is None:
            return 0.0
        return (time.monotonic() if self._ended is None else self._ended) - self._started

    def add_output(self, data: bytes) -> None:
        """Add output of the tool."""
        self._tail = (self._tail + data[-_MAX_TAIL_BYTES:])[-_MAX_TAIL_BYTES:]
        self._has_news = True

    def take_news(self) -> bool:
        """Return whether something is to be shown that was not shown before."""
        now = time.monotonic()
        if self._started is None or not (self._has_news or now - self._reported >= _REPORT_INTERVAL_S):
            return False
        self._has_news, self._reported = False, now
        return True

    def last_lines(self) -> tuple[str, ...]:
        """Return the last lines, safe to print; of a line that was printed over, what is there now."""
        text = TERMINAL_SEQUENCE.sub("", self._tail.decode("utf-8", "replace"))
        lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.rstrip("\r\n").split("\n")]
        shown = lines[-MAX_LIVE_LINES:] if text else []
        return tuple(readable(line[:MAX_LIVE_LINE_CHARS]) for line in shown)


async def cancel_and_wait(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks, each once, and wait until all have ended, also if the caller is cancelled again meanwhile. A
    task that is cancelled twice is stopped in the middle of its own end."""
    for task in tasks:
        task.cancel()
    while running := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(running)
        except asyncio.CancelledError:
            continue


_MISSING: Final = object()
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


class InvalidArguments(ValueError):
    """Wrong arguments; the message tells the model what is wrong and what is allowed."""


def parse_arguments(arguments: str) -> dict[str, Any]:
    """Parse the JSON object that a model wrote."""
    try:
        value = json.loads(arguments if arguments.strip() else "{}")
    except RecursionError:
        raise InvalidArguments("its arguments are nested too deeply.") from None
    except ValueError as problem:
        raise InvalidArguments(
            f"its arguments are not valid JSON ({one_line(str(problem))}). Send them again."
        ) from None
    if not isinstance(value, dict):
        raise InvalidArguments(f"its arguments must be a JSON object, not {_type_name(value)}.")
    return value


def check_arguments(value: dict[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments, coerced to the schema and checked against it."""
    try:
        return _check_object("", value, schema)
    except RecursionError:
        raise InvalidArguments("its arguments are nested too deeply.") from None


def _check_value(place: str, value: Any, schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return value
    types = _types(schema)
    value = _coerce(value, types)
    if types and not any(_has_type(value, name) for name in types):
        raise InvalidArguments(
            f"{place} must be {' or '.join(map(_with_article, types))}, not {_type_name(value)}."
        )
    allowed = schema.get("enum")
    if isinstance(allowed, Sequence) and value not in allowed:
        raise InvalidArguments(
            f"{place} must be one of {', '.join(map(_as_json, allowed))}, not {_as_json(value)}."
        )
    _check_bounds(place, value, schema)
    if isinstance(value, dict):
        return _check_object(place, value, schema)
    if isinstance(value, list):
        return [_check_value(f"{place}[{i}]", item, schema.get("items")) for i, item in enumerate(value)]
    return value


def _check_object(place: str, value: dict[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    fields: Mapping[str, Any] = schema.get("properties") or {}
    needed = schema.get("required") or ()
    closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    checked = {}
    for name, item in value.items():
        inside = f"{place}.{name}" if place else one_line(name)
        field = fields.get(name, _MISSING)
        if field is _MISSING and closed:
            raise InvalidArguments(f"there is no field {inside!r}. {_describe_fields(fields, needed)}")
        if item is None and name not in needed and _types(field) and "null" not in _types(field):
            continue
        checked[name] = _check_value(inside, item, field)
    for name in needed:
        if name not in checked:
            where = f"{place}.{name}" if place else name
            raise InvalidArguments(f"the field {where!r} is missing. {_describe_fields(fields, needed)}")
    return checked


def _check_bounds(place: str, value: Any, schema: Mapping[str, Any]) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    size = value if number else len(value) if isinstance(value, str) else None
    low, high = ("minimum", "maximum") if number else ("minLength", "maxLength")
    shown = "{:,}".format if number else _characters
    if size is None:
        return
    if isinstance(schema.get(low), int | float) and size < schema[low]:
        raise InvalidArguments(f"{place} must be at least {shown(schema[low])}, not {size:,}.")
    if isinstance(schema.get(high), int | float) and size > schema[high]:
        raise InvalidArguments(f"{place} must be at most {shown(schema[high])}, not {size:,}.")


def _types(schema: Any) -> tuple[str, ...]:
    """Return the types that a schema allows; none if it allows any, or uses keywords that are not read here."""
    named = schema.get("type") if isinstance(schema, Mapping) else None
    listed = [named] if isinstance(named, str) else named if isinstance(named, list) else []
    return tuple(name for name in listed if isinstance(name, str) and name in _TYPES)


def _has_type(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if isinstance(value, float) and not isfinite(value):
        return False
    return isinstance(value, _TYPES[name])


def _coerce(value: Any, types: tuple[str, ...]) -> Any:
    """Convert a number or boolean written as text, and an integer written as a float."""
    if isinstance(value, float) and "integer" in types and "number" not in types and value.is_integer():
        return int(value)
    if not isinstance(value, str) or "string" in types:
        return value
    word = value.strip().lower()
    if "boolean" in types and word in ("true", "false"):
        return word == "true"
    if {"integer", "number"} & set(types) and re.fullmatch(r"-?\d{1,15}", word):
        return int(word)
    return value


def _type_name(value: Any) -> str:
    if isinstance(value, bool):
        return "a boolean"
    for name, kinds in _TYPES.items():
        if isinstance(value, kinds):
            return _with_article(name)
    return "a number"


def _with_article(name: str) -> str:
    if name == "null":
        return name
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _as_json(value: Any) -> str:
    return one_line(json.dumps(value, ensure_ascii=False))


def _describe_fields(fields: Mapping[str, Any], needed: Sequence[str]) -> str:
    if not fields:
        return "It takes no fields."
    names = (f"{name} (needed)" if name in needed else name for name in fields)
    return f"Its fields are: {', '.join(names)}."
