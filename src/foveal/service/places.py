"""Where a server keeps what it keeps.

service.db       messages that wait, tokens, pairings, chats, schedules
work.db          background work
turnstile.lock   who works on which session
tenants/NAME.db  the sessions of a tenant
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple, Self

from foveal.errors import StoreUnusable
from foveal.service import chats, desk, errands, pairing, timetable, tokens
from foveal.service.cabinet import Cabinet
from foveal.service.dropin import heads

SCHEMA: Final = tuple(
    statement
    for module in (desk, tokens, pairing, chats, errands, timetable, heads)
    for statement in module.SCHEMA
)


class Places(NamedTuple):
    folder: Path

    @classmethod
    def made(cls, folder: Path) -> Self:
        """The places in a folder, which is made for its owner only if it is not there."""
        try:
            for place in (folder, folder / "tenants"):
                place.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as problem:
            raise StoreUnusable(
                f"the folder {folder} cannot be made ({problem.strerror}): choose another `server.folder`"
            ) from None
        return cls(folder)

    @property
    def work(self) -> Path:
        return self.folder / "work.db"

    @property
    def turnstile(self) -> Path:
        return self.folder / "turnstile.lock"

    def tenant(self, name: str) -> Path:
        return self.folder / "tenants" / f"{name}.db"

    def cabinet(self) -> Cabinet:
        return Cabinet(self.folder / "service.db", schema=SCHEMA)


def default_folder(environment: Mapping[str, str]) -> Path:
    """Where a server keeps everything, unless somebody says otherwise."""
    data = environment.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(os.path.abspath(Path(data) / "foveal" / "server"))
