"""The `foveal` command: parses arguments and runs one subcommand."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol

from foveal.agent import terminal as chat
from foveal.cli import config_commands, database_commands, memory_command, replay_commands
from foveal.core.wire import DIALECTS, full_name
from foveal.core.wire.safe_print import visible
from foveal.errors import BadSetting, FovealError, UnknownSession, shown_value
from foveal.user_paths import store_path


class CommandTable(Protocol):
    """A module with further commands, such as those of the server."""

    @property
    def COMMANDS(self) -> Sequence[str]:  # noqa: N802 (a constant of a module)
        """Names of the commands; the module has a function of the same name for each."""
        ...

    def add_commands(self, commands: Any) -> None:
        """Add the commands to the parser's subcommands."""
        ...


def main(argv: Sequence[str] | None = None, *, others: Sequence[CommandTable] = ()) -> int:
    """Run one command and return the exit code: 0 for success, 1 for an error, 2 for wrong usage."""
    try:
        try:
            return _main(sys.argv[1:] if argv is None else argv, others)
        finally:
            sys.stdout.flush()  # so that a closed pipe is noticed here and not when the interpreter exits
    except BrokenPipeError:  # the reader of the output has closed the pipe, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _main(argv: Sequence[str], others: Sequence[CommandTable]) -> int:
    parser = _parser(others)
    words = _with_command(argv)
    words, of_agent = _split_agent_arguments(words)
    args, rest = parser.parse_known_args(words)
    if args.command == "demo":
        from foveal.cli import demo

        return demo.main(rest)
    if args.command == "completion":
        from foveal.cli.completion import completion_script

        print(completion_script(parser, args.shell), end="")
        return 0
    if of_agent:
        args.arguments = of_agent
    if args.command == "why" and not any(word.startswith("-") for word in rest):
        # argparse takes no more of them after an option.
        args.words, rest = [*args.words, *rest], []
    if rest:
        is_command = words != [*argv] and not rest[0].startswith("-")
        hint = f": options come after the command, as in `foveal {rest[0]} …`" if is_command else ""
        parser.error(f"unrecognized arguments: {' '.join(rest)}{hint}")
    if getattr(args, "store", args) is None:
        args.store = store_path()
    try:
        _check_store_file(getattr(args, "store", None))
        return _run(_find_command(args.command, others)(args))
    except BrokenPipeError:
        raise
    except (FovealError, OSError) as problem:
        print(f"foveal: {visible(_error_text(problem, words))}", file=sys.stderr)
        return getattr(args, "error_code", 1)


def _check_store_file(store: object) -> None:
    """Raise `BadSetting` for a database: these commands read a file, and would make one with that name."""
    if isinstance(store, Path) and str(store).startswith(("postgresql:/", "postgres:/")):
        from foveal.config.keys import strip_url_secrets

        allowed = "a file; `foveal inspect --store` and `foveal mcp --store` open the URL of a database"
        raise BadSetting("store", strip_url_secrets(str(store).replace(":/", "://", 1)), allowed)


def _error_text(problem: Exception, words: Sequence[str]) -> str:
    """Return an error as a text, with what helps in a terminal; a setting that was given as an option has the name
    of the option."""
    if isinstance(problem, UnknownSession):
        return f"{problem}; `foveal sessions` lists the existing ones"
    if isinstance(problem, BadSetting):
        option = f"--{problem.field.replace('_', '-')}"
        if any(word.partition("=")[0] == option for word in words):
            return f"{option} {shown_value(problem.value)} is not allowed: {problem.allowed}"
    return str(problem)


def _split_agent_arguments(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the words of `foveal wrap`, and those of the agent after `--`. argparse accepts no positional
    arguments after options, and drops a second `--`."""
    if words[0] != "wrap" or "--" not in words:
        return words, []
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _run(result: Coroutine[Any, Any, int] | int) -> int:
    if isinstance(result, int):
        return result
    from asyncio import run

    return run(result)


def _find_command(
    name: str, others: Sequence[CommandTable]
) -> Callable[[argparse.Namespace], Coroutine[Any, Any, int] | int]:
    """Return the function of a command; the module of the session commands is imported only for them."""
    own = (replay_commands, config_commands, database_commands, memory_command, chat)
    modules: tuple[Any, ...] = (*own, *others)
    module = next((module for module in modules if name in module.COMMANDS), None)
    if module is None:
        from foveal.cli import session_commands

        module = session_commands
    return getattr(module, name)  # type: ignore[no-any-return]


def _with_command(argv: Sequence[str]) -> list[str]:
    """Return the arguments with a command: `chat`, if there are none or only options of the chat."""
    has_command = bool(argv) and (not argv[0].startswith("-") or argv[0] in ("-h", "--help", "--version"))
    return [*argv] if has_command else ["chat", *argv]


def _seq(text: str) -> int:
    """Parse the handle or the number of an event."""
    from foveal.core.log.events import parse_handle

    seq = int(text) if text.removeprefix("-").isdecimal() else parse_handle(text)
    if seq is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an event: give a handle such as e11, or its number"
        )
    return seq


def _parser(others: Sequence[CommandTable] = ()) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="foveal",
        description="Agent sessions that stay inside the model's context window. Without a command: chat.",
    )
    parser.add_argument("--version", action=_PrintVersion, nargs=0, help="print the version and the commit")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    # The demo parses its own arguments, --help among them.
    about = "fit a recorded conversation into a small window, request by request"
    commands.add_parser("demo", help=about, add_help=False)

    listing = commands.add_parser(
        "sessions", help="list the sessions, newest first", parents=[_store_option()]
    )
    listing.add_argument("--json", action="store_true", help="print the list as JSON")

    imports = commands.add_parser("import", help="import recorded conversations", parents=[_store_option()])
    imports.set_defaults(command="import_")
    imports.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="a file, or a folder of files")
    imports.add_argument("--format", default="auto", help="format of the files; default: detected")
    imports.add_argument(
        "--redact", action="store_true", help="remove likely API keys and passwords before storing"
    )

    parents = [_store_option(), _session_argument()]
    export = commands.add_parser("export", help="write a session to a file", parents=parents)
    formats = ["foveal", "markdown", *DIALECTS]
    export.add_argument(
        "--to", default="foveal", type=full_name, choices=formats, help="format of the file; default: foveal"
    )
    export.add_argument("-o", "--output", type=Path, help="a new file; default: standard output")
    export.add_argument("--force", action="store_true", help="overwrite the file if it exists")

    commands.add_parser("log", help="print the events of a session, with its reductions", parents=parents)

    show = commands.add_parser("show", help="print what the model sees", parents=parents)
    show.add_argument(
        "--at", type=_seq, metavar="EVENT", help="the view after this event, such as e11; default: the newest"
    )
    show.add_argument(
        "--to",
        default="openai_chat",
        type=full_name,
        choices=DIALECTS,
        help="dialect of the messages; default: openai_chat",
    )
    show.add_argument("--json", action="store_true", help="the exact messages as JSON")
    replay_commands.add_commands(commands)
    config_commands.add_commands(commands)
    database_commands.add_commands(commands)
    memory_command.add_commands(commands)
    chat.add_commands(commands, _store_option())
    for other in others:
        other.add_commands(commands)
    about = "print a script that completes commands and options in a shell"
    completion = commands.add_parser("completion", help=about, description=about)
    completion.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")
    return parser


class _PrintVersion(argparse.Action):
    """Looks for the commit only when the version is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from foveal.cli.version import version_text

        print(f"foveal {version_text()}")
        parser.exit()


def _store_option() -> argparse.ArgumentParser:
    part = argparse.ArgumentParser(add_help=False)
    part.add_argument("--store", type=Path, help="the file with the sessions (FOVEAL_STORE)")
    return part


def _session_argument() -> argparse.ArgumentParser:
    part = argparse.ArgumentParser(add_help=False)
    part.add_argument("session", metavar="SESSION", help="a session id, or the beginning of it")
    return part
