"""State of a running chat: store, provider, session, tools, instructions, agent.

When the user changes the model, the policy or the session, the session is opened again with the new settings. Other
sessions are not touched.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from foveal.agent.loop import DENIED_RESULT, UNATTENDED_DENIAL, Agent, HookOccasion
from foveal.agent.permissions.command_rules import SHELL_TOOL
from foveal.agent.permissions.protected_paths import SetAside
from foveal.agent.terminal import factory
from foveal.agent.terminal.factory import ChatConfig, SummaryWriters, WatchedProvider
from foveal.agent.terminal.options import ChatOptions, WrongOption
from foveal.agent.terminal.output.agent_event_rows import note
from foveal.agent.terminal.plan_mode import PlanMode
from foveal.agent.terminal.project_consent import (
    ProjectConsent,
    load_with_consent,
    memory_of,
    servers_of,
    settings_of,
)
from foveal.agent.terminal.resuming import choose_session_id, real_folder
from foveal.agent.terminal.tool_approval import ToolApproval
from foveal.agent.terminal.user_interface import UserInterface
from foveal.agent.terminal.user_message import UserMessage
from foveal.agent.tools import Tool, Toolbox, ToolOutput, load_tools_tool
from foveal.agent.tools.background_commands import BackgroundCommand, BackgroundCommands
from foveal.agent.tools.change_recording import CommandChanges, Recovered, record_changes
from foveal.agent.tools.file_backups import FileBackups, WorkspaceState
from foveal.agent.tools.file_history import FILE_CHANGING_TOOLS, FileChange, FileChanges
from foveal.agent.tools.subagents import TASK_INSTRUCTIONS, SubAgents, TaskLimits, TaskParts, recorded_usage
from foveal.agent.tools.todo import current_todo, todo_tool
from foveal.agent.tools.workspace import Workspace
from foveal.config import Config
from foveal.config.instructions.files import InstructionFiles
from foveal.config.local_memories import LocalMemories, MemoryFile
from foveal.core.compaction.summariser import SummaryProgress
from foveal.core.engine.engine import Engine
from foveal.core.engine.report import Report
from foveal.core.log.events import AnyFact, Call, Event, Instructed, Opened
from foveal.core.wire.safe_print import counted, exact_line, one_line
from foveal.errors import FovealError
from foveal.ports import Store
from foveal.providers.ollama_window import ensure_ollama_window
from foveal.recall.archive.stored_sessions import find_session, make_store_folder
from foveal.sessions.continuation import Carry, carried_facts
from foveal.sessions.event_writer import SessionOptions
from foveal.sessions.session import Session
from foveal.stores import open_store
from foveal.stores.session_locks import SessionLock, SessionLocks

_MAX_NAMED_FILES = 5
"""Files that a notice names."""
_MIN_MESSAGE_TOKENS = 16
"""Tokens of a short message."""
_MIN_ROOM_SHARE = 0.75
"""Share of a larger window that is added to the room at least; the rest is for the answer and the margin."""
_LAST_CHECKED_SEQ = 20
"""A session whose events up to this one are all `Opened` is new and gets the system text."""


class ChatState:
    """The open session with all that belongs to it; `switch` replaces the session, the model or the policy."""

    def __init__(
        self,
        options: ChatOptions,
        ui: UserInterface,
        store: Store,
        config: ChatConfig,
        consent: ProjectConsent,
    ) -> None:
        self.options = options
        self.ui = ui
        self.store = store
        self.config: ChatConfig = config
        self._consent = consent
        self.approval: ToolApproval = ToolApproval(options, config.loaded, self._warn)
        self.sandbox, self.why_no_sandbox = factory.chat_sandbox(options, config.loaded)
        """The sandbox of commands; None if they run without one, which the second value explains."""
        self.file_copies: FileBackups | None = None if self.sandbox is None else factory.file_copies(options)
        """Copies of files that commands in the sandbox may change."""
        self._without_copy: Collection[str] = ()
        """Files that are too large for a copy, when a command was last looked at."""
        self._changes = None if self.file_copies is None else self._command_changes(self.file_copies)
        self.plan: PlanMode = PlanMode(lambda: self.toolbox, has_sandbox=self.sandbox is not None)
        self.memories: LocalMemories | None = factory.make_memories(store, config)
        """What is known from earlier sessions; None if the memory is off."""
        self.background: BackgroundCommands = BackgroundCommands(
            on_end=self._tell_of_end, on_aside=self._tell_of_aside, changes=self._changes
        )
        """What `run` has started in the background; it belongs to the chat, whatever session is open."""
        self.denials: int = 0
        """Calls that were not allowed so far."""
        self._use = SessionUse(options.store)
        self._wants_tools = options.tools
        """What the user has said about tools; None: nothing."""
        self._window_set: int | None = config.loaded.get("window") if "window" in config.flags else None
        """The window that the user has set for this chat; None: that of each model."""
        self._connect_mcp_servers: Callable[[Config], Awaitable[list[Tool]]]
        self._mcp_tools: list[Tool] | None = None
        """None until the servers are connected, which they are once tools are offered."""
        self._warm_up_task: asyncio.Task[None] | None = None
        self._handles_to_expand: list[str] = []
        self._message_to_send: UserMessage | str | None = None
        self._told_notes: set[str] = set()
        """Notes about settings and instruction files that the user has seen."""
        # Set by `_use_session`, which `open` calls before it returns.
        self.instruction_files: InstructionFiles
        self.provider: WatchedProvider
        self.writers: SummaryWriters
        self.session: Session
        self.subagents: SubAgents
        self.toolbox: Toolbox
        self.agent: Agent

    @classmethod
    async def open(cls, options: ChatOptions, ui: UserInterface, stack: AsyncExitStack) -> ChatState:
        """Open the store, the MCP servers and a session; all are closed when the stack closes."""
        consent = ProjectConsent(ui)
        config = await load_with_consent(options, ui, consent)
        make_store_folder(options.store)
        store = await stack.enter_async_context(open_store(options.store))
        state = cls(options, ui, store, config, consent)
        state._connect_mcp_servers = partial(factory.connect_mcp_servers, options, stack, state._warn)
        id = await choose_session_id(store, options, ui) or factory.new_session_id()
        provider = await state._provider(config)
        origin = await find_session(store, options.continue_from) if options.continue_from else ""
        if origin:
            await state._carried_facts(origin, options.carry, config, provider)
        await state._open_session(id, config, provider, origin=origin)
        stack.push_async_callback(state.close)
        state._check_window()
        await state._recover_changes()
        if origin:
            await state._append_record(origin, options.carry)
        state._tell(state._sandbox_notes())
        if not ui.can_ask:  # one notice has counted all items that are not used
            state._told_notes.update(state.instruction_files.open_notes)
        state._tell((*config.notes, *state.approval.notes, *state.instruction_files.notes))
        return state

    def _sandbox_notes(self) -> list[str]:
        """Return what to say about a sandbox that is wanted and missing."""
        if (
            self.sandbox is not None
            or not self.offers_tools
            or self.config.loaded.get("tools.sandbox") == "off"
        ):
            return []
        return [f"no sandbox, so commands ask unless they only read: {self.why_no_sandbox}"]

    async def close(self) -> None:
        if self._warm_up_task is not None:
            self._warm_up_task.cancel()
            await asyncio.wait({self._warm_up_task})
        await self.background.close()
        await self.session.close()
        await self.writers.close()
        await self.provider.close()
        await self._use.close()

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
            folder=real_folder(self.options.folder),
            summarise=writers.summarisers(),
            progress=self._progress_of(id),
            on_reduction=config.reduction_hook(self.options.folder),
            memory=None if self.memories is None else self.memories.all,
            options=SessionOptions(on_stored=self._use.add_own),
            **config.session_settings(provider.model),
        )
        await self._use_session(session, config, provider, writers)

    def _summary_writers(self, config: ChatConfig, provider: WatchedProvider) -> SummaryWriters:
        name = config.loaded.summariser
        other = factory.make_provider(name, config, progress=self.show_download) if name else None
        return SummaryWriters(
            provider.provider,
            other=other,
            is_native=config.loaded.summarises_natively,
            on_idle=lambda: self.ui.show_progress(""),
        )

    async def _use_session(
        self, session: Session, config: ChatConfig, provider: WatchedProvider, writers: SummaryWriters
    ) -> None:
        """Make an open session the current one."""
        self.session, self.config, self.provider, self.writers = session, config, provider, writers
        self._handles_to_expand.clear()
        await self._make_agent()
        await self._append_system_text()
        # `/context` counts the tools before the first message, and the start says which instructions are cut.
        await self.agent.equip()
        await self.instruction_files.refresh(session)
        await self.plan.restore(session)
        self.ui.show_plan_mode(is_on=self.plan.is_on)
        if await self._use.take(session.id, events=(await session.end()).next_seq):
            self._warn("another process has this session open: both write to it, and to the same files")

    @property
    def offers_tools(self) -> bool:
        """Whether the model gets tools: as the user has said, else unless the model is a bundled one."""
        return (
            not factory.is_bundled(self.provider.provider) if self._wants_tools is None else self._wants_tools
        )

    def option_words(self) -> list[str]:
        """Return the options of the command that start a chat with what the user has set in this one."""
        wanted = self._wants_tools
        tools = [] if wanted is None else ["--tools" if wanted else "--no-tools"]
        return [*self.config.option_words(), *tools]

    async def offer_tools(self, wanted: bool) -> None:  # noqa: FBT001 - the only argument
        """Offer tools to the model from now on, or none."""
        self._wants_tools = wanted
        await self._make_agent()
        await self.agent.equip()

    async def _make_agent(self) -> None:
        tools: list[Tool] = []
        self.subagents = await self._subagents()
        if self.offers_tools:
            if self._mcp_tools is None:
                self._mcp_tools = await self._connect_mcp_servers(await self._config_for_servers())
            tools = self._make_tools(self.session, own_tools=(todo_tool(), self.subagents.tool()))
        deferral = factory.make_deferral(self.config.loaded, tools, mcp_tools=self._mcp_tools or ())
        self.toolbox = Toolbox(tools if deferral is None else [*tools, load_tools_tool(deferral)])
        self.instruction_files = self._instruction_files()
        self.agent = Agent(
            self.session,
            self.provider,
            self.toolbox,
            hooks=(self._settle_commands, self.plan.refuse_changes),
            approve=self.approve,
            guidance=self.instruction_files,
            deferral=deferral,
            max_tool_iterations=self.config.loaded.get("max_tool_iterations"),
            denied_result=DENIED_RESULT if self.ui.can_ask else UNATTENDED_DENIAL,
        )

    def _make_tools(self, session: Session, *, own_tools: Sequence[Tool] = ()) -> list[Tool]:
        """Return the tools of a session; changes of files are recorded in it and in the chat's own."""

        async def record(changes: Sequence[FileChange]) -> None:
            if not changes and self.config.loaded.get("tools.network"):
                return  # it may have changed something elsewhere
            for log in dict.fromkeys((session, self.session) if changes else (session,)):
                await log.append(FileChanges(changes=tuple(changes)).to_fact())

        tools = factory.make_tools(
            self.options,
            session,
            self.config.loaded,
            background=self.background,
            mcp_tools=self._mcp_tools or (),
            own_tools=own_tools,
            reads_only=lambda: self.plan.is_on,
            unchanged=lambda command: self.approval.files_to_keep(command, self._without_copy),
        )
        return record_changes(tools, Workspace(self.options.folder), record, self._changes)

    # ── Changes by commands ──────────────────────────────────────────────────────────────────────────

    def _command_changes(self, copies: FileBackups) -> CommandChanges:
        async def record(changes: Sequence[FileChange]) -> None:
            await self.session.append(FileChanges(changes=tuple(changes), by="background").to_fact())

        return CommandChanges(
            Workspace(self.options.folder).root,
            copies,
            store=self.options.store,
            session=lambda: self.session.id,
            record=record,
        )

    async def _settle_commands(self, occasion: HookOccasion) -> None:
        """The hook of the agent and its sub-agents: record what background commands did before a tool runs."""
        if occasion.at == "before_tool":
            await self.background.settle()

    async def _recover_changes(self) -> None:
        """Record what commands did whose chat in this folder was killed, or which were kept, and say so."""
        for found in [] if self._changes is None else await self._changes.recover(self.session.id):
            self._tell_of_recovered(found)

    # ── Sub-agents ───────────────────────────────────────────────────────────────────────────────────

    async def _subagents(self) -> SubAgents:
        config = self.config.loaded
        return SubAgents(
            self.session,
            self.provider.provider,
            self._open_task,
            limits=TaskLimits(
                max_tool_iterations=config.get("max_tool_iterations"),
                max_tokens=config.get("tasks.max_tokens") or None,
                max_cost=config.get("tasks.max_cost") or None,
            ),
            used=await recorded_usage(self.session),
        )

    async def report(self) -> Report:
        """Return the report of the session, with what its sub-agents have cost."""
        report, below = await self.session.report(), self.subagents.used.dollars
        own = 0.0 if report.spent is None else report.spent
        return replace(report, spent=own + below) if below else report

    async def _open_task(self, id: str, origin: str) -> TaskParts:
        """Open the session of a sub-agent. It records no folder, so that `--continue` does not find it."""
        session = await Session.open(
            self.store,
            id,
            model=self.provider.model,
            origin=origin,
            summarise=self.writers.summarisers(),
            on_reduction=self.config.reduction_hook(self.options.folder),
            **self.config.session_settings(self.provider.model),
        )
        await session.append(Instructed(content=f"{self._system_text()}\n\n{TASK_INSTRUCTIONS}"))
        return TaskParts(
            session=session,
            tools=self._make_tools(session),
            approve=self._approve_task_call,
            guidance=self._instruction_files(),
            hooks=(self._settle_commands, self.plan.refuse_changes),
        )

    @property
    def _is_simple_chat(self) -> bool:
        """Whether the bundled model chats without tools: with a short system text and no instruction files."""
        return factory.is_bundled(self.provider.provider) and not self.offers_tools

    def _instruction_files(self) -> InstructionFiles:
        rules = self.config.loaded.rules
        return InstructionFiles(
            self.config.folder,
            rules=replace(rules, max_bytes=0, preferences_max_bytes=0) if self._is_simple_chat else rules,
            trust=self.config.trust,
            project=self.config.project,
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
        return max(0, self._request_room() - sum(self._tokens_beside()))

    def _request_room(self) -> int:
        return Engine(self.config.engine_settings(self.provider.model)).budget().hard

    def _tokens_beside(self) -> tuple[int, int]:
        """Return the tokens of the system text, and of the definitions of the tools."""
        counter, schemas = self.config.engine_settings(self.provider.model).counter, self.toolbox.schemas
        system, tools = counter.count_all((self._system_text(), json.dumps(schemas, ensure_ascii=False)))
        return system, tools if schemas else 0

    def _check_window(self) -> None:
        """Raise an error if no request fits into the window."""
        room, (system, tools) = self._request_room(), self._tokens_beside()
        missing = system + tools + _MIN_MESSAGE_TOKENS - room
        if missing <= 0:
            return
        window = self.provider.model.window
        enough = window + math.ceil(missing / _MIN_ROOM_SHARE)
        without = ", or leave out the tools with --no-tools" if self.toolbox.schemas else ""
        text = (
            f"no message fits into a window of {window:,} tokens: {room:,} are left for a request, of which the "
            f"instructions take {system:,} and the tools {tools:,}; set --window to {enough:,} or more{without}"
        )
        raise FovealError(text) if self._window_set is None else WrongOption(text)

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
        if chosen is not self.config:
            chosen = await self._ask_about_settings(chosen)
        if model is not None:
            chosen, provider = await self._provider_with_window(chosen)
        old_session, old_writers, old_provider = self.session, self.writers, self.provider
        await self._open_session(id or self.session.id, chosen, provider, origin=origin)
        if self.session.id != old_session.id:
            self.approval.end_session()
        await old_session.close()
        await old_writers.close()
        if provider.provider is not old_provider.provider:
            await old_provider.close()
            self.warm_up()

    async def _provider_with_window(self, config: ChatConfig) -> tuple[ChatConfig, WatchedProvider]:
        """Return the provider of a model with the window that the user has set, unless the model has a smaller one;
        a guessed window does not count."""
        provider = await self._provider(config)
        model, wanted = provider.model, self._window_set
        if wanted is None:
            return config, provider
        if wanted > model.window and model.sources.get("window") != "default":
            self._warn(
                f"the window of {wanted:,} tokens that you have set is not used: {provider.name} has "
                f"{model.window:,}"
            )
            return config, provider
        await provider.close()
        config = config.with_window(wanted)
        return config, await self._provider(config)

    async def _provider(self, config: ChatConfig) -> WatchedProvider:
        provider = WatchedProvider(factory.make_provider(None, config, progress=self.show_download))
        await ensure_ollama_window(provider.provider)
        return provider

    def warm_up(self) -> None:
        """Start a local model, or import the client library, while the user types; the first request reports the
        errors."""
        start = getattr(self.provider.provider, "start", None)
        if start is not None and self.ui.can_ask:
            self._warm_up_task = asyncio.create_task(_start_quietly(start))

    async def _append_system_text(self) -> None:
        """Append the system text to a session that has no messages yet."""
        events = await self.session.events(last=_LAST_CHECKED_SEQ)
        if all(isinstance(event.fact, Opened) for event in events):
            await self.session.append(Instructed(content=self._system_text()))

    def _system_text(self) -> str:
        return self.config.loaded.system_text(factory.system_text(is_bundled=self._is_simple_chat))

    def message_room(self) -> int:
        """Return the tokens that a request has for messages."""
        return self._instruction_room()

    # ── Messages of commands ─────────────────────────────────────────────────────────────────────────

    def send_message(self, message: UserMessage | str) -> None:
        """Send a message to the model after the running command; a text as if the user had typed it, with the files
        that it names."""
        self._message_to_send = message

    def take_message(self) -> UserMessage | str | None:
        """Return the message that a command sends, and forget it."""
        message, self._message_to_send = self._message_to_send, None
        return message

    # ── Consent to items of the project ──────────────────────────────────────────────────────────────

    async def ask_about_files(self) -> None:
        """Ask about files of the project for the model that are new or have changed since the user was asked."""
        items = await asyncio.to_thread(self.instruction_files.items)
        memory = await asyncio.to_thread(memory_of, self.config)
        await self._consent.ask(self.config, [*items, *memory])

    async def _ask_about_settings(self, config: ChatConfig) -> ChatConfig:
        """Ask about settings that are new or have changed since the user was asked."""
        config = await self._consent.ask_and_reload(config, settings_of(config))
        self._tell(config.notes)
        return config

    async def _config_for_servers(self) -> Config:
        """Return the configuration with the MCP servers and their scripts as they are now; the user may have been
        asked about them long ago."""
        config = self.config.reload()
        return (await self._consent.ask_and_reload(config, servers_of(config))).loaded

    # ── Memory ───────────────────────────────────────────────────────────────────────────────────────

    async def read_memories(self) -> None:
        """Record what was edited in the files of the memories."""
        if self.memories is not None:
            self._tell(await self.memories.read())

    async def write_memory(self, file: MemoryFile | None = None) -> None:
        """Make the file of a memory show its entries, by default that of the user's."""
        if self.memories is not None:
            self._tell(await self.memories.write(file))

    async def switch_plan_mode(self, *, on: bool) -> None:
        """Switch plan mode on or off."""
        await self.plan.switch(self.session, on=on)
        self.ui.show_plan_mode(is_on=on)

    # ── Expanding for one turn ───────────────────────────────────────────────────────────────────────

    def expand_in_next_turn(self, handle: str) -> None:
        """Show the event of this handle to the model in full in the next turn."""
        self._handles_to_expand.append(handle)

    def take_handles_to_expand(self) -> list[str]:
        """Return the handles for this turn and forget them."""
        handles, self._handles_to_expand = self._handles_to_expand, []
        return handles

    async def show_todo(self) -> None:
        """Show the to-do list as the conversation has it now."""
        self.ui.show_todo(await current_todo(self.session))

    # ── Notices ──────────────────────────────────────────────────────────────────────────────────────

    def take_instruction_notes(self) -> list[str]:
        """Return what is cut, left out or unusual in the instruction files and was not returned before."""
        new = [text for text in self.instruction_files.notes if text not in self._told_notes]
        self._told_notes.update(new)
        return new

    def _tell(self, texts: Sequence[str]) -> None:
        """Show notes that were not shown before."""
        for text in dict.fromkeys(texts):
            if text not in self._told_notes:
                self._warn(text)
        self._told_notes.update(texts)

    async def warn_of_other_writers(self) -> None:
        """Say how many events other processes have added to the session since the last call."""
        added = self._use.take_foreign((await self.session.end()).next_seq)
        if added:
            self._warn(f"another process has added {counted(added, 'event')} to this session")

    def _tell_of_aside(self, aside: SetAside) -> None:
        self._warn(f"a background command made {aside.path}, which is protected: it is {aside.now} now")

    def _tell_of_recovered(self, found: Recovered) -> None:
        names = [os.path.relpath(change.path, self.options.folder) for change in found.changes]
        shown = ", ".join(map(exact_line, names[:_MAX_NAMED_FILES]))
        more = f" and {len(names) - _MAX_NAMED_FILES:,} more" if len(names) > _MAX_NAMED_FILES else ""
        where = "" if found.session == self.session.id else f" in session {one_line(found.session)}"
        how = "this ran on after its chat" if found.is_kept else "a chat was killed while this ran"
        self._warn(f"{how}: {one_line(found.command, width=60)}")
        if names:
            self._warn(f"changed since then: {shown}{more}; /rewind{where} restores what it was")
        for aside in found.aside:
            self._warn(f"{aside.path} is new since then and protected: it is {aside.now} now")

    def _tell_of_end(self, job: BackgroundCommand) -> None:
        self.ui.notify([note(f"{job.id} has ended, {job.state}: {one_line(job.command, width=60)}")])

    def _warn(self, text: str) -> None:
        self.ui.notify([note(text, "fair")])

    def _progress_of(self, id: str) -> Callable[[SummaryProgress], None]:
        """Return a function that shows the progress of a summary while session `id` is the current one."""

        def show(progress: SummaryProgress) -> None:
            if self.session.id == id:
                written = f", {counted(progress.tokens, 'token')}" if progress.tokens else ""
                self.ui.show_progress("compacting", f"{progress.stage}, request {progress.asked}{written}")

        return show

    def show_download(self, progress: Any) -> None:
        """Show how far the download or the start of the local model is."""
        stage = "" if progress.stage == "ready" else f"{progress.stage} the local model"
        self.ui.show_progress(stage, f"{progress.percent:.0f} %" if progress.total else "")

    # ── Approval of tool calls ───────────────────────────────────────────────────────────────────────

    async def approve(self, call: Call, what: str) -> bool:
        """Return whether a call that changes something may run, asking the user where needed."""
        return await self._approve(call, what, self.toolbox)

    async def _approve_task_call(self, call: Call, what: str, toolbox: Toolbox) -> bool:
        """Return whether a call of a sub-agent may run."""
        allowed = await self._approve(call, what, toolbox)
        self.ui.expect_change(())  # it would be shown with the result of another call
        return allowed

    async def _approve(self, call: Call, what: str, toolbox: Toolbox) -> bool:
        copied = WorkspaceState({}, "there is no sandbox")
        if call.name == SHELL_TOOL and self.file_copies is not None:
            copied = await asyncio.to_thread(self.file_copies.take)
            self._tell(copied.notes(Path(self.options.folder)))
            self._without_copy = copied.too_large
        is_allowed = await self.approval.approve(
            call.name,
            call.arguments,
            what,
            toolbox,
            self.ui,
            is_sandboxed=self.sandbox is not None,
            is_restorable=not copied.problem,
            without_copy=copied.too_large,
        )
        self.denials += not is_allowed
        parsed = toolbox.parse_call(call.name, call.arguments)
        if is_allowed and call.name in FILE_CHANGING_TOOLS and not isinstance(parsed, ToolOutput):
            self.background.accept(str(Workspace(self.options.folder).resolve(str(parsed[1]["path"]))))
        return is_allowed


async def _start_quietly(start: Callable[[], Awaitable[None]]) -> None:
    with suppress(FovealError, OSError):
        await start()


# ── Use of a session by several chats ────────────────────────────────────────────────────────────────
# Both chats may write, because the store orders their events. Each says what the other one does.


class SessionUse:
    """The use of one session at a time by this process; `take` changes the session."""

    def __init__(self, store: Path) -> None:
        self._locks: SessionLocks | None = None
        with suppress(OSError):  # without a file for locks, there are no warnings
            self._locks = SessionLocks(store.with_name(f"{store.name}.locks"))
        self._lock: SessionLock | None = None
        self._id = ""
        self._known = 0
        """Events of the session that this process has stored, or has seen when it took the session."""

    async def take(self, id: str, *, events: int) -> bool:
        """Use a session that has this many events; return whether another process uses it too."""
        self._known = events
        if id == self._id or self._locks is None:
            return False
        self.release()
        self._lock = await self._locks.try_lock("", id)
        self._id = id
        return self._lock is None

    def add_own(self, events: Sequence[Event]) -> None:
        """Count events that this process has stored."""
        self._known += len(events)

    def take_foreign(self, events: int) -> int:
        """Return how many of the session's events other processes have added since the last call."""
        foreign, self._known = max(0, events - self._known), events
        return foreign

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
        self._lock, self._id = None, ""

    async def close(self) -> None:
        self.release()
        if self._locks is not None:
            await self._locks.close()
