"""Proposals for the memory at the end of a session: shown once with yes, no and edit, or left to wait."""

from __future__ import annotations

from typing import Final

from foveal.agent.terminal.chat_state import ChatState
from foveal.agent.terminal.factory import init_text
from foveal.agent.terminal.output.agent_event_rows import note
from foveal.agent.terminal.output.styled_text import row
from foveal.agent.terminal.user_interface import Choice, Question
from foveal.agent.terminal.user_message import typed_text
from foveal.core.log.events import Event, UserSaid
from foveal.core.view.fold import effective_events
from foveal.core.wire.safe_print import exact_line
from foveal.errors import NotRemembered
from foveal.memory import Memory, MemoryEntry

_CHOICES: Final = (
    Choice("y", "Yes, remember it", lasts=True),
    Choice("e", "Edit it first"),
    Choice("n", "No"),
)


async def propose_at_end(state: ChatState) -> None:
    """Propose what the user stated in the session, and ask about all proposals that wait.

    Without a user to ask, they go on waiting, and a notice says how many there are."""
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
        await _review(state, memory)
    elif new:
        are = "1 statement is" if len(new) == 1 else f"{len(new):,} statements are"
        state.ui.notify([note(f"{are} proposed for your memory: foveal memory list")])


def _is_prepared(event: Event) -> bool:
    """Return whether a message is the request of `/init`, whose words are not the user's."""
    return isinstance(event.fact, UserSaid) and typed_text(event.fact.content).startswith(init_text())


async def _review(state: ChatState, memory: Memory) -> None:
    waiting = await memory.proposals()
    for number, entry in enumerate(waiting, 1):
        place = f" ({number} of {len(waiting)})" if len(waiting) > 1 else ""
        question = Question(
            text=f"Remember this in all later sessions?{place} Ctrl-C decides later.",
            details=(row(f"  “{exact_line(entry.text)}”"),),
            choices=_CHOICES,
        )
        answer = await state.ui.ask(question)
        if answer == "n":
            await memory.reject(entry.id)
        elif answer == "y":
            await memory.accept(entry.id)
        else:
            await _accept_edited(state, memory, entry)
    if waiting:
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
