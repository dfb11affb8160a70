"""Where values come from: files, the environment and flags, each checked where it stands."""

from __future__ import annotations

import os
import pathlib
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from foveal.config.keys import KEYS, ConfigKey, Path, below, dotted, find
from foveal.errors import BadSetting
from foveal.project import UnusableFile, read

# ── lines ─────────────────────────────────────────────────────────────────────────────────────────
# On which line of a TOML text a key stands, which `tomllib` does not tell.
#
# Each statement of a TOML text is a TOML text of its own, so `tomllib` itself says which keys a statement sets; all
# that is left to find out is where a statement ends. One that goes over several lines ends in a line with a closing
# bracket or triple quotes.

_CLOSES: Final = ("]", '"""', "'''")
_TRIES: Final = 200


def lines(text: str) -> dict[tuple[str, ...], int]:
    """For each table and key of a valid TOML text, the line it begins on, counted from 1."""
    found: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    rows = text.replace("\r\n", "\n").split("\n")
    at = 0
    while at < len(rows):
        end, stated = _statement(rows, at)
        if stated is None:
            break  # rather no line than a wrong one
        header = rows[at].lstrip().startswith("[")
        for path in _paths(stated):
            found.setdefault(path if header else (*table, *path), at + 1)
        if header:
            table = max(_paths(stated), key=len)
        at = end
    return found


def _statement(rows: list[str], at: int) -> tuple[int, dict[str, Any] | None]:
    """The line after a statement, and what it says."""
    tries = 0
    for end in range(at + 1, len(rows) + 1):
        if end > at + 1 and not any(mark in rows[end - 1] for mark in _CLOSES):
            continue
        try:
            return end, tomllib.loads("\n".join(rows[at:end]) + "\n")
        except tomllib.TOMLDecodeError:
            tries += 1
            if tries > _TRIES:
                break
    return at, None


def _paths(stated: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = [path] if path else []
    if isinstance(stated, list) and stated and isinstance(stated[0], dict):
        stated = stated[0]
    if isinstance(stated, dict):
        for name, inner in stated.items():
            found += _paths(inner, (*path, name))
    return found


def line_of(found: dict[tuple[str, ...], int], path: tuple[str, ...]) -> int:
    """The line of a key, or of the nearest table around it; 0 when that is not known."""
    while path and path not in found:
        path = path[:-1]
    return found.get(path, 0)


# ── sources ───────────────────────────────────────────────────────────────────────────────────────

FILE: Final = "foveal.toml"
OTHERS: Final = ("FOVEAL_STORE", "FOVEAL_GGUF", "FOVEAL_PROVIDER", "FOVEAL_SOAK")
"""Variables that are read elsewhere."""
LARGEST: Final = 256 * 1024
_SECRET: Final = re.compile(r"key|token|secret|password", re.IGNORECASE)


class ValueSource(NamedTuple):
    """Where a value was set."""

    kind: Literal["default", "policy", "user", "project", "environment", "flag"]
    where: str = ""
    """A file, a variable, a flag, or the policy's name."""
    line: int = 0

    def __str__(self) -> str:
        where = f"{self.where}:{self.line}" if self.line else self.where
        return f"policy {where}" if self.kind == "policy" else where or self.kind


class ConfigValue(NamedTuple):
    value: Any
    source: ValueSource


Values = dict[Path, ConfigValue]


class BadConfig(BadSetting):
    """A key that there is not, or a value that is not allowed: says where, and what would be."""

    def __init__(self, source: ValueSource, path: Path, problem: str, *, value: object = None) -> None:
        super().__init__(dotted(path), value, problem)
        self.args = (f"{source}: {problem}",)
        self.source = source
        self.problem = problem


def bad_value(
    source: ValueSource, path: Path, value: object, allowed: str, *, secret: bool = False
) -> BadConfig:
    shown = type(value).__name__ if secret else repr(value)
    problem = f"{dotted(path)} = {shown} is not allowed: {allowed}"
    return BadConfig(source, path, problem, value=None if secret else value)


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────


def read_file(path: pathlib.Path, *, kind: Literal["user", "project"]) -> Values | None:
    """The values of a file, None when there is no such file."""
    place = ValueSource(kind, str(path))
    try:
        found = read(path, most=LARGEST, within=path.parent if kind == "project" else None)
    except UnusableFile as problem:
        raise BadConfig(place, (), f"this file is not usable: {problem}") from None
    if found is None:
        return None
    if found.unread or found.damaged:
        raise BadConfig(place, (), f"a configuration is UTF-8 of at most {LARGEST:,} bytes")
    text = found.text.removeprefix("\ufeff")
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as problem:
        at = re.search(r"line (\d+)", str(problem))
        line = int(at[1]) if at else text.rstrip().count("\n") + 1  # "at end of document"
        raise BadConfig(place._replace(line=line), (), f"no TOML: {problem}") from None
    where = lines(text)
    return dict(_flat(table, (), lambda key: place._replace(line=line_of(where, key)), path.parent))


def _flat(
    table: Mapping[str, Any], path: Path, place: Callable[[Path], ValueSource], folder: pathlib.Path
) -> Iterator[tuple[Path, ConfigValue]]:
    for name, value in table.items():
        here = (*path, name)
        key, inner, source = find(here), below(here), place(here)
        if key is not None:
            yield here, ConfigValue(_checked(key, here, value, source, folder), source)
        elif not inner:
            raise _unknown(source, here)
        elif not isinstance(value, dict):
            raise bad_value(source, here, value, f"a table with {_named(inner)}", secret=True)
        else:
            yield from _flat(value, here, place, folder)


def _checked(key: ConfigKey, path: Path, value: Any, source: ValueSource, folder: pathlib.Path) -> Any:
    if not key.kind.fits(value):
        if problem := key.kind.problem(value):
            raise BadConfig(source, path, problem, value=None if key.secret else value)
        raise bad_value(source, path, value, key.kind.allowed, secret=key.secret)
    if source.kind == "project" and not key.project:
        problem = (
            f"{dotted(path)} cannot be set by a project, only in your own file, the environment or a flag"
        )
        raise BadConfig(source, path, problem)
    if path[-1] == "prompt_template" and value.startswith("file://"):
        name = os.path.expanduser(value.removeprefix("file://"))
        return f"file://{folder / name}"  # relative to the file that says so
    if isinstance(value, dict):
        return MappingProxyType(value)
    return tuple(value) if isinstance(value, list) else value


def _unknown(source: ValueSource, path: Path) -> BadConfig:
    hint = "; keys of providers belong in the environment" if _SECRET.search(path[-1]) else ""
    known = path[:-1]
    while known and not below(known):
        known = known[:-1]
    around = f"in [{dotted(known)}] " if known else ""
    allowed = _named(below(known))
    return BadConfig(source, path, f"there is no key {dotted(path)}; allowed {around}are {allowed}{hint}")


def _named(names: tuple[str, ...]) -> str:
    return ", ".join("a name of your own" if name == "*" else name for name in names)


# ── texts ────────────────────────────────────────────────────────────────────────────────────────────────


def read_environment(environ: Mapping[str, str], folder: pathlib.Path) -> tuple[Values, list[str]]:
    """The values of `FOVEAL_…` variables, and those that mean nothing here; an empty one is not set."""
    keys = {key.variable: key for key in KEYS if key.variable}
    values = {
        keys[name].path: _read(keys[name], keys[name].path, text, ValueSource("environment", name), folder)
        for name, text in sorted(environ.items())
        if name in keys and text
    }
    strange = sorted(n for n in environ if n.startswith("FOVEAL_") and n not in keys and n not in OTHERS)
    return values, strange


def read_flags(flags: Mapping[str, Any], folder: pathlib.Path) -> Values:
    """The values of flags, by dotted names. A text is read as a variable would be; None is not set."""
    values: Values = {}
    for name, given in flags.items():
        path = tuple(_split(name))
        source = ValueSource("flag", f"flag {name}")
        key = find(path)
        if given is None:
            continue
        if key is None:
            raise _unknown(source, path)
        if isinstance(given, str):
            values[path] = _read(key, path, given, source, folder)
        else:
            values[path] = ConfigValue(_checked(key, path, given, source, folder), source)
    return values


def _split(name: str) -> list[str]:
    """`context.tools."my.tool".mask` as its names."""
    return [quoted or bare for quoted, bare in re.findall(r'"([^"]*)"|([^.]+)', name)]


def _read(key: ConfigKey, path: Path, text: str, source: ValueSource, folder: pathlib.Path) -> ConfigValue:
    try:
        value = key.kind.read(text)
    except ValueError:
        raise bad_value(source, path, text, key.kind.allowed, secret=key.secret) from None
    return ConfigValue(_checked(key, path, value, source, folder), source)
