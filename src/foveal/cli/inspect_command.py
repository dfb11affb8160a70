"""`foveal inspect`: shows in a browser what the model sees of sessions, and changes it.

foveal inspect                       sessions of Claude Code, Codex, pi and Foveal in their default places
foveal inspect SESSION               one session, by its id
foveal inspect PATH|URL …            only these: stores, transcripts, folders of them, exported files
foveal inspect SESSION --export FILE  one HTML file that opens from disk
"""

from __future__ import annotations

import gc
import os
import sys
from argparse import SUPPRESS, Namespace
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from foveal.errors import BadSetting, FovealError

if TYPE_CHECKING:
    import socket

    from foveal.core.engine.settings import SettingArguments
    from foveal.inspector.export_data import ReportExport
    from foveal.inspector.sessions.collection import SessionCollection
    from foveal.inspector.sessions.source import ActionResult, OfferedWriter, SessionAction
    from foveal.policies import PolicyTables
    from foveal.ports import Provider
    from foveal.recall.archive import ArchiveSource

COMMANDS: Final = ("inspect",)
DEFAULT_INSPECT_PORT: Final = 8791
"""Taken if it is free, so that addresses in the browser's history stay valid."""
INSPECT_PACKAGES: Final = ("starlette", "uvicorn")
MIN_NEW_OBJECTS: Final = 100_000
"""New objects after which Python looks for garbage."""
LEDGER_WRITER_NAME: Final = "ledger"
MODEL_WRITER_NAME: Final = "model"
_NO_MODEL: Final = (
    "no model is configured that could write the summary: set `model` or a provider's key, or let it be written "
    "from the log"
)
_MAX_PORT: Final = 65_535
_MAX_PROBLEM_CHARS: Final = 500
_REFUSED_HOST: Final = (
    "foveal inspect listens on this machine only: to reach it from others, use foveal serve, "
    "whose /inspect asks for a token"
)


def add_commands(commands: Any) -> None:
    """Add the command to the parser."""
    about = "show in a browser what the model sees of a session and why, and change it"
    parser = commands.add_parser("inspect", help=about, description=about)
    help = (
        "a session id, a store, a transcript, or a folder of them; default: where Claude Code, Codex, pi and "
        "Foveal keep their sessions"
    )
    parser.add_argument("places", nargs="*", metavar="SESSION|PATH", help=help)
    help = "a store of Foveal: a file, a folder, or postgresql://user@host/database; may be repeated"
    parser.add_argument("--store", action="append", default=[], metavar="STORE", help=help)
    help = "the tenant whose sessions are read from a database; default: default"
    parser.add_argument("--tenant", default="default", metavar="NAME", help=help)
    help = "the context window of Foveal's sessions, if it is not the one of their model"
    parser.add_argument("--window", type=int, metavar="TOKENS", help=help)
    help = f"the port of 127.0.0.1 (0: a free one); default: {DEFAULT_INSPECT_PORT}, or a free one"
    parser.add_argument("--port", type=int, metavar="PORT", help=help)
    parser.add_argument("--no-open", action="store_true", help="do not open the browser")
    help = "write the session to a new HTML file that opens from disk, and exit"
    parser.add_argument("--export", type=Path, metavar="FILE", help=help)
    parser.add_argument("--force", action="store_true", help="overwrite the exported file if it exists")
    parser.add_argument("--host", help=SUPPRESS)


def inspect(args: Namespace) -> int:
    """Serve until Ctrl-C, or write the exported file."""
    missing = [name for name in INSPECT_PACKAGES if find_spec(name) is None]
    if missing:
        packages = ", ".join(missing)
        raise FovealError(
            f"foveal inspect needs {packages}: run {sys.executable} -m pip install 'foveal[inspect]'"
        )
    if args.host is not None:
        raise FovealError(_REFUSED_HOST)
    if args.port is not None and not 0 <= args.port <= _MAX_PORT:
        raise BadSetting("--port", args.port, f"a port from 0 to {_MAX_PORT:,}")
    if args.window is not None and args.window < 1:
        raise BadSetting("--window", args.window, "a whole number from 1")
    import asyncio

    _collect_garbage_rarely()
    return asyncio.run(_export(args) if args.export is not None else _serve(args))


def _collect_garbage_rarely() -> None:
    """Set thresholds of the garbage collector for a process that holds whole logs: each full collection looks at
    all of their events, and they are no garbage."""
    gc.freeze()
    gc.set_threshold(MIN_NEW_OBJECTS, 50, 50)


# ── Sessions ─────────────────────────────────────────────────────────────────────────────────────────────


def _sources(args: Namespace) -> tuple[list[ArchiveSource], list[str]]:
    """Return the places to read, and the arguments that name sessions in them."""
    from foveal.recall.archive.listing import find_sources

    places = [given for given in args.places if _is_place(given)]
    sessions = [given for given in args.places if given not in places]
    return find_sources([*places, *args.store], tenant=args.tenant), sessions


def _is_place(given: str) -> bool:
    """Return whether an argument is a path or URL, and not a session's id."""
    return "://" in given or os.sep in given or Path(given).exists()


def _collection(args: Namespace, sources: list[ArchiveSource]) -> SessionCollection:
    from foveal.inspector.sessions.collection import SessionCollection

    window = {} if args.window is None else {"window": args.window}
    return SessionCollection(sources, actor=ConfiguredActor(window=args.window), settings=window)


async def _meant_session(source: SessionCollection, sessions: list[str], *, is_place_given: bool) -> str:
    """Return the key of the one session that the arguments mean; "" if they mean several or all."""
    problems = await source.check() if is_place_given else []
    keys = [await _session_key(source, name) for name in sessions]
    if not keys and is_place_given:
        keys = await source.newest_keys(2)
        if not keys and problems:
            raise FovealError("; ".join(problems))
    _print_problems(problems)
    is_one = len(keys) == 1 and (bool(sessions) or not problems)  # the page with the list shows the problems
    return keys[0] if is_one else ""


async def _session_key(source: SessionCollection, name: str) -> str:
    from foveal.inspector.sessions.source import SessionMissing

    try:
        return await source.key_of(name)
    except SessionMissing as problem:
        raise FovealError(f"there is no file {name}; {problem}") from None


def _print_problems(problems: list[str]) -> None:
    from foveal.core.wire.safe_print import one_line

    for problem in problems:
        print(f"foveal: {one_line(problem, width=_MAX_PROBLEM_CHARS)}", file=sys.stderr, flush=True)


# ── Commands ─────────────────────────────────────────────────────────────────────────────────────────────


async def _serve(args: Namespace) -> int:
    from asyncio import Event, get_running_loop
    from signal import SIGINT, SIGTERM

    from foveal.inspector.loopback_server import LoopbackServer

    sources, sessions = _sources(args)
    source = _collection(args, sources)
    try:
        is_place_given = len(sessions) < len(args.places) or bool(args.store)
        session = await _meant_session(source, sessions, is_place_given=is_place_given)
        with _listen(args.port) as listener:
            server, stop = LoopbackServer(source, listener, policies=_configured_policies), Event()
            for number in (SIGINT, SIGTERM):
                get_running_loop().add_signal_handler(number, stop.set)
            async with server.running():
                print(f"foveal inspect: {server.url(session=session)} (Ctrl-C ends it)", flush=True)
                loading = get_running_loop().run_in_executor(None, _load_engine)
                if not args.no_open and _has_display():
                    _open_browser(server.url(session=session, is_single_use=True))
                await stop.wait()
                await loading
    finally:
        await source.close()
    return 0


def _load_engine() -> None:
    """Load what the first timeline needs, while the browser opens."""
    import foveal.inspector.timeline.builder  # noqa: F401
    from foveal.core.tokens.counter import counter

    counter("auto").count(" ")  # loads the vocabulary


async def _export(args: Namespace) -> int:
    from asyncio import to_thread

    from foveal.config.project import open_output
    from foveal.core.wire.safe_print import visible
    from foveal.inspector.export_data import export_html
    from foveal.inspector.open_logs import OpenLog

    sources, sessions = _sources(args)
    source = _collection(args, sources)
    try:
        is_place_given = len(sessions) < len(args.places) or bool(args.store)
        key = await _meant_session(source, sessions, is_place_given=is_place_given)
        if not key:
            raise FovealError("--export writes one session: name its id, or a file with one session")
        log = OpenLog(await source.open(key))
        events, counts, report = await log.events(), await log.reader.counts(), _export_progress()
        page = await to_thread(export_html, log.reader.about, events, counts=counts, report=report)
    finally:
        await source.close()
    with open_output(args.export, replaces=args.force, advice="name another file, or use --force") as file:
        file.write(page)
    if sys.stderr.isatty():
        print("\r" + " " * 20 + "\r", end="", file=sys.stderr, flush=True)
    print(f"{len(page):,} bytes written to {visible(str(args.export))}")
    return 0


def _export_progress() -> ReportExport:
    """Return a function that shows the progress on one line of a terminal, and nothing elsewhere."""
    shown = -1

    def report(done: int, total: int) -> None:
        nonlocal shown
        percent = 100 * done // max(1, total)
        if percent > shown:
            shown = percent
            print(f"\rexporting {percent} %", end="", file=sys.stderr, flush=True)

    return report if sys.stderr.isatty() else lambda done, total: None


def _listen(port: int | None) -> socket.socket:
    """Return a socket; without a port, any free one if the default port is taken."""
    from foveal.inspector.loopback_server import INSPECT_HOST
    from foveal.web.listener import bind

    if port is not None:
        return bind(INSPECT_HOST, port)
    try:
        return bind(INSPECT_HOST, DEFAULT_INSPECT_PORT)
    except FovealError:
        return bind(INSPECT_HOST, 0)


def _has_display() -> bool:
    """Return whether a browser can show a window: a browser in the terminal would take it over."""
    is_unix_desktop = sys.platform not in ("darwin", "win32")
    names = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER", "WSL_DISTRO_NAME")
    return not is_unix_desktop or any(os.environ.get(name) for name in names)


def _open_browser(url: str) -> None:
    """Open the browser in a thread of its own: some wait until it is closed."""
    import threading
    import webbrowser

    threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()


# ── Summaries ────────────────────────────────────────────────────────────────────────────────────────────


class ConfiguredActor:
    """A `SessionActor` with the user's configuration, which is read when something is summarised.

    1. Without a choice, the configured model writes. A model on this machine can take minutes, so then the ledger
       does.
    2. A provider is closed after each use, also when the action is cancelled, so no process of a local model
       remains."""

    def __init__(self, *, window: int | None = None) -> None:
        self._settings: SettingArguments = {} if window is None else {"window": window}

    def refusal(self, source: ArchiveSource) -> str:
        from foveal.inspector.sessions.source import store_refusal

        return store_refusal(source)

    async def writers(self) -> tuple[OfferedWriter, ...]:
        from asyncio import to_thread

        from foveal.inspector.sessions.source import OfferedWriter

        ledger = OfferedWriter(name=LEDGER_WRITER_NAME, title="from the log, without a model (at once)")
        provider = await to_thread(_summary_provider)
        if provider is None:
            return (ledger,)
        await provider.close()
        speed = ", on this machine (can take minutes)" if _is_local(provider) else ""
        writer = OfferedWriter(name=MODEL_WRITER_NAME, title=f"{provider.name}{speed}", calls_model=True)
        return (ledger, writer) if _is_local(provider) else (writer, ledger)

    async def act(self, source: ArchiveSource, session: str, action: SessionAction) -> ActionResult:
        from foveal.inspector.sessions.actions import StoreActor  # loads the engine

        provider = await _chosen_provider(action.writer) if action.operation == "compact" else None
        if provider is None:
            return await StoreActor(**self._settings).act(source, session, action)
        from foveal.providers.summariser import summariser_for

        try:
            actor = StoreActor(summarise=summariser_for(provider), **self._settings)
            return await actor.act(source, session, action)
        finally:
            await provider.close()


async def _chosen_provider(writer: str) -> Provider | None:
    """Return the provider of a writer, of the default one for ""; None for the ledger."""
    from asyncio import to_thread

    if writer not in ("", LEDGER_WRITER_NAME, MODEL_WRITER_NAME):
        raise BadSetting("writer", writer, f"{LEDGER_WRITER_NAME} or {MODEL_WRITER_NAME}")
    if writer == LEDGER_WRITER_NAME:
        return None
    provider = await to_thread(_summary_provider)
    if provider is None and writer == MODEL_WRITER_NAME:
        raise FovealError(_NO_MODEL)
    if provider is not None and not writer and _is_local(provider):
        await provider.close()
        return None
    return provider


def _is_local(provider: Provider) -> bool:
    from foveal.providers import LOCAL_SERVICE

    return provider.name.startswith(f"{LOCAL_SERVICE}/")


@cache
def _configured_policies() -> PolicyTables:
    """Return the tables `[policies.NAME]` of the user's configuration; none if it cannot be read."""
    from foveal.config import load

    with suppress(FovealError):
        return load(project=False).named_policies
    return {}


def _summary_provider() -> Provider | None:
    """Return the provider that writes summaries; None if none is configured, or its model must be downloaded."""
    from foveal.config import load  # these take as long to load as the whole inspector
    from foveal.config.config import provider_from_config

    with suppress(FovealError):
        config = load(project=False)  # a project's file must not choose where a session's text is sent
        name = config.summariser or None
        found = provider_from_config(config, name, environment=os.environ, progress=lambda _: None)
        if getattr(found, "is_downloaded", True):
            return found
    return None
