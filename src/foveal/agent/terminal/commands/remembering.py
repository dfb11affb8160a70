"""Slash commands about the memory: /memory, /remember, /forget."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from foveal.agent.terminal.chat_state import ChatState
from foveal.agent.terminal.output.agent_event_rows import note
from foveal.agent.terminal.output.styled_text import Row, bold, dim, row, table_lines
from foveal.config.local_memories import LocalMemories, entry_details, entry_state, undo_change, with_replaced
from foveal.config.memory_file import MemoryFile
from foveal.core.wire.safe_print import counted, one_line
from foveal.errors import FovealError
from foveal.memory import MemoryEntry

MEMORY_ACTS: Final = ("search", "why", "edit", "undo", "accept", "reject")
"""Words after `/memory`."""
PROJECT_FLAG: Final = "--project"
_MAX_LISTED_ENTRIES: Final = 50


async def memory(state: ChatState, argument: str) -> list[Row]:
    """List the entries, or do what the first word says."""
    memories = _memories(state)
    await state.read_memories()
    act, _, rest = argument.partition(" ")
    if not act:
        return await _list(memories)
    if act not in _ACTS:
        raise FovealError(f"/memory has no {one_line(act)!r}; it has {', '.join(MEMORY_ACTS)}")
    return await _ACTS[act](state, memories, rest.strip())


async def remember(state: ChatState, argument: str) -> list[Row]:
    """Keep a statement in the user's memory, or in that of the project."""
    memories = _memories(state)
    is_project = argument.split(" ", 1)[0] == PROJECT_FLAG
    text = argument.removeprefix(PROJECT_FLAG).strip() if is_project else argument
    if not text:
        raise FovealError("/remember needs a statement: /remember I prefer tabs")
    if is_project and memories.project is None:
        raise FovealError(
            "there is no memory of a project here: the folder shows none, or --no-project is set"
        )
    file = memories.project if is_project and memories.project is not None else memories.user
    await state.read_memories()
    entry = await file.memory.remember(text)
    await state.write_memory(file)
    _, *replaced = await with_replaced(file.memory, entry)
    rows = [*_done("remembered", entry), *(one for old in replaced for one in _done("replaced", old))]
    return [*rows, *_where(file, is_project=is_project)]


async def forget(state: ChatState, argument: str) -> list[Row]:
    """Take an entry out of all later requests."""
    return await _forget(state, _memories(state), argument)


# ── /memory ──────────────────────────────────────────────────────────────────────────────────────────────


async def _list(memories: LocalMemories) -> list[Row]:
    rows: list[Row] = []
    for file in memories.files:
        entries = await file.memory.entries()
        owner = "you" if file is memories.user else "this project"
        if entries or file is memories.user:
            head = f"  {_count(len(entries))} · {file.path}"
            rows += [row(bold(f"memory of {owner}"), dim(head)), *_entry_rows(entries)]
        if waiting := await file.memory.proposals():
            rows += [
                row(bold("proposed"), dim("  /memory accept ID, /memory reject ID")),
                *_entry_rows(waiting),
            ]
    if len(rows) == 1:
        rows.append(row(dim("  nothing yet: say “remember that …”, or /remember TEXT")))
    return rows


async def _search(state: ChatState, memories: LocalMemories, words: str) -> list[Row]:
    _needs(words, "/memory search needs words to look for")
    found = [entry for one in memories.all for entry in await one.search(words)]
    return _entry_rows(found) or [row(dim("no entry has these words"))]


async def _why(state: ChatState, memories: LocalMemories, id: str) -> list[Row]:
    _needs(id, "/memory why needs the id of an entry, such as m12")
    entry = await memories.file_of(id).memory.why(id)
    rows = [row(bold(f"{entry.id} "), one_line(entry.text, width=600))]
    return [*rows, *(row(f"  {line}") for line in table_lines(entry_details(entry)))]


async def _edit(state: ChatState, memories: LocalMemories, given: str) -> list[Row]:
    id, _, text = given.partition(" ")
    _needs(
        text.strip(), "/memory edit needs the id of an entry and its new text: /memory edit m12 I use spaces"
    )
    file = memories.file_of(id)
    entry = await file.memory.edit(id, text)
    await state.write_memory(file)
    return _done("changed", entry)


async def _undo(state: ChatState, memories: LocalMemories, id: str) -> list[Row]:
    file = memories.file_of(id) if id else await memories.newest_changed()
    undone = await undo_change(file.memory, id or None)
    await state.write_memory(file)
    gone = "taken back: {0.id} is not remembered any more: {1}"
    return [
        *(note(gone.format(entry, one_line(entry.text, width=600)), "good") for entry in undone.gone),
        *(row for entry in undone.now for row in _done("taken back; now", entry)),
    ]


async def _accept(state: ChatState, memories: LocalMemories, given: str) -> list[Row]:
    id, _, text = given.partition(" ")
    _needs(id, "/memory accept needs the id of a proposal, such as m12")
    file = memories.file_of(id)
    entry = await file.memory.accept(id, text.strip() or None)
    await state.write_memory(file)
    return _done("remembered", entry)


async def _reject(state: ChatState, memories: LocalMemories, id: str) -> list[Row]:
    _needs(id, "/memory reject needs the id of a proposal, such as m12")
    entry = await memories.file_of(id).memory.reject(id)
    return [note(f"rejected {entry.id}: {one_line(entry.text, width=600)}", "good")]


async def _forget(state: ChatState, memories: LocalMemories, id: str) -> list[Row]:
    _needs(id, "/forget needs the id of an entry, such as m12; /memory lists them")
    await state.read_memories()
    file = memories.file_of(id)
    entry = await file.memory.forget(id)
    await state.write_memory(file)
    return [
        note(
            f"forgot {entry.id}: {one_line(entry.text, width=600)} · /memory undo {entry.id} takes it back",
            "good",
        )
    ]


_ACTS: Final[dict[str, Callable[[ChatState, LocalMemories, str], Awaitable[list[Row]]]]] = dict(
    zip(MEMORY_ACTS, (_search, _why, _edit, _undo, _accept, _reject), strict=True)
)


# ── Rows ─────────────────────────────────────────────────────────────────────────────────────────────────


def _memories(state: ChatState) -> LocalMemories:
    if state.memories is None:
        raise FovealError("the memory is switched off: memory.enabled of the settings")
    return state.memories


def _count(entries: int) -> str:
    return counted(entries, "entry", "entries")


def _needs(given: str, advice: str) -> None:
    if not given:
        raise FovealError(advice)


def _entry_rows(entries: Sequence[MemoryEntry]) -> list[Row]:
    """Return a row for each entry, of many the newest."""
    more = len(entries) - _MAX_LISTED_ENTRIES
    rows = [row(dim(f"  … {more:,} older: /memory search WORDS"))] if more > 0 else []
    for entry in entries[-_MAX_LISTED_ENTRIES:]:
        state = entry_state(entry)
        text = one_line(entry.text, width=600)
        rows.append(row(f"  {entry.id:<4} {text}", dim(f"  {entry.kind}{f', {state}' if state else ''}")))
    return rows


def _done(what: str, entry: MemoryEntry) -> list[Row]:
    state = entry_state(entry)
    text = f"{what} {entry.id}: {one_line(entry.text, width=600)}{f' ({state})' if state else ''}"
    return [note(f"{text} · /memory undo {entry.id} takes it back", "good")]


def _where(file: MemoryFile, *, is_project: bool) -> list[Row]:
    """Return where an entry of the project is written, because others read that file."""
    return [note(f"written to {file.path}, for all who use the project")] if is_project else []
