"""Parts of a project that are used only if the user allows them.

An item is an MCP server, a setting or an instruction file. It is identified by its key, and the user's answer is
bound to its digest: when its text changes, the user is asked again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import sha256
from typing import Final, Literal, NamedTuple

import msgspec

from foveal.core.wire.safe_print import one_line

ItemState = Literal["allowed", "refused", "changed", "new", "unbound"]
ITEM_STATE_WORDS: Final[dict[ItemState, str]] = {
    "allowed": "you allow it",
    "refused": "you did not allow it",
    "changed": "it has changed since you were asked about it",
    "new": "you were not asked about it yet",
    "unbound": "an answer cannot be bound to its code, so a chat asks about it at each start",
}
ITEMS_HASH_CHARS: Final = 32
"""Hexadecimal digits of the hash of all items: 128 bits."""


class ProjectItem(msgspec.Struct, frozen=True):
    """One thing that a project brings."""

    key: str
    """Its name in the project, such as `server files`, `setting context.policy` or `file AGENTS.md`."""
    title: str
    """What it is, on one line."""
    source: str
    """The file that has it, with the line where there is one. The line is not part of the digest."""
    text: str
    """All that the user allows, word for word, including the scripts that a server names."""
    is_bound: bool = True
    """Whether the text decides what runs. If not, no answer is stored, and the user is asked at each start."""

    @property
    def name(self) -> str:
        """The key in a sentence, safe to print."""
        return one_line(self.key.removeprefix("setting ").removeprefix("file "), width=200)

    @property
    def digest(self) -> str:
        # JSON, so that no two pairs of key and text give the same bytes.
        return sha256(json.dumps([self.key, self.text]).encode()).hexdigest()


class ItemAnswer(NamedTuple):
    """An item and the user's answer to it."""

    item: ProjectItem
    state: ItemState

    @property
    def is_open(self) -> bool:
        """Whether the user has to be asked."""
        return self.state in ("new", "changed", "unbound")


def items_hash(items: Iterable[ProjectItem]) -> str:
    """Return the value of `--trust-hash` that allows exactly these items."""
    digests = sorted(item.digest for item in items)
    return sha256("\n".join(digests).encode()).hexdigest()[:ITEMS_HASH_CHARS]
