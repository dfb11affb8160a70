"""`foveal serve`: the service, its background work, HTTP and the chat gateways in one process, from start to end.

It begins with what can go wrong (configuration, address, folder, token), so that it either serves or says in one
sentence why not. On SIGTERM or SIGINT it takes nothing new, lets what runs finish within `server.grace` seconds,
and stores the rest; a second signal shortens that to nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from foveal.config import Config
from foveal.core.models import model
from foveal.core.redaction import redact
from foveal.core.tokens.counter import counter
from foveal.errors import BadSetting, FovealError, ProviderError

if TYPE_CHECKING:
    from socket import socket

    from foveal.apps.gateways.gateway import RunningBot
    from foveal.apps.http.proxy import Upstreams
    from foveal.apps.http.shutdown import ShutdownState, StopSignal
    from foveal.server import Service

# ── warming ───────────────────────────────────────────────────────────────────────────────────────
# What the first request would have to wait for, done before there is one: vocabularies, tables and patterns.

SAMPLE: Final = (
    'def main(): return {"id": 12, "name": "Ørsted"}  # 2026-01-01T00:00:00Z, https://a.example/b?c=d\n'
)


def warm(config: Config) -> None:
    """Raises `BadSetting` when there is no counter of the configured name."""
    counter(config.get("tokenizer") or "auto", model=config.get("model") or "").count(SAMPLE)
    model.model("gpt-4.1")
    redact.scrub(SAMPLE)


# ── serve ─────────────────────────────────────────────────────────────────────────────────────────

COMMANDS: Final = ("serve",)
NEEDED: Final = ("starlette", "uvicorn", "aiohttp", "prometheus_client", "dbos")
USUAL: Final = "~/.local/share/foveal/server"
FURTHER: Final = """`foveal config` shows all settings and where each was set. Of the environment count the keys and
addresses of providers (OPENAI_API_KEY, OPENAI_BASE_URL, ANTHROPIC_API_KEY, ANTHROPIC_BASE_URL and others), and
TELEGRAM_BOT_TOKEN and DISCORD_BOT_TOKEN, each of which starts a bot. Without a key a small local model answers."""
FILES: Final = 65_536
"""That are enough to have open at once."""


def add_commands(commands: Any) -> None:
    """Add the command to the parser."""
    about = "serve sessions and drop-in endpoints over HTTP, Telegram and Discord"
    parser = commands.add_parser("serve", help=about, description=about, epilog=FURTHER)
    parser.add_argument("--host", metavar="ADDRESS", help="where to listen; default: this machine only")
    parser.add_argument("--port", type=int, metavar="PORT", help="default: 8790; 0 takes a free one")
    parser.add_argument("--folder", metavar="PATH", help=f"where everything is kept; default: {USUAL}")
    parser.add_argument("--model", metavar="NAME", help="provider/model for sessions of this server")
    parser.add_argument(
        "--window", type=int, metavar="TOKENS", help="what the model holds, if you know better"
    )
    told = "any other setting, such as server.grace=10; again for another one"
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=told)


def serve(given: argparse.Namespace) -> int:
    """Serve until a signal comes; the answer is the exit code."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise FovealError(
            f"this needs {', '.join(missing)}, not installed here: {sys.executable} -m pip install 'foveal[server]'"
        )
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(given))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(given: argparse.Namespace) -> int:
    from foveal.apps.http import json_logs
    from foveal.apps.http.banner import greeting, say
    from foveal.apps.http.listener import bound, url_of
    from foveal.apps.http.shutdown import ShutdownState, StopSignal, end
    from foveal.config import load
    from foveal.server import Service

    config = load(flags=_flags(given))
    _open_many_files()
    async with AsyncExitStack() as stack:
        listener = bound(config.get("server.host"), config.get("server.port"))
        stack.callback(listener.close)
        service = await stack.enter_async_context(Service.open(config))
        await _safe(service)
        json_logs.to_stderr()
        asyncio.get_running_loop().set_exception_handler(_lost)
        stop, ending = StopSignal(), ShutdownState()
        stop.listen()
        if not await fetched(service, stop):
            return 0
        warm(config)
        upstreams, bots = await stack.enter_async_context(_running(service, listener, ending))
        url = url_of(listener)
        told = await greeting(service, url, upstreams=upstreams, chats=await _chats(service, bots))
        say("\n".join([*told, *(f"  note      {note}" for note in config.notes)]))
        json_logs.tell("listening", {"url": url, "pid": os.getpid()})
        await stop.asked.wait()
        json_logs.tell("stopping")
        for bot in bots:
            await bot.stop_listening()
        await end(service, ending, stop, grace=config.get("server.grace"))
    json_logs.tell("stopped")
    return 0


def _flags(given: argparse.Namespace) -> dict[str, Any]:
    flags: dict[str, Any] = {
        "server.host": given.host,
        "server.port": given.port,
        "server.folder": given.folder,
        "model": given.model,
        "window": given.window,
    }
    for setting in given.set:
        name, equals, value = setting.partition("=")
        if not equals:
            raise BadSetting("--set", setting, "KEY=VALUE, such as server.grace=10")
        flags[name.strip()] = value.strip()
    return flags


def _open_many_files() -> None:
    """As many as the system lets us, within reason: each stream takes two, and each tenant some."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        few, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = FILES if most == resource.RLIM_INFINITY else min(FILES, most)
        if few != resource.RLIM_INFINITY and few < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def _lost(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What no task has caught: told by its type, since its words may be a message's."""
    from foveal.apps.http import json_logs

    json_logs.tell("error", level=logging.ERROR, problem=context.get("exception"))


async def _safe(service: Service) -> None:
    """Nobody serves the world without a token, nor a model that was named and cannot be asked. This is also the
    first look into the file."""
    from foveal.apps.http.banner import named_folder
    from foveal.apps.http.http_headers import is_loopback
    from foveal.apps.http.token_command import command
    from foveal.server.auth_tokens import AuthTokens

    host = service.ground.config.get("server.host")
    if not await AuthTokens(service.ground.database).any() and not is_loopback(host):
        create = command("token create", named_folder(service))
        raise FovealError(
            f"{host} can be reached from other machines, and there is no token yet: {create} makes one"
        )
    if service.ground.config.get("model"):
        service.ground.provider("")


async def fetched(service: Service, stop: StopSignal) -> bool:
    """Have the local model on the disk, if there is no other; False when the user would not wait for it."""
    from foveal.apps.http.banner import FetchProgress, say, to_fetch
    from foveal.apps.http.shutdown import first_of

    service.ground.fetching = FetchProgress()
    provider = to_fetch(service)
    if provider is None:
        return True
    say(f"{provider.name} answers in sessions here, and is not on this machine yet. It is fetched now, once:")
    try:
        return await first_of(provider.start(), stop.asked)
    except ProviderError as problem:
        say(f"it could not be fetched, and will be tried again when it is asked: {problem}")
        return True


@asynccontextmanager
async def _running(
    service: Service, listener: socket, ending: ShutdownState
) -> AsyncIterator[tuple[Upstreams, list[RunningBot]]]:
    """Everything, in the order in which it can begin, and ends the other way round."""
    from foveal.apps.http.app import app
    from foveal.apps.http.listener import listening
    from foveal.apps.http.proxy import Upstreams
    from foveal.server.jobs import JobWorker

    async with AsyncExitStack() as stack:
        bots = await _gateways(service, stack)  # before anything is answered that they have to tell
        work = await stack.enter_async_context(JobWorker.open(service))
        upstreams = Upstreams(service)
        stack.push_async_callback(upstreams.close)
        made = app(service, upstreams=upstreams, work=work, ending=ending)
        await service.recover()
        await stack.enter_async_context(listening(made, listener))
        yield upstreams, bots


async def _gateways(service: Service, stack: AsyncExitStack) -> list[RunningBot]:
    """The bots of the chat apps that there are tokens for."""
    from foveal.server.pairing import Pairing

    ground = service.ground
    pairing = Pairing(ground.database)
    bots: list[RunningBot] = []
    if ground.environment.get("TELEGRAM_BOT_TOKEN", "").strip():
        from foveal.apps.gateways.telegram import telegram

        bot = telegram(service, pairing, ground.config, ground.environment)
        bots.append(await stack.enter_async_context(bot))
    if ground.environment.get("DISCORD_BOT_TOKEN", "").strip():
        from foveal.apps.gateways.discord import discord

        other = discord(service, pairing, ground.config, ground.environment)
        bots.append(await stack.enter_async_context(other))
    return bots


async def _chats(service: Service, bots: Sequence[RunningBot]) -> str:
    """How the bots stand."""
    from foveal.apps.gateways.gateway import connection_states
    from foveal.apps.http.banner import named_folder
    from foveal.apps.http.token_command import command

    def pair(face: str) -> str:
        return command(f"pair {face}", named_folder(service))

    return ", ".join(await connection_states(bots, pair=pair))
