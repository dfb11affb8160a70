"""`foveal wrap` and `foveal unwrap`: a coding agent whose requests go through a server.

foveal wrap claude [-- ARGS]      start the agent; nothing is written
foveal wrap claude --save         write the server's address to the agent's settings file
foveal unwrap claude              take that back

1. A run uses the server at `--url`, else one of this user at the configured port, else it starts one for the run.
2. A server that was started ends with the run, also if this process is killed: it ends when its input closes.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from foveal.errors import BadSetting, FovealError

if TYPE_CHECKING:
    from signal import Signals
    from subprocess import Popen
    from typing import TypeAlias

    from foveal.cli.wrap.coding_agents import CodingAgent, WrappedServer
    from foveal.cli.wrap.settings_file import SettingsFile

    SignalHandler: TypeAlias = Callable[[Popen[bytes], int], None]

COMMANDS: Final = ("wrap", "unwrap")
AGENT_NAMES: Final = ("claude", "codex", "opencode", "aider")
PROBE_TIMEOUT_S: Final = 5.0
MAX_PROBED_BYTES: Final = 16_384
SERVER_END_TIMEOUT_S: Final = 15.0
"""How long a started server may take to end after its agent, before it is killed."""
STARTED_GRACE_S: Final = 5
"""`server.grace` of a started server."""
MAX_LOG_BYTES: Final = 10_000_000
"""A longer log of earlier runs is deleted."""


def add_commands(commands: Any) -> None:
    """Add the commands to the parser."""
    about = "run a coding agent through a server that keeps its requests inside the window"
    wrap = commands.add_parser("wrap", help=about, description=about)
    wrap.add_argument("agent", nargs="?", choices=AGENT_NAMES, help="the program of the agent")
    wrap.add_argument("arguments", nargs="*", metavar="ARGS", help="arguments of the agent, after `--`")
    help = (
        "the server; default: the one of this user at server.port, else a new one for this run. "
        "FOVEAL_TOKEN is the token for it"
    )
    wrap.add_argument("--url", metavar="URL", default="", help=help)
    help = "write the address to the agent's settings file for all later runs, and do not start the agent"
    wrap.add_argument("--save", action="store_true", help=help)
    wrap.add_argument("--yes", action="store_true", help="with --save: do not ask before writing")
    help = "use the server even if it forwards to another address than the one the agent is set to"
    wrap.add_argument("--any-upstream", action="store_true", help=help)
    about = "take back what `foveal wrap --save` has written to the settings of a coding agent"
    unwrap = commands.add_parser("unwrap", help=about, description=about)
    unwrap.add_argument("agent", nargs="?", choices=AGENT_NAMES, help="the program of the agent")


def wrap(args: Namespace) -> int:
    """Start the agent and return its exit code, or write its settings."""
    import os

    from foveal.cli.wrap.coding_agents import AGENTS

    _check_agent(args)
    if args.save and args.arguments:
        raise BadSetting("--save", "with arguments of the agent", "alone: it does not start the agent")
    agent = AGENTS[args.agent]
    file = _settings_file(agent, args.agent, os.environ)
    try:
        return _save(agent, file, args) if args.save else _run(agent, file, args)
    except KeyboardInterrupt:  # of a question, or while the server starts
        return 130


def unwrap(args: Namespace) -> int:
    """Restore the settings files of the agent."""
    from foveal.cli.wrap.coding_agents import AGENTS
    from foveal.cli.wrap.settings_file import SettingsFile

    _check_agent(args)
    title = AGENTS[args.agent].title
    files = list(SettingsFile.changed(_records(), args.agent))
    if not files:
        print(f"{title} is not wrapped: there is nothing to take back")
    for file in files:
        before = file.content
        with _about(file):
            restored = file.restore()
        if restored.is_exact:
            removed = restored.content is None and before is not None
            print(f"{file.path} is {'removed' if removed else 'as it was before'}")
            continue
        print(f"{file.path} has changed since, so only Foveal's settings were taken back:")
        _print_diff(file, before, restored.content)
        for path in restored.changed_by_user:
            print(f"  {'.'.join(path)} stays: it has another value now")
    return 0


def _check_agent(args: Namespace) -> None:
    if args.agent is None:
        raise FovealError(f"which agent? foveal {args.command} {{{'|'.join(AGENT_NAMES)}}}")


# ── Settings ─────────────────────────────────────────────────────────────────────────────────────────────


def _records() -> Path:
    from foveal.user_paths import state_folder

    return state_folder() / "wrap"


def _settings_file(agent: CodingAgent, name: str, environ: Mapping[str, str]) -> SettingsFile:
    from foveal.cli.wrap.settings_file import SettingsFile

    return SettingsFile(agent.settings_file(environ).absolute(), _records(), name)


@contextmanager
def _about(file: SettingsFile) -> Iterator[None]:
    """Name the file in the message of an error."""
    try:
        yield
    except FovealError as problem:
        if str(file.path) in str(problem):
            raise
        raise FovealError(f"{file.path}: {problem}") from None


def _save(agent: CodingAgent, file: SettingsFile, args: Namespace) -> int:
    import os

    from foveal.config import load
    from foveal.core.wire.safe_print import visible

    url = args.url or f"http://127.0.0.1:{load(project=False).get('server.port')}"
    server = _reached(url)
    with _about(file):
        own_urls = _own_urls(agent, file, server.url)
        upstreams = _check_upstreams(agent, own_urls, server.url, any_upstream=args.any_upstream)
        record = file.planned(agent.settings(server, file.find, os.environ))
    if record.after == file.content and file.record is not None:
        print(f"{agent.title} goes through {server.url} already: {file.path}")
        return 0
    _print_diff(file, file.content, record.after)
    if not args.yes and not _agrees(f"Write {file.path}? [y/N] "):
        print("nothing was written")
        return 1
    file.write(record, is_secret=bool(server.token) and server.token.encode() in record.after)
    print(f"{agent.title} goes through {server.url}; `foveal unwrap {args.agent}` takes that back")
    for variable, upstream in own_urls.items():
        print(visible(f"note: it used {upstream} before; the server forwards to {upstreams[variable]}"))
    return 0


def _agrees(question: str) -> bool:
    if not sys.stdin.isatty():
        raise FovealError("this needs a yes, and there is no terminal to ask: add --yes")
    return input(question).strip().lower() in ("y", "yes")


def _print_diff(file: SettingsFile, before: bytes | None, after: bytes | None) -> None:
    """Print what changes in a file, without its secrets."""
    from difflib import unified_diff

    from foveal.core.redaction import redact
    from foveal.core.wire.safe_print import visible

    old, new = ((content or b"").decode("utf-8", "replace").splitlines() for content in (before, after))
    lines = unified_diff(old, new, str(file.path), str(file.path), lineterm="")
    print(visible(redact.scrub("\n".join(lines))))


# ── The server ───────────────────────────────────────────────────────────────────────────────────────────


def _reached(url: str) -> WrappedServer:
    """Return the server at a URL, with the token of the environment; raises `FovealError` if it cannot be used."""
    import os

    from foveal.cli.wrap.coding_agents import TOKEN_VARIABLE, WrappedServer

    url = url.rstrip("/").removesuffix("/v1")
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if _get(f"{url}/healthz") not in (200, 503):
        raise FovealError(f"there is no Foveal server at {url}: start it with `foveal serve`, or set --url")
    if _get(f"{url}/api/sessions?limit=1", token) in (401, 403):
        state = "does not accept the token" if token else "needs a token"
        raise FovealError(
            f"the server at {url} {state}: set {TOKEN_VARIABLE} (`foveal token create` makes one)"
        )
    return WrappedServer(url, token)


def _own_urls(agent: CodingAgent, file: SettingsFile, server_url: str) -> dict[str, str]:
    """Return the addresses that the agent is set to, in its files or in the environment, by the variable of the
    server for them; the address of the server itself is none."""
    import os

    from foveal.cli.wrap.settings_file import SettingsFile

    found = {name: os.environ.get(name, "") for name in agent.url_variables}
    of_project = [Path(name).absolute() for name in agent.project_files]
    read = [SettingsFile(path, _records(), agent.program) for path in of_project if path.is_file()]
    for settings in (file, *read):
        found |= agent.own_urls(settings.find)
    return {name: url for name, url in found.items() if url and not _is_same(url, server_url)}


def _check_upstreams(
    agent: CodingAgent, own_urls: Mapping[str, str], server_url: str, *, any_upstream: bool
) -> dict[str, str]:
    """Return the addresses that the server forwards to, by variable. Raises `FovealError` if one of them is not
    that of the agent, because its key would go to another provider."""
    if not own_urls:
        return {}
    known = _json(f"{server_url}/healthz").get("upstreams") or {}
    upstreams = {name: known.get(_service(name)) or "an address that it does not say" for name in own_urls}
    for name, own_url in own_urls.items():
        if not any_upstream and not _is_same(own_url, upstreams[name]):
            raise FovealError(
                f"{agent.title} is set to {own_url}, and the server at {server_url} forwards to {upstreams[name]}, "
                f"which would get its key: start the server with --set server.{_service(name)}_url={own_url}, end "
                "it (then `foveal wrap` without --save starts one with that address), or add --any-upstream"
            )
    return upstreams


def _service(variable: str) -> str:
    return variable.partition("_")[0].lower()


def _is_same(url: str, other: str) -> bool:
    """Return whether two base URLs are the same address, credentials aside."""
    from urllib.parse import urlsplit

    def address(text: str) -> tuple[str, str]:
        parsed = urlsplit(text)
        host = parsed.netloc.rpartition("@")[2].lower().replace("localhost", "127.0.0.1")
        return host, parsed.path.rstrip("/").removesuffix("/v1")

    return address(url) == address(other)


def _json(url: str) -> dict[str, Any]:
    """Return the JSON object at a URL of the server; an empty one if there is none."""
    import json

    try:
        found = json.loads(_fetch(url)[1])
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _get(url: str, token: str = "") -> int:
    """Return the status of a response of Foveal; 0 if there is none, or if it is of another program."""
    status, body = _fetch(url, token)
    return status if not url.endswith("/healthz") or b'"sessions_open"' in body else 0


def _fetch(url: str, token: str = "") -> tuple[int, bytes]:
    """Return the status and the body of a response; 0 if there is none."""
    from urllib.error import HTTPError
    from urllib.parse import urlsplit
    from urllib.request import ProxyHandler, Request, build_opener

    from foveal.web.http_headers import is_loopback

    try:
        handlers = [ProxyHandler({})] if is_loopback(urlsplit(url).hostname or "") else []
        request = Request(url, headers={"X-Foveal-Token": token} if token else {})
        with build_opener(*handlers).open(request, timeout=PROBE_TIMEOUT_S) as response:
            return response.status, response.read(MAX_PROBED_BYTES)
    except HTTPError as refused:
        return refused.code, refused.read(MAX_PROBED_BYTES)
    except (OSError, ValueError):
        return 0, b""


@contextmanager
def _server(agent: CodingAgent, file: SettingsFile, args: Namespace) -> Iterator[WrappedServer]:
    """Yield the server for a run."""
    from foveal.config import load
    from foveal.core.wire.safe_print import visible

    port = load(project=False).get("server.port")
    url = args.url or f"http://127.0.0.1:{port}"
    if args.url or (_is_of_this_user(port) and _get(f"{url}/healthz") == 200):
        server = _reached(url)
        with _about(file):
            own_urls = _own_urls(agent, file, server.url)
        upstreams = _check_upstreams(agent, own_urls, server.url, any_upstream=args.any_upstream)
        for variable, own_url in own_urls.items():
            if not _is_same(own_url, upstreams[variable]):
                text = f"{agent.title} is set to {own_url}; the server forwards to {upstreams[variable]}"
                print(visible(f"foveal: {text}"), file=sys.stderr)
        yield server
        return
    with _about(file):
        own_urls = _own_urls(agent, file, url)
    with _started(args.agent, own_urls, url) as started:
        yield _reached(started)


def _is_of_this_user(port: int) -> bool:
    """Return whether a process of this user or of root listens on a loopback port, as far as Linux says so.

    Another user of the machine could listen there, and would be sent the keys of this one."""
    import os

    try:
        lines = Path("/proc/net/tcp").read_text("ascii").splitlines()[1:]
    except OSError:
        return False
    listening = (fields for line in lines if (fields := line.split())[3] == "0A")
    owners = {int(fields[7]) for fields in listening if int(fields[1].partition(":")[2], 16) == port}
    return bool(owners) and owners <= {os.getuid(), 0}


@contextmanager
def _started(name: str, own_urls: Mapping[str, str], default_url: str) -> Iterator[str]:
    """Start a server, yield its URL, and end it. Its log goes to a file, because the agent has the terminal."""
    import os
    import signal
    from subprocess import PIPE, Popen

    environ = {**os.environ, **own_urls}
    for variable in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"):
        if environ.get(variable, "").startswith(default_url):  # the address of a server that does not run
            del environ[variable]
    records = _records()
    records.mkdir(parents=True, exist_ok=True, mode=0o700)
    log = records / f"{name}.log"
    if log.exists() and log.stat().st_size > MAX_LOG_BYTES:
        log.unlink()
    command = [
        sys.executable,
        "-m",
        "foveal.cli",
        "serve",
        "--attached",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
    ]
    command += ["--set", f"server.grace={STARTED_GRACE_S}"]
    print(f"foveal: starting a server for this run; its log is {log}", file=sys.stderr)
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as written:
        begin = written.tell()
        # It serves nothing yet, and sees only after its start that its input is closed.
        handlers: dict[signal.Signals, SignalHandler] = dict.fromkeys(
            (signal.SIGINT, signal.SIGTERM, signal.SIGHUP), lambda process, _: process.kill()
        )

        # In a session of its own: Ctrl-C is for the agent.
        def start() -> Popen[bytes]:
            return Popen(
                command, stdin=PIPE, stdout=PIPE, stderr=written, env=environ, start_new_session=True
            )

        with _started_with(handlers, start) as (server, received):
            assert server.stdout is not None
            url = server.stdout.readline().decode().strip()
    try:
        if received:
            raise SystemExit(128 + received[0])
        if not url:
            raise FovealError(f"the server did not start: {_last_line(log, begin)}")
        yield url
        if server.poll() is not None:
            print(f"foveal: the server ended before the agent: {log} says why", file=sys.stderr)
    finally:
        _end(server)


def _last_line(log: Path, begin: int) -> str:
    lines = log.read_bytes()[begin:].decode("utf-8", "replace").splitlines()
    return lines[-1].removeprefix("foveal: ") if lines else f"see {log}"


def _end(server: Popen[bytes]) -> None:
    from subprocess import TimeoutExpired

    for pipe in (server.stdin, server.stdout):
        if pipe is not None:
            pipe.close()
    try:
        server.wait(SERVER_END_TIMEOUT_S)
    except TimeoutExpired:
        server.kill()
        server.wait()


# ── The agent ────────────────────────────────────────────────────────────────────────────────────────────


def _run(agent: CodingAgent, file: SettingsFile, args: Namespace) -> int:
    import os
    import shutil

    program = shutil.which(agent.program)
    if program is None:
        raise FovealError(f"{agent.program} is not installed: there is no such program in PATH")
    with _server(agent, file, args) as server:
        with _about(file):
            run = agent.started(server, args.arguments, file.find, os.environ)
        environ = {**os.environ, **run.environment}
        if any(name.lower() in ("http_proxy", "https_proxy", "all_proxy") for name in environ):
            for name in ("NO_PROXY", "no_proxy"):
                environ[name] = ",".join(filter(None, [environ.get(name), "127.0.0.1,localhost"]))
        return _run_in_foreground([program, *run.arguments], environ)


def _run_in_foreground(command: list[str], environ: Mapping[str, str]) -> int:
    """Run a program with this terminal and return its exit code. Signals are for the program."""
    import signal
    from subprocess import Popen

    # The terminal sends SIGINT and SIGQUIT to the program too. Handlers, because a program inherits SIG_IGN.
    handlers: dict[signal.Signals, SignalHandler] = dict.fromkeys(
        (signal.SIGINT, signal.SIGQUIT), lambda *_: None
    )
    handlers |= dict.fromkeys(
        (signal.SIGTERM, signal.SIGHUP), lambda process, number: process.send_signal(number)
    )
    with _started_with(handlers, lambda: Popen(command, env=environ)) as (process, _), process:
        code = process.wait()
    return code if code >= 0 else 128 - code


@contextmanager
def _started_with(
    handlers: Mapping[Signals, SignalHandler], start: Callable[[], Popen[bytes]]
) -> Iterator[tuple[Popen[bytes], list[int]]]:
    """Start a program and yield it, with the signals that have come. Each signal goes to its handler with the
    program, also one that comes before the program has started."""
    import signal

    started: list[Popen[bytes]] = []
    received: list[int] = []

    def handle(number: int, _: object) -> None:
        received.append(number)
        for process in started:
            handlers[signal.Signals(number)](process, number)

    before = {number: signal.signal(number, handle) for number in handlers}
    try:
        process = start()
        started.append(process)
        for number in received:
            handlers[signal.Signals(number)](process, number)
        yield process, received
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)
