"""Items of a project's configuration: one per MCP server and per setting.

1. An MCP server is one item with its command, arguments, environment and URL, and with the content of the files in
   the project that these name. A changed script is a changed item.
2. Every other setting is an item of its own.
3. Keys that a project can never set are no items. `split_values` leaves them out and returns a note for each.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

from foveal.config.config_errors import BadConfig
from foveal.config.keys import KeyPath, dotted_name, find_key
from foveal.config.sources import ConfigValue, ConfigValues
from foveal.core.wire.safe_print import one_line
from foveal.project import ProjectItem

MAX_SCRIPT_BYTES: Final = 64 * 1024 * 1024
"""Size of a file in the project that a server may name. The server is not offered if the file is larger."""
MAX_SHOWN_SCRIPT_BYTES: Final = 256 * 1024
"""Size up to which a script is part of the item's text; a larger or binary one is there with its hash only."""
MAX_SCRIPTS: Final = 100
_MAX_TITLE_CHARS: Final = 200
_WORD_ENDS: Final = re.compile(r"[\s;&|()<>\"'`=,:]+")
"""What separates file names within an argument, such as `--config=a.json` or `sh -c "./a.sh; ./b.sh"`."""
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
        except _UncheckedScript as problem:
            source = next(iter(table.values())).source
            notes.append(f"{source}: the MCP server {one_line(name)} is ignored: {problem}")
    items += [_setting_item(path, value, root) for path, value in values.items() if path[0] != "mcp"]
    return items, notes


def _setting_item(path: KeyPath, value: ConfigValue, root: Path) -> ConfigItem:
    text = f"{_escaped_name(path)} = {_value_text(value.value)}"
    return ConfigItem(
        ProjectItem(
            key=f"setting {dotted_name(path)}",
            title=one_line(text, width=_MAX_TITLE_CHARS),
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
    return ConfigItem(
        ProjectItem(
            key=f"server {name}",
            title=one_line(f"MCP server {name}: {shown}", width=_MAX_TITLE_CHARS),
            source=_place(min(table.values(), key=lambda value: value.source.line), root),
            text="\n".join([*lines, *_script_texts(fields, root)]),
        ),
        tuple(table),
    )


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


# ── Scripts ──────────────────────────────────────────────────────────────────────────────────────────────


class _UncheckedScript(Exception):
    """A file that a server names cannot be hashed; says why."""


def _script_texts(fields: Mapping[str, Any], root: Path) -> Iterator[str]:
    """Yield what is shown of each file in the project that the command, an argument or the environment names."""
    found: dict[str, None] = {}
    for word in _named_words(fields):
        path = os.path.join(root, word)
        if os.path.isfile(path) and any(
            _is_inside(one(path), root) for one in (os.path.normpath, os.path.realpath)
        ):
            found[path] = None
        if len(found) > MAX_SCRIPTS:
            raise _UncheckedScript(f"it names more than {MAX_SCRIPTS} files of the project")
    seen: set[str] = set()
    for path in found:
        heading, *text = _script_text(path, root)
        if heading not in seen:  # one file under two names, such as `a.sh` and `./a.sh`
            seen.add(heading)
            yield from ("", heading, *text)


def _named_words(fields: Mapping[str, Any]) -> Iterator[str]:
    """Yield the words of a server's settings that may be names of files."""
    command, environment = fields.get("command", ""), fields.get("env", {})
    # A bare name is searched in PATH, which the project may set to a folder of its own.
    for folder in (environment.get("PATH") or os.environ.get("PATH", "")).split(os.pathsep):
        if command and "/" not in command:
            yield os.path.join(folder, command)
    for text in (command, *fields.get("args", ()), *environment.values()):
        yield text
        yield from _WORD_ENDS.split(text)


def _is_inside(path: str, root: Path) -> bool:
    return Path(path).is_relative_to(root)


def _script_text(path: str, root: Path) -> list[str]:
    """Return a heading with the hash of a file, and its text."""
    real = os.path.realpath(path)
    if not _is_inside(real, root):
        # The target is a program of this machine, such as the Python of a virtual environment.
        return [
            f"── {_relative_name(os.path.normpath(path), root)} leads to /{_relative_name(real, Path('/'))}"
        ]
    name = _relative_name(real, root)
    try:
        size = os.stat(real).st_size
        if size > MAX_SCRIPT_BYTES:
            raise _UncheckedScript(
                f"{one_line(name)} has {size:,} bytes, and at most {MAX_SCRIPT_BYTES:,} are checked for changes"
            )
        with open(real, "rb") as file:
            data = file.read(MAX_SCRIPT_BYTES)
    except OSError as problem:
        raise _UncheckedScript(f"{one_line(name)} cannot be read ({problem.strerror})") from None
    heading = f"── {name} ({len(data):,} bytes, sha256 {sha256(data).hexdigest()})"
    return [heading, *_readable_text(data)]


def _relative_name(path: str, root: Path) -> str:
    """Return a path relative to the root, as text for JSON, even if its name is not valid UTF-8."""
    return os.fsencode(os.path.relpath(path, root)).decode("utf-8", "backslashreplace")


def _readable_text(data: bytes) -> list[str]:
    if len(data) > MAX_SHOWN_SCRIPT_BYTES or b"\0" in data:
        return ["(binary or too long: not shown here, but a change is noticed)"]
    return [data.decode("utf-8", "backslashreplace").rstrip("\n")]
