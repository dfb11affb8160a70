"""What a key of the configuration is, and the kinds of values that one may take."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable
from math import isfinite
from typing import Any, Final, NamedTuple, TypeAlias

from foveal.budget import LARGEST_WINDOW

Path: TypeAlias = tuple[str, ...]


class Kind(NamedTuple):
    """What values a key takes."""

    allowed: str
    fits: Callable[[Any], bool]
    read: Callable[[str], Any]
    """The value that a text means; raises ValueError when it means none."""
    problem: Callable[[Any], str] = lambda _: ""
    """What is wrong with a value that does not fit, if more can be said than what is allowed."""


def whole(least: int, most: int = LARGEST_WINDOW) -> Kind:
    return Kind(
        f"a whole number from {least:,} to {most:,}",
        lambda value: type(value) is int and least <= value <= most,
        lambda text: int(text.replace(",", "")),
    )


def share(most: float = 1.0) -> Kind:
    return Kind(
        f"a number from 0 to {most:g}",
        lambda value: type(value) in (int, float) and isfinite(value) and 0 <= value <= most,
        float,
    )


def one_of(names: Iterable[str]) -> Kind:
    names = tuple(names)
    return Kind(f"one of {', '.join(names)}", lambda value: value in names, str)


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "1", "yes", "on", "false", "0", "no", "off"):
        raise ValueError(text)
    return text.lower() in ("true", "1", "yes", "on")


def _toml(text: str, otherwise: Callable[[], Any]) -> Any:
    """A list as TOML writes it, or else as people write one in a shell."""
    return tomllib.loads(f"x = {text}")["x"] if text.lstrip().startswith("[") else otherwise()


TEXT: Final = Kind("a text", lambda value: isinstance(value, str), str)
URL: Final = Kind(
    "an address that begins with http:// or https://",
    lambda value: isinstance(value, str) and value.startswith(("http://", "https://")),
    str,
)
TRUTH: Final = Kind("true or false", lambda value: isinstance(value, bool), _truth)
TEXTS: Final = Kind(
    "a list of texts",
    lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value),
    lambda text: _toml(text, lambda: [one.strip() for one in text.split(",") if one.strip()]),
)
NUMBERS: Final = Kind(
    "a list of whole numbers above 0",
    lambda value: isinstance(value, list) and all(type(one) is int and one > 0 for one in value),
    lambda text: _toml(text, lambda: [int(one) for one in text.replace(",", " ").split()]),
)
FILE_NAMES: Final = TEXTS._replace(
    allowed="a list of names of files, without a folder",
    fits=lambda value: TEXTS.fits(value) and all(one and not re.search(r"[/\\]|^\.+$", one) for one in value),
)


def _no_text(text: str) -> Any:
    raise ValueError(text)


TABLE: Final = Kind(
    "a table of texts",
    lambda value: isinstance(value, dict) and all(isinstance(one, str) for one in value.values()),
    _no_text,
)


class Key(NamedTuple):
    path: Path
    kind: Kind
    about: str
    default: Any = None
    """None is left to the model or to the policy."""
    safe: bool = True
    """An untrusted project may set it."""
    project: bool = True
    """A project may set it at all."""
    secret: bool = False
    """Its values are never printed."""

    @property
    def variable(self) -> str:
        """Its name in the environment; "" when it has none."""
        return "" if "*" in self.path else f"FOVEAL_{'_'.join(self.path).upper()}"


def key_named(name: str, kind: Kind, about: str, **more: Any) -> Key:
    return Key(tuple(name.split(".")), kind, about, **more)
