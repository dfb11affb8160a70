"""Where values come from: files, the environment and flags, each checked where it stands."""

from __future__ import annotations

import os
import pathlib
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from foveal.config.keys import KEYS, below, dotted, find
from foveal.config.kinds import Key, Path
from foveal.config.lines import line_of, lines
from foveal.errors import BadSetting
from foveal.project import Unusable, read

FILE: Final = "foveal.toml"
OTHERS: Final = ("FOVEAL_STORE", "FOVEAL_GGUF", "FOVEAL_PROVIDER", "FOVEAL_SOAK")
"""Variables that are read elsewhere."""
LARGEST: Final = 256 * 1024
_SECRET: Final = re.compile(r"key|token|secret|password", re.IGNORECASE)


class Source(NamedTuple):
    """Where a value was set."""

    sort: Literal["default", "policy", "user", "project", "environment", "flag"]
    where: str = ""
    """A file, a variable, a flag, or the policy's name."""
    line: int = 0

    def __str__(self) -> str:
        where = f"{self.where}:{self.line}" if self.line else self.where
        return f"policy {where}" if self.sort == "policy" else where or self.sort


class Value(NamedTuple):
    value: Any
    source: Source


Values = dict[Path, Value]


class BadConfig(BadSetting):
    """A key that there is not, or a value that is not allowed: says where, and what would be."""

    def __init__(self, source: Source, path: Path, problem: str, *, value: object = None) -> None:
        super().__init__(dotted(path), value, problem)
        self.args = (f"{source}: {problem}",)
        self.source = source
        self.problem = problem


def bad_value(source: Source, path: Path, value: object, allowed: str, *, secret: bool = False) -> BadConfig:
    shown = type(value).__name__ if secret else repr(value)
    problem = f"{dotted(path)} = {shown} is not allowed: {allowed}"
    return BadConfig(source, path, problem, value=None if secret else value)


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────


def read_file(path: pathlib.Path, *, sort: Literal["user", "project"]) -> Values | None:
    """The values of a file, None when there is no such file."""
    place = Source(sort, str(path))
    try:
        found = read(path, most=LARGEST, within=path.parent if sort == "project" else None)
    except Unusable as problem:
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
    table: Mapping[str, Any], path: Path, place: Callable[[Path], Source], folder: pathlib.Path
) -> Iterator[tuple[Path, Value]]:
    for name, value in table.items():
        here = (*path, name)
        key, inner, source = find(here), below(here), place(here)
        if key is not None:
            yield here, Value(_checked(key, here, value, source, folder), source)
        elif not inner:
            raise _unknown(source, here)
        elif not isinstance(value, dict):
            raise bad_value(source, here, value, f"a table with {_named(inner)}", secret=True)
        else:
            yield from _flat(value, here, place, folder)


def _checked(key: Key, path: Path, value: Any, source: Source, folder: pathlib.Path) -> Any:
    if not key.kind.fits(value):
        if problem := key.kind.problem(value):
            raise BadConfig(source, path, problem, value=None if key.secret else value)
        raise bad_value(source, path, value, key.kind.allowed, secret=key.secret)
    if source.sort == "project" and not key.project:
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


def _unknown(source: Source, path: Path) -> BadConfig:
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
        keys[name].path: _read(keys[name], keys[name].path, text, Source("environment", name), folder)
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
        source = Source("flag", f"flag {name}")
        key = find(path)
        if given is None:
            continue
        if key is None:
            raise _unknown(source, path)
        if isinstance(given, str):
            values[path] = _read(key, path, given, source, folder)
        else:
            values[path] = Value(_checked(key, path, given, source, folder), source)
    return values


def _split(name: str) -> list[str]:
    """`context.tools."my.tool".mask` as its names."""
    return [quoted or bare for quoted, bare in re.findall(r'"([^"]*)"|([^.]+)', name)]


def _read(key: Key, path: Path, text: str, source: Source, folder: pathlib.Path) -> Value:
    try:
        value = key.kind.read(text)
    except ValueError:
        raise bad_value(source, path, text, key.kind.allowed, secret=key.secret) from None
    return Value(_checked(key, path, value, source, folder), source)
