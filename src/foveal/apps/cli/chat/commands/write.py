"""Slash commands that change the view, the session or the model.

Each returns rows that say what it did and how to undo it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from foveal.apps.cli.chat import factory
from foveal.apps.cli.chat.chat_state import ChatState
from foveal.apps.cli.chat.options import parse_carry
from foveal.apps.cli.chat.output.agent_event_rows import note, reduction_rows
from foveal.apps.cli.chat.output.context_card import acts_text, window_source
from foveal.apps.cli.chat.output.live_area import usage_row
from foveal.apps.cli.chat.output.styled_text import Row, bold, dim, row, table_lines, text_rows
from foveal.apps.cli.chat.user_interface import Question
from foveal.apps.cli.stored_sessions import EXPORT_DIALECTS, export_session, find_session
from foveal.core import wire
from foveal.core.compaction.carried_record import is_carried_record
from foveal.core.log.events import (
    Compacted,
    Dropped,
    Event,
    Masked,
    Rewound,
    UserSaid,
    kind,
    parse_handle,
    text_of,
)
from foveal.core.policies.presets import PRESETS
from foveal.core.view.fold import effective_events
from foveal.core.view.steps import hidden_ranges
from foveal.core.wire.safe_print import one_line
from foveal.errors import FovealError, UnknownHandle

MAX_EXPANDED_LINES: Final = 200
"""Lines of a text that `/expand` prints at once."""
MAX_LISTED_TURNS: Final = 10
"""Messages that `/rewind` lists."""


# ── The view ─────────────────────────────────────────────────────────────────────────────────────────────


async def compact(state: ChatState, argument: str) -> list[Row]:
    """Ask, then summarise old turns."""
    before = await state.session.report()
    state.ui.show([usage_row(before)])
    if state.ui.can_ask:
        question = Question(text="Compact the conversation now?", waits=False)
        if await state.ui.ask(question) != "y":
            return [note("nothing was changed")]
    return await run_compaction(state, argument)


async def run_compaction(state: ChatState, focus: str = "") -> list[Row]:
    """Summarise old turns, and return the summary with the sizes before and after."""
    before = await state.session.report()
    state.ui.show_progress("compacting")
    try:
        event = await state.session.event(await state.session.compact(focus))
    finally:
        state.ui.show_progress("")
    after = await state.session.report()
    summary = event.fact.summary if isinstance(event.fact, Compacted) else ""
    sizes = (
        f"{before.used:,} → {after.used:,} tokens "
        f"({before.percent(before.used)} → {after.percent(after.used)} of the window)"
    )
    return [
        *reduction_rows([event], 0, 0),
        *text_rows(summary, style="dim", indent="  │ "),
        row(bold(f"before and after: {sizes}"), dim(f" · /undo {event.handle} takes it back")),
        usage_row(after),
    ]


async def undo(state: ChatState, argument: str) -> list[Row]:
    event = await state.session.event(await state.session.undo(argument or None))
    report = await state.session.report()
    again = "what it had hidden is shown again"
    if isinstance(event.fact, Rewound):
        again = "its messages are back in their places"
    rows = [note(f"took back {event.handle} ({kind(event.fact)}): {again}", "good")]
    if report.state == "over":
        sizes = f"{report.percent(report.used)} of the window, and at most {report.percent(report.limit)} fit"
        rows.append(note(f"the next request is reduced in another way: it takes {sizes}", "fair"))
    return rows


async def expand(state: ChatState, argument: str) -> list[Row]:
    """Print an event in full; with `model`, show it to the model in full for one turn."""
    name, _, rest = argument.partition(" ")
    event = await _event_named(state, name)
    if rest.strip() == "model":
        state.expand_in_next_turn(event.handle)
        return [note(f"{event.handle} is shown in full to the model in the next turn, if it fits", "good")]
    first = _line_number(rest.strip() or "1")
    lines = _full_text(event, await state.session.events()).split("\n")
    part = lines[first - 1 : first - 1 + MAX_EXPANDED_LINES]
    head = f"{kind(event.fact)}, {len(lines):,} line{'s' * (len(lines) != 1)}"
    rows = [row(bold(f"{event.handle} "), dim(head)), *text_rows("\n".join(part), indent="  ")]
    if first - 1 + len(part) < len(lines):
        rows.append(note(f"more lines: /expand {event.handle} {first + MAX_EXPANDED_LINES}"))
    return rows


def _full_text(event: Event, log: Sequence[Event]) -> str:
    """Return the text of an event; for a reduction, the text that it hides."""
    fact = event.fact
    if isinstance(fact, Compacted | Dropped):
        hidden = hidden_ranges(fact)
        return wire.transcript_text(
            [e.fact for e in effective_events(log) if any(low <= e.seq <= high for low, high in hidden)]
        )
    if isinstance(fact, Masked):
        targets = {mask.target for mask in fact.masks}
        return wire.transcript_text([e.fact for e in log if e.seq in targets])
    return wire.original_text(fact)


def _line_number(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 10**9:
        raise FovealError(f"{text!r} is not allowed after the handle: give a line number, or the word model")
    return int(text)


async def _event_named(state: ChatState, name: str) -> Event:
    seq = parse_handle(name) if name else None
    found = await state.session.pick([seq]) if seq is not None else []
    if not found:
        last = state.session.last
        raise UnknownHandle(f"{name!r} is not a handle of this session, which has e0 to e{last}")
    return found[0]


async def pin(state: ChatState, argument: str) -> list[Row]:
    if not argument:
        raise FovealError(
            "/pin needs a text, the rule to keep in every request; or a handle, to keep that event as it is now"
        )
    seq = parse_handle(argument) if argument.startswith(("e", "#e")) else None
    handle = await (state.session.pin(event=argument) if seq is not None else state.session.pin(argument))
    what = f"{argument} as it is now" if seq is not None else f"“{one_line(argument, width=60)}”"
    return [note(f"pinned {what}, in every request from now on · /undo {handle}", "good")]


# ── The session ──────────────────────────────────────────────────────────────────────────────────────────


async def model(state: ChatState, argument: str) -> list[Row]:
    if argument:
        await state.switch(model=argument)
    report = await state.session.report()
    return [row(bold(state.provider.name), f" · window {report.window:,} ({window_source(report)})")]


async def policy(state: ChatState, argument: str) -> list[Row]:
    if argument:
        if argument not in PRESETS:
            raise FovealError(f"there is no policy {argument!r}; there are {', '.join(PRESETS)}")
        await state.switch(config=state.config.with_policy(argument))
    report = await state.session.report()
    chosen = state.config.session_settings(state.provider.model)["policy"]
    others = ", ".join(name for name in PRESETS if name != chosen.name)
    return [
        row(
            bold(chosen.name),
            f" · mode {chosen.mode} · acts at {acts_text(report, chosen)}",
        ),
        row(dim(f"others: {others}")),
    ]


async def resume(state: ChatState, argument: str) -> list[Row]:
    if not argument:
        raise FovealError("/resume needs a session id, or the beginning of it; /sessions lists them")
    await state.switch(id=await find_session(state.store, argument))
    return await _session_rows(state)


async def fork(state: ChatState, argument: str) -> list[Row]:
    """Switch to a copy of this session; the original stays as it is."""
    id = argument or f"{state.session.id}-{factory.new_session_id()[-4:]}"
    await state.session.fork(id)
    await state.switch(id=id)
    return await _session_rows(state)


async def continue_from(state: ChatState, argument: str) -> list[Row]:
    """Start a session with a record of another."""
    name, _, carry = argument.partition(" ")
    if not name:
        raise FovealError(
            "/continue-from needs a session id, or the beginning of it; /sessions lists them. A word after it "
            "says what to take over: record, summary, rules, or handles such as e3,e9"
        )
    await state.continue_from(await find_session(state.store, name), parse_carry(carry or "record"))
    return await _session_rows(state)


async def _session_rows(state: ChatState) -> list[Row]:
    info, report = await state.session.info(), await state.session.report()
    title = f" · {one_line(info.title, width=50)}" if info.title else ""
    return [row(bold(f"session {info.id}"), f" · {info.events:,} events{title}"), usage_row(report)]


async def rewind(state: ChatState, argument: str) -> list[Row]:
    """Go back to before a message of the user; later events stay in the log."""
    messages = [
        event
        for event in effective_events(await state.session.events())
        if isinstance(event.fact, UserSaid) and not is_carried_record(_message_text(event))
    ]
    if not argument:
        table = [(e.handle, one_line(_message_text(e), width=60)) for e in messages[-MAX_LISTED_TURNS:]]
        rows = [row(f"  {line}") for line in table_lines(table)] if table else []
        return [
            row("/rewind HANDLE goes back to before that message:" if rows else "there are no messages yet"),
            *rows,
        ]
    event = next((e for e in messages if e.handle == argument.lstrip("#")), None)
    if event is None:
        names = ", ".join(e.handle for e in messages[-MAX_LISTED_TURNS:]) or "none"
        raise FovealError(f"{argument!r} is not one of your messages in this session; there are {names}")
    await state.session.rewind(event.seq - 1)
    return [
        note(
            f"back to before “{one_line(_message_text(event), width=60)}”; /undo takes the rewind back",
            "good",
        )
    ]


def _message_text(event: Event) -> str:
    return text_of(event.fact.content) if isinstance(event.fact, UserSaid) else ""


async def export(state: ChatState, argument: str) -> list[Row]:
    """Write the session to a new file."""
    words = argument.split()
    format = words[1] if len(words) > 1 else "foveal"
    if not words or len(words) > 2 or format not in ("foveal", *EXPORT_DIALECTS):
        raise FovealError(f"/export needs a file, and takes a format: foveal, {', '.join(EXPORT_DIALECTS)}")
    events, info = await state.session.events(), await state.session.info()
    data = export_session(events, info.id, info.title, format)
    path = state.options.folder / Path(words[0]).expanduser()
    await asyncio.to_thread(_write_new_file, path, data)
    return [note(f"{len(events):,} events written to {path}", "good")]


def _write_new_file(path: Path, data: bytes) -> None:
    try:
        with path.open("xb") as file:
            file.write(data)
    except FileExistsError:
        raise FovealError(f"{path} exists and was not overwritten: name another file") from None
