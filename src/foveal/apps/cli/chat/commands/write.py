"""Commands that change something: the view, the session, the model. Each says what it has done and how to take it
back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from foveal import transcripts
from foveal.apps.cli.chat import factory
from foveal.apps.cli.chat.chat_state import ChatState
from foveal.apps.cli.chat.output.context_card import source, usage
from foveal.apps.cli.chat.output.event_text_rows import note, reductions
from foveal.apps.cli.chat.output.styled_text import Row, bold, columns, dim, row, text_rows
from foveal.apps.cli.chat.user_interface import Question
from foveal.core import wire
from foveal.core.log.events import (
    Compacted,
    Dialect,
    Dropped,
    Event,
    Masked,
    UserSaid,
    kind,
    parse_handle,
    text_of,
)
from foveal.core.policies.presets import PRESETS
from foveal.core.view.fold import effective
from foveal.core.view.view import hidden_by
from foveal.core.wire.safe_print import one_line
from foveal.errors import FovealError, UnknownHandle
from foveal.sessions.session import Session

FORMATS: Final[dict[str, Dialect]] = {
    "openai": "openai_chat",
    "responses": "openai_responses",
    "anthropic": "anthropic",
}
LONGEST: Final = 200
"""Lines of a text that are printed at once."""
TURNS: Final = 10
"""Turns that /rewind lists."""


# ── the view ─────────────────────────────────────────────────────────────────────────────────────────────


async def compact(desk: ChatState, argument: str) -> list[Row]:
    """Summarise old turns now, after a yes."""
    before = await desk.session.report()
    desk.front.show([usage(before)])
    if desk.front.asks:
        question = Question(text="Compact the conversation now?", stays=False)
        if await desk.front.ask(question) != "y":
            return [note("nothing was changed")]
    return await compacted(desk, argument)


async def compacted(desk: ChatState, focus: str = "") -> list[Row]:
    """Summarise, and show what came of it."""
    before = await desk.session.report()
    desk.front.progress("compacting")
    try:
        event = await desk.session.compact(focus)
    finally:
        desk.front.progress("")
    after = await desk.session.report()
    summary = event.fact.summary if isinstance(event.fact, Compacted) else ""
    sizes = f"{before.used:,} → {after.used:,} tokens"
    return [
        *reductions([event], 0, 0),
        *text_rows(summary, style="dim", indent="  │ "),
        row(bold(f"before and after: {sizes}"), dim(f" · /undo {event.handle} takes it back")),
        usage(after),
    ]


async def undo(desk: ChatState, argument: str) -> list[Row]:
    event = await desk.session.undo(argument or None)
    return [note(f"took back {event.handle} ({kind(event.fact)}): what it had hidden is shown again", "good")]


async def expand(desk: ChatState, argument: str) -> list[Row]:
    """Print what an event said, whatever is shown of it; `model` shows it to the model as well, for one turn."""
    name, _, rest = argument.partition(" ")
    event = await _event(desk, name)
    if rest.strip() == "model":
        desk.expanding.append(event.handle)
        return [
            note(f"{event.handle} is shown whole to the model in the next turn, if there is room", "good")
        ]
    first = _number(rest.strip() or "1")
    lines = _text(event, await desk.session.events()).split("\n")
    part = lines[first - 1 : first - 1 + LONGEST]
    head = f"{kind(event.fact)}, {len(lines):,} line{'s' * (len(lines) != 1)}"
    rows = [row(bold(f"{event.handle} "), dim(head)), *text_rows("\n".join(part), indent="  ")]
    if first - 1 + len(part) < len(lines):
        rows.append(note(f"more with /expand {event.handle} {first + LONGEST}"))
    return rows


def _text(event: Event, log: Sequence[Event]) -> str:
    """What an event said; for a reduction, what it hid."""
    fact = event.fact
    if isinstance(fact, Compacted | Dropped):
        hidden = hidden_by(fact)
        return wire.transcript(
            [e.fact for e in effective(log) if any(low <= e.seq <= high for low, high in hidden)]
        )
    if isinstance(fact, Masked):
        targets = {mask.target for mask in fact.masks}
        return wire.transcript([e.fact for e in log if e.seq in targets])
    return wire.original(fact)


def _number(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 10**9:
        raise FovealError(
            f"{text!r} is not allowed after the handle: the number of a line, or the word model"
        )
    return int(text)


async def _event(desk: ChatState, name: str) -> Event:
    seq = parse_handle(name) if name else None
    found = await desk.session.pick([seq]) if seq is not None else []
    if not found:
        last = desk.session.last
        raise UnknownHandle(f"{name!r} is no handle: this session has e0 to e{last}")
    return found[0]


async def pin(desk: ChatState, argument: str) -> list[Row]:
    if not argument:
        raise FovealError(
            "/pin needs a text, a rule to keep in every request; or a handle, to keep that as it is now"
        )
    whole = parse_handle(argument) if argument.startswith(("e", "#e")) else None
    handle = await (desk.session.pin(event=argument) if whole is not None else desk.session.pin(argument))
    what = f"{argument} as it is now" if whole is not None else f"“{one_line(argument, width=60)}”"
    return [note(f"pinned {what}, in every request from now on · /undo {handle}", "good")]


# ── the session ──────────────────────────────────────────────────────────────────────────────────────────


async def model(desk: ChatState, argument: str) -> list[Row]:
    if argument:
        await desk.exchange(model=argument)
    report = await desk.session.report()
    return [row(bold(desk.provider.name), f" · window {report.window:,} ({source(report)})")]


async def policy(desk: ChatState, argument: str) -> list[Row]:
    if argument:
        if argument not in PRESETS:
            raise FovealError(f"there is no policy {argument!r}; there are {', '.join(PRESETS)}")
        await desk.exchange(choice=desk.choice.with_policy(argument))
    report = await desk.session.report()
    chosen = desk.choice.settings(desk.provider.model)["policy"]
    others = ", ".join(name for name in PRESETS if name != chosen.name)
    return [
        row(bold(chosen.name), f" · mode {chosen.mode} · acts at {report.act:,} of {report.window:,} tokens"),
        row(dim(f"others: {others}")),
    ]


async def resume(desk: ChatState, argument: str) -> list[Row]:
    if not argument:
        raise FovealError("/resume needs a session, or the beginning of its id; /sessions lists them")
    await desk.exchange(id=await factory.named(desk.store, argument))
    return await _opened(desk)


async def fork(desk: ChatState, argument: str) -> list[Row]:
    """A copy of this session to go on with; this one stays as it is."""
    id = argument or f"{desk.session.id}-{factory.new_id()[-4:]}"
    await desk.session.fork(id)
    await desk.exchange(id=id)
    return await _opened(desk)


async def continue_from(desk: ChatState, argument: str) -> list[Row]:
    """A new session that begins with the summary and the pinned rules of another."""
    if not argument:
        raise FovealError("/continue-from needs a session, or the beginning of its id; /sessions lists them")
    origin = await factory.named(desk.store, argument)
    id, provider = factory.new_id(), desk.provider
    settings = desk.choice.settings(provider.model)
    settings.pop("prompt")
    begun = await Session.continue_from(desk.store, origin, id, model=provider.model, **settings)
    await begun.close()
    await desk.exchange(id=id)
    return await _opened(desk)


async def _opened(desk: ChatState) -> list[Row]:
    info, report = await desk.session.info(), await desk.session.report()
    title = f" · {one_line(info.title, width=50)}" if info.title else ""
    return [row(bold(f"session {info.id}"), f" · {info.events:,} events{title}"), usage(report)]


async def rewind(desk: ChatState, argument: str) -> list[Row]:
    """Go back to before a message; what came later stays in the log."""
    asked = [e for e in effective(await desk.session.events()) if isinstance(e.fact, UserSaid)]
    if not argument:
        table = [(e.handle, one_line(_words(e), width=60)) for e in asked[-TURNS:]]
        rows = [row(f"  {line}") for line in columns(table)] if table else []
        return [
            row("/rewind HANDLE goes back to before that message:" if rows else "nothing was said yet"),
            *rows,
        ]
    event = next((e for e in asked if e.handle == argument.lstrip("#")), None)
    if event is None:
        names = ", ".join(e.handle for e in asked[-TURNS:]) or "none"
        raise FovealError(f"{argument!r} is no message of yours that counts; there are {names}")
    await desk.session.rewind(event.seq - 1)
    return [
        note(
            f"back to before “{one_line(_words(event), width=60)}”; what came later stays in the log", "good"
        )
    ]


def _words(event: Event) -> str:
    return text_of(event.fact.content) if isinstance(event.fact, UserSaid) else ""


async def export(desk: ChatState, argument: str) -> list[Row]:
    """Write the session to a file that is not there yet."""
    words = argument.split()
    format = words[1] if len(words) > 1 else "foveal"
    if not words or len(words) > 2 or format not in ("foveal", *FORMATS):
        raise FovealError(f"/export needs a file, and may be told a format: foveal, {', '.join(FORMATS)}")
    events, info = await desk.session.events(), await desk.session.info()
    if format == "foveal":
        lines = transcripts.write_events(events, info.id, info.title)
        data = b"".join(line.rstrip(b"\n") + b"\n" for line in lines)
    else:
        messages = transcripts.write_messages((event.fact for event in events), FORMATS[format])
        data = json.dumps(messages, indent=2).encode() + b"\n"
    path = desk.options.folder / Path(words[0]).expanduser()
    await asyncio.to_thread(_written, path, data)
    return [note(f"{len(events):,} events written to {path}", "good")]


def _written(path: Path, data: bytes) -> None:
    try:
        with path.open("xb") as file:
            file.write(data)
    except FileExistsError:
        raise FovealError(f"{path} exists already, and was not written over: name another file") from None
