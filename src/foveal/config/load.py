"""Loading of a configuration from files, environment and flags, and what a project brings."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from foveal.config.config import POLICY_FIELDS, Config
from foveal.config.instructions.rules import ROOT_MARKERS
from foveal.config.keys import KeyPath, dotted_name, find_key
from foveal.config.project import ITEM_STATE_WORDS, EveryItem, ItemAnswer, ItemTrust, Trust, find_root
from foveal.config.project_items import config_items, split_values
from foveal.config.sources import (
    CONFIG_FILE_NAME,
    BadConfig,
    ConfigValues,
    ValueSource,
    bad_value,
    read_environment,
    read_file,
    read_flags,
)
from foveal.errors import BadSetting
from foveal.policies import find_policy
from foveal.user_paths import config_folder

_ROOT_MARKERS_PATH = ("instructions", "root_markers")
_FOLDER_PATH, _DATABASE_PATH = ("server", "folder"), ("server", "database")


def load(
    cwd: Path | str = ".",
    *,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    user_folder: Path | None = None,
    trust: ItemTrust | None = None,
    project: bool = True,
) -> Config:
    """Return the configuration for a working directory; raises `BadConfig`.

    `flags` are values by dotted name, such as `context.policy`. The environment, the user's folder and the stored
    answers about the project are those of the process unless you pass others. With `project=False`, the project's
    file is not read."""
    environ = os.environ if environ is None else environ
    here = Path(os.path.realpath(cwd))
    user_file = (user_folder or config_folder(environ)) / CONFIG_FILE_NAME
    user = read_file(user_file, kind="user")
    variables, unknown = read_environment(environ, here)
    flag_values = read_flags(flags or {}, here)
    if _names_folder(flag_values):  # a database would be used in its place
        for values in (user or {}, variables):
            values.pop(_DATABASE_PATH, None)
    above = {**(user or {}), **variables, **flag_values}
    markers = above[_ROOT_MARKERS_PATH].value if _ROOT_MARKERS_PATH in above else ROOT_MARKERS
    root = find_root(here, markers)
    project_file = root / CONFIG_FILE_NAME
    uses_project = project and not _is_same_file(project_file, user_file)
    found = read_file(project_file, kind="project") if uses_project else None
    for values in (user or {}, found or {}, variables, flag_values):
        _check_policy_names(values, [*(user or {}), *(found or {})])
    part = _allowed_part(found or {}, root, trust or Trust(), user=user or {})
    unknown_notes = [f"{name} is set but is not a known setting" for name in unknown]
    config = Config(
        values=MappingProxyType({**(user or {}), **part.values, **variables, **flag_values}),
        files=((user_file, user is not None), (project_file, found is not None)),
        root=root,
        project_items=part.answers,
        notes=(*part.notes, *unknown_notes),
    )
    try:
        _check_combinations(config)
    except BadConfig as problem:
        if all(answer.state == "allowed" for answer in part.answers):
            raise
        # Two settings need each other, and the user allows one of them.
        config = replace(
            config,
            values=MappingProxyType({**(user or {}), **part.servers, **variables, **flag_values}),
            notes=(*config.notes, f"no setting of {root} is used: {problem}"),
        )
        _check_combinations(config)
    return config


def project_items(
    cwd: Path | str = ".", *, flags: Mapping[str, Any] | None = None, trust: ItemTrust | None = None
) -> tuple[ItemAnswer, ...]:
    """Return the MCP servers, settings, instruction files and memory of a project, and which the user allows.

    These are the items that would be used if the user allowed all of them: settings of the project can add names of
    instruction files, or ignore folders. Raises `BadConfig`."""
    # Most commands read the configuration, and few of them instruction files or memories.
    from foveal.config.instructions.files import InstructionFiles
    from foveal.config.local_memories import project_memory_item

    config = load(cwd, flags=flags, trust=EveryItem())
    files = InstructionFiles(cwd, rules=config.rules, trust=EveryItem())
    memory = project_memory_item(config.root) if config.memory.enabled else None
    answers = trust or Trust()
    return tuple(
        ItemAnswer(item, answers.state(config.root, item))
        for item, _ in (*config.project_items, *files.items(), *([memory] if memory else []))
    )


def _names_folder(flags: ConfigValues) -> bool:
    """Return whether flags name a server's folder; raises `BadConfig` if they name a database too."""
    folder = flags.get(_FOLDER_PATH)
    if folder is None or not folder.value:
        return False
    if _DATABASE_PATH in flags:
        problem = (
            "server.folder (--folder) and server.database (--database) are both given, and a server keeps its"
            " data in one of them: leave one out"
        )
        raise BadConfig(folder.source, _FOLDER_PATH, problem, value=folder.value)
    return True


def _check_policy_names(values: ConfigValues, paths: Iterable[KeyPath]) -> None:
    """Raise `BadConfig` for the name of a policy that there is not; `paths` are those of all files."""
    named = {path[1] for path in paths if path[0] == "policies"}
    for path, value in values.items():
        if path[-2:] == ("context", "policy") and isinstance(value.value, str) and value.value not in named:
            try:
                find_policy(value.value)
            except BadSetting as problem:
                allowed = f"{problem.allowed}, or a table [policies.NAME]"
                raise bad_value(value.source, path, value.value, allowed) from None


class _ProjectPart(NamedTuple):
    """What a project's file adds to a configuration."""

    values: ConfigValues
    """Values that the user allows."""
    answers: tuple[ItemAnswer, ...]
    notes: tuple[str, ...]

    @property
    def servers(self) -> ConfigValues:
        return {path: value for path, value in self.values.items() if path[0] == "mcp"}


def _allowed_part(found: ConfigValues, root: Path, trust: ItemTrust, *, user: ConfigValues) -> _ProjectPart:
    """Return what the user allows of a project's file, all its items, and notes about what is ignored."""
    values, notes = split_values(found, user=user)
    items, more_notes = config_items(values, root)
    answers = [ItemAnswer(one.item, trust.state(root, one.item)) for one in items]
    open_notes = [
        f"{root / answer.item.source}: {answer.item.name} is not used: {ITEM_STATE_WORDS[answer.state]}"
        for answer in answers
        if answer.is_open
    ]
    allowed = {
        path: values[path]
        for one, answer in zip(items, answers, strict=True)
        if answer.state == "allowed"
        for path in one.paths
    }
    return _ProjectPart(allowed, tuple(answers), (*notes, *more_notes, *open_notes))


def _is_same_file(first: Path, second: Path) -> bool:
    try:
        return os.path.samefile(first, second)
    except OSError:
        return False


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
            agent_config.check_room()
        except BadSetting as problem:
            raise _add_source(agent_config, problem) from None
    _check_agent_names(config)


def _check_agent_names(config: Config) -> None:
    """Raise `BadConfig` if a bot or a schedule names an agent that is not configured."""
    of_bots = [((app, "agent"), f"{app}.agent", config.bot_agent(app)) for app in ("telegram", "discord")]
    of_schedules = [(("schedule", one.name, "agent"), "schedule", one.agent) for one in config.schedules]
    for path, key, agent in (*of_bots, *of_schedules):
        try:
            if agent:
                config.agent(agent)
        except BadSetting as problem:
            raise bad_value(config.source(key), path, agent, problem.allowed) from None


def _add_source(config: Config, problem: BadSetting) -> BadConfig:
    """Return the error of a policy setting as an error of the key that set it."""
    names = {field: name for name, field in POLICY_FIELDS.items()}
    name = names.get(
        problem.field, problem.field if find_key(tuple(problem.field.split("."))) else "context.policy"
    )
    source: ValueSource = config.source(name)
    return bad_value(source, tuple(name.split(".")), problem.value, problem.allowed)
