"""A dialogue at a terminal, from the first prompt to the last line."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, suppress
from typing import Final

from foveal.apps.cli.chat.chat_loop import ChatLoop
from foveal.apps.cli.chat.chat_state import ChatState
from foveal.apps.cli.chat.options import ChatOptions
from foveal.apps.cli.chat.output.context_card import source
from foveal.apps.cli.chat.output.event_text_rows import note
from foveal.apps.cli.chat.output.screen import Screen
from foveal.apps.cli.chat.output.styled_text import Row, Span, bold, dim, row, text_rows
from foveal.apps.cli.chat.user_input import Completions
from foveal.core.engine.report import Report
from foveal.core.tokens.counter import counter
from foveal.core.wire.safe_print import one_line
from foveal.errors import FovealError

TWICE: Final = 2.0
"""Seconds in which a second Ctrl-C leaves."""
TICK: Final = 0.25
STAND_IN: Final = """\
This is a small stand-in on your own machine: slow, and often wrong. Its
window is small on purpose, so that you see Foveal work. For a real model
set ANTHROPIC_API_KEY, OPENAI_API_KEY or GEMINI_API_KEY, or give --model."""


class InteractiveChat:
    """The screen and the dialogue, put together."""

    def __init__(self, options: ChatOptions) -> None:
        self._options = options
        self._completions = Completions(options.folder, self._sessions)
        self.screen = Screen(self._completions, entered=self._entered, stopped=self._stopped)
        self._dialogue: ChatLoop | None = None
        self._early: list[str] = []
        """What was typed before there was a session."""
        self._listed: tuple[str, ...] = ()
        self._stop = 0.0

    async def run(self) -> int:
        ticking = asyncio.create_task(self._tick())
        working = asyncio.create_task(self._work())
        working.add_done_callback(lambda _: self._exit())
        try:
            with suppress(EOFError, KeyboardInterrupt):  # the terminal is gone
                await self.screen.app.run_async(set_exception_handler=False)
        finally:
            ticking.cancel()
            if self._dialogue is None:
                working.cancel()  # the user left before there was a session
            else:
                self._dialogue.leave()
        with suppress(asyncio.CancelledError):
            return await working
        return 0

    def _exit(self) -> None:
        if self.screen.app.is_running:
            self.screen.app.exit()

    async def _work(self) -> int:
        async with AsyncExitStack() as stack:
            try:
                await asyncio.to_thread(counter, "auto")  # takes a moment, and the user may type meanwhile
                desk = await ChatState.open(self._options, self.screen, stack)
            except (FovealError, OSError) as problem:
                self.screen.failed(str(problem))
                return 1
            report = await desk.session.report()
            self.screen.rows(banner(desk, report, (await desk.session.info()).title))
            self.screen.status(report)
            dialogue = self._dialogue = ChatLoop(desk, self.screen)
            self._listed = tuple(info.id for info in await desk.store.sessions() if not info.erased)
            for text in self._early:
                dialogue.say(text)
            await dialogue.serve()
            return 0

    def _entered(self, text: str) -> None:
        if self._dialogue is None:
            self._early.append(text)
        else:
            self._dialogue.say(text)
        self._queued()

    def _queued(self) -> None:
        waiting = self._early if self._dialogue is None else self._dialogue.waiting
        self.screen.queue(tuple(waiting))

    def _stopped(self) -> None:
        """Ctrl-C: stop what is being done; twice: leave."""
        dialogue, now = self._dialogue, time.monotonic()
        again, self._stop = now - self._stop < TWICE, now
        if dialogue is None or (again and not dialogue.busy):
            self._exit()
        elif again:
            dialogue.leave()
        elif dialogue.cancel():
            self._give_back(dialogue)
        else:
            self.screen.tell([note("Ctrl-C once more, or Ctrl-D, leaves; the session stays")])

    def _give_back(self, dialogue: ChatLoop) -> None:
        """What was waiting is not done after all: it stands in the entry again."""
        texts, entry = list(dialogue.waiting), self.screen.entry
        dialogue.waiting.clear()
        if texts and not entry.text:
            entry.insert_text(self.screen.pastes.short("\n".join(texts)))
        self._queued()

    async def _tick(self) -> None:
        """What moves, moves."""
        while True:
            await asyncio.sleep(TICK)
            if self._dialogue is not None and tuple(self._dialogue.waiting) != self.screen.live.queued:
                self._queued()
            if self.screen.live.moving:
                self.screen.app.invalidate()

    def _sessions(self) -> tuple[str, ...]:
        return self._listed


async def run_interactive(options: ChatOptions) -> int:
    return await InteractiveChat(options).run()


def banner(desk: ChatState, report: Report, title: str) -> list[Row]:
    """Who answers, how much it holds and how that is known, and where this is kept."""
    settings = desk.choice.settings(desk.provider.model)["policy"]
    rows = [
        row(Span("foveal", "accent"), bold(f"  {desk.provider.name}")),
        row(
            dim(
                f"  window {report.window:,} tokens ({source(report)}) · policy {settings.name}, {settings.mode}"
            )
        ),
        row(dim(f"  session {desk.session.id} · /help")),
    ]
    if report.turns:
        many = "s" * (report.turns != 1)
        rows.append(row(dim(f"  goes on after {report.turns:,} turn{many}: {one_line(title, width=60)}")))
    if desk.provider.name.startswith("local/"):
        rows += [row(), *text_rows(STAND_IN, style="fair", indent="  ")]
    return [*rows, row()]
