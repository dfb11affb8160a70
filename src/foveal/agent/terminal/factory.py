"""Creates the parts of a chat from configuration files, environment and flags."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AsyncExitStack
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from foveal.agent import log_recall
from foveal.agent.permissions.sandbox import SandboxFinding, find_sandbox
from foveal.agent.reduction_command import ReductionCommand
from foveal.agent.terminal.options import ChatOptions, WrongOption
from foveal.agent.tools import Tool
from foveal.agent.tools.background_commands import BackgroundCommands, job_tool
from foveal.agent.tools.file_backups import FileBackups
from foveal.config import Config, McpServerSettings, load
from foveal.config.config import provider_from_config
from foveal.config.keys import denied_tools
from foveal.config.local_memories import LocalMemories, project_of
from foveal.config.project import ItemTrust
from foveal.core import wire
from foveal.core.compaction.summariser import Summariser, SummaryRequest
from foveal.core.engine.engine import Engine
from foveal.core.engine.settings import EngineSettings, resolve_settings
from foveal.core.engine.tool_deferral import ToolDeferral
from foveal.core.log.events import Dialect
from foveal.core.models.model import Model
from foveal.core.policies.presets import Policy
from foveal.core.reduction.truncation import UNLIMITED, Limits
from foveal.core.view.request import Fitted
from foveal.errors import FovealError
from foveal.ports import Provider, ReplyItem, Store
from foveal.providers import LOCAL_SERVICE
from foveal.providers.local.download import KNOWN_WEIGHTS
from foveal.providers.selection import FACTORY_VARIABLE
from foveal.providers.summariser import native_summariser_for, summariser_for
from foveal.recall import tools as recall_tools
from foveal.sessions.session import Session

# ── Watched providers ──────────────────────────────────────────────────────────────────────────────────
# Wrappers around a provider that record its last request and running summaries.

_ROLES: Final = {
    "UserSaid": "user",
    "ModelSaid": "assistant",
    "ToolReturned": "result",
    "Instructed": "system",
}


class WatchedProvider:
    """A provider that keeps the last request, for `/why`."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider
        self.last_request: Fitted | None = None

    @property
    def name(self) -> str:
        return self.provider.name

    @property
    def model(self) -> Model:
        return self.provider.model

    @property
    def dialect(self) -> Dialect:
        return self.provider.dialect

    def send(self, request: Fitted, *, max_tokens: int) -> AsyncIterator[ReplyItem]:
        self.last_request = request
        return self.provider.send(request, max_tokens=max_tokens)

    async def close(self) -> None:
        await self.provider.close()

    def find_text(self, text: str) -> list[str]:
        """Return which messages of the last request contain a text, in words."""
        if self.last_request is None:
            return []
        facts: Sequence[Any] = [*self.last_request.aside, *self.last_request.facts]
        wanted = text.casefold()
        return [
            f"message {number} of {len(facts)} ({_ROLES.get(type(fact).__name__, 'foveal')})"
            for number, fact in enumerate(facts, 1)
            if wanted in wire.original_text(fact).casefold()
        ]


class SummaryWriters:
    """The models that write summaries: the configured one, if any, then the conversation's own."""

    def __init__(
        self,
        own: Provider,
        *,
        other: Provider | None = None,
        is_native: bool = False,
        on_idle: Callable[[], None] = lambda: None,
    ) -> None:
        """With `is_native`, the provider is asked for its own compaction first."""
        self._own, self._other, self._is_native, self._on_idle = own, other, is_native, on_idle
        self._running = 0

    @property
    def is_busy(self) -> bool:
        """Whether a summary is being written."""
        return self._running > 0

    def summarisers(self) -> list[Summariser]:
        """Return the writers in the order in which a session tries them."""
        writers = [self._watch(summariser_for(self._own), None)]
        if self._other is not None:
            writers.insert(0, self._watch(summariser_for(self._other), self._other.model))
        if self._is_native:
            writers.insert(0, self._watch(native_summariser_for(self._own), None))
        return writers

    async def close(self) -> None:
        if self._other is not None:
            await self._other.close()

    def _watch(self, writer: Summariser, model: Model | None) -> Summariser:
        async def write(request: SummaryRequest) -> Any:
            self._running += 1
            try:
                return await writer.call(request)
            finally:
                self._running -= 1
                if not self._running:
                    self._on_idle()

        return Summariser(write, model=model, name=writer.name, native=writer.native, dialect=writer.dialect)


# ── Configuration ──────────────────────────────────────────────────────────────────────────────────────


MAX_RESULT_TOKENS: Final = 16_000
"""Tokens of a tool result that the model is shown, unless the user has set a number."""
MAX_RESULT_SHARE: Final = 0.1
"""The same as a share of the room; the smaller limit applies."""


_OPTIONS: Final = {
    "model": "--model",
    "window": "--window",
    "context.policy": "--policy",
    "compaction.mode": "--mode",
}
"""Options that set one value of the configuration; `--set` sets any other."""


class ChatConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a chat, and the flags with which it is loaded again."""

    folder: Path
    flags: dict[str, Any]
    loaded: Config
    trust: ItemTrust
    """Decides which items of the project are used."""
    project: bool = True
    """Whether anything of the project is used."""
    agent: str = ""
    """The agent of the configuration whose settings are used."""

    @classmethod
    def from_options(cls, options: ChatOptions, *, trust: ItemTrust) -> ChatConfig:
        flags = cls.flags_of(options)
        return cls._load(options.folder, flags, trust, project=options.project, agent=options.agent)

    @staticmethod
    def flags_of(options: ChatOptions) -> dict[str, Any]:
        """Return the values that the options set, by dotted name."""
        flags = {
            "model": options.model,
            "window": options.window,
            "context.policy": options.policy,
            "compaction.mode": options.mode,
            "tools.sandbox": None if options.sandbox else "off",
        }
        given = {name: value for name, value in flags.items() if value is not None}
        return {**options.settings, **given}

    @classmethod
    def _load(
        cls, folder: Path, flags: dict[str, Any], trust: ItemTrust, *, project: bool, agent: str
    ) -> ChatConfig:
        config = load(folder, flags=flags, trust=trust, project=project)
        if agent and agent not in config.agents:
            there = f"there are: {', '.join(config.agents)}" if config.agents else "[agents.NAME] makes one"
            raise WrongOption(f"there is no agent {agent}; {there}")
        loaded = config.agent(agent) if agent else config
        return cls(folder=folder, flags=flags, loaded=loaded, trust=trust, project=project, agent=agent)

    def reload(self) -> ChatConfig:
        """Return the configuration with the files as they are now."""
        return self._with_flags(self.flags)

    def _with_flags(self, flags: dict[str, Any]) -> ChatConfig:
        return self._load(self.folder, flags, self.trust, project=self.project, agent=self.agent)

    def with_model(self, name: str) -> ChatConfig:
        """Return the configuration with another model and its own window."""
        kept = {flag: value for flag, value in self.flags.items() if flag != "window"}
        return self._with_flags(kept | {"model": name})

    def with_window(self, tokens: int) -> ChatConfig:
        return self._with_flags(self.flags | {"window": tokens})

    def with_policy(self, name: str) -> ChatConfig:
        return self._with_flags(self.flags | {"context.policy": name})

    def option_words(self) -> list[str]:
        """Return the options of the command that load this configuration."""
        words = ["--agent", self.agent] if self.agent else []
        for name, value in self.flags.items():
            words += [_OPTIONS[name], str(value)] if name in _OPTIONS else ["--set", f"{name}={value}"]
        return words if self.project else [*words, "--no-project"]

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings about settings that were ignored."""
        return tuple(note for note in self.loaded.notes if FACTORY_VARIABLE not in note)

    def session_settings(self, model: Model) -> dict[str, Any]:
        """Return the keyword arguments of `Session.open`."""
        settings = self.loaded.session(model)
        chosen: Policy = settings["policy"]
        # Recall tools bound their own output, so it is not clipped again.
        unclipped = {tool["name"]: UNLIMITED for tool in recall_tools("anthropic")}
        limits = self._result_limits(model, settings)
        return settings | {
            "policy": replace(chosen, clip=limits, clip_tools={**unclipped, **chosen.clip_tools})
        }

    def _result_limits(self, model: Model, settings: dict[str, Any]) -> Limits | None:
        """Return the limits of a tool result: those of the policy, and the agent's where the user has set none."""
        chosen: Policy = settings["policy"]
        is_set = self.loaded.get("context.max_tool_result_tokens") is not None
        if is_set or chosen.asks or chosen.ladder == "off":  # the last two promise to show new results whole
            return chosen.clip
        given = {name: value for name, value in settings.items() if name != "prompt"}
        room = Engine(resolve_settings(model, **given)).budget().hard
        limits = chosen.clip or Limits()
        most = MAX_RESULT_TOKENS if limits.tokens is None else min(MAX_RESULT_TOKENS, limits.tokens)
        return replace(limits, tokens=min(most, int(room * MAX_RESULT_SHARE)))

    def reduction_hook(self, folder: Path) -> ReductionCommand | None:
        """Return the user's program that is asked before each cut; None if there is none."""
        command = self.loaded.get("context.hook")
        return ReductionCommand(command, folder=folder) if command else None

    def engine_settings(self, model: Model) -> EngineSettings:
        """Return the settings of the engine of a session."""
        settings = self.session_settings(model)
        settings.pop("prompt")
        return resolve_settings(model, **settings)


def system_text(*, is_bundled: bool = False) -> str:
    """Return the system text of a new session; the bundled model, which reads slowly, has a short one."""
    return _text_file("system_local.md" if is_bundled else "system.md")


def init_text() -> str:
    """Return the request that `/init` sends in the name of the user."""
    return _text_file("init.md")


def _text_file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8").strip()


# ── Provider and tools ─────────────────────────────────────────────────────────────────────────────────


def make_provider(name: str | None, config: ChatConfig, *, progress: Callable[[Any], None]) -> Provider:
    """Return the provider of the named model, or of the configured model."""
    return provider_from_config(config.loaded, name, environment=os.environ, progress=progress)


def is_bundled(provider: Provider) -> bool:
    """Return whether the model is one that Foveal downloads: too small to use tools or follow instructions."""
    service, _, name = provider.name.partition("/")
    return service == LOCAL_SERVICE and name in KNOWN_WEIGHTS


def is_simple_chat(options: ChatOptions, config: ChatConfig) -> bool:
    """Return whether the chat begins with a bundled model and no tools, which uses no instruction file and no MCP
    server."""
    return not options.tools and is_bundled(make_provider(None, config, progress=lambda _: None))


async def connect_mcp_servers(
    options: ChatOptions, stack: AsyncExitStack, note: Callable[[str], None], config: Config
) -> list[Tool]:
    """Start the configured MCP servers until the stack closes, and return their tools."""
    if not config.servers:
        return []
    from foveal.agent.tools.mcp import McpServers

    tables = {server.name: _mcp_settings(server, config.root) for server in config.servers}
    servers = await stack.enter_async_context(McpServers(tables, note=note, cwd=options.folder))
    return list(servers.tools)


def _mcp_settings(server: McpServerSettings, root: Path) -> dict[str, Any]:
    # The user allows the files that a project's server names relative to the root; elsewhere they are other files.
    return server.fields | ({"cwd": root} if server.is_of_project and not server.url else {})


def chat_sandbox(options: ChatOptions, config: Config) -> SandboxFinding:
    """Return the sandbox for the commands of a chat, or why there is none."""
    if config.get("tools.sandbox") == "off":
        return SandboxFinding(None, f"switched off by {config.source('tools.sandbox')}")
    # The log is evidence of what commands did, so they can neither read nor change it.
    return find_sandbox(options.folder, hidden=_store_files(options))


def file_copies(options: ChatOptions) -> FileBackups:
    """Return the copies of files that commands of a chat may change."""
    return FileBackups(Path(os.path.realpath(options.folder)), excluded=_store_files(options))


def _store_files(options: ChatOptions) -> list[Path]:
    return [options.store.with_name(options.store.name + end) for end in ("", "-wal", "-shm")]


def make_tools(
    options: ChatOptions,
    session: Session,
    config: Config,
    *,
    background: BackgroundCommands,
    mcp_tools: Sequence[Tool] = (),
    own_tools: Sequence[Tool] = (),
    reads_only: Callable[[], bool] = lambda: False,
    unchanged: Callable[[str], Collection[str]] = lambda _: (),
) -> list[Tool]:
    """Return the tools of a session: files and shell of the working folder, recall, memory, those of MCP servers,
    and `own_tools`, which sub-agents do not have. While `reads_only` returns True, commands cannot write;
    `unchanged` returns the files that one cannot change."""
    from foveal.agent.tools.files import file_tools, search_tool
    from foveal.agent.tools.shell import shell_tool
    from foveal.agent.tools.workspace import Workspace

    workspace, memories = Workspace(options.folder), session.memories
    sandbox = chat_sandbox(options, config).sandbox
    every = [
        *file_tools(workspace),
        search_tool(workspace),
        shell_tool(
            workspace,
            sandbox=sandbox,
            network=config.get("tools.network"),
            background=background,
            reads_only=reads_only,
            unchanged=unchanged,
        ),
        job_tool(background),
        *own_tools,
        *log_recall.recall_tools(session, memories=memories),
        *(log_recall.managing_tools(session) if config.get("context.model_cuts") else ()),
        *(log_recall.branch_tools(session) if config.get("tools.branches") else ()),
        *(log_recall.memory_tools(memories, session) if memories and config.memory.learn_tools else ()),
        *([log_recall.file_tool(memories[0])] if memories and config.memory.tool else ()),
        *mcp_tools,
    ]
    denied = denied_tools([tool.name for tool in every], config.get("tools.deny"))
    return [tool for tool in every if tool.name not in denied]


def make_deferral(config: Config, tools: Sequence[Tool], *, mcp_tools: Sequence[Tool]) -> ToolDeferral | None:
    """Return what defers the tools of MCP servers, if the configuration says so."""
    if not config.get("tools.defer"):
        return None
    of_servers = {tool.name for tool in mcp_tools}
    own = [tool.name for tool in tools if tool.name not in of_servers]
    return ToolDeferral(core=[*own, *config.get("tools.core")])


def make_memories(store: Store, config: ChatConfig) -> LocalMemories | None:
    """Return the memories of the user and of the project; None if the memory is off."""
    settings, root = config.loaded.memory, project_of(config.loaded) if config.project else None
    return LocalMemories(store, settings, root=root, trust=config.trust) if settings.enabled else None


# ── Sessions ───────────────────────────────────────────────────────────────────────────────────────────


def new_session_id() -> str:
    """Return an id for a new session: the time, and random digits that keep it unique."""
    return f"{time.strftime('%Y-%m-%d-%H%M%S')}-{os.urandom(2).hex()}"


def require_modules(*modules: str) -> None:
    """Raise an error that says how to install the modules that are missing."""
    for name in modules:
        if find_spec(name) is None:
            raise FovealError(
                f"this needs {name}, which is not installed: {sys.executable} -m pip install 'foveal[chat]'"
            )
