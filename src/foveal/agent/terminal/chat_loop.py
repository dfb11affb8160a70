"""The chat loop: handles messages and commands one at a time, in order.

1. Input that arrives while a turn runs is queued and handled afterwards; commands that only read run at once.
2. An error becomes one message to the user. The session is intact, and the loop continues with the next input.
3. The output of commands never enters the conversation.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import aclosing, suppress

from foveal.agent.events import (
    ContextReduced,
    ModelAnswered,
    ToolCalling,
    ToolFinished,
    TurnFinished,
    UserMessageStored,
)
from foveal.agent.terminal.attachments import prepare_message
from foveal.agent.terminal.chat_state import ChatState
from foveal.agent.terminal.commands import SlashCommand, parse_command, with_slash_commands
from foveal.agent.terminal.commands.write import COMPACTION_CHOICES, run_compaction
from foveal.agent.terminal.output.agent_event_rows import note
from foveal.agent.terminal.plan_mode import PLAN_QUESTION, agreed_message
from foveal.agent.terminal.user_interface import LeaveChat, Question, UserInterface
from foveal.agent.terminal.user_message import UserMessage, typed_text
from foveal.agent.tools.todo import TODO_TOOL, items_of
from foveal.core.log.events import Noted, parse_handle
from foveal.core.redaction import scrub
from foveal.core.wire.safe_print import one_line
from foveal.errors import FovealError, ProviderError
from foveal.memory.attached import MEMORY_NOTE_TOPIC

MAX_TITLE_CHARS = 60
STATUS_EVENTS = (UserMessageStored, ModelAnswered, ToolFinished, ContextReduced, TurnFinished)
"""Agent events after which the status line is updated."""


class ChatLoop:
    """Runs a chat: `submit` takes input, `run` handles it until the user quits."""

    def __init__(
        self, state: ChatState, ui: UserInterface, *, on_taken: Callable[[], None] = lambda: None
    ) -> None:
        """`on_taken` is called when input leaves the queue to be handled."""
        self.state = state
        self.ui = ui
        self.failures: int = 0
        """Messages that got no answer, and commands that failed."""
        self.has_left: bool = False
        self._queue: deque[str] = deque()
        self._running: asyncio.Task[None] | None = None
        self._immediate: set[asyncio.Task[None]] = set()
        """Commands that run beside the turn; the set keeps their tasks alive."""
        self._calls: dict[str, str] = {}
        """The calls that run, by id, in words."""
        self._wake = asyncio.Event()
        self._on_taken = on_taken

    # ── The queue ────────────────────────────────────────────────────────────────────────────────────

    def submit(self, text: str) -> None:
        """Queue a line of input, or run it at once if it is a command that only reads."""
        try:
            found = parse_command(text)
        except FovealError as problem:
            self.ui.show_error(str(problem))
            if "\n" in text.strip():  # too much to type again
                self.ui.suggest_input(text)
            return
        if found is not None and not found[0].is_queued:
            task = asyncio.create_task(self.handle(text))
            self._immediate.add(task)
            task.add_done_callback(self._immediate.discard)
        else:
            self._queue.append(text)
            self._wake.set()

    @property
    def queued(self) -> tuple[str, ...]:
        """Input that waits for the running turn to end."""
        return tuple(self._queue)

    def take_queued(self) -> tuple[str, ...]:
        """Empty the queue and return its input."""
        texts = self.queued
        self._queue.clear()
        return texts

    async def run(self) -> None:
        """Handle queued input until the user quits."""
        while not self.has_left:
            while self._queue and not self.has_left:
                self._running = asyncio.create_task(self.handle(self._queue.popleft()))
                self._on_taken()
                await asyncio.wait({self._running})
                self._running = None
            self._wake.clear()
            if not self._queue and not self.has_left:
                await self._wake.wait()

    @property
    def is_busy(self) -> bool:
        return self._running is not None and not self._running.done()

    def cancel(self) -> bool:
        """Cancel the running turn or command; return False if none runs."""
        if self._running is None or self._running.done():
            return False
        if len(self._calls) > 1:  # of one call, the line above says which
            stopped = [one_line(what, width=70) for what in self._calls.values()]
            self.ui.notify([note(f"stopped: {what}", "fair") for what in stopped])
        self._running.cancel()
        return True

    def leave(self) -> None:
        """End `run`; a running turn is cancelled."""
        self.has_left = True
        self._wake.set()
        self.cancel()

    # ── One message or command ───────────────────────────────────────────────────────────────────────

    async def handle(self, text: str, *, piped: str = "") -> None:
        """Run one message or command to its end, with what was piped beside it; after an error the session can
        continue."""
        try:
            found = parse_command(text)
            if found is not None:
                await self._run_command(*found, piped=piped)
            elif text.strip():
                await self._send(await prepare_message(text, self.state, piped=piped))
        except asyncio.CancelledError:
            self.ui.notify([note("stopped; the conversation so far is kept", "fair")])
            with suppress(FovealError):  # what was stored before the interrupt counts too
                self.ui.show_status(await self.state.report())
            raise
        except LeaveChat:
            self.leave()
        except Exception as problem:  # noqa: BLE001 - any error is shown, and the prompt comes back
            self._show_failure(problem)

    async def _run_command(self, chosen: SlashCommand, argument: str, *, piped: str) -> None:
        rows = await chosen.run(self.state, argument)
        if rows:
            self.ui.show(rows)
        if chosen.is_queued:
            self.ui.show_status(await self.state.report())
            await self.state.show_todo()
        if (message := self.state.take_message()) is not None:
            if isinstance(message, str):
                typed = f"{chosen.name} {argument}"
                message = await prepare_message(message, self.state, piped=piped, typed=typed)
            await self._send(message)

    async def _send(self, message: UserMessage) -> None:
        has_answer = await self._run_turn(message)
        await self._offer_compaction()
        if has_answer and self.state.plan.is_on and await self.ui.ask(PLAN_QUESTION) == "y":
            await self.state.switch_plan_mode(on=False)
            await self._send(agreed_message())

    async def _run_turn(self, message: UserMessage) -> bool:
        """Run a turn and return whether it has ended with an answer."""
        state, has_answer = self.state, False
        await state.ask_about_files()
        await state.read_memories()
        await state.warn_of_other_writers()
        self.ui.turn_started(message.shown)
        try:
            async with aclosing(state.agent.run(message.content, dialect=message.dialect)) as events:
                async for event in events:
                    if isinstance(event, UserMessageStored):
                        await self._message_stored(typed_text(message.content))
                    self.ui.agent_event(event)
                    if isinstance(event, ToolCalling):
                        self._calls[event.call.id] = event.what
                    elif isinstance(event, ToolFinished):
                        self._calls.pop(event.call.id, None)
                    if isinstance(event, ToolFinished) and event.call.name == TODO_TOOL and not event.error:
                        self.ui.show_todo(items_of(event.call))
                    if isinstance(event, UserMessageStored):
                        self._list_attachments(message)
                        await self._list_remembered(event)
                    if isinstance(event, TurnFinished):
                        has_answer = event.why == "answered"
                        self.failures += not has_answer
                    if isinstance(event, STATUS_EVENTS):
                        self.ui.show_status(await state.report())
        finally:
            self._calls.clear()
            self.ui.turn_ended()
            await state.write_memory()
            if (
                notes := state.take_instruction_notes()
            ):  # files that a tool call has touched for the first time
                self.ui.notify([note(text, "fair") for text in notes])
        return has_answer

    async def _list_remembered(self, message: UserMessageStored) -> None:
        """Show what was remembered and forgotten because the user asked for it in this message."""
        after = await self.state.session.events(first=parse_handle(message.handle) or 0)
        said = [e.fact for e in after if isinstance(e.fact, Noted) and e.fact.topic == MEMORY_NOTE_TOPIC]
        if said:
            self.ui.notify([note(one_line(fact.text, width=600), "good") for fact in said])

    def _list_attachments(self, message: UserMessage) -> None:
        rows = [note(text, "fair") for text in message.notes]
        if message.attachments:
            names = " · ".join(f"{one.name}, {one.size}" for one in message.attachments)
            rows.insert(0, note(f"attached: {names}"))
        if rows:
            self.ui.notify(rows)

    async def _message_stored(self, text: str) -> None:
        """Give a new session its title, and expand what `/expand … model` asked for."""
        state = self.state
        if not (await state.session.info()).title:
            await state.session.rename(one_line(scrub(text), width=MAX_TITLE_CHARS))
        for handle in state.take_handles_to_expand():
            try:
                await state.session.expand(handle)
            except FovealError as problem:  # it does not fit: the turn runs without it
                self.ui.notify([note(with_slash_commands(str(problem)), "fair")])

    async def _offer_compaction(self) -> None:
        """In mode `confirm`, ask after each answer while the window is too full."""
        report = await self.state.session.report()
        if not report.question:
            return
        if report.notice:
            self.ui.notify([note(with_slash_commands(report.notice), "fair")])
        question = Question(
            text=report.question.removesuffix(" [y/N]"),
            choices=COMPACTION_CHOICES,
            waits=False,
            unattended_answer="y" if self.state.options.yes else "n",
            unattended_advice="Send /compact to do so.",
        )
        if await self.ui.ask(question) == "y":
            self.ui.show(await run_compaction(self.state, agreed=True))
            self.ui.show_status(await self.state.report())

    def _show_failure(self, problem: Exception) -> None:
        self.failures += 1
        code = problem.code if isinstance(problem, ProviderError) else type(problem).__name__
        expected = isinstance(problem, FovealError | OSError)
        bug = f"{type(problem).__name__}: {problem} (a bug in Foveal: please report it)"
        self.ui.show_error(with_slash_commands(str(problem)) if expected else bug, code=code)
