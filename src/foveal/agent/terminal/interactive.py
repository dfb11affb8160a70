"""Interactive chat in a terminal: connects the screen to the chat loop."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import sys
import time
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Final

from foveal.agent.permissions.command_rules import SHELL_TOOL
from foveal.agent.terminal.chat_loop import ChatLoop
from foveal.agent.terminal.chat_state import ChatState
from foveal.agent.terminal.commands import parse_command
from foveal.agent.terminal.commands.remembering import propose_at_end
from foveal.agent.terminal.factory import is_bundled
from foveal.agent.terminal.options import ChatOptions, WrongOption
from foveal.agent.terminal.output.agent_event_rows import note
from foveal.agent.terminal.output.context_card import window_source
from foveal.agent.terminal.output.screen import Screen
from foveal.agent.terminal.output.styled_text import Row, Span, bold, dim, row, text_rows
from foveal.agent.terminal.resuming import show_recent_turns
from foveal.agent.terminal.user_input import Completions
from foveal.agent.terminal.user_interface import LeaveChat
from foveal.core.engine.report import Report
from foveal.core.tokens.counter import counter
from foveal.core.wire.safe_print import counted, one_line
from foveal.errors import FovealError
from foveal.policies import NO_TABLES, policy_names
from foveal.user_paths import store_path

MAX_COMPLETED_SESSIONS: Final = 1_000
"""Ids of sessions, newest first, that the Tab key completes."""
DOUBLE_INTERRUPT_S: Final = 2.0
"""A second Ctrl-C within this time quits."""
REFRESH_INTERVAL_S: Final = 0.25
BUNDLED_MODEL_WARNING: Final = "sees no files"
BUNDLED_MODEL_NOTE: Final = """\
A small model on your machine: for short questions, not for work. It sees no files.
To see Foveal work, paste long texts: /context, /why TEXT, /undo a summary.
For work, set ANTHROPIC_API_KEY or OPENAI_API_KEY, or use --model."""


class InteractiveChat:
    """Runs the screen and the chat loop; `run` returns the exit code."""

    def __init__(self, options: ChatOptions) -> None:
        self._options = options
        self._completions = Completions(options.folder, self._sessions, self._entries, self._policies)
        self.screen: Screen = Screen(
            self._completions, on_submit=self._submit, on_interrupt=self._interrupt, is_busy=self._is_busy
        )
        self._loop: ChatLoop | None = None
        """None until the session is open."""
        self._typed_early: list[str] = []
        """Input from before the session was open."""
        self._ending: asyncio.Task[None] | None = None
        """The questions after the last turn."""
        self._session_ids: tuple[str, ...] = ()
        self._interrupted_at = 0.0

    async def run(self) -> int:
        refreshing = asyncio.create_task(self._refresh())
        chatting = asyncio.create_task(self._chat())
        chatting.add_done_callback(lambda _: self._exit())
        try:
            with suppress(EOFError, KeyboardInterrupt):  # the terminal was closed
                await self.screen.app.run_async(set_exception_handler=False)
        finally:
            refreshing.cancel()
            if self._loop is None:
                chatting.cancel()  # the user quit before the session was open
            else:
                self._loop.leave()
            if self._ending is not None:
                self._ending.cancel()
        with suppress(asyncio.CancelledError):
            return await chatting
        return 0

    def _exit(self) -> None:
        if self.screen.app.is_running:
            self.screen.app.exit()

    async def _chat(self) -> int:
        async with AsyncExitStack() as stack:
            try:
                # Loading the tokenizer takes a moment; in a thread, the user can type meanwhile.
                await asyncio.to_thread(counter, "auto")
                state = await ChatState.open(self._options, self.screen, stack)
            except LeaveChat:
                return 0
            except WrongOption:
                raise
            except (FovealError, OSError) as problem:
                self.screen.show_error(str(problem))
                return 1
            report = await state.report()
            self.screen.print_rows(banner_rows(state, report, (await state.session.info()).title))
            await show_recent_turns(state.session, self.screen)
            if state.toolbox.get(SHELL_TOOL) is not None:
                self.screen.show_sandbox(state.sandbox.name if state.sandbox is not None else "")
            if is_bundled(state.provider.provider) and not state.offers_tools:
                self.screen.show_warning(BUNDLED_MODEL_WARNING)
            await state.show_todo()
            self.screen.show_status(report)
            loop = self._loop = ChatLoop(state, self.screen, on_taken=self._show_queue)
            newest = await state.store.sessions(limit=MAX_COMPLETED_SESSIONS, with_erased=False)
            self._session_ids = tuple(info.id for info in newest)
            state.warm_up()  # the prompt is shown already
            for text in self._typed_early:
                loop.submit(text)
            await loop.run()
            await self._end_session(state)
            with suppress(OSError):  # the terminal was closed
                self.screen.notify(await resume_advice(state))
            return 0

    async def _end_session(self, state: ChatState) -> None:
        """Ask about proposals for the memory, unless the terminal is closed; Ctrl-C and Ctrl-D leave them open."""
        if not self.screen.app.is_running:
            return
        self._ending = asyncio.create_task(propose_at_end(state))
        await asyncio.wait({self._ending})
        if not self._ending.cancelled() and (problem := self._ending.exception()) is not None:
            self.screen.show_error(str(problem))

    def _submit(self, text: str) -> None:
        if self._ending is not None:  # only Ctrl-D submits something here
            self._ending.cancel()
            return
        if self._loop is None:
            self._typed_early.append(text)
        else:
            self._loop.submit(text)
        self._show_queue()

    def _is_busy(self) -> bool:
        return self._loop is not None and self._loop.is_busy

    def _show_queue(self) -> None:
        self.screen.show_queue(self._waiting)

    @property
    def _waiting(self) -> tuple[str, ...]:
        """Input that waits for something; what was entered while nothing runs is handled at once."""
        if self._loop is None:
            return tuple(self._typed_early)
        return self._loop.queued if self._loop.is_busy else ()

    def _interrupt(self) -> None:
        """Handle Ctrl-C on an empty line: cancel the turn, or quit if it is the second one."""
        if self._ending is not None:
            self._ending.cancel()
            return
        loop, now = self._loop, time.monotonic()
        again, self._interrupted_at = now - self._interrupted_at < DOUBLE_INTERRUPT_S, now
        if loop is None or (again and not loop.is_busy):
            self._exit()
        elif again:
            loop.leave()
        elif loop.cancel():
            self._restore_queue(loop)
        else:
            self.screen.notify([note("Ctrl-C again, or Ctrl-D, quits; the session is kept")])

    def _restore_queue(self, loop: ChatLoop) -> None:
        """Move queued input back to the input line. Commands that waited with other input are named instead: in one
        text with a message it would be their argument."""
        texts, entry = loop.take_queued(), self.screen.entry
        commands = [text for text in texts if parse_command(text) is not None] if len(texts) > 1 else []
        messages = [text for text in texts if text not in commands]
        if messages and not entry.text:
            entry.insert_text(self.screen.pastes.collapse("\n".join(messages)))
        if commands:
            names = ", ".join(one_line(text, width=40) for text in commands)
            self.screen.notify([note(f"not run: {names}", "fair")])
        self._show_queue()

    async def _refresh(self) -> None:
        """Redraw the spinner and the elapsed time."""
        while True:
            await asyncio.sleep(REFRESH_INTERVAL_S)
            if self.screen.live.is_animated:
                self.screen.app.invalidate()

    def _sessions(self) -> tuple[str, ...]:
        return self._session_ids

    def _policies(self) -> list[str]:
        tables = self._loop.state.config.loaded.named_policies if self._loop is not None else NO_TABLES
        return policy_names(tables)

    def _entries(self) -> tuple[str, ...]:
        memories = self._loop.state.memories if self._loop is not None else None
        known = () if memories is None else memories.all
        return tuple(entry.id for memory in known for entry in memory.state.counting())


async def run_interactive(options: ChatOptions) -> int:
    """Run a chat in the terminal and return the exit code."""
    return await InteractiveChat(options).run()


async def resume_advice(state: ChatState) -> list[Row]:
    """Return how to continue the session later, with what the user has set, but nothing that allows tools; no rows
    if it has no messages."""
    if not (await state.session.report()).turns:
        return []
    store = state.options.store
    words = ["--resume", state.session.id, *state.option_words()]
    words += [] if store == store_path() else ["--store", str(store)]
    return [note(f"to continue: {own_command()} {shlex.join(words)}")]


def own_command() -> str:
    """Return how a shell starts this program: by its name if that is this installation, else by its path."""
    script = Path(sys.executable).with_name("foveal")
    found = shutil.which("foveal")
    if found is not None and script.exists() and os.path.samefile(found, script):
        return "foveal"
    if not script.exists():
        return f"{shlex.quote(sys.executable)} -m foveal"
    inside = script.is_relative_to(Path.cwd())
    return shlex.quote(str(script.relative_to(Path.cwd()) if inside else script))


def banner_rows(state: ChatState, report: Report, title: str) -> list[Row]:
    """Return the model, its window and where that number comes from, the policy and the session."""
    policy = state.config.session_settings(state.provider.model)["policy"]
    rows = [
        row(Span("foveal", "accent"), bold(f"  {state.provider.name}")),
        row(
            dim(
                f"  window {report.window:,} tokens ({window_source(report)}) · policy {policy.name}, {policy.mode}"
            )
        ),
        row(dim(f"  session {state.session.id} · /help")),
    ]
    if report.turns:
        turns = counted(report.turns, "turn")
        rows.append(row(dim(f"  continues after {turns}: {one_line(title, width=60)}")))
    if is_bundled(state.provider.provider):
        rows += [row(), *text_rows(BUNDLED_MODEL_NOTE, style="fair", indent="  ")]
    return [*rows, row()]
