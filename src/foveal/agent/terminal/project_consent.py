"""Asks the user which items of a project the chat may use.

1. Each item has a switch of its own, and all are off. The whole text of an item can be read in the question; for an
   item that has changed, the difference comes first.
2. Leaving the question with Esc stores nothing: no new item is used, and the next chat asks again.
3. Without a user to ask, the items are used that the user has allowed in a chat and that have not changed since.
   With `--trust-hash`, all of them are used if it is their hash; if not, nothing runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from difflib import unified_diff
from pathlib import Path
from typing import Final

from foveal.agent.terminal.factory import ChatConfig, is_simple_chat
from foveal.agent.terminal.options import ChatOptions, WrongOption
from foveal.agent.terminal.output.agent_event_rows import note
from foveal.agent.terminal.output.styled_text import Row, diff_rows, dim, row, text_rows
from foveal.agent.terminal.user_interface import MenuItem, UserInterface
from foveal.config.instructions.files import InstructionFiles
from foveal.config.load import project_items
from foveal.config.local_memories import project_memory_item
from foveal.config.project import GivenItems, ItemAnswer, ProjectItem, Trust, items_hash
from foveal.core.wire.safe_print import counted, exact_line, one_line, visible

_MAX_ROUNDS: Final = 3
"""Questions at the start: an allowed setting can add names of instruction files, which are asked about next."""
_MAX_SHORT_TITLE_CHARS: Final = 30
"""Length of a title that is never cut on the screen."""
_HINT: Final = "The project is used without what is off."
_OLD_ANSWER_HINT: Final = (
    "You trusted this project as a whole in an earlier version. That answer no longer counts, because it was not "
    "bound to what the project brings."
)


class ProjectConsent:
    """The questions of one chat about the items of its project."""

    def __init__(self, ui: UserInterface) -> None:
        self._ui = ui
        self._left_open: set[str] = set()
        """Digests of items whose question the user has left without an answer."""

    async def ask(self, config: ChatConfig, answers: Iterable[ItemAnswer]) -> bool:
        """Ask about items without an answer; return whether the user has answered."""
        trust, root = config.trust, config.loaded.root
        asked = [one for one in answers if one.is_open and one.item.digest not in self._left_open]
        if not asked or not self._ui.can_ask or not isinstance(trust, Trust):
            return False
        items = [_menu_item(one, trust.seen_text(root, one.item)) for one in asked]
        allowed = await self._ui.choose_many(_title(root, asked), items, hint=_hint(trust, root))
        if allowed is None:
            self._left_open.update(one.item.digest for one in asked)
            return False
        trust.answer(root, [one.item for one in asked], allowed=allowed)
        return True

    async def ask_and_reload(self, config: ChatConfig, answers: Iterable[ItemAnswer]) -> ChatConfig:
        """Ask about items without an answer, and return the configuration with what the user allows."""
        return config.reload() if await self.ask(config, answers) else config


def _title(root: Path, asked: Sequence[ItemAnswer]) -> str:
    many = "s" * (len(asked) != 1)
    return f"{exact_line(str(root))} brings {len(asked):,} item{many}. Which may Foveal use?"


def _hint(trust: Trust, root: Path) -> str:
    is_first = not trust.has_answers(root) and trust.was_trusted_as_a_whole(root)
    return f"{_OLD_ANSWER_HINT} {_HINT}" if is_first else _HINT


def _menu_item(answer: ItemAnswer, seen: str | None) -> MenuItem:
    """Return the line of an item; `seen` is the text when the user was asked about it before."""
    item = answer.item
    changed = "" if seen is None else "changed: "
    return MenuItem(
        key=item.key,
        title=f"{exact_line(item.source)}  {changed}{item.title}",
        body=tuple(_body_rows(item, seen)),
        # A long line is cut on the screen, and a script or a file is not on the line at all.
        needs_view=seen is not None or item.text != item.title or len(item.title) > _MAX_SHORT_TITLE_CHARS,
    )


def _body_rows(item: ProjectItem, seen: str | None) -> Iterator[Row]:
    """Yield what has changed since the user saw the item, and its whole text."""
    if seen is not None:
        yield row(dim("changed since you were asked:"))
        lines = unified_diff(seen.split("\n"), item.text.split("\n"), "before", "now", lineterm="", n=3)
        yield from diff_rows(visible("\n".join(lines)))
        yield from (row(), row(dim("now, in full:")))
    yield from text_rows(visible(item.text), indent="    ")


# ── The start of a chat ──────────────────────────────────────────────────────────────────────────────────


async def load_with_consent(options: ChatOptions, ui: UserInterface, consent: ProjectConsent) -> ChatConfig:
    """Return the configuration with those items of the project that the user allows, asking about the others."""
    if not options.project:
        return ChatConfig.from_options(options, trust=GivenItems())
    items = await asyncio.to_thread(_every_item, options)
    if options.trust_hash and options.trust_hash == items_hash(items):
        return ChatConfig.from_options(options, trust=GivenItems(items))
    if options.trust_hash and not ui.can_ask:
        raise WrongOption(_wrong_hash_text(options.trust_hash, items))
    if options.trust_hash:
        ui.notify([note(_wrong_hash_text(options.trust_hash, items), "bad")])
    if ui.can_ask:
        return await _ask_at_start(options, consent)
    unused = await asyncio.to_thread(_unused_items, options)
    if unused:
        ui.notify([note(_skipped_text(items, unused), "fair")])
    return ChatConfig.from_options(options, trust=Trust())


async def _ask_at_start(options: ChatOptions, consent: ProjectConsent) -> ChatConfig:
    config = ChatConfig.from_options(options, trust=Trust())
    for _ in range(_MAX_ROUNDS):
        asked = settings_of(config)
        others = [*servers_of(config), *_files_of(config)]
        if any(one.is_open for one in others) and not is_simple_chat(options, config):
            asked = [*servers_of(config), *asked, *_files_of(config)]
        asked = [*asked, *memory_of(config)]
        if not await consent.ask(config, asked):
            break
        config = config.reload()
    return config


def _every_item(options: ChatOptions) -> list[ProjectItem]:
    return [item for item, _ in project_items(options.folder, flags=ChatConfig.flags_of(options))]


def _unused_items(options: ChatOptions) -> list[ProjectItem]:
    """Return the items that are not used, without those that the user has refused."""
    answers = project_items(options.folder, flags=ChatConfig.flags_of(options))
    return [one.item for one in answers if one.is_open]


def servers_of(config: ChatConfig) -> list[ItemAnswer]:
    """Return the MCP servers of the project."""
    return [one for one in config.loaded.project_items if one.item.key.startswith("server ")]


def settings_of(config: ChatConfig) -> list[ItemAnswer]:
    """Return the settings of the project."""
    return [one for one in config.loaded.project_items if one.item.key.startswith("setting ")]


def memory_of(config: ChatConfig) -> list[ItemAnswer]:
    """Return the memory of the project, if it brings one that may be used."""
    is_used = config.project and config.loaded.memory.enabled
    item = project_memory_item(config.loaded.root, config.trust) if is_used else None
    return [] if item is None else [item]


def _files_of(config: ChatConfig) -> tuple[ItemAnswer, ...]:
    return InstructionFiles(config.folder, rules=config.loaded.rules, trust=config.trust).items()


def _wrong_hash_text(given: str, items: Sequence[ProjectItem]) -> str:
    """Return that a hash is not that of the items, with theirs."""
    return (
        f"--trust-hash {one_line(given)} is not the hash of what this project brings: "
        f"{counted(len(items), 'item')} with the hash {items_hash(items)}. `foveal config project` shows them"
    )


def _skipped_text(items: Sequence[ProjectItem], unused: Sequence[ProjectItem]) -> str:
    """Return how many items are not used, and the hash that allows all."""
    are = "1 item of this project is" if len(unused) == 1 else f"{len(unused):,} items of this project are"
    return (
        f"{are} not used, because there is no terminal to ask at. `foveal config project` shows what the project "
        f"brings; --trust-hash {items_hash(items)} uses all of it as it is now"
    )
