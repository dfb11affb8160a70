"""Reading a configuration from all of its places."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from foveal.config.config import Config
from foveal.config.keys import dotted, find
from foveal.config.policy_settings import FIELDS
from foveal.config.sources import (
    FILE,
    BadConfig,
    Values,
    ValueSource,
    bad_value,
    read_environment,
    read_file,
    read_flags,
)
from foveal.errors import BadSetting
from foveal.instructions.rules import MARKERS
from foveal.project import Trust, config_folder, find_root

_MARKERS = ("instructions", "root_markers")


def load(
    cwd: Path | str = ".",
    *,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    user_folder: Path | None = None,
    trust: Trust | None = None,
) -> Config:
    """The configuration for a working directory. `flags` are values by dotted names, as `context.policy`. The
    environment, the user's folder and his trust are those of the process, unless you give others. Raises
    `BadConfig`."""
    environ = os.environ if environ is None else environ
    here = Path(os.path.realpath(cwd))
    mine = (user_folder or config_folder(environ)) / FILE
    user = read_file(mine, kind="user")
    variables, strange = read_environment(environ, here)
    given = read_flags(flags or {}, here)
    above = {**(user or {}), **variables, **given}
    markers = above[_MARKERS].value if _MARKERS in above else MARKERS
    root = find_root(here, markers)
    trusted = (trust or Trust()).trusted(root)
    theirs = root / FILE
    project = None if _same(theirs, mine) else read_file(theirs, kind="project")
    allowed, notes = _allowed(project or {}, root, trusted=bool(trusted))
    notes += [f"{name} is set, and means nothing here" for name in strange]
    config = Config(
        values=MappingProxyType({**(user or {}), **allowed, **variables, **given}),
        files=((mine, user is not None), (theirs, project is not None)),
        root=root,
        trusted=trusted,
        notes=tuple(notes),
    )
    _check(config)
    return config


def _same(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _allowed(values: Values, root: Path, *, trusted: bool) -> tuple[Values, list[str]]:
    """What a project may set, and a note for each value that it may not."""
    if trusted:
        return values, []
    risky = {path for path in values if (key := find(path)) is not None and not key.safe}
    notes = [
        f"{values[path].source}: {dotted(path)} does not count, because {root} is not trusted"
        for path in values
        if path in risky
    ]
    return {path: value for path, value in values.items() if path not in risky}, notes


def _check(config: Config) -> None:
    """What no single value shows: values that do not go together."""
    for name, table in config.named("mcp").items():
        if ("command" in table) == ("url" in table):
            path, value = next((p, v) for p, v in config.values.items() if p[:2] == ("mcp", name))
            problem = f"[{dotted(path[:2])}] needs either command or url"
            raise BadConfig(value.source, path, problem)
    for one in (config, *(config.agent(name) for name in config.agents)):
        try:
            one.policy()
        except BadSetting as problem:
            raise _located(one, problem) from None


def _located(config: Config, problem: BadSetting) -> BadConfig:
    names = {field: name for name, field in FIELDS.items()}
    name = names.get(
        problem.field, problem.field if find(tuple(problem.field.split("."))) else "context.policy"
    )
    source: ValueSource = config.source(name)
    return bad_value(source, tuple(name.split(".")), problem.value, problem.allowed)
