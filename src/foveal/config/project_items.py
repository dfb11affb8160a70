"""Items of a project's configuration: one per MCP server and per setting.

1. An MCP server is one item with its command, arguments, environment and URL, and with the content of the files and
   folders in the project that these name. A changed script is a changed item.
2. Every other setting is an item of its own.
3. Keys that a project can never set are no items. `split_values` leaves them out and returns a note for each.

`read_server_code` finds the files of an MCP server, and whether an answer can be bound to them:

1. Each file in the project that the command, an argument or a variable names is part of the server's item, with its
   content. So is each file below a folder that they name, and the package after `python -m`.
2. An answer is bound to these files if they are all that the settings name: the program is a file of the project,
   an interpreter with the path of a script, or a program that is not known to start other code.
3. Otherwise the item says why it cannot be bound, and the user is asked at each start. This is so for inline code
   (`sh -c`), for what starts other programs (`env`, `npx`, `make`), for words that can be more than the name of a
   file (`$PWD/x.sh`), and for folders that are too large.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from shutil import which
from typing import Any, Final, NamedTuple

from foveal.config.code_runners import (
    BUILDERS,
    COMMAND_SHELLS,
    INTERPRETERS,
    MULTI_CALL_PROGRAMS,
    PACKAGE_MANAGERS,
    STARTERS,
    names,
    program_names,
)
from foveal.config.keys import KeyPath, dotted_name, find_key
from foveal.config.project import ProjectItem
from foveal.config.sources import BadConfig, ConfigValue, ConfigValues
from foveal.core.wire.safe_print import exact_line, one_line

MAX_SCRIPT_BYTES: Final = 64 * 1024 * 1024
"""Size of a file in the project that a server may name. The server is not offered if the file is larger."""
MAX_SHOWN_SCRIPT_BYTES: Final = 256 * 1024
"""Size up to which a script is part of the item's text; a larger or binary one is there with its hash only."""
MAX_SCRIPTS: Final = 100
MAX_FOLDER_FILES: Final = 100
"""Files below a folder that a server names. An answer cannot be bound to a larger folder."""
MAX_FOLDER_BYTES: Final = 16 * 1024 * 1024

_WORD_ENDS: Final = re.compile(r"[\s;&|()<>\"'`=,:]+")
"""What separates file names within an argument, such as `--config=a.json` or `sh -c "./a.sh; ./b.sh"`."""
_NOT_LITERAL: Final = re.compile(r"[\s;&|()<>\"'`$\\*?{}~\[\]]")
"""Characters with which an argument can be code, or name a file in other words."""
_SCRIPT_RUNNERS: Final = COMMAND_SHELLS | names(
    "elixir guile julia lua luajit node nodejs ocaml osascript perl php pypy python rscript ruby tclsh ts-node tsx"
)
"""Programs whose first argument is the path of a script, unless it is an option."""
_OTHER_STARTERS: Final = (
    (INTERPRETERS - _SCRIPT_RUNNERS)
    | STARTERS
    | BUILDERS
    | PACKAGE_MANAGERS
    | MULTI_CALL_PROGRAMS
    | names(
        "doas docker docker-compose fd fdfind find git kubectl pkexec podman podman-compose socat ssh su sudo"
    )
)
_CODE_VARIABLES: Final = re.compile(r".*OPT(?:S|IONS)?|GIT_.*|BASH_FUNC_.*|LUA_INIT.*|PROMPT_COMMAND", re.I)
"""Variables whose values are options or code (`NODE_OPTIONS`, `PERL5OPT`)."""
_PYTHON_FLAGS: Final = re.compile(r"-[bBdEIOPqsSuv]+")
_MODULE_OPTION: Final = re.compile(r"-[bBdEIOPqsSuv]*m(.*)")
_MODULE_NAME: Final = re.compile(r"\w+(?:\.\w+)*")


class UncheckedScript(Exception):
    """A file that a server names cannot be hashed; says why."""


class ServerCode(NamedTuple):
    """What an item shows of a server's code."""

    lines: list[str]
    is_bound: bool
    """Whether these lines are all that decides which code of the project runs."""


def read_server_code(fields: Mapping[str, Any], root: Path) -> ServerCode:
    """Return the code in the project that a server names; raises `UncheckedScript`."""
    paths = _named_paths(fields, root)
    files, problem = [path for path in paths if os.path.isfile(path)], _why_not_bound(fields, root)
    if len(files) > MAX_SCRIPTS:
        raise UncheckedScript(f"it names more than {MAX_SCRIPTS} files of the project")
    for folder in paths:
        if os.path.isdir(folder):
            found = _folder_files(folder, root)
            name = _relative_name(os.path.realpath(folder), root)
            problem = problem or ("" if found is not None else f"the folder {name} is too large or has links")
            files += found or ()
    note = ["", f"Foveal asks at each start: an answer cannot be bound to the code, because {problem}."]
    return ServerCode([*_script_lines(files, root), *(note if problem else ())], not problem)


# ── Whether an answer can be bound ───────────────────────────────────────────────────────────────────────


def _why_not_bound(fields: Mapping[str, Any], root: Path) -> str:
    """Return why the named files may not be all that runs; "" if they are."""
    command, args, environment = _parts(fields)
    if not command:
        return ""  # a URL starts nothing
    for text in (command, *args, *environment.values()):
        if found := _NOT_LITERAL.search(text):
            shown = "a blank" if found.group().isspace() else found.group()
            return f"a word of it has {shown}, so it can be more than the name of a file"
    if variable := next(filter(_CODE_VARIABLES.fullmatch, environment), ""):
        return f"the variable {one_line(variable)} can have code"
    known = _program_names(command, environment, root)
    if starter := sorted(known & _OTHER_STARTERS):
        return f"{starter[0]} starts other programs"
    if known & _SCRIPT_RUNNERS and not _names_script(known, args, root):
        return f"{one_line(command)} gets more than the path of a script"
    return ""


def _parts(fields: Mapping[str, Any]) -> tuple[str, Sequence[str], Mapping[str, str]]:
    return fields.get("command", ""), fields.get("args", ()), fields.get("env", {})


def _program_names(command: str, environment: Mapping[str, str], root: Path) -> frozenset[str]:
    found = os.path.join(root, command) if "/" in command else which(command, path=environment.get("PATH"))
    return program_names(command, os.path.realpath(found) if found else "")


def _names_script(known: frozenset[str], args: Sequence[str], root: Path) -> bool:
    """Return whether the arguments begin with an existing path, or with a module for Python."""
    is_python = bool(known & {"python", "pypy"})
    at = 0
    while is_python and at < len(args) and _PYTHON_FLAGS.fullmatch(args[at]):
        at += 1
    if at == len(args):
        return False
    if is_python and _module_name(args[at:]):
        return True
    return not args[at].startswith(("-", "+")) and os.path.exists(os.path.join(root, args[at]))


def _module_name(args: Sequence[str]) -> str:
    """Return the module after `-m`, "" if there is none."""
    found = _MODULE_OPTION.fullmatch(args[0]) if args else None
    name = (found[1] or "".join(args[1:2])) if found else ""
    return name if _MODULE_NAME.fullmatch(name) else ""


# ── Named files ──────────────────────────────────────────────────────────────────────────────────────────


def _named_paths(fields: Mapping[str, Any], root: Path) -> list[str]:
    """Return the existing files and folders in the project that the settings of a server name."""
    paths = dict.fromkeys(os.path.join(root, word) for word in _named_words(fields) if "\0" not in word)
    return [
        path
        for path in paths
        if os.path.exists(path)
        and any(Path(real(path)).is_relative_to(root) for real in (os.path.normpath, os.path.realpath))
    ]


def _named_words(fields: Mapping[str, Any]) -> Iterator[str]:
    """Yield the words of a server's settings that may be names of files."""
    command, args, environment = _parts(fields)
    # A bare name is searched in PATH, which the project may set to a folder of its own.
    for folder in (environment.get("PATH") or os.environ.get("PATH", "")).split(os.pathsep):
        if command and "/" not in command:
            yield os.path.join(folder, command)
    for at in range(len(args)):
        if module := _module_name(args[at:]).partition(".")[0]:
            yield from (module, f"{module}.py")
    for text in (command, *args, *environment.values()):
        yield from filter(None, (text, *_WORD_ENDS.split(text)))


def _folder_files(folder: str, root: Path) -> list[str] | None:
    """Return the files below a folder, in order; None if an answer cannot be bound to them."""
    if os.path.realpath(folder) == str(root) or not Path(os.path.realpath(folder)).is_relative_to(root):
        return None
    files: list[str] = []
    size = 0
    for path, folders, found in os.walk(os.path.realpath(folder), onerror=_raise):
        folders.sort()
        files += (os.path.join(path, name) for name in sorted(found))
        if len(files) > MAX_FOLDER_FILES or any(os.path.islink(os.path.join(path, name)) for name in folders):
            return None
        if not all(map(os.path.isfile, files)):
            return None  # a pipe, a device, or a link that leads nowhere
        size += sum(os.path.getsize(os.path.join(path, name)) for name in found)
        if size > MAX_FOLDER_BYTES:
            return None
    return files


def _raise(problem: OSError) -> None:
    raise UncheckedScript(f"{one_line(str(problem.filename))} cannot be read ({problem.strerror})")


# ── What is shown of a file ──────────────────────────────────────────────────────────────────────────────


def _script_lines(paths: Sequence[str], root: Path) -> Iterator[str]:
    seen: set[str] = set()
    for path in paths:
        heading, *text = _script_text(path, root)
        if heading not in seen:  # one file under two names, such as `a.sh` and `./a.sh`
            seen.add(heading)
            yield from ("", heading, *text)


def _script_text(path: str, root: Path) -> list[str]:
    """Return a heading with the hash of a file, and its text."""
    real = os.path.realpath(path)
    if not Path(real).is_relative_to(root):
        # The target is a program of this machine, such as the Python of a virtual environment.
        return [
            f"── {_relative_name(os.path.normpath(path), root)} leads to /{_relative_name(real, Path('/'))}"
        ]
    name = _relative_name(real, root)
    try:
        size = os.stat(real).st_size
        if size > MAX_SCRIPT_BYTES:
            raise UncheckedScript(
                f"{one_line(name)} has {size:,} bytes, and at most {MAX_SCRIPT_BYTES:,} are checked for changes"
            )
        with open(real, "rb") as file:
            data = file.read(MAX_SCRIPT_BYTES)
    except OSError as problem:
        raise UncheckedScript(f"{one_line(name)} cannot be read ({problem.strerror})") from None
    heading = f"── {name} ({len(data):,} bytes, sha256 {sha256(data).hexdigest()})"
    return [heading, *_readable_text(data)]


def _relative_name(path: str, root: Path) -> str:
    """Return a path relative to the root, as text for JSON, even if its name is not valid UTF-8."""
    return os.fsencode(os.path.relpath(path, root)).decode("utf-8", "backslashreplace")


def _readable_text(data: bytes) -> list[str]:
    if len(data) > MAX_SHOWN_SCRIPT_BYTES or b"\0" in data:
        return ["(binary or too long: not shown here, but a change is noticed)"]
    return [data.decode("utf-8", "backslashreplace").rstrip("\n")]


_MAX_TITLE_CHARS: Final = 200
_ONLY_USER: Final = "a project cannot set it, only your own file, the environment or a flag"


class ConfigItem(NamedTuple):
    """An item, and the keys whose values it allows."""

    item: ProjectItem
    paths: tuple[KeyPath, ...]


def split_values(
    values: ConfigValues, *, user: Mapping[KeyPath, ConfigValue]
) -> tuple[ConfigValues, list[str]]:
    """Return the values that a project can set, and a note for each other one; `user` are the user's values."""
    own_servers = {path[1] for path in user if path[0] == "mcp"}
    kept: ConfigValues = {}
    notes: list[str] = []
    for path, value in values.items():
        if why := _why_never(path, value.value, own_servers):
            notes.append(f"{value.source}: {dotted_name(path)} is ignored: {why}")
        else:
            kept[path] = value
    return kept, notes


def _why_never(path: KeyPath, value: Any, own_servers: Collection[str]) -> str:
    """Return why a project cannot set a key to a value; "" if it can."""
    key = find_key(path)
    if key is None or not key.project:
        return _ONLY_USER
    if path[-1] == "prompt_template" and value.startswith("file://"):
        return "a project can give the text of a prompt, but no file"
    if path[0] == "mcp" and path[1] in own_servers:  # else its arguments would go to the user's command
        return "your own file has a server of this name"
    return ""


def config_items(values: ConfigValues, root: Path) -> tuple[list[ConfigItem], list[str]]:
    """Return the items of a project's values, and a note for each server that cannot be offered.

    Raises `BadConfig` for a server without a command or a URL, or with both."""
    items: list[ConfigItem] = []
    notes: list[str] = []
    for name in dict.fromkeys(path[1] for path in values if path[0] == "mcp"):
        table = {path: value for path, value in values.items() if path[:2] == ("mcp", name)}
        try:
            items.append(_server_item(name, table, root))
        except UncheckedScript as problem:
            source = next(iter(table.values())).source
            notes.append(f"{source}: the MCP server {one_line(name)} is ignored: {problem}")
    items += [_setting_item(path, value, root) for path, value in values.items() if path[0] != "mcp"]
    return items, notes


def _setting_item(path: KeyPath, value: ConfigValue, root: Path) -> ConfigItem:
    text = f"{_escaped_name(path)} = {_value_text(value.value)}"
    return ConfigItem(
        ProjectItem(
            key=f"setting {dotted_name(path)}",
            title=_short(text),
            source=_place(value, root),
            text=text,
        ),
        (path,),
    )


def _server_item(name: str, table: ConfigValues, root: Path) -> ConfigItem:
    fields = {path[2]: value.value for path, value in table.items()}
    first_path, first = next(iter(table.items()))
    if ("command" in fields) == ("url" in fields):
        problem = f"[{dotted_name(first_path[:2])}] needs either command or url"
        raise BadConfig(first.source, first_path, problem)
    lines = [f"[{_escaped_name(first_path[:2])}]"]
    lines += [
        f"{field} = {_value_text(fields[field])}" for field in ("command", "args", "url") if field in fields
    ]
    lines += [
        f"env.{_escaped_name((one,))} = {_value_text(text)}" for one, text in fields.get("env", {}).items()
    ]
    shown = " ".join([fields.get("url") or fields["command"], *fields.get("args", ())])
    code = read_server_code(fields, root)
    return ConfigItem(
        ProjectItem(
            key=f"server {name}",
            title=_short(f"MCP server {name}: {shown}"),
            source=_place(min(table.values(), key=lambda value: value.source.line), root),
            text="\n".join([*lines, *code.lines]),
            is_bound=code.is_bound,
        ),
        tuple(table),
    )


def _short(text: str) -> str:
    """Return the beginning of a text with every character visible."""
    line = exact_line(text)
    return line if len(line) <= _MAX_TITLE_CHARS else line[: _MAX_TITLE_CHARS - 1] + "…"


def _place(value: ConfigValue, root: Path) -> str:
    source = value.source
    return str(source._replace(where=os.path.relpath(source.where, root)))


def _escaped_name(path: KeyPath) -> str:
    """Return a path in TOML notation. A quoted name is escaped, so that it cannot imitate another line."""
    return ".".join(
        name if dotted_name((name,)) == name else json.dumps(name, ensure_ascii=False) for name in path
    )


def _value_text(value: Any) -> str:
    """Return a value in TOML notation; the control characters of a string are escaped."""
    if isinstance(value, Mapping):
        return (
            "{"
            + ", ".join(f"{json.dumps(name)} = {_value_text(inner)}" for name, inner in value.items())
            + "}"
        )
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
