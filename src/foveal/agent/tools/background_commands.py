"""Background commands: those that `run` starts and does not wait for, and the tool `job` that reads and ends them.

1. A command runs under a watchdog (`providers/local/watchdog.py`): it ends with this process, however that ends,
   unless the user keeps it.
2. Of its output, the beginning and the end are kept in a temporary file, at most `MAX_JOB_BYTES`.
3. The user consents to the start; reading and ending need no further consent.
4. What a command in the sandbox changes is recorded, and protected files that it creates are set aside, before the
   next step of the agent, when the command ends, and when the chat ends. Those of a kept command are set aside when
   the next chat begins.
"""

from __future__ import annotations

import asyncio
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any, Final

from foveal.agent.permissions.protected_paths import ProtectedFiles, SetAside
from foveal.agent.tool import Arguments, InvalidArguments, RunningCall, Tool, ToolOutput
from foveal.agent.tools.change_recording import CommandChanges
from foveal.agent.tools.process_group import (
    TERMINATE_WAIT_S,
    OutputPipe,
    OutputSpool,
    ask_sandboxed,
    watch_exit,
)
from foveal.core.wire.safe_print import one_line
from foveal.providers.local import watchdog

JOB_TOOL: Final = "job"
MAX_JOB_BYTES: Final = 4 * 1024 * 1024
"""Most bytes of the output of a background command that are kept."""
MAX_RUNNING_JOBS: Final = 8
MAX_JOB_WAIT_S: Final = 60.0
_END_WAIT_S: Final = watchdog.STOP_TIMEOUT_S + 3


class BackgroundCommand:
    """A command in the background, and what it has printed."""

    def __init__(
        self,
        id: str,
        command: str,
        process: subprocess.Popen[bytes],
        pid: int,
        spool: OutputSpool,
        tail: RunningCall,
    ) -> None:
        self.id = id
        self.command = command
        self.pid = pid
        """The process, whose group has the same number."""
        self.started_at: float = time.time()
        self.is_kept: bool = False
        """Whether it runs on after this process has ended."""
        self.ended: asyncio.Event = asyncio.Event()
        self._process, self._spool, self._tail = process, spool, tail
        self._was_stopped = False
        self._read_to = 0
        """The model has read the output up to this byte."""

    @property
    def state(self) -> str:
        """Whether it runs, or how it ended."""
        if not self.ended.is_set():
            return "running, kept" if self.is_kept else "running"
        return "stopped" if self._was_stopped else f"exit status {self._process.returncode}"

    @property
    def last_line(self) -> str:
        """The last line that it has printed and that is not empty, safe to print."""
        return next((line for line in reversed(self._tail.last_lines()) if line.strip()), "")

    def take_output(self) -> str:
        """Return what it has printed since the last call."""
        start, self._read_to = self._read_to, self._spool.total
        return self._spool.text(start)[0]

    def keep(self) -> None:
        """Let it run on after this process has ended."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has just ended
            self._process.stdin.write(watchdog.KEEP)
        self.is_kept = True

    async def end(self) -> None:
        """Stop it with its group and wait until it has ended."""
        if self.ended.is_set():
            return
        self._was_stopped = True
        if ask_sandboxed(self._process.pid):
            with suppress(TimeoutError):
                await asyncio.wait_for(self.ended.wait(), TERMINATE_WAIT_S)
        self._process.terminate()  # the watchdog passes it on
        if self._process.stdin is not None and not self.is_kept:
            self._process.stdin.close()
        try:
            await asyncio.wait_for(self.ended.wait(), _END_WAIT_S)
        except TimeoutError:
            self._process.kill()

    async def watch(self, pipe: OutputPipe) -> None:
        """Wait until it has ended and its output is read."""
        await watch_exit(self._process).wait()
        pipe.drain()
        self._process.wait()
        self.ended.set()


class BackgroundCommands:
    """The background commands of one process."""

    def __init__(
        self,
        *,
        on_end: Callable[[BackgroundCommand], None] = lambda _: None,
        on_aside: Callable[[SetAside], None] = lambda _: None,
        changes: CommandChanges | None = None,
    ) -> None:
        """`on_end` is called when a command has ended by itself, `on_aside` for each file that was set aside;
        `changes` records what commands in the sandbox change."""
        self.all: dict[str, BackgroundCommand] = {}
        """Every command so far, by id."""
        self._on_end, self._on_aside, self._changes = on_end, on_aside, changes
        self._protected: ProtectedFiles | None = None
        """The protected files before the first command started in the sandbox; None if none runs there."""
        self._untold: list[SetAside] = []
        """Files that were set aside and that the model was not told of."""
        self._lock = asyncio.Lock()
        self._files = ExitStack()
        self._tasks: dict[asyncio.Task[None], BackgroundCommand] = {}

    @property
    def running(self) -> list[BackgroundCommand]:
        return [each for each in self.all.values() if not each.ended.is_set()]

    async def start(
        self, command: str, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], is_sandboxed: bool
    ) -> BackgroundCommand:
        """Start a command; `argv` is its command line, with the sandbox if it runs in one."""
        if len(self.running) >= MAX_RUNNING_JOBS:
            raise InvalidArguments(
                f"{MAX_RUNNING_JOBS} commands run in the background already; end one first."
            )
        changes = self._changes if is_sandboxed else None
        if is_sandboxed and self._protected is None:
            self._protected = await asyncio.to_thread(ProtectedFiles, cwd)
        if changes is not None:
            await changes.begin(command)
        try:
            with nullcontext() if changes is None else changes.lifeline() as lifeline:
                job, pipe = await self._spawn(command, argv, cwd, env, lifeline)
        except BaseException:
            if changes is not None:
                await changes.end(command)
            raise
        self.all[job.id] = job
        self._watch(job, pipe, changes)
        return job

    async def _spawn(
        self, command: str, argv: Sequence[str], cwd: Path, env: Mapping[str, str], lifeline: int | None
    ) -> tuple[BackgroundCommand, OutputPipe]:
        with ExitStack() as files:
            spool, tail = files.enter_context(OutputSpool(MAX_JOB_BYTES)), RunningCall()
            pipe = files.enter_context(OutputPipe(spool, tail.add_output))
            process = _spawn_watched(argv, cwd, env, pipe.writer, lifeline)
            pipe.close_writer()
            assert process.stdout is not None
            with process.stdout:
                pid = int(await asyncio.to_thread(process.stdout.readline))
            job = BackgroundCommand(f"j{len(self.all) + 1}", command, process, pid, spool, tail)
            self._files.push(files.pop_all())
        return job, pipe

    def _watch(self, job: BackgroundCommand, pipe: OutputPipe, changes: CommandChanges | None) -> None:
        async def watch() -> None:
            await job.watch(pipe)
            await self.settle()
            if changes is not None:
                await changes.end(job.command)
            if job.state != "stopped":
                self._on_end(job)

        task = asyncio.create_task(watch())
        self._tasks[task] = job
        task.add_done_callback(self._tasks.pop)

    async def settle(self) -> None:
        """Record what commands in the sandbox have changed since the last call, and set aside the protected files
        that they have created."""
        async with self._lock:
            if self._protected is None:
                return
            aside = await asyncio.to_thread(self._protected.set_new_aside)
            if not self.running:
                self._protected = None
            self._untold += aside
            for each in aside:
                self._on_aside(each)
            if self._changes is not None:
                await self._changes.settle()

    def take_aside(self) -> list[SetAside]:
        """Return what was set aside since the last call, for the model."""
        aside, self._untold = self._untold, []
        return aside

    def accept(self, path: str) -> None:
        """Take a protected file for known that the user lets a tool write."""
        if self._protected is not None:
            self._protected.accept(path)

    def accept_all(self) -> None:
        """Take all files for known, after a command that the user let leave the sandbox."""
        if self._protected is not None:
            self._protected.accept_all()

    def find(self, id: str) -> BackgroundCommand:
        """Return a command by its id."""
        if id not in self.all:
            known = ", ".join(self.all) or "none"
            raise InvalidArguments(f"there is no background command {one_line(id)!r}; there are: {known}.")
        return self.all[id]

    async def close(self) -> None:
        """End the commands that are not kept, and remove what they have printed."""
        await asyncio.gather(*(job.end() for job in self.running if not job.is_kept))
        await self.settle()
        for task, job in tuple(self._tasks.items()):
            if not job.ended.is_set():
                task.cancel()
            await asyncio.wait({task})
        if self._changes is not None:
            await self._changes.close(None if self._protected is None else self._protected.known)
        self._files.close()


def _spawn_watched(
    argv: Sequence[str], cwd: Path, env: Mapping[str, str], out: int, lifeline: int | None
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(watchdog.__file__), *argv],
        cwd=cwd,
        env=dict(env),
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=out,
        pass_fds=() if lifeline is None else (lifeline,),  # for the watchdog; the command does not get it
        start_new_session=True,  # Ctrl-C does not reach it
    )


def end_advice(job: BackgroundCommand) -> str:
    """Return the shell command that ends a command which is kept."""
    return f"kill -- -{job.pid}"


def job_tool(jobs: BackgroundCommands) -> Tool:
    """Return the tool `job`."""

    async def run(given: Arguments) -> ToolOutput:
        if "id" not in given:
            return ToolOutput(content="\n".join(map(_job_line, jobs.all.values())) or "There are none.")
        job = jobs.find(given["id"])
        if given.get("end"):
            await job.end()
        elif wait_s := float(given.get("wait", 0)):
            with suppress(TimeoutError):
                await asyncio.wait_for(job.ended.wait(), wait_s)
        await jobs.settle()
        output = job.take_output()
        line_break = "" if output.endswith("\n") or not output else "\n"
        notes = "".join(aside_notes(jobs.take_aside()))
        return ToolOutput(content=f"{output}{line_break}{notes}[foveal: {job.id}: {job.state}]")

    def describe(given: Arguments) -> str:
        action = "end" if given.get("end") else "read"
        return f"{JOB_TOOL}: {action} {one_line(given['id'])}" if "id" in given else f"{JOB_TOOL}: list"

    return Tool(
        name=JOB_TOOL,
        description="Read what a background command has printed since the last call, or end it.",
        parameters=_PARAMETERS,
        run=run,
        describe=describe,
        timeout=MAX_JOB_WAIT_S + _END_WAIT_S + 5,
    )


def aside_notes(aside: Sequence[SetAside]) -> list[str]:
    """Return the lines that tell the model what was set aside."""
    return [
        f"[foveal: {one.path} is protected, so it was renamed to {one.now}; the write tool, or a command with "
        "outside_sandbox, asks the user for it]\n"
        for one in aside
    ]


def _job_line(job: BackgroundCommand) -> str:
    return f"{job.id} {job.state}: {shlex.quote(job.command)}"


_PARAMETERS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "Such as j1; without it, the commands are listed"},
        "wait": {
            "type": "number",
            "minimum": 0,
            "maximum": MAX_JOB_WAIT_S,
            "description": "Seconds to wait for its end, 0 if not given",
        },
        "end": {"type": "boolean", "description": "Whether to end it"},
    },
    "additionalProperties": False,
}
