"""Loading of a configuration from files, environment and flags."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from foveal.config.config import POLICY_FIELDS, Config
from foveal.config.config_errors import BadConfig, bad_value
from foveal.config.keys import dotted_name, find_key
from foveal.config.sources import CONFIG_FILE_NAME, ConfigValues, read_environment, read_file, read_flags
from foveal.config.value_source import ValueSource
from foveal.errors import BadSetting
from foveal.instructions.rules import ROOT_MARKERS
from foveal.project import Trust, config_folder, find_root

_ROOT_MARKERS_PATH = ("instructions", "root_markers")


def load(
    cwd: Path | str = ".",
    *,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    user_folder: Path | None = None,
    trust: Trust | None = None,
) -> Config:
    """Return the configuration for a working directory; raises `BadConfig`.

    `flags` are values by dotted name, such as `context.policy`. The environment, the user's folder and the stored
    trust answers are those of the process unless you pass others."""
    environ = os.environ if environ is None else environ
    here = Path(os.path.realpath(cwd))
    user_file = (user_folder or config_folder(environ)) / CONFIG_FILE_NAME
    user = read_file(user_file, kind="user")
    variables, unknown = read_environment(environ, here)
    flag_values = read_flags(flags or {}, here)
    above = {**(user or {}), **variables, **flag_values}
    markers = above[_ROOT_MARKERS_PATH].value if _ROOT_MARKERS_PATH in above else ROOT_MARKERS
    root = find_root(here, markers)
    trusted = (trust or Trust()).is_trusted(root)
    project_file = root / CONFIG_FILE_NAME
    project = None if _is_same_file(project_file, user_file) else read_file(project_file, kind="project")
    allowed, notes = _filter_untrusted(project or {}, root, trusted=bool(trusted))
    notes += [f"{name} is set but is not a known setting" for name in unknown]
    config = Config(
        values=MappingProxyType({**(user or {}), **allowed, **variables, **flag_values}),
        files=((user_file, user is not None), (project_file, project is not None)),
        root=root,
        trusted=trusted,
        notes=tuple(notes),
    )
    _check_combinations(config)
    return config


def _is_same_file(first: Path, second: Path) -> bool:
    try:
        return os.path.samefile(first, second)
    except OSError:
        return False


def _filter_untrusted(values: ConfigValues, root: Path, *, trusted: bool) -> tuple[ConfigValues, list[str]]:
    """Return the values that the project may set, and a note for each value that it may not."""
    if trusted:
        return values, []
    risky = {path for path in values if (key := find_key(path)) is not None and not key.safe}
    notes = [
        f"{values[path].source}: {dotted_name(path)} is ignored, because {root} is not trusted"
        for path in values
        if path in risky
    ]
    return {path: value for path, value in values.items() if path not in risky}, notes


def _check_combinations(config: Config) -> None:
    """Raise `BadConfig` for values that exclude each other."""
    for name, table in config.named_tables("mcp").items():
        if ("command" in table) == ("url" in table):
            path, value = next((p, v) for p, v in config.values.items() if p[:2] == ("mcp", name))
            problem = f"[{dotted_name(path[:2])}] needs either command or url"
            raise BadConfig(value.source, path, problem)
    for agent_config in (config, *(config.agent(name) for name in config.agents)):
        try:
            agent_config.policy()
        except BadSetting as problem:
            raise _add_source(agent_config, problem) from None


def _add_source(config: Config, problem: BadSetting) -> BadConfig:
    """Return the error of a policy setting as an error of the key that set it."""
    names = {field: name for name, field in POLICY_FIELDS.items()}
    name = names.get(
        problem.field, problem.field if find_key(tuple(problem.field.split("."))) else "context.policy"
    )
    source: ValueSource = config.source(name)
    return bad_value(source, tuple(name.split(".")), problem.value, problem.allowed)
