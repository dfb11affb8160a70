"""How the parts of a conversation are made from what the user says: files, environment and flags."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from foveal.agent.agent import own_model
from foveal.apps.cli.chat.options import ChatOptions
from foveal.config import Config, ServerSettings, load
from foveal.core import wire
from foveal.core.compaction.summariser import Summariser, SummaryRequest
from foveal.core.log.events import Dialect
from foveal.core.models.model import Model
from foveal.core.policies.presets import Policy, policy
from foveal.core.reduction.truncation import UNLIMITED
from foveal.core.view.request import Fitted
from foveal.errors import FovealError, UnknownSession
from foveal.ports import Provider, Reply, ReplyPiece, Store
from foveal.providers.selection import FACTORY, configured
from foveal.recall import Library
from foveal.recall import tools as recall_tools
from foveal.tools import Tool, recalled

# ── request ───────────────────────────────────────────────────────────────────────────────────────
# The provider of a conversation, watched: what it was last asked, and whether a summary is being written.


class WatchedProvider:
    """A provider that remembers what it was last asked."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider
        self.last: Fitted | None = None

    @property
    def name(self) -> str:
        return self.provider.name

    @property
    def model(self) -> Model:
        return self.provider.model

    @property
    def dialect(self) -> Dialect:
        return self.provider.dialect

    def send(self, request: Fitted, *, max_tokens: int) -> AsyncIterator[ReplyPiece | Reply]:
        self.last = request
        return self.provider.send(request, max_tokens=max_tokens)

    async def close(self) -> None:
        await self.provider.close()

    def places(self, text: str) -> list[str]:
        """Where a text stands in the last request, in words; none when it does not."""
        if self.last is None:
            return []
        wanted = text.casefold()
        facts = [*self.last.aside, *self.last.facts]
        shown = (f"message {i} of {len(facts)} ({_who(fact)})" for i, fact in _having(facts, wanted))
        return list(shown)


def _having(facts: list[Any], wanted: str) -> list[tuple[int, Any]]:
    return [(i, fact) for i, fact in enumerate(facts, 1) if wanted in wire.original(fact).casefold()]


def _who(fact: object) -> str:
    names = {"UserSaid": "user", "ModelSaid": "assistant", "ToolReturned": "result", "Instructed": "system"}
    return names.get(type(fact).__name__, "ours")


class SummaryWriting:
    """The writers of summaries, one that was chosen for it and the conversation's own; and whether they write."""

    def __init__(
        self, own: Provider, *, other: Provider | None = None, done: Callable[[], None] = lambda: None
    ) -> None:
        self._own, self._other, self._done = own, other, done
        self.busy = 0

    def summarisers(self) -> list[Summariser]:
        made = [self._watched(own_model(self._own), None)]
        if self._other is not None:
            made.insert(0, self._watched(own_model(self._other), self._other.model))
        return made

    async def close(self) -> None:
        if self._other is not None:
            await self._other.close()

    def _watched(self, writer: Summariser, model: Model | None) -> Summariser:
        async def write(request: SummaryRequest) -> Any:
            self.busy += 1
            try:
                return await writer.call(request)
            finally:
                self.busy -= 1
                if not self.busy:
                    self._done()

        return Summariser(write, model=model, name=writer.name)


# ── making ────────────────────────────────────────────────────────────────────────────────────────

CONFIRM: Final = 0.9
"""Above this share of the room the user is asked, in mode `confirm`, unless a threshold is set."""


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What a conversation runs with: all that the user has said."""

    folder: Path
    flags: dict[str, Any]
    config: Config

    @classmethod
    def of(cls, options: ChatOptions) -> ChatChoice:
        flags = {
            "model": options.model,
            "window": options.window,
            "context.policy": options.policy,
            "compaction.mode": options.mode,
        }
        return cls._loaded(
            options.folder, {name: value for name, value in flags.items() if value is not None}
        )

    @classmethod
    def _loaded(cls, folder: Path, flags: dict[str, Any]) -> ChatChoice:
        config = load(folder, flags=flags)
        if config.get("compaction.mode") == "confirm" and config.source("context.policy").kind == "default":
            config = load(
                folder, flags=flags | {"context.policy": "confirm"}
            )  # the preset that is made for it
        return cls(folder=folder, flags=flags, config=config)

    def again(self) -> ChatChoice:
        """The same, with the files as they are now."""
        return self._loaded(self.folder, self.flags)

    def with_model(self, name: str) -> ChatChoice:
        kept = {flag: value for flag, value in self.flags.items() if flag != "window"}
        return self._loaded(self.folder, kept | {"model": name})

    def with_policy(self, name: str) -> ChatChoice:
        return self._loaded(self.folder, self.flags | {"context.policy": name})

    @property
    def notes(self) -> tuple[str, ...]:
        """What was passed over in the configuration."""
        return tuple(note for note in self.config.notes if FACTORY not in note)

    @property
    def untrusted(self) -> bool:
        """The project's own configuration does not count before somebody trusts it."""
        return self.config.trusted is None and any("is not trusted" in note for note in self.config.notes)

    def settings(self, model: Model) -> dict[str, Any]:
        """Keyword arguments of `Session.open`."""
        made = self.config.session(model)
        chosen: Policy = made["policy"]
        if chosen.mode == "confirm" and self.config.get("compaction.threshold") is None:
            act = min(chosen.act, CONFIRM)
            chosen = policy(chosen, act=act, warn=min(chosen.warn, act), target=min(chosen.target, act))
        bounded = {
            tool["name"]: UNLIMITED for tool in recall_tools("anthropic")
        }  # they keep to a size of their own
        return made | {"policy": replace(chosen, clip_tools={**bounded, **chosen.clip_tools})}


# ── parts ────────────────────────────────────────────────────────────────────────────────────────────────


def provider(name: str | None, choice: ChatChoice, *, progress: Callable[[Any], None]) -> Provider:
    """The provider of a model, the chosen one if none is named."""
    return configured(choice.config, name, environment=os.environ, progress=progress)


async def served(
    options: ChatOptions, config: Config, stack: AsyncExitStack, note: Callable[[str], None]
) -> list[Tool]:
    """The tools of the MCP servers in the configuration, which run until the stack ends."""
    if not options.tools or not config.servers:
        return []
    from foveal.tools.mcp import McpServers

    tables = {server.name: _server(server) for server in config.servers}
    servers = await stack.enter_async_context(McpServers(tables, note=note, cwd=options.folder))
    return list(servers.tools)


def _server(server: ServerSettings) -> dict[str, Any]:
    if server.url:
        return {"url": server.url}
    return {"command": server.command, "args": list(server.args), "env": dict(server.env)}


def tools(
    options: ChatOptions, library: Library, config: Config, *, served: Sequence[Tool] = ()
) -> list[Tool]:
    """The tools of a session: files and commands of the working folder, and those that look back."""
    if not options.tools:
        return []
    from foveal.tools.file_search import search
    from foveal.tools.files import files
    from foveal.tools.shell import run
    from foveal.tools.workspace import Workspace

    workspace = Workspace(options.folder)
    every = [*files(workspace), search(workspace), run(workspace), *recalled(library), *served]
    denied = set(config.get("tools.deny"))
    return [tool for tool in every if tool.name not in denied]


# ── sessions ─────────────────────────────────────────────────────────────────────────────────────────────


async def wanted(store: Store, options: ChatOptions) -> str:
    """The id of the session that the user means."""
    if options.resume:
        return await named(store, options.resume)
    if options.newest:
        listed = [info.id for info in await store.sessions() if not info.erased]
        if not listed:
            raise FovealError("there is no session to go on with; leave --continue out to begin one")
        return listed[0]
    return options.session or new_id()


async def named(store: Store, name: str) -> str:
    """The session with this id, or the only one whose id begins so."""
    ids = [info.id for info in await store.sessions()]
    if name in ids:
        return name
    found = [id for id in ids if id.startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise FovealError(f"{len(found)} sessions begin with {name!r}: {', '.join(found[:5])}")
    raise UnknownSession(name)


def new_id() -> str:
    """A name for a new session: when it began, and something that no other has."""
    return f"{time.strftime('%Y-%m-%d-%H%M%S')}-{os.urandom(2).hex()}"


def needs(*modules: str) -> None:
    """Say what is missing before anything is begun."""
    for name in modules:
        if find_spec(name) is None:
            raise FovealError(
                f"this needs {name}, which is not installed: {sys.executable} -m pip install 'foveal[chat]'"
            )
