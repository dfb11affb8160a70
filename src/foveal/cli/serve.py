"""`foveal serve`: service, background jobs, HTTP server and chat bots in one process.

1. The steps that can fail come first (configuration, address, folder, token), so the process either serves or exits
   with one sentence that says why.
2. SIGTERM or SIGINT begins the shutdown, which `foveal.server.http.shutdown` describes.
3. Imports are inside the functions: the command line loads this module for every command, also without the packages
   of `foveal[server]`.
4. The inspector shows the sessions of all tenants (`ServedSessions`). Its actions go through the service's own live
   sessions, as those of the API do: a running turn and the inspector never write at the same time.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

from foveal import __version__
from foveal.cli.token_command import shell_command
from foveal.core.log.events import Dialect
from foveal.core.wire.safe_print import visible
from foveal.errors import FovealError, ProviderError
from foveal.inspector.app import Inspector, LoginRules
from foveal.inspector.browser_logins import BrowserLogins
from foveal.inspector.sessions.actions import action_result
from foveal.inspector.sessions.collection import SessionCollection
from foveal.inspector.sessions.source import ActionResult, OfferedWriter, SessionAction, SessionSource
from foveal.providers.selection import SERVICES
from foveal.recall.archive import ArchiveSource, StoreSource
from foveal.server import Service, Tenant
from foveal.server.auth_tokens import AuthTokens
from foveal.server.jobs.schedule import format_time
from foveal.server.jobs.schedule_store import ScheduleStore
from foveal.server.proxy.routes import Upstreams
from foveal.server.recently_used import RecentlyUsed
from foveal.web.http_headers import is_loopback

if TYPE_CHECKING:
    import argparse
    from asyncio import AbstractEventLoop, Future
    from socket import socket

    from foveal.config import Config
    from foveal.inspector.app import Inspector
    from foveal.server import Service
    from foveal.server.gateways.gateway import RunningBot
    from foveal.server.http.shutdown import ShutdownState, StopSignal
    from foveal.server.proxy.routes import Upstreams

MAX_OPEN_TENANTS: Final = 64
"""Tenants whose lists of sessions stay in memory after their last use."""
_HINT: Final = "Log in with a token of this server; foveal token create makes one."


class LiveActor:
    """A `SessionActor` for one tenant."""

    def __init__(self, tenant: Tenant) -> None:
        self._tenant = tenant

    def refusal(self, source: ArchiveSource) -> str:
        return ""

    async def writers(self) -> tuple[OfferedWriter, ...]:
        return ()  # the agent's own model writes

    async def act(self, source: ArchiveSource, session: str, action: SessionAction) -> ActionResult:
        live = await self._tenant.session(session)
        return await action_result(live.session, action, await live.perform(action))


class _OpenTenant(NamedTuple):
    tenant: Tenant
    """Held, because a tenant that is used nowhere closes its store."""
    sessions: SessionSource


class ServedSessions:
    """The sessions of all tenants of a service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._open: RecentlyUsed[str, _OpenTenant] = RecentlyUsed(MAX_OPEN_TENANTS)

    def of(self, name: str) -> SessionSource:
        """Return the sessions of a tenant."""
        found = self._open.get(name)
        if found is None:
            tenant = self._service.tenant(name)
            window = self._service.runtime.config.get("window")
            found = _OpenTenant(
                tenant,
                SessionCollection(
                    [StoreSource(tenant.store, f"tenant {name}")],
                    actor=LiveActor(tenant),
                    settings={} if window is None else {"window": window},
                ),
            )
        self._open.add(name, found)
        return found.sessions


def served_inspector(service: Service) -> Inspector:
    """Return the inspector of a server, which asks for the server's own tokens."""
    tokens = AuthTokens(service.runtime.database)

    async def check(token: str) -> bool:
        return await tokens.authenticate(token) is not None

    return Inspector(ServedSessions(service).of, BrowserLogins(check), LoginRules(_HINT, has_form=True))


WILDCARD_HOSTS: Final = ("0.0.0.0", "::", "")
"""Values of `server.host` that mean every address of this machine."""
_EXAMPLE_CLIENT_KEY: Final = ((b"authorization", b"Bearer a-client's-own-key"),)
"""Headers of a client that sends a provider's key."""


def print_line(text: str) -> None:
    """Print to standard error, with control characters escaped."""
    print(visible(text), file=sys.stderr, flush=True)


async def banner_lines(service: Service, url: str, *, upstreams: Upstreams, chats: str) -> list[str]:
    """Return the lines of the message; `chats` describes the bots."""
    runtime = service.runtime
    host = runtime.config.get("server.host")
    everywhere = ", and on every other address of this machine" if host in WILDCARD_HOSTS else ""
    lines = [
        f"foveal {__version__} listening on {url}{everywhere}",
        f"  model     {_model_text(service)}",
        f'  drop-in   OpenAI(base_url="{url}/v1") → {await _upstream(service, upstreams, "openai")}',
        f'            Anthropic(base_url="{url}") → {await _upstream(service, upstreams, "anthropic")}',
        f"  tokens    {await _tokens_text(service)}",
        f"  {_storage_text(service)}",
        f"  chats     {chats}",
        f"  inspector {url}/inspect/; API: /openapi.json; health: /healthz; metrics: /metrics",
    ]
    if not is_loopback(host):
        names = ", ".join(runtime.config.get("server.hosts")) or "none"
        lines.insert(5, f"  hosts     localhost, the addresses of this machine, and server.hosts ({names})")
    if runtime.config.schedules:
        lines.insert(-1, f"  schedules {await _schedules_text(service)}")
    return lines


def _model_text(service: Service) -> str:
    try:
        provider = service.runtime.provider("")
    except FovealError as problem:
        return f"none: only the drop-in endpoints work; set --model provider/model ({problem})"
    return f"{provider.name}, {provider.model.window:,} tokens"


async def _upstream(service: Service, upstreams: Upstreams, api: Literal["openai", "anthropic"]) -> str:
    """Return the host that drop-in requests go to, without credentials of its URL."""
    dialect: Dialect = "anthropic" if api == "anthropic" else "openai_chat"
    target = await upstreams.target(dialect, _EXAMPLE_CLIENT_KEY)
    host = urlsplit(target.url).netloc.rpartition("@")[2]
    known = SERVICES[api]
    has_key = any(service.runtime.environment.get(name) for name in known.key_variables)
    if has_key or host != urlsplit(known.url).netloc:
        return host
    local = upstreams.local_model_name() if api == "openai" else ""
    return f"{host}, with the client's own key{local and f'; without one, {local}'}"


async def _tokens_text(service: Service) -> str:
    found = await AuthTokens(service.runtime.database).list()
    valid = [token for token in found if token.revoked is None]
    if not found:
        create = shell_command("token create", explicit_folder(service))
        return f"none: every program on this machine has access; {create} creates the first"
    tenants = {token.tenant for token in valid}
    return (
        f"{len(valid)} for {len(tenants)} tenant{'s' if len(tenants) != 1 else ''}; every request needs one"
    )


async def _schedules_text(service: Service) -> str:
    """Describe the configured schedules; the time of the next one shows a mistake in a cron field."""
    configured = service.runtime.config.schedules
    store = ScheduleStore(service.runtime.database)
    states = [
        state
        for tenant in {schedule.tenant for schedule in configured}
        for state in await store.list(tenant)
        if state.schedule.source == "config"
    ]
    text = f"{len(configured)} in the configuration"
    if states:
        first = min(states, key=lambda state: state.next_due)
        text += f"; next: {first.schedule.name} at {format_time(first.next_due)}"
    return text


def explicit_folder(service: Service) -> Path | None:
    """Return the folder if it was set by a flag, so other commands need `--folder` too; otherwise None."""
    from_flag = service.runtime.config.source("server.folder").kind == "flag"
    return service.runtime.storage.folder if from_flag else None


def _storage_text(service: Service) -> str:
    storage = service.runtime.storage
    return (
        f"database  {storage.place}" if storage.folder is None else f"folder    {_short_path(storage.folder)}"
    )


def _short_path(path: Path) -> str:
    try:
        return f"~/{path.relative_to(Path.home())}"
    except ValueError:
        return str(path)


# ── Download of the local model ──────────────────────────────────────────────────────────────────────────


class ModelDownloadPrinter:
    """Prints the progress of the download, one line per `STEP` percent."""

    STEP: Final = 10.0

    def __init__(self) -> None:
        self._next = 0.0
        self._stage = ""

    def __call__(self, progress: Any) -> None:
        if progress.stage != self._stage:
            self._stage, self._next = progress.stage, 0.0
        if progress.stage == "fetching" and progress.percent >= self._next:
            self._next = progress.percent - progress.percent % self.STEP + self.STEP
            print_line(f"  {progress.done / 1e6:,.0f} of {progress.total / 1e6:,.0f} MB")


def model_to_download(service: Service) -> Any:
    """Return the local model if sessions of this server use it and it is not on the disk yet; otherwise None."""
    try:
        provider: Any = service.runtime.provider("")
    except FovealError:
        return None
    return provider if getattr(provider, "is_downloaded", True) is False else None


# ── Warm-up ───────────────────────────────────────────────────────────────────────────────────────

WARM_UP_TEXT: Final = (
    'def main(): return {"id": 12, "name": "Ørsted"}  # 2026-01-01T00:00:00Z, https://a.example/b?c=d\n'
)


def warm_up(config: Config) -> None:
    """Load the vocabulary, model tables and patterns that the first request would wait for. Raises `BadSetting`."""
    from foveal.core.models.model import model
    from foveal.core.models.vocabulary import counter_for
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
local model answers, if the extra `local` is installed."""
GC_THRESHOLDS: Final = (10_000, 2, 200)
"""New objects before a garbage collection, and collections before one of the next older generation. A collection
holds up all threads: one of the second generation looks at no more than 30,000 objects, which takes 8 ms."""
UNUSED_FOLDER: Final = "server.folder (--folder) is not used: all data is in server.database (--database)"
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
        "--folder", metavar="PATH", help=f"the folder for all data; default: {DEFAULT_FOLDER}"
    )
    parser.add_argument(
        "--database", metavar="URL", help="a PostgreSQL database in place of the folder (FOVEAL_DATABASE)"
    )
    parser.add_argument("--model", metavar="NAME", help="provider/model for sessions of this server")
    parser.add_argument("--window", type=int, metavar="TOKENS", help="the context window of the model")
    about_set = "any other setting, such as server.grace=10; can be repeated"
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=about_set)


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

    from foveal.config import load
    from foveal.server import Service
    from foveal.server.http import json_logs
    from foveal.server.http.shutdown import ShutdownState, StopSignal, shut_down
    from foveal.web.listener import bind, url_of

    config = load(flags=_flags(args), project=False)  # a server belongs to no project
    _raise_open_files_limit()
    async with AsyncExitStack() as stack:
        listener = bind(config.get("server.host"), config.get("server.port"))
        stack.callback(listener.close)
        service = await stack.enter_async_context(Service.open(config))
        await _check_before_serving(service)
        json_logs.log_to_stderr()
        get_running_loop().set_exception_handler(_log_uncaught)
        stop, shutdown = StopSignal(), ShutdownState()
        stop.listen()
        if not await download_local_model(service, stop):
            return 0
        warm_up(config)
        deletes_webhook = await _agrees_to_delete_webhook(service, stop)
        components = _running_components(service, listener, shutdown, deletes_webhook=deletes_webhook)
        running = await stack.enter_async_context(components)
        bots = running.bots
        url = url_of(listener)
        lines = await banner_lines(
            service, url, upstreams=running.upstreams, chats=await _bots_text(service, bots)
        )
        print_line("\n".join([*lines, *(f"  note      {note}" for note in startup_notes(config))]))
        _collect_less_garbage()
        json_logs.log_event("listening", {"url": url, "pid": os.getpid()})
        await stop.requested.wait()
        json_logs.log_event("stopping")
        if service.runtime.storage.folder is None:  # load balancers connect to another server instead
            running.stop_listening()
        running.inspector.end_streams()  # they would last for the whole grace period
        for bot in bots:
            await bot.stop_listening()
        await shut_down(service, shutdown, stop, grace=config.get("server.grace"))
    json_logs.log_event("stopped")
    return 0


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
    from foveal.cli.token_command import shell_command
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


async def download_local_model(service: Service, stop: StopSignal) -> bool:
    """Download the local model if sessions use it; return False if a stop signal came before the end."""
    from foveal.server.http.shutdown import finishes_before

    service.runtime.report_downloads_to(ModelDownloadPrinter())
    provider = model_to_download(service)
    if provider is None:
        return True
    print_line(
        f"Sessions of this server use {provider.name}, which is not on this machine yet. Downloading it once:"
    )
    try:
        return await finishes_before(provider.start(), stop.requested)
    except ProviderError as problem:
        print_line(f"the download failed; the next request to the model tries again: {problem}")
        return True


class RunningComponents(NamedTuple):
    upstreams: Upstreams
    bots: list[RunningBot]
    inspector: Inspector
    stop_listening: Callable[[], None]


@asynccontextmanager
async def _running_components(
    service: Service, listener: socket, shutdown: ShutdownState, *, deletes_webhook: bool
) -> AsyncIterator[RunningComponents]:
    """Start all components in the order of their dependencies, and stop them in the reverse order."""
    from foveal.server.http.app import app
    from foveal.server.jobs import JobWorker
    from foveal.server.proxy.routes import Upstreams
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
        yield RunningComponents(upstreams, bots, inspector, stop_listening)


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


async def _bots_text(service: Service, bots: Sequence[RunningBot]) -> str:
    """Describe the state of each chat app for the startup message."""
    from foveal.cli.token_command import shell_command
    from foveal.server.gateways.gateway import connection_states

    def pair(platform: str) -> str:
        return shell_command(f"pair {platform}", explicit_folder(service))

    return ", ".join(await connection_states(bots, pair=pair))
