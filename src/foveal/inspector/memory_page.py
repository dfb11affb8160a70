"""The page of the memories as HTML, which needs no script.

Buttons are forms. Every text is escaped and bounded, as on the other pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias
from urllib.parse import quote

from foveal.core.wire.safe_print import counted, one_line
from foveal.inspector.pages import (
    MAX_PAGE_PROBLEMS,
    Html,
    PageFrame,
    document,
    element,
    joined,
    log_out_form,
    utc_time,
)
from foveal.inspector.sessions.source import MemoryAction, MemoryList, OwnedMemory
from foveal.memory import MemoryEntry

MAX_SHOWN_ENTRIES: Final = 300
"""Entries of a memory in each list of the page: the newest."""
MAX_ENTRY_PAGE_CHARS: Final = 600
_EMPTY: Final = "No memory has entries here. Say “remember that …” in a conversation, or foveal memory add."
_SOURCES: Final = {
    "told": "told",
    "file": "written into memory.md",
    "spoken": "said in a conversation",
    "quoted": "quoted by the model",
    "proposed": "proposed",
    "imported": "imported",
}


_Buttons: TypeAlias = tuple[tuple[MemoryAction, str], ...]
"""What the owner can do, each with the text of its button."""
_FORGET: Final[_Buttons] = (("forget", "Forget"),)
_BRING_BACK: Final[_Buttons] = (("undo", "Undo"),)
_ANSWER: Final[_Buttons] = (("accept", "Yes, keep"), ("reject", "No"))


def memory_page(listed: MemoryList, frame: PageFrame, *, query: str = "") -> str:
    """Return the page of all memories, with the entries that have the words of a query."""
    problems = [
        element("p", {"class": "problem"}, one_line(each, width=400))
        for each in listed.problems[:MAX_PAGE_PROBLEMS]
    ]
    sections = [_memory_section(memory, frame, query) for memory in listed.memories]
    shown = sections or [element("p", {"class": "empty"}, _EMPTY)]
    links = element("nav", {"aria-label": "Pages"}, element("a", {"href": "./"}, "All sessions"))
    return document(
        "Memory",
        element("header", {"id": "head"}, element("h1", {}, "Memory"), links, *log_out_form(frame)),
        element("main", {"id": "main", "class": "memories"}, *problems, _search_form(query), *shown),
        body={"data-page": "memory"},
        frame=frame,
    )


def _search_form(query: str) -> Html:
    field = {
        "type": "search",
        "name": "q",
        "value": query,
        "aria-label": "Search the entries",
        "placeholder": "Search the entries",
        "autocomplete": "off",
    }
    button = element("button", {"type": "submit"}, "Search")
    return element("form", {"method": "get", "action": "memory"}, element("input", field), button)


def _memory_section(memory: OwnedMemory, frame: PageFrame, query: str) -> Html:
    words = query.casefold().split()
    found = [entry for entry in memory.entries if all(word in entry.text.casefold() for word in words)]
    waiting = [entry for entry in found if entry.proposed and not entry.forgotten]
    counting = [entry for entry in found if entry.counts]
    gone = [entry for entry in found if entry.forgotten or entry.replaced_by]
    entries = counted(len(counting), "entry", "entries")
    kept = _entry_list(memory, counting, frame, _FORGET)
    parts = [
        element("h2", {"id": memory.key}, one_line(memory.owner, width=MAX_ENTRY_PAGE_CHARS)),
        element(
            "p",
            {"class": "muted"},
            f"{one_line(memory.place)} · {entries}",
        ),
        *([element("p", {"class": "muted"}, memory.refusal)] if memory.refusal else []),
        *([element("h3", {}, "Proposed"), _entry_list(memory, waiting, frame, _ANSWER)] if waiting else []),
        kept if counting else element("p", {"class": "muted"}, "No entry."),
        *([_gone(memory, gone, frame)] if gone else []),
        *([] if memory.refusal else [_form(memory, "", frame, (("undo", "Undo the last change"),))]),
    ]
    return element("section", {"class": "memory", "aria-labelledby": memory.key}, *parts)


def _gone(memory: OwnedMemory, entries: Sequence[MemoryEntry], frame: PageFrame) -> Html:
    title = element("summary", {}, f"Replaced and forgotten ({len(entries):,})")
    return element("details", {}, title, _entry_list(memory, entries, frame, _BRING_BACK))


def _entry_list(
    memory: OwnedMemory, entries: Sequence[MemoryEntry], frame: PageFrame, buttons: _Buttons
) -> Html:
    shown = entries[-MAX_SHOWN_ENTRIES:]
    items = [_entry_item(memory, entry, frame, buttons) for entry in reversed(shown)]
    left = len(entries) - len(shown)
    more = [element("p", {"class": "muted"}, f"{left:,} older ones are found by the search.")] if left else []
    return joined(element("ul", {"class": "memory-entries"}, *items), *more)


def _entry_item(memory: OwnedMemory, entry: MemoryEntry, frame: PageFrame, buttons: _Buttons) -> Html:
    quoted = entry.origin.quote
    words = element("blockquote", {}, one_line(quoted, width=MAX_ENTRY_PAGE_CHARS))
    form = [] if memory.refusal else [_form(memory, entry.id, frame, buttons)]
    text = element("p", {"class": "memory-text"}, one_line(entry.text, width=MAX_ENTRY_PAGE_CHARS))
    about = element("p", {"class": "muted"}, *_about(memory, entry))
    return element("li", {"id": f"{memory.key}-{entry.id}"}, text, about, *([words] if quoted else []), *form)


def _about(memory: OwnedMemory, entry: MemoryEntry) -> Iterable[str]:
    """Yield what is known of an entry: id, kind, state, source, time, and the message with a link to it."""
    origin = entry.origin
    state = (
        f"replaced by {entry.replaced_by}" if entry.replaced_by else "forgotten" if entry.forgotten else ""
    )
    by = one_line(origin.by, width=80)
    facts = [
        entry.id,
        entry.kind,
        state,
        _SOURCES[origin.source],
        by and f"by {by}",
        utc_time(entry.at or 0.0),
    ]
    yield " · ".join(filter(None, facts))
    if origin.session:
        place = f"#message={origin.event}" if origin.event else ""
        key = quote(memory.session_key(origin.session), safe="")
        name = f"session {one_line(origin.session, width=80)} {origin.event}"
        yield " · "
        yield element("a", {"href": f"session?id={key}{place}"}, name.strip())


def _form(memory: OwnedMemory, id: str, frame: PageFrame, actions: _Buttons) -> Html:
    hidden = {"write_token": frame.write_token, "memory": memory.key, "id": id}
    fields = [
        element("input", {"type": "hidden", "name": name, "value": value}) for name, value in hidden.items()
    ]
    buttons = [
        element("button", {"type": "submit", "name": "action", "value": action}, title)
        for action, title in actions
    ]
    return element("form", {"method": "post", "action": "memory"}, *fields, *buttons)
