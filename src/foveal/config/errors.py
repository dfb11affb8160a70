"""Errors of a configuration, with file, line and what is allowed."""

from __future__ import annotations

import re
from typing import Final

from foveal.config.keys import KeyPath, dotted_name, names_below
from foveal.config.value_source import ValueSource
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
