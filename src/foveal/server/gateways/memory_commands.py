"""Commands and buttons of the bots for the memory of the user who sends them.

A memory belongs to one user of a chat app, in private chats and in groups. A button acts for the user whose memory
the message shows: a press of another user changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from foveal.core.wire.safe_print import one_line
from foveal.errors import NotRemembered
from foveal.memory.fold import MemoryEntry
from foveal.memory.memory import Memory
from foveal.server.gateways.outgoing import MEMORY_ACTION, Button, ChannelMessage
from foveal.server.tenants import Tenant

MEMORY_COMMANDS: Final = ("memory", "remember", "forget")
MAX_ENTRIES_IN_REPLY: Final = 30
MAX_ENTRIES_WITH_BUTTONS: Final = 5
"""Entries with buttons, the newest; with as many proposals, Discord shows at most 25."""
MAX_SHOWN_ENTRY_CHARS: Final = 200
NOTHING_REMEMBERED: Final = (
    "I remember nothing about you yet. Say “remember that …”, or send /remember with what I should know."
)
NOTHING_FOUND: Final = "No entry has these words. /memory lists them."
TURNED_OFF: Final = "This server remembers nothing (`server.memory`)."
OTHER_USER: Final = "This button belongs to another user. /memory shows what I remember of you."
WITHOUT_TEXT: Final = "Send what I should remember behind the command, such as: /remember I prefer tabs."


class MemoryCommands:
    """Runs the memory commands of one chat app."""

    def __init__(self, tenant: Tenant, *, storable_text: Callable[[str], str]) -> None:
        """`storable_text` returns a text without its secrets."""
        self._tenant = tenant
        self._storable_text = storable_text

    async def run(self, name: str, argument: str, *, user: int) -> ChannelMessage:
        """Run a command of `MEMORY_COMMANDS` for the user who sent it."""
        if not self._tenant.has_memories:
            return ChannelMessage(text=TURNED_OFF)
        memory = self._tenant.memory(str(user))
        try:
            if name == "remember" and argument:
                return _remembered(await memory.remember(self._storable_text(argument)))
            if name == "remember":
                return ChannelMessage(text=WITHOUT_TEXT)
            if name == "forget" and argument:
                return await _forget(memory, argument, user=user)
        except NotRemembered as problem:
            return ChannelMessage(text=f"❌ {problem}")
        return await _list(memory, argument, user=user)

    async def press(self, action: str, *, user: int) -> ChannelMessage:
        """Run the action of a button."""
        verb, _, rest = action.removeprefix(MEMORY_ACTION).partition(":")
        owner, _, id = rest.partition(":")
        if owner != str(user):
            return ChannelMessage(text=OTHER_USER)
        memory = self._tenant.memory(owner)
        try:
            match verb:
                case "forget":
                    return _forgotten(await memory.forget(id))
                case "keep":
                    return _remembered(await memory.accept(id))
                case "reject":
                    return ChannelMessage(text=f"Not kept: {_line(await memory.reject(id))}")
                case _:
                    return ChannelMessage(text=_why(await memory.why(id)))
        except NotRemembered as problem:
            return ChannelMessage(text=f"❌ {problem}")


async def _list(memory: Memory, words: str, *, user: int) -> ChannelMessage:
    """Return the entries, or those with these words, and the proposals that wait."""
    if words:
        found = await memory.search(words, limit=MAX_ENTRIES_IN_REPLY)
        return _listed(found, "🧠 What I found:", user=user) if found else ChannelMessage(text=NOTHING_FOUND)
    entries = await memory.entries()
    listed = (
        _listed(entries, "🧠 What I remember of you:", user=user)
        if entries
        else ChannelMessage(text=NOTHING_REMEMBERED)
    )
    proposals = (await memory.proposals())[:MAX_ENTRIES_WITH_BUTTONS]
    if not proposals:
        return listed
    asked = ["💡 You said this. Should I remember it?", *(f"• {_line(entry)}" for entry in proposals)]
    return ChannelMessage(
        text="\n".join([listed.text, "", *asked]),
        buttons=(*_buttons(proposals, ("Keep", "Reject"), user=user), *listed.buttons),
    )


async def _forget(memory: Memory, words: str, *, user: int) -> ChannelMessage:
    """Forget the entry with this id, or the only one with these words."""
    if words in {entry.id for entry in await memory.entries(all=True)}:
        return _forgotten(await memory.forget(words))
    found = await memory.search(words, limit=MAX_ENTRIES_WITH_BUTTONS)
    if len(found) == 1:
        return _forgotten(await memory.forget(found[0].id))
    return _listed(found, "Which of these?", user=user) if found else ChannelMessage(text=NOTHING_FOUND)


def _listed(entries: Sequence[MemoryEntry], title: str, *, user: int) -> ChannelMessage:
    shown = entries[-MAX_ENTRIES_IN_REPLY:]
    lines = [title, *(f"• {_line(entry)}" for entry in shown)]
    if len(shown) < len(entries):
        lines.append(f"And {len(entries) - len(shown):,} older ones: /memory WORDS searches all of them.")
    newest = shown[-MAX_ENTRIES_WITH_BUTTONS:]
    return ChannelMessage(text="\n".join(lines), buttons=_buttons(newest, ("Forget", "Why"), user=user))


def _buttons(entries: Sequence[MemoryEntry], labels: Sequence[str], *, user: int) -> tuple[Button, ...]:
    return tuple(
        Button(f"{label} {entry.id}", f"{MEMORY_ACTION}{label.lower()}:{user}:{entry.id}")
        for entry in entries
        for label in labels
    )


def _remembered(entry: MemoryEntry) -> ChannelMessage:
    return ChannelMessage(text=f"🧠 Remembered: {_line(entry)}")


def _forgotten(entry: MemoryEntry) -> ChannelMessage:
    return ChannelMessage(text=f"🧠 Forgotten: {_line(entry)}")


def _why(entry: MemoryEntry) -> str:
    origin = entry.origin
    said = f"you said: “{one_line(origin.quote, width=MAX_SHOWN_ENTRY_CHARS)}”" if origin.quote else ""
    where = f" (conversation `{origin.session}`, message {origin.event})" if origin.session else ""
    return f"🧠 {_line(entry)}\nI know it because {said or 'you told me with a command'}{where}."


def _line(entry: MemoryEntry) -> str:
    return f"`{entry.id}` {one_line(entry.text, width=MAX_SHOWN_ENTRY_CHARS)}"
