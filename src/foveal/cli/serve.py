"""`foveal serve`: service, background jobs, HTTP server and chat bots in one process.

1. The steps that can fail come first (configuration, address, folder, token), so the process either serves or exits
   with one sentence that says why.
2. SIGTERM or SIGINT begins the shutdown, which `foveal.server.http.shutdown` describes; SIGHUP reloads the
   configuration (`config_reload`).
3. Imports are inside the functions: the command line loads this module for every command, also without the packages
   of `foveal[server]`.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from foveal.errors import BadSetting, FovealError

if TYPE_CHECKING:
    import argparse
    from asyncio import AbstractEventLoop, Future
    from socket import socket

    from foveal.agent.tool import Tool
    from foveal.config import Config
    from foveal.inspector.app import Inspector
    from foveal.server import Service
    from foveal.server.gateways.gateway import RunningBot
    from foveal.server.http.shutdown import ShutdownState, StopSignal
    from foveal.server.jobs import JobWorker
    from foveal.server.proxy.upstreams import Upstreams

# ── Warm-up ───────────────────────────────────────────────────────────────────────────────────────

WARM_UP_TEXT: Final = (
    'def main(): return {"id": 12, "name": "Ørsted"}  # 2026-01-01T00:00:00Z, https://a.example/b?c=d\n'
)


def warm_up(config: Config) -> None:
    """Load the vocabulary, model tables and patterns that the first request would wait for. Raises `BadSetting`."""
    from foveal.core.models.model import counter_for, model
    from foveal.core.redaction import redact

    counter_for(config.get("model") or "", config.get("tokenizer") or "auto").count(WARM_UP_TEXT)
    model("gpt-4.1")
    redact.scrub(WARM_UP_TEXT)


# ── Command ───────────────────────────────────────────────────────────────────────────────────────

COMMANDS: Final = ("serve",)
REQUIRED_PACKAGES: Final = ("starlette", "uvicorn", "aiohttp", "prometheus_client", "dbos")
DEFAULT_FOLDER: Final = "~/.local/share/foveal/server"
EPILOG: Final = """`foveal config` shows all settings and where each was set. The server also reads the API keys and
addresses of providers from the environment (OPENAI_API_KEY, OPENAI_BASE_URL, ANTHROPIC_API_KEY, ANTHROPIC_BASE_URL
and others), and TELEGRAM_BOT_TOKEN and DISCORD_BOT_TOKEN, each of which starts a bot. Without an API key, a small
local model answers, if the extra `local` is installed; the first request that needs it downloads it."""
GC_THRESHOLDS: Final = (10_000, 2, 200)
"""New objects before a garbage collection, and collections before one of the next older generation. A collection
holds up all threads: one of the second generation looks at no more than 30,000 objects, which takes 8 ms."""
UNUSED_FOLDER: Final = "server.folder is not used: all data is in server.database"
BOT_TOKENS: Final = ("TELEGRAM_BOT_TOKEN", "DISCORD_BOT_TOKEN")
MAX_OPEN_FILES: Final = 65_536
"""The limit that the process asks for: a stream takes two files, a tenant several."""


def add_commands(commands: Any) -> None:
    """Add the command to the parser."""
    about = "serve sessions and drop-in endpoints over HTTP, Telegram and Discord"
    parser = commands.add_parser("serve", help=about, description=about, epilog=EPILOG)
    parser.add_argument(
        "--host", metavar="ADDRESS", help="the address to listen on; default: this machine only"
    )
    parser.add_argument(
        "--port", type=int, metavar="PORT", help="the port to listen on; default: 8790; 0 takes a free port"
    )
    parser.add_argument(
        "--folder",
        metavar="PATH",
        help=f"the folder for all data, in place of a configured database too; default: {DEFAULT_FOLDER}",
    )
    parser.add_argument(
        "--database", metavar="URL", help="a PostgreSQL database in place of the folder (FOVEAL_DATABASE)"
    )
    parser.add_argument("--model", metavar="NAME", help="provider/model for sessions of this server")
    parser.add_argument("--window", type=int, metavar="TOKENS", help="the context window of the model")
    about_set = "any other setting, such as server.grace=10; can be repeated"
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=about_set)
    about_attached = (
        "for a program that starts the server: print only the URL to standard output, stop when standard input "
        "closes, and start no bot"
    )
    parser.add_argument("--attached", action="store_true", help=about_attached)


def serve(args: argparse.Namespace) -> int:
    """Serve until a stop signal, and return the exit code."""
    from asyncio import Runner

    from foveal.sessions.offload import SWITCH_INTERVAL_S

    missing = [name for name in REQUIRED_PACKAGES if find_spec(name) is None]
    if missing:
        raise FovealError(
            f"`foveal serve` needs {', '.join(missing)}: run {sys.executable} -m pip install 'foveal[server]'"
        )
    # Threads of the store and of long sessions compete with the event loop, which needs many turns per request.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(args))


def _loop_factory() -> Callable[[], AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(args: argparse.Namespace) -> int:
    from asyncio import get_running_loop

    from foveal.cli.banner import ModelDownloadPrinter, banner_lines, print_line
    from foveal.cli.config_reload import ConfigReload
    from foveal.config import load
    from foveal.server import Service
    from foveal.server.http import json_logs
    from foveal.server.http.shutdown import ShutdownState, StopSignal, shut_down
    from foveal.web.listener import bind, url_of

    def read() -> Config:
        return load(flags=_flags(args), project=False)  # a server belongs to no project

    config = read()
    _raise_open_files_limit()
    async with AsyncExitStack() as stack:
        listener = bind(config.get("server.host"), config.get("server.port"))
        stack.callback(listener.close)
        environment = {
            name: value for name, value in os.environ.items() if not args.attached or name not in BOT_TOKENS
        }
        service = await stack.enter_async_context(Service.open(config, environment=environment))
        await _check_before_serving(service)
        json_logs.log_to_stderr()
        get_running_loop().set_exception_handler(_log_uncaught)
        stop, shutdown = StopSignal(), ShutdownState()
        stop.listen()
        if args.attached:
            _stop_with_standard_input(stop)
        service.runtime.report_downloads_to(ModelDownloadPrinter())
        warm_up(config)
        deletes_webhook = await _agrees_to_delete_webhook(service, stop)
        components = _running_components(service, listener, shutdown, deletes_webhook=deletes_webhook)
        running = await stack.enter_async_context(components)
        bots = running.bots
        reload = ConfigReload(
            service, running.worker, read=read, check=_check_again(service), stop=stop.request
        )
        reload.listen()
        url = url_of(listener)
        lines = await banner_lines(
            service, url, upstreams=running.upstreams, chats=await _bots_text(service, bots)
        )
        print_line("\n".join([*lines, *(f"  note      {note}" for note in startup_notes(config))]))
        _collect_less_garbage()
        json_logs.log_event("listening", {"url": url, "pid": os.getpid()})
        if args.attached:
            print(url, flush=True)
        notify_service_manager("READY=1")
        await stop.requested.wait()
        json_logs.log_event("stopping")
        notify_service_manager("STOPPING=1")
        if service.runtime.storage.folder is None:  # load balancers connect to another server instead
            running.stop_listening()
        running.inspector.end_streams()  # they would last for the whole grace period
        for bot in bots:
            await bot.stop_listening()
        await shut_down(service, shutdown, stop, grace=service.runtime.config.get("server.grace"))
    json_logs.log_event("stopped")
    return 0


def notify_service_manager(state: str) -> None:
    """Tell systemd the state of a service with `Type=notify`; without it, do nothing."""
    from socket import AF_UNIX, SOCK_DGRAM, socket

    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with suppress(OSError), socket(AF_UNIX, SOCK_DGRAM) as connection:
            connection.sendto(state.encode(), f"\0{address[1:]}" if address.startswith("@") else address)


def _stop_with_standard_input(stop: StopSignal) -> None:
    """Request the stop when the program that has started the server closes its end of the pipe, or dies."""
    from asyncio import get_running_loop

    loop, number = get_running_loop(), sys.stdin.fileno()

    def read() -> None:
        if not os.read(number, 4_096):
            loop.remove_reader(number)
            stop.request()

    loop.add_reader(number, read)


def startup_notes(config: Config) -> list[str]:
    """Return which settings are not used, and why."""
    is_unused = config.get("server.database") and config.get("server.folder")
    return [*config.notes, *([UNUSED_FOLDER] if is_unused else [])]


def _flags(args: argparse.Namespace) -> dict[str, Any]:
    from foveal.config import setting_flags

    flags: dict[str, Any] = {
        "server.host": args.host,
        "server.port": args.port,
        "server.folder": args.folder,
        "server.database": args.database,
        "model": args.model,
        "window": args.window,
    }
    return flags | setting_flags(args.set)


def _raise_open_files_limit() -> None:
    """Raise the soft limit of open files to `MAX_OPEN_FILES`, as far as the hard limit allows."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(MAX_OPEN_FILES, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _collect_less_garbage() -> None:
    """Exclude what was loaded until now from garbage collection, and collect less often.

    Otherwise collections look at all modules again and again, which takes a tenth of the CPU time of a request."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def _log_uncaught(loop: AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an exception that no task caught, by its type: its message may contain text of a conversation."""
    from logging import ERROR

    from foveal.server.http import json_logs

    json_logs.log_event("error", level=ERROR, problem=context.get("exception"))


async def _check_before_serving(service: Service) -> None:
    """Raise `FovealError` if other machines could connect without a token, or the configured model cannot be used.

    This is also the first read of the database.
    """
    from foveal.cli.banner import explicit_folder
    from foveal.cli.server_commands import shell_command
    from foveal.server.auth_tokens import AuthTokens
    from foveal.web.http_headers import is_loopback

    host = service.runtime.config.get("server.host")
    if not await AuthTokens(service.runtime.database).any_exist() and not is_loopback(host):
        create = shell_command("token create", explicit_folder(service))
        raise FovealError(
            f"{host} can be reached from other machines, and there is no token yet: {create} creates one"
        )
    if service.runtime.config.get("model"):
        service.runtime.provider("")
    await service.runtime.audit.record_config(service.runtime.config)


def _check_again(service: Service) -> Callable[[Config], None]:
    """Return what raises `FovealError` if the server could not start with a configuration."""

    def check(config: Config) -> None:
        warm_up(config)
        service.runtime.check_provider(config)

    return check


class RunningComponents(NamedTuple):
    upstreams: Upstreams
    worker: JobWorker
    bots: list[RunningBot]
    inspector: Inspector
    stop_listening: Callable[[], None]


@asynccontextmanager
async def _running_components(
    service: Service, listener: socket, shutdown: ShutdownState, *, deletes_webhook: bool
) -> AsyncIterator[RunningComponents]:
    """Start all components in the order of their dependencies, and stop them in the reverse order."""
    from foveal.cli.served_inspector import served_inspector
    from foveal.server.http.app import app
    from foveal.server.jobs import JobWorker
    from foveal.server.proxy.upstreams import Upstreams
    from foveal.web.listener import run_server

    async with AsyncExitStack() as stack:
        # Before the worker and HTTP, whose turns they report.
        bots = await _start_bots(service, stack, deletes_webhook=deletes_webhook)
        worker = await stack.enter_async_context(JobWorker.open(service))
        upstreams = Upstreams(service)
        stack.push_async_callback(upstreams.close)
        inspector = served_inspector(service)
        asgi_app = app(
            service,
            upstreams=upstreams,
            worker=worker,
            shutdown=shutdown,
            gateways=lambda: [bot.health() for bot in bots],
            pages=inspector,
        )
        await service.recover()
        stop_listening = await stack.enter_async_context(run_server(asgi_app, listener))
        yield RunningComponents(upstreams, worker, bots, inspector, stop_listening)


async def _agrees_to_delete_webhook(service: Service, stop: StopSignal) -> bool:
    """Ask at a terminal whether to delete a webhook that another program has set for the Telegram bot."""
    runtime = service.runtime
    token = runtime.environment.get("TELEGRAM_BOT_TOKEN", "").strip()
    if not token or not sys.stdin.isatty() or runtime.config.get("telegram.webhook") == "delete":
        return False
    from foveal.server.gateways.telegram import webhook_host
    from foveal.server.http.shutdown import finishes_before

    host = await webhook_host(runtime.config, runtime.environment)
    if not host:
        return False
    answer = await_line(f"Telegram sends the bot's messages to a webhook at {host}. Delete it? [y/N] ")
    return await finishes_before(answer, stop.requested) and answer.result().strip().lower() in ("y", "yes")


def await_line(question: str) -> Future[str]:
    """Print a question and return a future of the line that the user types; a stop signal can cancel it."""
    from asyncio import get_running_loop

    print(question, end="", flush=True)
    loop = get_running_loop()
    line: Future[str] = loop.create_future()

    def read() -> None:
        if not line.done():
            line.set_result(sys.stdin.readline())

    loop.add_reader(sys.stdin.fileno(), read)
    line.add_done_callback(lambda _: loop.remove_reader(sys.stdin.fileno()))
    return line


async def _start_bots(service: Service, stack: AsyncExitStack, *, deletes_webhook: bool) -> list[RunningBot]:
    """Start the bots of the chat apps whose tokens are in the environment."""
    from foveal.server.pairing import Pairing

    runtime = service.runtime
    pairing = Pairing(runtime.database)
    for platform in ("telegram", "discord"):
        runtime.chat_tools[platform] = await chat_tools(runtime.config, platform, stack)
    bots: list[RunningBot] = []
    if runtime.environment.get("TELEGRAM_BOT_TOKEN", "").strip():
        from foveal.server.gateways.telegram import telegram

        bot = telegram(service, pairing, runtime.config, runtime.environment, deletes_webhook=deletes_webhook)
        bots.append(await stack.enter_async_context(bot))
    if runtime.environment.get("DISCORD_BOT_TOKEN", "").strip():
        from foveal.server.gateways.discord import discord

        other = discord(service, pairing, runtime.config, runtime.environment)
        bots.append(await stack.enter_async_context(other))
    return bots


async def chat_tools(config: Config, platform: str, stack: AsyncExitStack) -> list[Tool]:
    """Return the tools of the model in the chats of a chat app. The MCP servers among them run until the stack
    closes. Raises `BadSetting` for a folder or server that does not exist."""
    key = f"{platform}.tools"
    if not config.get(key):
        return []
    from pathlib import Path

    from foveal.agent.tools.files import file_tools, search_tool
    from foveal.agent.tools.mcp import McpServers
    from foveal.agent.tools.workspace import Workspace
    from foveal.cli.banner import print_line
    from foveal.server.fetch_tool import fetch_tool

    chosen = [entry.partition(":") for entry in config.get(key)]
    folders = [Path(rest) for kind, _, rest in chosen if kind == "files"]
    servers = {server.name: server for server in config.servers}
    names = [rest for kind, _, rest in chosen if kind == "mcp"]
    if missing := [str(folder) for folder in folders if not folder.is_dir()]:
        raise BadSetting(key, f"files:{missing[0]}", "a folder that exists")
    if missing := [name for name in names if name not in servers]:
        raise BadSetting(
            key, f"mcp:{missing[0]}", f"a server of [mcp]: {', '.join(servers) or 'none is set'}"
        )
    tools = [fetch_tool()] if any(kind == "fetch" for kind, _, _ in chosen) else []
    if folders:
        workspace = Workspace(folders[0], extra_folders=folders[1:])
        file_readers = (*file_tools(workspace), search_tool(workspace))
        tools += [tool for tool in file_readers if not tool.needs_approval]
    tables = {name: servers[name].fields for name in names}
    connected = await stack.enter_async_context(McpServers(tables, note=print_line))
    return [*tools, *connected.tools]


async def _bots_text(service: Service, bots: Sequence[RunningBot]) -> str:
    """Describe the state of each chat app for the startup message."""
    from foveal.cli.banner import explicit_folder
    from foveal.cli.server_commands import shell_command
    from foveal.server.gateways.gateway import connection_states

    def pair(platform: str) -> str:
        return shell_command(f"pair {platform}", explicit_folder(service))

    return ", ".join(await connection_states(bots, pair=pair))
