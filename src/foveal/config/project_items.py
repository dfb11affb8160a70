"""Items of a project's configuration: one per MCP server and per setting.

1. An MCP server is one item with its command, arguments, environment and URL, and with the content of the files and
   folders in the project that these name (see server_code.py). A changed script is a changed item.
2. Every other setting is an item of its own.
3. Keys that a project can never set are no items. `split_values` leaves them out and returns a note for each.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from foveal.config.errors import BadConfig
from foveal.config.keys import KeyPath, dotted_name, find_key
from foveal.config.project import ProjectItem
from foveal.config.server_code import UncheckedScript, read_server_code
from foveal.config.sources import ConfigValue, ConfigValues
from foveal.core.wire.safe_print import exact_line, one_line

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
