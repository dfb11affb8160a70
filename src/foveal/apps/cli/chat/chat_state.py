"""Everything that a conversation needs, put together: store, provider, session, tools, instructions, agent.

What the user changes while it runs (the model, the policy, the session) opens the session anew; nothing is changed
behind its back, and no other session is touched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from importlib import resources
from typing import Any

from foveal.agent.agent import Agent
from foveal.apps.cli.chat import factory
from foveal.apps.cli.chat.factory import ChatChoice, SummaryWriting, WatchedProvider
from foveal.apps.cli.chat.options import ChatOptions
from foveal.apps.cli.chat.output.event_text_rows import note
from foveal.apps.cli.chat.output.styled_text import change_rows
from foveal.apps.cli.chat.user_interface import Question, UserInterface
from foveal.core.compaction.summariser import SummaryProgress
from foveal.core.log.events import Call, Instructed, Opened
from foveal.errors import FovealError
from foveal.instructions.instruction_files import InstructionFiles
from foveal.ports import Store
from foveal.sessions.session import Session
from foveal.stores import open_store
from foveal.tools import Tool, Toolbox, ToolOutput
from foveal.tools.approvals import Approvals, suggested
from foveal.tools.tool import Arguments


class ChatState:
    """One conversation at a time, and what it can be exchanged for."""

    def __init__(self, options: ChatOptions, front: UserInterface, store: Store, choice: ChatChoice) -> None:
        self.options = options
        self.front = front
        self.store = store
        self.choice = choice
        self.approvals = Approvals.of((*choice.config.get("tools.allow"), *options.allow))
        self.served: list[Tool] = []
        """The tools of MCP servers."""
        self._warming: asyncio.Task[None] | None = None
        self.expanding: list[str] = []
        """Handles to be shown whole to the model in the next turn."""
        self.files: InstructionFiles
        self.provider: WatchedProvider
        self.writing: SummaryWriting
        self.session: Session
        self.box: Toolbox
        self.agent: Agent

    @classmethod
    async def open(cls, options: ChatOptions, front: UserInterface, stack: AsyncExitStack) -> ChatState:
        """A desk that is cleared when the stack ends."""
        choice = await _trusting(ChatChoice.of(options), front)
        options.store.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        store = await stack.enter_async_context(open_store(options.store))
        desk = cls(options, front, store, choice)
        desk.served = await factory.served(options, choice.config, stack, desk._noted)
        id = await factory.wanted(store, options)
        await desk.begin(id, choice, WatchedProvider(factory.provider(None, choice, progress=desk.fetching)))
        stack.push_async_callback(desk.close)
        if choice.notes:
            front.tell([note(text, "fair") for text in choice.notes])
        return desk

    async def close(self) -> None:
        if self._warming is not None:
            self._warming.cancel()
            await asyncio.wait({self._warming})
        await self.session.close()
        await self.writing.close()
        await self.provider.close()

    # ── opening ──────────────────────────────────────────────────────────────────────────────────────

    async def begin(self, id: str, choice: ChatChoice, provider: WatchedProvider) -> None:
        """Open a session, or begin it, with this model and these settings. What is open now stays as it is when
        that cannot be done."""
        writing = self._writing(choice, provider)
        session = await Session.open(
            self.store,
            id,
            model=provider.model,
            summarise=writing.summarisers(),
            progress=self._watcher(id),
            **choice.settings(provider.model),
        )
        await self.take(session, choice, provider, writing)

    def _writing(self, choice: ChatChoice, provider: WatchedProvider) -> SummaryWriting:
        name = choice.config.summariser
        other = factory.provider(name, choice, progress=self.fetching) if name else None
        return SummaryWriting(provider.provider, other=other, done=lambda: self.front.progress(""))

    async def take(
        self, session: Session, choice: ChatChoice, provider: WatchedProvider, writing: SummaryWriting
    ) -> None:
        """Go on with a session that is open."""
        self.session, self.choice, self.provider, self.writing = session, choice, provider, writing
        self.files = InstructionFiles(choice.folder, rules=choice.config.rules)
        self.box = Toolbox(factory.tools(self.options, session, choice.config, served=self.served))
        self.agent = Agent(session, provider, self.box, approve=self.approve, guidance=self.files)
        self.expanding.clear()
        self._warm_up(provider)
        await self._introduce()

    async def exchange(
        self, *, id: str | None = None, model: str | None = None, choice: ChatChoice | None = None
    ) -> None:
        """Another session, model or policy."""
        chosen, provider = choice or self.choice, self.provider
        if id is not None:
            provider = WatchedProvider(provider.provider)  # what the other session was sent is not this one's
        if model is not None:
            chosen = chosen.with_model(model)
            provider = WatchedProvider(factory.provider(None, chosen, progress=self.fetching))
        session, writing, before = self.session, self.writing, self.provider
        await self.begin(id or self.session.id, chosen, provider)
        await session.close()
        await writing.close()
        if provider.provider is not before.provider:
            await before.close()

    def _warm_up(self, provider: WatchedProvider) -> None:
        """A local model is fetched and started while the user thinks; what goes wrong is told when it is asked."""
        start = getattr(provider.provider, "start", None)
        if start is not None and self.front.asks:
            self._warming = asyncio.create_task(_tried(start))

    async def _introduce(self) -> None:
        """The system text, once a session: where nothing has been said yet."""
        events = await self.session.events(last=20)
        if all(isinstance(event.fact, Opened) for event in events):
            text = resources.files(__package__).joinpath("system.md").read_text("utf-8")
            await self.session.append(Instructed(content=text.strip()))

    def _noted(self, text: str) -> None:
        self.front.tell([note(text, "fair")])

    def _watcher(self, id: str) -> Callable[[SummaryProgress], None]:
        """Who is told how far a summary of this session is; silent when another session is open by then."""

        def told(progress: SummaryProgress) -> None:
            if self.session.id == id:
                written = f", {progress.tokens:,} tokens" if progress.tokens else ""
                self.front.progress("compacting", f"{progress.stage}, request {progress.asked}{written}")

        return told

    def fetching(self, progress: Any) -> None:
        """How far the local model is."""
        stage = "" if progress.stage == "ready" else f"{progress.stage} the local model"
        self.front.progress(stage, f"{progress.percent:.0f} %" if progress.total else "")

    # ── consent ──────────────────────────────────────────────────────────────────────────────────────

    async def approve(self, call: Call, what: str) -> bool:
        """Whether a call that changes something may run."""
        meant = self.box.read(call.name, call.arguments)
        given: Arguments = {} if isinstance(meant, ToolOutput) else meant[1]
        if self.options.yes or self.approvals.allows(call.name, given):
            return True
        entry = suggested(call.name, given) or ""
        preview = self.box.preview(call.name, call.arguments)
        answer = await self.front.ask(
            Question(
                text=f"Allow {what}?",
                details=tuple(change_rows(preview)) if preview else (),
                always=entry,
                advice=f"Allow it with --allow {call.name}, or everything with --yes.",
            )
        )
        if answer == "a" and entry:
            self.approvals = self.approvals.allow(entry)
        return answer in ("y", "a")


async def _tried(start: Callable[[], Awaitable[None]]) -> None:
    with suppress(FovealError, OSError):
        await start()


async def _trusting(choice: ChatChoice, front: UserInterface) -> ChatChoice:
    """Asked once for each project that has something to say: whether it is to be followed."""
    files = InstructionFiles(choice.folder, rules=choice.config.rules)
    if not (files.asks or choice.untrusted):
        return choice
    question = Question(
        text=f"{files.root} has instructions or settings for agents. Do you trust this project?",
        advice="They are not used. Start `foveal chat` there in a terminal to decide.",
    )
    answer = await front.ask(question)
    if front.asks:
        files.trust.trust(files.root, yes=answer == "y")
    return choice.again()
