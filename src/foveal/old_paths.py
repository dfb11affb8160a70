"""Import paths of earlier versions.

A documented module that has moved is the same module under its old path, so nothing is loaded twice.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import find_spec
from types import ModuleType
from typing import Final

MOVED: Final = {
    "foveal.apps.gateways.discord.discord_parts": "foveal.server.gateways.discord.send",
    "foveal.apps.gateways.chat_session": "foveal.server.gateways.chat_sessions",
    "foveal.apps.gateways.part_sender": "foveal.server.gateways.outgoing",
    "foveal.apps.gateways.channel": "foveal.server.gateways.outgoing",
    "foveal.apps.gateways": "foveal.server.gateways",
    "foveal.apps": "foveal.cli",
    "foveal.instructions": "foveal.config.instructions",
    "foveal.permissions.command_line": "foveal.agent.permissions.command_rules",
    "foveal.permissions": "foveal.agent.permissions",
    "foveal.project": "foveal.config.project",
    "foveal.tools": "foveal.agent.tools",
}
"""Old paths and new ones, the longest first; the modules below them have moved with them."""


class _SameModule(SourceFileLoader):
    """A loader that returns the module of another path."""

    def __init__(self, name: str, moved: ModuleSpec) -> None:
        super().__init__(name, moved.origin or "")
        self._moved = moved

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return import_module(self._moved.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._moved  # the import system has replaced it by that of the old path


class _OldPaths:
    """A finder for old paths. It is the first one: the module of an old package has the folder of the new one, in
    which the others would find the modules below it a second time."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        for old, new in MOVED.items() if name.startswith("foveal.") else ():
            if name == old or name.startswith(f"{old}."):
                found = find_spec(new + name[len(old) :])
                if found is None:
                    return None
                spec = ModuleSpec(name, _SameModule(name, found), origin=found.origin)
                spec.submodule_search_locations = found.submodule_search_locations
                return spec
        return None


def install() -> None:
    """Make the old paths importable."""
    if not any(type(finder).__name__ == _OldPaths.__name__ for finder in sys.meta_path):
        sys.meta_path.insert(0, _OldPaths())
