"""What the commands of `foveal` do. Each prints its answer and returns the exit code."""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

from foveal import transcripts
from foveal.core.log.events import (
    Clipped,
    Compacted,
    Dialect,
    Dropped,
    Equipped,
    Event,
    Masked,
    ModelSaid,
    Opened,
    Pinned,
    Reverted,
    Rewound,
    Used,
    calls_of,
    handle,
    kind,
    text_of,
)
from foveal.core.tokens.counter import counter
from foveal.core.tokens.message_tokens import MessageTokens
from foveal.core.view.fold import effective, fold
from foveal.core.view.request import Fitted, Renderer
from foveal.core.wire import original, transcript, wire
from foveal.core.wire.safe_print import one_line, visible
from foveal.errors import FovealError, UnknownSession
from foveal.ports import Store
from foveal.stores import open_store
from foveal.transcripts import Transcript

DIALECTS: Final[dict[str, Dialect]] = {
    "openai": "openai_chat",
    "responses": "openai_responses",
    "anthropic": "anthropic",
}


def _opened(given: Namespace, *, make: bool = False) -> AbstractAsyncContextManager[Store]:
    path: Path = given.store
    if make:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    elif not path.exists():
        raise FovealError(
            f"there is no store at {visible(str(path))} yet: `foveal import` makes one, or name it with --store"
        )
    return open_store(path)


async def _named(store: Store, name: str) -> str:
    """The session with this id, or the only one whose id begins so."""
    ids = [info.id for info in await store.sessions()]
    if name in ids:
        return name
    found = [id for id in ids if id.startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise FovealError(f"{len(found)} sessions begin with {name!r}: {', '.join(found[:5])}")
    raise UnknownSession(name)


async def sessions(given: Namespace) -> int:
    async with _opened(given) as store:
        listed = await store.sessions()
        if not listed:
            print("no sessions yet")
        for info in listed:
            title = "(erased)" if info.erased else one_line(info.title, width=50)
            size = f"{info.events:>8,} events {_size(info.bytes):>9}"
            print(f"{visible(info.id):<44} {_day(info.active)} {size}  {title}")
    return 0


async def import_(given: Namespace) -> int:
    async with _opened(given, make=True) as store:
        taken = failed = 0
        for path in given.paths:
            try:
                for recording in transcripts.read(
                    path, format=given.format, progress=_progress(), skipped=_skipped
                ):
                    print(await _imported(store, recording))
                    taken += 1
            except transcripts.UnreadableTranscript as problem:
                _skipped(problem)
                failed += 1
    if taken:
        print(f"imported {taken:,} conversation{'s' if taken != 1 else ''} into {visible(str(given.store))}")
    return 0 if taken and not failed else 1


async def _imported(store: Store, recording: Transcript) -> str:
    id = await _stored(store, recording)
    note = f", {recording.unknown:,} lines not understood (kept as notes)" if recording.unknown else ""
    return f"{visible(id)}: {len(recording.facts):,} events from {recording.source}{note}"


async def _stored(store: Store, recording: Transcript) -> str:
    """Append a recording as a new session; a name that is taken gets a number."""
    taken = {info.id for info in await store.sessions()}
    name = _unicode(recording.id) or "imported"
    id, number = name, 2
    while id in taken:
        id, number = f"{name}-{number}", number + 1
    if not any(isinstance(fact, Opened) for fact, _ in recording.facts):
        opened = Opened(model=recording.model or "unknown", origin=f"{recording.source}: {recording.id}")
        await store.append(id, [Event(0, opened, recording.facts[0][1] if recording.facts else None)])
        events = list(recording.events(first=1))
    else:
        events = list(recording.events())
    for start in range(0, len(events), 500):
        await store.append(id, events[start : start + 500])
    if recording.title:
        await store.rename(id, _unicode(recording.title))
    return id


def _unicode(name: str) -> str:
    """A name that may come from a file whose own is not valid Unicode."""
    return name.encode("utf-8", "replace").decode()


async def export(given: Namespace) -> int:
    async with _opened(given) as store:
        id = await _named(store, given.session)
        events = await store.read(id)
        info = await store.info(id)
        if given.to == "foveal":
            lines = transcripts.write_events(events, id, info.title)
            data = b"".join(line.rstrip(b"\n") + b"\n" for line in lines)
        else:
            messages = transcripts.write_messages((event.fact for event in events), DIALECTS[given.to])
            data = json.dumps(messages, indent=2).encode() + b"\n"
    if given.output is None:
        if (
            sys.stdout.isatty() and given.to == "foveal"
        ):  # escapes say the same, and cannot command a terminal
            data = b"".join(json.dumps(json.loads(line)).encode() + b"\n" for line in data.splitlines())
        sys.stdout.buffer.write(data)
    else:
        given.output.write_bytes(data)
        print(f"{len(events):,} events of {visible(id)} written to {given.output}")
    return 0


async def log(given: Namespace) -> int:
    async with _opened(given) as store:
        id = await _named(store, given.session)
        events = await store.read(id)
    counting = {event.seq for event in effective(events)}
    for event in events:
        mark = " " if event.seq in counting else "·"
        told = visible(_told(event)).replace("\n", "␊").replace("\t", " ")
        print(f"{event.handle:>8} {_minute(event.at)} {mark} {told}")
    return 0


async def show(given: Namespace) -> int:
    async with _opened(given) as store:
        id = await _named(store, given.session)
        last = (await store.info(id)).events - 1
        at = last if given.at is None else given.at
        if not 0 <= at <= last:
            raise FovealError(f"session {id!r} has events 0 to {last}; there is no event {at}")
        view = fold(await store.read(id, last=at), MessageTokens(counter("estimate")))
    if given.json:
        fitted = Fitted.of(view)
        if given.to == "anthropic":
            messages, beside = fitted.to_anthropic(), [fitted.system] if fitted.system else []
        else:
            messages, _ = Renderer().render(view, wire(DIALECTS[given.to]))
            beside = [original(fact) for fact in fitted.aside]
        print(json.dumps({"system": beside, "tools": fitted.tools, "messages": messages}, indent=2))
    else:
        aside = [shown.fact for shown in view.asides.values()]
        print(visible(transcript([*aside, *(fact for step in view.steps for fact in step.facts())])))
    return 0


# ── telling ──────────────────────────────────────────────────────────────────────────────────────────────


def _told(event: Event) -> str:
    """One event in words; a reduction begins with ▼, what takes one back with ▲."""
    fact = event.fact
    match fact:
        case Clipped():
            return (
                f"▼ clipped {handle(fact.target)} to {fact.kept_tokens:,} of {fact.total_tokens:,} tokens "
                f"({fact.strategy}) {fact.rule}"
            )
        case Masked():
            targets = ", ".join(handle(mask.target) for mask in fact.masks[:8])
            more = f" and {len(fact.masks) - 8} more" if len(fact.masks) > 8 else ""
            return f"▼ masked {targets}{more} ({fact.reason}) {fact.rule}"
        case Dropped():
            ranges = ", ".join(f"{handle(first)}–{handle(last)}" for first, last in fact.ranges)
            return f"▼ dropped {ranges} ({fact.reason}) {fact.rule}"
        case Compacted():
            span = f"{handle(fact.first)}–{handle(fact.last)}"
            return f"▼ compacted {span} by {fact.by or 'somebody'}: {_preview(event)}"
        case Reverted():
            return f"▲ reverted {handle(fact.target)}"
        case Rewound():
            return f"▲ rewound to {handle(fact.to)}"
        case Used():
            return f"used {fact.prompt:,} in ({fact.cache_read:,} cached), {fact.output:,} out {fact.model}"
        case Opened():
            origin = f", from {visible(fact.origin)}" if fact.origin else ""
            return f"opened {visible(fact.model)} {fact.policy}".rstrip() + origin
        case Equipped():
            return f"equipped with {len(json.loads(bytes(fact.tools)))} tools"
        case Pinned():
            return f"pinned {handle(fact.target) if fact.target is not None else ''} {one_line(fact.text)}"
        case ModelSaid():
            calls = " ".join(
                f"→ {call.name}({one_line(call.arguments, width=40)})" for _, call in calls_of(fact.content)
            )
            return f"model_said {_preview(event)} {visible(calls)}".rstrip()
        case _:
            return f"{visible(kind(fact))} {_preview(event)}".rstrip()


def _preview(event: Event) -> str:
    content = getattr(event.fact, "content", None)
    return one_line(original(event.fact) if content is None else text_of(content), width=70)


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at)) if at else "-".ljust(16)


def _minute(at: float | None) -> str:
    return time.strftime("%m-%d %H:%M", time.localtime(at)) if at else "-".ljust(11)


def _size(size: int) -> str:
    return f"{size / 1_000_000:,.1f} MB" if size >= 1_000_000 else f"{size / 1_000:,.1f} kB"


def _skipped(problem: transcripts.UnreadableTranscript) -> None:
    print(f"foveal: passed over {visible(str(problem))}", file=sys.stderr)


def _progress() -> Callable[[int, int], None] | None:
    """A line on a terminal that says how much has been read; nothing in a pipe."""
    if not sys.stderr.isatty():
        return None

    def told(done: int, total: int) -> None:
        share = done / total if total else 1.0
        end = "\n" if done >= total else ""
        print(f"\rreading … {share:4.0%}", end=end, file=sys.stderr, flush=True)

    return told
