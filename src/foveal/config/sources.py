"""Sources of configuration values: TOML files, environment variables, flags.

Each value keeps where it was set (`ValueSource`), and is checked when it is read: an error names the file and line,
the variable or the flag, and what is allowed.
"""

from __future__ import annotations

import os
import pathlib
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from foveal.config.keys import (
    ALIASES,
    KEYS,
    ConfigKey,
    KeyAlias,
    KeyPath,
    dotted_name,
    find_alias,
    find_key,
    names_below,
    strip_url_secrets,
)
from foveal.config.project import UnusableFile, read_text_file
from foveal.errors import BadSetting, shown_value

_SCHEME: Final = re.compile("[a-z][a-z0-9+.-]{0,20}://")


class BadConfig(BadSetting):
    """An unknown key, or a value that is not allowed; names the place and what is allowed."""

    def __init__(self, source: ValueSource, path: KeyPath, problem: str, *, value: object = None) -> None:
        super().__init__(dotted_name(path), value, problem)
        self.args = (f"{source}: {problem}",)
        self.source = source
        self.problem = problem


def bad_value(
    source: ValueSource, path: KeyPath, value: object, allowed: str, *, secret: bool = False
) -> BadConfig:
    """Return the error for a value; only the scheme of a secret URL, or the type of a secret value, is shown."""
    if isinstance(value, str) and not secret:
        value = strip_url_secrets(value)
    scheme = _SCHEME.match(value) if isinstance(value, str) else None
    shown = (f"{scheme.group()}…" if scheme else type(value).__name__) if secret else shown_value(value)
    if isinstance(value, bool) and not secret:
        shown = str(value).lower()  # as TOML writes it
    problem = f"{dotted_name(path)} = {shown} is not allowed: {allowed}"
    return BadConfig(source, path, problem, value=None if secret else value)


def _unknown_key(source: ValueSource, path: KeyPath) -> BadConfig:
    hint = "; keys of providers belong in the environment" if _SECRET_NAME.search(path[-1]) else ""
    known = path[:-1]
    while known and not names_below(known):
        known = known[:-1]
    around = f"in [{dotted_name(known)}] " if known else ""
    allowed = _list_names(names_below(known))
    return BadConfig(
        source, path, f"there is no key {dotted_name(path)}; allowed {around}are {allowed}{hint}"
    )


def _list_names(names: tuple[str, ...]) -> str:
    return ", ".join("a name of your own" if name == "*" else name for name in names)


_SECRET_NAME: Final = re.compile(r"key|token|secret|password", re.IGNORECASE)


# ── Line numbers ─────────────────────────────────────────────────────────────────────────────────────
# `tomllib` does not report the lines of keys. Each TOML statement is itself a valid TOML text, so `tomllib` can
# parse single statements and say which keys they set; only the end of a statement must be found. A statement over
# several lines ends in a line with a closing bracket or triple quotes.

_CLOSING_MARKS: Final = ("]", '"""', "'''")
_MAX_PARSE_ATTEMPTS: Final = 200


def key_lines(text: str) -> dict[tuple[str, ...], int]:
    """Return the line of each table and key of a valid TOML text, counted from 1."""
    found: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    rows = text.replace("\r\n", "\n").split("\n")
    at = 0
    while at < len(rows):
        end, parsed = _statement(rows, at)
        if parsed is None:
            break  # no line number is better than a wrong one
        header = rows[at].lstrip().startswith("[")
        for path in _paths(parsed):
            found.setdefault(path if header else (*table, *path), at + 1)
        if header:
            table = max(_paths(parsed), key=len)
        at = end
    return found


def _statement(rows: list[str], at: int) -> tuple[int, dict[str, Any] | None]:
    """Return the index of the line after a statement, and its parsed content."""
    tries = 0
    for end in range(at + 1, len(rows) + 1):
        if end > at + 1 and not any(mark in rows[end - 1] for mark in _CLOSING_MARKS):
            continue
        try:
            return end, tomllib.loads("\n".join(rows[at:end]) + "\n")
        except tomllib.TOMLDecodeError:
            tries += 1
            if tries > _MAX_PARSE_ATTEMPTS:
                break
    return at, None


def _paths(parsed: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = [path] if path else []
    if isinstance(parsed, list) and parsed and isinstance(parsed[0], dict):
        parsed = parsed[0]
    if isinstance(parsed, dict):
        for name, inner in parsed.items():
            found += _paths(inner, (*path, name))
    return found


def line_of(found: dict[tuple[str, ...], int], path: tuple[str, ...]) -> int:
    """Return the line of a key, or of the nearest table around it; 0 if unknown."""
    while path and path not in found:
        path = path[:-1]
    return found.get(path, 0)


class ValueSource(NamedTuple):
    """Where a value was set."""

    kind: Literal["default", "policy", "user", "project", "environment", "flag"]
    where: str = ""
    """A file, a variable, a flag, or the policy's name."""
    line: int = 0

    def __str__(self) -> str:
        where = f"{self.where}:{self.line}" if self.line else self.where
        return f"policy {where}" if self.kind == "policy" else where or self.kind


# ── Values ───────────────────────────────────────────────────────────────────────────────────────────────

CONFIG_FILE_NAME: Final = "foveal.toml"
OTHER_VARIABLES: Final = ("FOVEAL_STORE", "FOVEAL_GGUF", "FOVEAL_PROVIDER", "FOVEAL_SOAK", "FOVEAL_THEME")
"""Variables that other parts of Foveal read."""
MAX_CONFIG_BYTES: Final = 256 * 1024


class ConfigValue(NamedTuple):
    """A value and its source."""

    value: Any
    source: ValueSource


ConfigValues = dict[KeyPath, ConfigValue]


# ── Files ────────────────────────────────────────────────────────────────────────────────────────────────


def read_file(path: pathlib.Path, *, kind: Literal["user", "project"]) -> ConfigValues | None:
    """Return the values of a file, None if there is no such file. What a project cannot set is not checked."""
    source = ValueSource(kind, str(path))
    try:
        found = read_text_file(
            path, max_bytes=MAX_CONFIG_BYTES, within=path.parent if kind == "project" else None
        )
    except UnusableFile as problem:
        raise BadConfig(source, (), f"this file cannot be used: {problem}") from None
    if found is None:
        return None
    if found.unread or found.damaged:
        raise BadConfig(source, (), f"a configuration file is UTF-8 of at most {MAX_CONFIG_BYTES:,} bytes")
    text = found.text.removeprefix("\ufeff")
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as problem:
        at = re.search(r"line (\d+)", str(problem))
        line = int(at[1]) if at else text.rstrip().count("\n") + 1  # "at end of document"
        raise BadConfig(source._replace(line=line), (), f"invalid TOML: {problem}") from None
    where = key_lines(text)
    values: ConfigValues = {}
    for key, value in _flatten(table, (), lambda key: source._replace(line=line_of(where, key)), path.parent):
        if key in values:
            raise BadConfig(
                value.source, key, f"{dotted_name(key)} is set twice: also by {values[key].source}"
            )
        values[key] = value
    return values


def _flatten(
    table: Mapping[str, Any], path: KeyPath, source_of: Callable[[KeyPath], ValueSource], folder: pathlib.Path
) -> Iterator[tuple[KeyPath, ConfigValue]]:
    for name, value in table.items():
        here = (*path, name)
        if (alias := find_alias(here)) is not None:
            yield alias.target, _alias_value(alias, value, source_of(here))
            continue
        key, inner, source = find_key(here), names_below(here), source_of(here)
        if key is not None:
            yield here, ConfigValue(_check_value(key, here, value, source, folder), source)
        elif not inner:
            raise _unknown_key(source, here)
        elif not isinstance(value, dict):
            raise bad_value(source, here, value, f"a table with {_list_names(inner)}", secret=True)
        else:
            yield from _flatten(value, here, source_of, folder)


def _alias_value(alias: KeyAlias, value: Any, source: ValueSource) -> ConfigValue:
    """Return the value of the key that an alias stands for."""
    if not alias.kind.is_valid(value):
        raise bad_value(source, alias.path, value, alias.kind.allowed)
    return ConfigValue(alias.values[value], source)


def _parse_alias(alias: KeyAlias, text: str, source: ValueSource) -> ConfigValue:
    try:
        value = alias.kind.parse(text)
    except ValueError:
        raise bad_value(source, alias.path, text, alias.kind.allowed) from None
    return _alias_value(alias, value, source)


def _check_value(key: ConfigKey, path: KeyPath, value: Any, source: ValueSource, folder: pathlib.Path) -> Any:
    if source.kind == "project" and not key.project:
        return value
    if not key.kind.is_valid(value):
        if problem := key.kind.explain(value):
            raise BadConfig(source, path, problem, value=None if key.secret else value)
        raise bad_value(source, path, value, key.kind.allowed, secret=key.secret)
    if path[-1] in ("prompt", "prompt_template") and value.startswith("file://"):
        name = os.path.expanduser(value.removeprefix("file://"))
        return f"file://{folder / name}"  # relative to the folder of the configuration file
    if isinstance(value, dict):
        return MappingProxyType(value)
    return tuple(value) if isinstance(value, list) else value


# ── Environment and flags ───────────────────────────────────────────────────────────────────────────────


def read_environment(environ: Mapping[str, str], folder: pathlib.Path) -> tuple[ConfigValues, list[str]]:
    """Return the values of `FOVEAL_…` variables, and the names of unknown ones; an empty variable is not set."""
    keys = {name: key for key in KEYS for name in (key.variable, key.short_variable) if name}
    values = {
        keys[name].path: _parse_text(
            keys[name], keys[name].path, text, ValueSource("environment", name), folder
        )
        for name, text in sorted(environ.items())
        if name in keys and text
    }
    aliases = {alias.variable: alias for alias in ALIASES}
    for name, alias in aliases.items():
        if text := environ.get(name):
            values.setdefault(alias.target, _parse_alias(alias, text, ValueSource("environment", name)))
    known = {*keys, *aliases, *OTHER_VARIABLES}
    unknown = sorted(name for name in environ if name.startswith("FOVEAL_") and name not in known)
    return values, unknown


def read_flags(flags: Mapping[str, Any], folder: pathlib.Path) -> ConfigValues:
    """Return the values of flags by dotted name. A string is parsed like a variable; None is not set."""
    values: ConfigValues = {}
    for name, given in flags.items():
        path = tuple(_split_name(name))
        source = ValueSource("flag", f"flag {name}")
        key = find_key(path)
        if given is None:
            continue
        if (alias := find_alias(path)) is not None:
            read = _parse_alias if isinstance(given, str) else _alias_value
            values[alias.target] = read(alias, given, source)
            continue
        if key is None:
            raise _unknown_key(source, path)
        if isinstance(given, str):
            values[path] = _parse_text(key, path, given, source, folder)
        else:
            values[path] = ConfigValue(_check_value(key, path, given, source, folder), source)
    return values


def setting_flags(settings: Iterable[str]) -> dict[str, str]:
    """Return the values of an option `--set KEY=VALUE` as flags by dotted name; raises `BadSetting`."""
    flags: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.strip():
            raise BadSetting("--set", setting, "KEY=VALUE, such as context.policy=rolling")
        flags[name.strip()] = value.strip()
    return flags


def _split_name(name: str) -> list[str]:
    """Split a name such as `context.tools."my.tool".mask` into its parts."""
    return [quoted or bare for quoted, bare in re.findall(r'"([^"]*)"|([^.]+)', name)]


def _parse_text(
    key: ConfigKey, path: KeyPath, text: str, source: ValueSource, folder: pathlib.Path
) -> ConfigValue:
    try:
        value = key.kind.parse(text)
    except ValueError:
        raise bad_value(source, path, text, key.kind.allowed, secret=key.secret) from None
    return ConfigValue(_check_value(key, path, value, source, folder), source)
