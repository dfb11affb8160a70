"""State of a running chat: store, provider, session, tools, instructions, agent.

When the user changes the model, the policy or the session, the session is opened again with the new settings. Other
sessions are not touched.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any

from foveal.agent.agent import Agent
from foveal.apps.cli.chat import factory
from foveal.apps.cli.chat.factory import ChatConfig, SummaryWriters, WatchedProvider
from foveal.apps.cli.chat.options import ChatOptions
from foveal.apps.cli.chat.output.agent_event_rows import note
from foveal.apps.cli.chat.output.styled_text import diff_rows
from foveal.apps.cli.chat.user_interface import Question, UserInterface
from foveal.apps.cli.stored_sessions import find_session
from foveal.core.compaction.summariser import SummaryProgress
from foveal.core.engine.engine import Engine
from foveal.core.log.events import AnyFact, Call, Instructed, Opened
from foveal.errors import FovealError
from foveal.instructions.instruction_files import InstructionFiles
from foveal.ports import Store
from foveal.sessions.continuation import Carry, carried_facts
from foveal.sessions.session import Session
from foveal.stores import open_store
from foveal.tools import Tool, Toolbox, ToolOutput
from foveal.tools.approvals import Approvals, suggest_entry
from foveal.tools.tool import Arguments

_LAST_CHECKED_SEQ = 20
"""A session whose events up to this one are all `Opened` is new and gets the system text."""


class ChatState:
    """The open session with all that belongs to it; `switch` replaces the session, the model or the policy."""

    def __init__(self, options: ChatOptions, ui: UserInterface, store: Store, config: ChatConfig) -> None:
        self.options = options
        self.ui = ui
        self.store = store
        self.config = config
        self.approvals = Approvals.parse((*config.loaded.get("tools.allow"), *options.allow))
        self._mcp_tools: list[Tool] = []
        self._warm_up_task: asyncio.Task[None] | None = None
        self._handles_to_expand: list[str] = []
        self._told_notes: set[str] = set()
        """Notes about instruction files that the user has seen."""
        # Set by `_use_session`, which `open` calls before it returns.
        self.instruction_files: InstructionFiles
        self.provider: WatchedProvider
        self.writers: SummaryWriters
        self.session: Session
        self.toolbox: Toolbox
        self.agent: Agent

    @classmethod
    async def open(cls, options: ChatOptions, ui: UserInterface, stack: AsyncExitStack) -> ChatState:
        """Open the store, the MCP servers and a session; all are closed when the stack closes."""
        config = await _ask_for_trust(ChatConfig.from_options(options), ui)
        options.store.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        store = await stack.enter_async_context(open_store(options.store))
        state = cls(options, ui, store, config)
        state._mcp_tools = await factory.connect_mcp_servers(options, config.loaded, stack, state._warn)
        id = await factory.choose_session_id(store, options)
        provider = WatchedProvider(factory.make_provider(None, config, progress=state.show_download))
        origin = await find_session(store, options.continue_from) if options.continue_from else ""
        if origin:
            await state._carried_facts(origin, options.carry, config, provider)
        await state._open_session(id, config, provider, origin=origin)
        stack.push_async_callback(state.close)
        if origin:
            await state._append_record(origin, options.carry)
        for text in (*config.notes, *state.take_instruction_notes()):
            state._warn(text)
        return state

    async def close(self) -> None:
        if self._warm_up_task is not None:
            self._warm_up_task.cancel()
            await asyncio.wait({self._warm_up_task})
        await self.session.close()
        await self.writers.close()
        await self.provider.close()

    # ── Opening a session ────────────────────────────────────────────────────────────────────────────

    async def _open_session(
        self, id: str, config: ChatConfig, provider: WatchedProvider, *, origin: str = ""
    ) -> None:
        """Open or create a session with this model and these settings; on an error the open one stays in use."""
        writers = self._summary_writers(config, provider)
        session = await Session.open(
            self.store,
            id,
            model=provider.model,
            origin=origin,
            summarise=writers.summarisers(),
            progress=self._progress_of(id),
            **config.session_settings(provider.model),
        )
        await self._use_session(session, config, provider, writers)

    def _summary_writers(self, config: ChatConfig, provider: WatchedProvider) -> SummaryWriters:
        name = config.loaded.summariser
        other = factory.make_provider(name, config, progress=self.show_download) if name else None
        return SummaryWriters(provider.provider, other=other, on_idle=lambda: self.ui.show_progress(""))

    async def _use_session(
        self, session: Session, config: ChatConfig, provider: WatchedProvider, writers: SummaryWriters
    ) -> None:
        """Make an open session the current one."""
        self.session, self.config, self.provider, self.writers = session, config, provider, writers
        self.toolbox = Toolbox(
            factory.make_tools(self.options, session, config.loaded, mcp_tools=self._mcp_tools)
        )
        self.instruction_files = self._instruction_files()
        self.agent = Agent(
            session, provider, self.toolbox, approve=self.approve, guidance=self.instruction_files
        )
        self._handles_to_expand.clear()
        self._warm_up(provider)
        await self._append_system_text()
        # `/context` counts the tools before the first message, and the start says which instructions are cut.
        await session.equip(self.toolbox.schemas)
        await self.instruction_files.refresh(session)

    def _instruction_files(self) -> InstructionFiles:
        return InstructionFiles(
            self.config.folder,
            rules=self.config.loaded.rules,
            room=self._instruction_room(),
            counter=self.config.engine_settings(self.provider.model).counter,
        )

    async def read_instruction_files(self) -> InstructionFiles:
        """Return the instruction files as they are now. The agent's own object may be in use by a running turn."""
        files = self._instruction_files()
        await files.refresh(self.session)
        return files

    def _instruction_room(self) -> int:
        """Return the tokens that a request has for messages, beside the system text and the tools."""
        settings = self.config.engine_settings(self.provider.model)
        beside = (factory.system_text(), json.dumps(self.toolbox.schemas, ensure_ascii=False))
        return max(0, Engine(*settings).budget().hard - sum(settings.counter.count_all(beside)))

    async def continue_from(self, origin: str, carry: Carry = "record") -> None:
        """Switch to a new session that begins with a record of another one."""
        # Raises before anything is created.
        await self._carried_facts(origin, carry, self.config, self.provider)
        await self.switch(id=factory.new_session_id(), origin=origin)
        await self._append_record(origin, carry)

    async def _append_record(self, origin: str, carry: Carry) -> None:
        """Append the instructions, then what is carried over, so that no system text comes after messages."""
        await self.session.append(*await self.instruction_files.refresh(self.session))
        before = [event.fact for event in await self.session.events()]
        facts = await self._carried_facts(origin, carry, self.config, self.provider, before=before)
        await self.session.append(*facts)

    async def _carried_facts(
        self,
        origin: str,
        carry: Carry,
        config: ChatConfig,
        provider: WatchedProvider,
        *,
        before: Sequence[AnyFact] = (),
    ) -> list[AnyFact]:
        settings = config.engine_settings(provider.model)
        return await carried_facts(self.store, origin, settings, carry=carry, begin=before)

    async def switch(
        self,
        *,
        id: str | None = None,
        model: str | None = None,
        config: ChatConfig | None = None,
        origin: str = "",
    ) -> None:
        """Continue with another session, model or configuration."""
        chosen, provider = config or self.config, self.provider
        if id is not None:
            provider = WatchedProvider(provider.provider)  # without the last request of the old session
        if model is not None:
            chosen = chosen.with_model(model)
            provider = WatchedProvider(factory.make_provider(None, chosen, progress=self.show_download))
        old_session, old_writers, old_provider = self.session, self.writers, self.provider
        await self._open_session(id or self.session.id, chosen, provider, origin=origin)
        await old_session.close()
        await old_writers.close()
        if provider.provider is not old_provider.provider:
            await old_provider.close()

    def _warm_up(self, provider: WatchedProvider) -> None:
        """Download and start a local model while the user types; the first request reports its errors."""
        start = getattr(provider.provider, "start", None)
        if start is not None and self.ui.can_ask:
            self._warm_up_task = asyncio.create_task(_start_quietly(start))

    async def _append_system_text(self) -> None:
        """Append the system text to a session that has no messages yet."""
        events = await self.session.events(last=_LAST_CHECKED_SEQ)
        if all(isinstance(event.fact, Opened) for event in events):
            await self.session.append(Instructed(content=factory.system_text()))

    # ── Expanding for one turn ───────────────────────────────────────────────────────────────────────

    def expand_in_next_turn(self, handle: str) -> None:
        """Show the event of this handle to the model in full in the next turn."""
        self._handles_to_expand.append(handle)

    def take_handles_to_expand(self) -> list[str]:
        """Return the handles for this turn and forget them."""
        handles, self._handles_to_expand = self._handles_to_expand, []
        return handles

    # ── Notices ──────────────────────────────────────────────────────────────────────────────────────

    def take_instruction_notes(self) -> list[str]:
        """Return what is cut, left out or unusual in the instruction files and was not returned before."""
        new = [text for text in self.instruction_files.notes if text not in self._told_notes]
        self._told_notes.update(new)
        return new

    def _warn(self, text: str) -> None:
        self.ui.notify([note(text, "fair")])

    def _progress_of(self, id: str) -> Callable[[SummaryProgress], None]:
        """Return a function that shows the progress of a summary while session `id` is the current one."""

        def show(progress: SummaryProgress) -> None:
            if self.session.id == id:
                written = f", {progress.tokens:,} tokens" if progress.tokens else ""
                self.ui.show_progress("compacting", f"{progress.stage}, request {progress.asked}{written}")

        return show

    def show_download(self, progress: Any) -> None:
        """Show how far the download or the start of the local model is."""
        stage = "" if progress.stage == "ready" else f"{progress.stage} the local model"
        self.ui.show_progress(stage, f"{progress.percent:.0f} %" if progress.total else "")

    # ── Approval of tool calls ───────────────────────────────────────────────────────────────────────

    async def approve(self, call: Call, what: str) -> bool:
        """Return whether a call that changes something may run, asking the user where needed."""
        parsed = self.toolbox.parse_call(call.name, call.arguments)
        arguments: Arguments = {} if isinstance(parsed, ToolOutput) else parsed[1]
        if self.options.yes or self.approvals.allows(call.name, arguments):
            return True
        entry = suggest_entry(call.name, arguments) or ""
        preview = self.toolbox.preview(call.name, call.arguments)
        answer = await self.ui.ask(
            Question(
                text=f"Allow {what}?",
                details=tuple(diff_rows(preview)) if preview else (),
                always=entry,
                unattended_advice=f"Allow it with --allow {call.name}, or everything with --yes.",
            )
        )
        if answer == "a" and entry:
            self.approvals = self.approvals.allow(entry)
        return answer in ("y", "a")


async def _start_quietly(start: Callable[[], Awaitable[None]]) -> None:
    with suppress(FovealError, OSError):
        await start()


async def _ask_for_trust(config: ChatConfig, ui: UserInterface) -> ChatConfig:
    """Ask once per project that has instructions or settings whether to trust it."""
    files = InstructionFiles(config.folder, rules=config.loaded.rules)
    if not (files.needs_trust_answer or config.needs_trust):
        return config
    question = Question(
        text=f"{files.root} has instructions or settings for agents. Do you trust this project?",
        unattended_advice="They are not used. Start `foveal chat` there in a terminal to decide.",
    )
    answer = await ui.ask(question)
    if ui.can_ask:
        files.trust.set_trusted(files.root, trusted=answer == "y")
    return config.reload()
