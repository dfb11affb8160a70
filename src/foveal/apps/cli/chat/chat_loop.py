"""The conversation as it goes: one thing at a time, in the order in which it was said.

1. What is typed while a turn runs waits and is done afterwards; commands that only look are answered at once.
2. Whatever goes wrong is one clear message. The session is intact, and the next line is taken.
3. What commands print never enters the conversation.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import aclosing

from foveal.agent.agent_events import (
    ContextReduced,
    ModelAnswered,
    ToolFinished,
    TurnFinished,
    UserMessageHeard,
)
from foveal.apps.cli.chat.chat_state import ChatState
from foveal.apps.cli.chat.commands import LeaveChat, SlashCommand, command
from foveal.apps.cli.chat.commands.write import compacted
from foveal.apps.cli.chat.output.event_text_rows import note
from foveal.apps.cli.chat.user_interface import Answer, Question, UserInterface
from foveal.core.wire.safe_print import one_line
from foveal.errors import FovealError, ProviderError

TITLE = 60


class ChatLoop:
    def __init__(self, desk: ChatState, front: UserInterface) -> None:
        self.desk = desk
        self.front = front
        self.waiting: deque[str] = deque()
        self.failures = 0
        self.left = False
        self._running: asyncio.Task[None] | None = None
        self._beside: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()

    # ── one after the other ──────────────────────────────────────────────────────────────────────────

    def say(self, text: str) -> None:
        """Something that the user typed."""
        try:
            found = command(text)
        except FovealError as problem:
            self.front.failed(str(problem))
            return
        if found is not None and not found[0].waits:
            task = asyncio.create_task(self.do(text))
            self._beside.add(task)
            task.add_done_callback(self._beside.discard)
        else:
            self.waiting.append(text)
            self._wake.set()

    async def serve(self) -> None:
        """Do what was typed, until the user leaves."""
        while not self.left:
            while self.waiting and not self.left:
                self._running = asyncio.create_task(self.do(self.waiting.popleft()))
                await asyncio.wait({self._running})
                self._running = None
            self._wake.clear()
            if not self.waiting and not self.left:
                await self._wake.wait()

    @property
    def busy(self) -> bool:
        return self._running is not None and not self._running.done()

    def cancel(self) -> bool:
        """Stop what is being done; False when nothing is."""
        if self._running is None or self._running.done():
            return False
        self._running.cancel()
        return True

    def leave(self) -> None:
        self.left = True
        self._wake.set()
        self.cancel()

    # ── one thing ────────────────────────────────────────────────────────────────────────────────────

    async def do(self, text: str) -> None:
        """One message or command, to its end; whatever that is, the session can go on."""
        try:
            found = command(text)
            if found is not None:
                await self._command(*found)
            elif text.strip():
                await self._turn(text)
                await self._confirm()
        except asyncio.CancelledError:
            self.front.tell([note("stopped; what was said is kept", "fair")])
            raise
        except LeaveChat:
            self.leave()
        except Exception as problem:  # noqa: BLE001 - whatever it is, the prompt comes back
            self._failed(problem)

    async def _command(self, chosen: SlashCommand, argument: str) -> None:
        rows = await chosen.run(self.desk, argument)
        self.front.show(rows)
        if chosen.waits:
            self.front.status(await self.desk.session.report())

    async def _turn(self, text: str) -> None:
        desk, session = self.desk, self.desk.session
        self.front.began(text)
        try:
            async with aclosing(desk.agent.run(text)) as happenings:
                async for happening in happenings:
                    if isinstance(happening, UserMessageHeard):
                        await self._heard(text)
                    self.front.happened(happening)
                    if isinstance(
                        happening,
                        UserMessageHeard | ModelAnswered | ToolFinished | ContextReduced | TurnFinished,
                    ):
                        self.front.status(await session.report())
        finally:
            self.front.ended()

    async def _heard(self, text: str) -> None:
        """The message is stored: now what was to be shown whole can be, and the session gets its title."""
        desk = self.desk
        if not (await desk.session.info()).title:
            await desk.session.rename(one_line(text, width=TITLE))
        wanted, desk.expanding = desk.expanding, []
        for handle in wanted:
            try:
                await desk.session.expand(handle)
            except FovealError as problem:  # no room for it: the turn goes on without
                self.front.tell([note(str(problem), "fair")])

    async def _confirm(self) -> None:
        """Where nothing is summarised without consent, ask for it; again after each answer."""
        text = (await self.desk.session.report()).question
        if not text:
            return
        advice = "Send /compact to do so."
        answer = await self.front.ask(
            Question(text=text.removesuffix(" [y/N]"), stays=False, advice=advice, alone=self._alone())
        )
        if answer == "y":
            self.front.show(await compacted(self.desk))
            self.front.status(await self.desk.session.report())

    def _alone(self) -> Answer:
        return "y" if self.desk.options.yes else "n"

    def _failed(self, problem: Exception) -> None:
        self.failures += 1
        code = problem.code if isinstance(problem, ProviderError) else type(problem).__name__
        known = isinstance(problem, FovealError | OSError)
        text = (
            str(problem)
            if known
            else f"{type(problem).__name__}: {problem} (a fault of Foveal: please report it)"
        )
        self.front.failed(text, code=code)
