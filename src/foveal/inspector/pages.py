"""Pages of the inspector as HTML: overview, session, memories, login and errors.

The modules in `static/` replace what is rendered here. Without JavaScript it is all there is, so it can be read.
Every string that is not `Html` is escaped in one place, `escaped`, and every text of a session is bounded.
Characters that cannot be seen or that turn the direction of text are shown as their codes, and lone surrogates too,
so a page is always valid UTF-8.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias
from urllib.parse import quote

from foveal.core.log.events import Event, handle, kind
from foveal.core.wire.safe_print import counted, one_line, readable
from foveal.errors import FovealError
from foveal.inspector.sessions.source import (
    MemoryAction,
    MemoryList,
    OwnedMemory,
    SessionAbout,
    SessionPage,
    SessionRow,
)
from foveal.inspector.timeline.event_sentences import event_sentence

if TYPE_CHECKING:
    from foveal.memory import MemoryEntry

# ── Scripts and styles ───────────────────────────────────────────────────────────────────────────────────

STATIC_TYPES: Final = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
MAIN_SCRIPT: Final = "main.js"
LOGIN_SCRIPT: Final = "login_form.js"
"""Keeps the point of the address; the form works without it."""
_IMPORT: Final = re.compile(r'^import\s[^;"]*"\./([\w.-]+)";?[ \t]*\n?', re.MULTILINE)
_EXPORT: Final = re.compile(r"^export\s+(?=(?:async\s+)?(?:function|class|const|let)\b)", re.MULTILINE)
_END_TAG: Final = re.compile(r"<(?=/(?:script|style)|!--|script)", re.IGNORECASE)


class StaticFile(NamedTuple):
    body: bytes
    media_type: str
    tag: str
    """The value of `ETag`."""


def static_file(name: str) -> StaticFile | None:
    """Return a file; None if there is none. Only names of the folder are known, so no path leads out of it."""
    if name not in static_names():
        return None
    return static_body(files("foveal.inspector").joinpath("static", name).read_bytes(), name)


def static_body(body: bytes, name: str) -> StaticFile:
    """Return bytes as the file of this name."""
    return StaticFile(body, STATIC_TYPES[_suffix(name)], f'"{sha256(body).hexdigest()[:32]}"')


def static_names() -> tuple[str, ...]:
    """Return the names of all files, sorted."""
    folder = files("foveal.inspector").joinpath("static")
    names = (file.name for file in folder.iterdir() if file.is_file())
    return tuple(sorted(name for name in names if _suffix(name) in STATIC_TYPES))


def style_names() -> tuple[str, ...]:
    """Return the style sheets in the order in which pages load them: later ones refine `inspector.css`."""
    names = [name for name in static_names() if name.endswith(".css")]
    return tuple(sorted(names, key=lambda name: (name != "inspector.css", name)))


def _suffix(name: str) -> str:
    return f".{name.rpartition('.')[2]}"


# ── Bundles ──────────────────────────────────────────────────────────────────────────────────────────────
# A bundle is one script made of all modules. They have only static named imports, and no top-level name occurs
# twice (a test checks both). So it is their text in the order of their imports, without the import lines and the
# word `export`.


def script_bundle(main: str = MAIN_SCRIPT, read: Callable[[str], str] | None = None) -> str:
    """Return the text of a module and of all modules that it imports, the imported ones first."""
    read = read or _static_text
    done: dict[str, str] = {}
    path: list[str] = []

    def visit(name: str) -> None:
        if name in done:
            return
        if name in path:
            raise FovealError(f"modules import each other: {' → '.join([*path, name])}")
        path.append(name)
        text = read(name)
        for imported in _IMPORT.findall(text):
            visit(imported)
        path.pop()
        done[name] = _EXPORT.sub("", _IMPORT.sub("", text))

    visit(main)
    return inline_safe("\n".join(done.values()))


@cache
def main_script() -> StaticFile:
    """Return the script of the pages as one file: a request for each module would take longer than the rest."""
    return static_body(script_bundle().encode("utf-8"), MAIN_SCRIPT)


def style_bundle() -> str:
    """Return all style sheets as one."""
    return inline_safe("\n".join(_static_text(name) for name in style_names()))


def inline_safe(code: str) -> str:
    """Return code that an HTML page can contain: nothing in it ends the element or begins a comment.

    In strings, regular expressions and comments, the only places where these occur, `\\<` is `<`.
    """
    return _END_TAG.sub(r"\\<", code)


def _static_text(name: str) -> str:
    found = static_file(name)
    if found is None:
        raise FovealError(f"the package has no {name}: install it again")
    return found.body.decode("utf-8")


# ── Pages ────────────────────────────────────────────────────────────────────────────────────────────────

FIRST_SESSION_ROWS: Final = 50
"""Sessions in the table that the server renders."""
FIRST_LOG_ROWS: Final = 60
"""Events in the table that the server renders."""
MAX_PAGE_TITLE_CHARS: Final = 200
MAX_PAGE_PROBLEMS: Final = 20
"""Problems of sources that the page of the list shows."""
_NO_SCRIPT: Final = (
    "Without JavaScript this page shows the newest part only: allow scripts of this address to see the rest."
)
_EMPTY_OVERVIEW: Final = {
    "foveal inspect": "There are no sessions: start one with foveal chat, or open a file with foveal inspect PATH.",
    "foveal serve": "There are no sessions: one begins with the first request of an agent or of the API.",
}
"""By the command that started the server."""


_VOID_ELEMENTS: Final = frozenset({"input", "link", "meta"})


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def escaped(text: str) -> Html:
    """Return text as HTML; `Html` stays as it is."""
    return text if isinstance(text, Html) else Html(escape(readable(text), quote=True))


def element(name: str, attributes: dict[str, str] | None = None, *children: str) -> Html:
    """Return an element; attributes and children that are not `Html` are escaped."""
    written = "".join(f' {key}="{escaped(value)}"' for key, value in (attributes or {}).items())
    if name in _VOID_ELEMENTS:
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{''.join(map(escaped, children))}</{name}>")


def joined(*parts: str) -> Html:
    """Return the parts one after the other."""
    return Html("".join(map(escaped, parts)))


_MEMORY_LINK: Final = element("nav", {"aria-label": "Pages"}, element("a", {"href": "memory"}, "Memory"))


@cache
def _known_policies() -> tuple[tuple[str, str], ...]:
    """Return the presets and the installed policies, each with what it does."""
    from foveal.core.policies.presets import PRESET_MEANINGS  # loads the engine
    from foveal.policies import policy_names

    meanings: dict[str, str] = dict(PRESET_MEANINGS.items())
    return tuple((name, meanings.get(name, "of an installed package")) for name in policy_names())


def _policies(tables: Iterable[str]) -> str:
    """Return the policies of what-if, each with what it does."""
    meanings = {**dict.fromkeys(tables, "of your configuration"), **dict(_known_policies())}
    known = [name for name, _ in _known_policies()]
    return json.dumps([(name, meanings[name]) for name in dict.fromkeys([*known, *tables])])


class PageFrame(NamedTuple):
    """What all pages for a logged-in browser have in common."""

    write_token: str
    command: str
    """The command that starts the server; the page names it when the server no longer answers."""
    can_log_out: bool = False


def overview_page(page: SessionPage, frame: PageFrame) -> str:
    """Return the page with the first sessions."""
    table = (
        _sessions_table(page.rows)
        if page.rows
        else element("p", {"class": "empty"}, _EMPTY_OVERVIEW[frame.command])
    )
    problems = [
        element("p", {"class": "problem"}, one_line(each, width=400))
        for each in page.problems[:MAX_PAGE_PROBLEMS]
    ]
    return document(
        "Sessions",
        element("header", {"id": "head"}, element("h1", {}, "Sessions"), _MEMORY_LINK, *log_out_form(frame)),
        element("main", {"id": "main"}, *problems, table),
        *_footer(),
        body={"data-page": "overview"},
        frame=frame,
    )


def session_page(
    about: SessionAbout, events: Sequence[Event], frame: PageFrame, *, policies: Iterable[str] = ()
) -> str:
    """Return the page of a session with its newest events. `policies` are the names of those of the
    configuration."""
    title = session_title(about)
    body = {"data-page": "session", "data-id": about.key, "data-policies": _policies(policies)}
    if not about.writable:
        body["data-read-only"] = about.reason or "this session can only be read"
    notes = [element("p", {"class": "muted"}, one_line(each, width=400)) for each in about.problems]
    return document(
        title,
        element("header", {"id": "head"}, *session_head(about), *log_out_form(frame)),
        element("section", {"id": "scrubber", "aria-label": "Requests and events"}),
        element(
            "main",
            {"id": "main"},
            element(
                "section", {"id": "log-view", "aria-label": "Log and view"}, *notes, events_table(events)
            ),
            element("aside", {"id": "panels", "aria-label": "Details"}),
        ),
        *_footer(),
        body=body,
        frame=frame,
    )


def session_title(about: SessionAbout) -> str:
    """Return the title of a session on one line; its id if it has none."""
    return one_line(about.title, width=MAX_PAGE_TITLE_CHARS) or one_line(about.id, width=MAX_PAGE_TITLE_CHARS)


def session_head(about: SessionAbout, *, is_exported: bool = False) -> list[Html]:
    """Return the contents of the page's header: title, model, policy and links."""
    facts = [about.format, about.model, about.policy and f"policy {about.policy}"]
    known = " · ".join(one_line(fact, width=80) for fact in facts if fact)
    links = (
        []
        if is_exported
        else [
            element("a", {"href": "./"}, "All sessions"),
            element("a", {"href": f"api/export?id={quote(about.key, safe='')}", "download": ""}, "Export"),
        ]
    )
    return [
        element("h1", {}, session_title(about)),
        element("p", {"class": "about"}, known),
        *([element("nav", {"aria-label": "Pages"}, *links)] if links else []),
    ]


def login_page(hint: str, *, has_form: bool, problem: str = "", session: str = "") -> str:
    """Return the page that asks for a token; without a form it says where the address with the token is.

    `session` is the key of the session to show after the login; "" for the list."""
    parts = [element("h1", {}, "Foveal inspector"), element("p", {}, hint)]
    if problem:
        parts.append(element("p", {"class": "problem", "role": "alert"}, problem))
    if has_form:
        field = {
            "type": "password",
            "name": "token",
            "id": "token",
            "autocomplete": "current-password",
            "required": "",
            "autofocus": "",
        }
        wanted = [element("input", {"type": "hidden", "name": "id", "value": session})] if session else []
        parts.append(
            element(
                "form",
                {"method": "post", "action": "login"},
                element("label", {"for": "token"}, "Token"),
                element("input", field),
                *wanted,
                element("button", {"type": "submit"}, "Log in"),
            )
        )
    main = element("main", {"id": "main", "class": "notice"}, *parts)
    return document("Log in", main, body={}, script=LOGIN_SCRIPT)


def error_page(title: str, detail: str) -> str:
    """Return the page of an error."""
    main = element(
        "main",
        {"id": "main", "class": "notice"},
        element("h1", {}, title),
        element("p", {"role": "alert"}, one_line(detail, width=1_000)),
        element("p", {}, element("a", {"href": "./"}, "All sessions")),
    )
    return document(title, main, body={"data-page": "error"})


# ── Parts ────────────────────────────────────────────────────────────────────────────────────────────────


def document(
    title: str, *parts: str, body: dict[str, str], frame: PageFrame | None = None, script: str = ""
) -> str:
    script = script or (MAIN_SCRIPT if frame else "")
    body = {**body, "data-command": frame.command} if frame else body
    head = [
        element("meta", {"charset": "utf-8"}),
        element("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        element("meta", {"name": "color-scheme", "content": "light dark"}),
        *([element("meta", {"name": "foveal-token", "content": frame.write_token})] if frame else []),
        element("title", {}, f"{title} – Foveal"),
        element("link", {"rel": "icon", "href": "static/icon.svg", "type": "image/svg+xml"}),
        *(element("link", {"rel": "stylesheet", "href": f"static/{name}"}) for name in style_names()),
        *([element("script", {"type": "module", "src": f"static/{script}"})] if script else []),
    ]
    page = element("html", {"lang": "en"}, element("head", {}, *head), element("body", body, *parts))
    return f"<!doctype html>\n{page}\n"


def _footer() -> list[Html]:
    return [
        element("noscript", {}, _NO_SCRIPT),
        # Not a footer: the role would replace the landmark that a footer is.
        element("div", {"id": "status", "role": "status", "aria-live": "polite"}),
    ]


def log_out_form(frame: PageFrame) -> list[Html]:
    if not frame.can_log_out:
        return []
    field = {"type": "hidden", "name": "write_token", "value": frame.write_token}
    button = element("button", {"type": "submit"}, "Log out")
    form = {"method": "post", "action": "logout", "class": "log-out"}
    return [element("form", form, element("input", field), button)]


def _sessions_table(rows: Sequence[SessionRow]) -> Html:
    names = ("Title", "Place", "Model", "Last active", "Requests", "Reductions", "Cost", "Last error")
    return _table(names, [_session_cells(row) for row in rows[:FIRST_SESSION_ROWS]])


def _session_cells(row: SessionRow) -> list[str]:
    title = one_line(row.title, width=MAX_PAGE_TITLE_CHARS) or one_line(row.key)
    return [
        element("a", {"href": f"session?id={quote(row.key, safe='')}"}, title),
        one_line(row.place),
        one_line(row.model),
        utc_time(row.active),
        f"{row.requests:,}",
        f"{row.reductions:,}",
        "unknown" if row.spent is None else f"{'≥ ' * bool(row.unknown_calls)}${row.spent:,.4f}",
        " ".join(filter(None, (row.error and utc_time(row.error_at), one_line(row.error)))),
    ]


def events_table(events: Sequence[Event]) -> Html:
    """Return the newest events as a plain table."""
    shown = events[-FIRST_LOG_ROWS:]
    if not shown:
        return element("p", {"class": "empty"}, "This session has no events yet.")
    rows = [[handle(event.seq), kind(event.fact), event_sentence(event.fact)] for event in shown]
    return _table(("Event", "Kind", "Text"), rows)


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Html:
    head = element("tr", {}, *(element("th", {"scope": "col"}, name) for name in names))
    cells = (joined(*(element("td", {}, escaped(cell)) for cell in row)) for row in rows)
    body = joined(*(element("tr", {}, row) for row in cells))
    return element("table", {"class": "first-paint"}, element("thead", {}, head), element("tbody", {}, body))


def utc_time(at: float) -> str:
    """Return a time in UTC to the minute; "" if it is unknown or outside of the calendar."""
    try:
        return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC" if at else ""
    except (ValueError, OverflowError, OSError):
        return ""


# ── Memories ─────────────────────────────────────────────────────────────────────────────────────────────

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
    kept = _entry_list(memory, counting, frame, _FORGET)
    entries = counted(len(counting), "entry", "entries")
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
