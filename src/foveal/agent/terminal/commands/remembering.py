"""The memory in a chat: /memory, /remember, /forget, and proposals at the end of a session.

A proposal is asked about once, with yes, no and edit, or left to wait.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from foveal.agent.terminal.chat_state import ChatState
from foveal.agent.terminal.factory import init_text
from foveal.agent.terminal.output.agent_event_rows import note
from foveal.agent.terminal.output.styled_text import Row, bold, dim, row, table_lines
from foveal.agent.terminal.user_interface import Choice, Question
from foveal.agent.terminal.user_message import typed_text
from foveal.config.local_memories import (
    LocalMemories,
    MemoryFile,
    entry_details,
    entry_state,
    undo_change,
    with_replaced,
)
from foveal.core.log.events import Event, UserSaid
from foveal.core.view.fold import effective_events
from foveal.core.wire.safe_print import counted, exact_line, one_line
from foveal.errors import FovealError, NotRemembered
from foveal.memory import Memory, MemoryEntry

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


# ── Proposals ────────────────────────────────────────────────────────────────────────────────────────────

_CHOICES: Final = (
    Choice("y", "Yes, remember it", lasts=True),
    Choice("e", "Edit it first"),
    Choice("n", "No"),
)


async def propose_at_end(state: ChatState) -> None:
    """Propose what the user stated in the session, and ask about it.

    What was proposed before is not asked about again. It goes on waiting, as everything does without a user to ask,
    and a notice says how many there are."""
    if state.memories is None:
        return
    memory, new = state.memories.user.memory, list[MemoryEntry]()
    if state.memories.settings.learn_proposals:
        events = effective_events(await state.session.events())
        typed = [event for event in events if not _is_prepared(event)]
        asked = state.writers.summarisers() if state.memories.settings.propose_with_model else []
        model = next((writer for writer in asked if not writer.native), None)
        new = await memory.propose(typed, session=state.session.id, model=model)
    if state.ui.can_ask:
        asked_now = {entry.id for entry in new}
        waiting = [entry for entry in await memory.proposals() if entry.id not in asked_now]
        if waiting:
            state.ui.notify([note(f"{_are(waiting, 'still proposed')}: foveal memory list")])
        await _review(state, memory, new)
    elif new:
        state.ui.notify([note(f"{_are(new, 'proposed')}: foveal memory list")])


def _are(entries: Sequence[MemoryEntry], what: str) -> str:
    are = "1 statement is" if len(entries) == 1 else f"{len(entries):,} statements are"
    return f"{are} {what} for your memory"


def _is_prepared(event: Event) -> bool:
    """Return whether a message is the request of `/init`, whose words are not the user's."""
    return isinstance(event.fact, UserSaid) and typed_text(event.fact.content).startswith(init_text())


async def _review(state: ChatState, memory: Memory, new: Sequence[MemoryEntry]) -> None:
    for number, entry in enumerate(new, 1):
        place = f" ({number} of {len(new)})" if len(new) > 1 else ""
        origin = f"  from your message {entry.origin.event} in this session, {entry.origin.session}"
        question = Question(
            text=f"Remember this in all later sessions?{place} Ctrl-C decides later.",
            details=(row(f"  “{exact_line(entry.text)}”"),),
            remarks=(row(dim(origin)),),
            choices=_CHOICES,
        )
        answer = await state.ui.ask(question)
        if answer == "n":
            await memory.reject(entry.id)
        elif answer == "y":
            await memory.accept(entry.id)
        else:
            await _accept_edited(state, memory, entry)
    if new:
        await state.write_memory()


async def _accept_edited(state: ChatState, memory: Memory, entry: MemoryEntry) -> None:
    """Keep a proposal in the words of the user; without any, it goes on waiting."""
    text = await state.ui.edit_text(
        "Change the text, then press Enter. An empty line decides later.", entry.text
    )
    try:
        if text:
            await memory.accept(entry.id, text)
    except NotRemembered as problem:
        state.ui.show_error(str(problem))
