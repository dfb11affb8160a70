"""Proposals for the memory at the end of a session: asked about once, with yes, no and edit, or left to wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from foveal.agent.terminal.chat_state import ChatState
from foveal.agent.terminal.factory import init_text
from foveal.agent.terminal.output.agent_event_rows import note
from foveal.agent.terminal.output.styled_text import dim, row
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
