"""Commands on stored sessions: `sessions`, `import`, `export`, `log` and `show`.

Each command prints its result and returns the exit code.
"""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from msgspec.structs import asdict, replace

from foveal import transcripts
from foveal.config.project import open_output
from foveal.core.compaction.health import cut_text
from foveal.core.engine.unreadable_summaries import instead_text
from foveal.core.log.events import (
    AnyFact,
    Clipped,
    Compacted,
    CompactionFailed,
    Dropped,
    Equipped,
    Event,
    Expanded,
    Marked,
    Masked,
    ModelSaid,
    Opened,
    Overflowed,
    Pinned,
    Prioritised,
    Reverted,
    Rewound,
    Superseded,
    Text,
    ToolReturned,
    ToolsLoaded,
    Used,
    calls_of,
    handle,
    kind,
    text_of,
)
from foveal.core.redaction import redact_fact, scrub, scrub_span
from foveal.core.view.request import Fitted, render_view
from foveal.core.wire import original_text, transcript_text, wire_for
from foveal.core.wire.safe_print import counted, one_line, readable, visible
from foveal.errors import FovealError
from foveal.ports import SessionInfo, Store
from foveal.recall.archive.stored_sessions import (
    all_sessions,
    find_session,
    make_store_folder,
    session_exists,
)
from foveal.sessions.export import SessionExport
from foveal.sessions.log_reader import find_effective, fold_view, read_slices
from foveal.stores import open_store
from foveal.transcripts import TimedFact, Transcript
from foveal.transcripts.transcript import derive_title

APPEND_BATCH_EVENTS = 500
_MAX_TITLE_EVENTS = 20
"""Events at the beginning of a session in which its first message is looked for."""


def _open_store(args: Namespace, *, create: bool = False) -> AbstractAsyncContextManager[Store]:
    path: Path = args.store
    if create:
        make_store_folder(path)
    elif not path.exists():
        raise FovealError(
            f"there is no store at {visible(str(path))} yet: `foveal import` creates one, or name it with --store"
        )
    return open_store(path)


async def sessions(args: Namespace) -> int:
    if args.json:
        return await _sessions_as_json(args)
    if not args.store.exists():
        print(f"no sessions yet: there is no store at {visible(str(args.store))}; --store names another")
        return 0
    async with _open_store(args) as store:
        is_empty = True
        async for info in all_sessions(store):
            is_empty = False
            title = "" if info.erased else info.title or await _first_words(store, info.id)
            shown = "(erased)" if info.erased else one_line(title, width=50)
            size = f"{counted(info.events, 'event'):>15} {_size(info.bytes):>9}"
            print(f"{visible(info.id):<44} {_day(info.active)} {size}  {shown}")
        if is_empty:
            print("no sessions yet")
    return 0


async def _first_words(store: Store, id: str) -> str:
    """Return the start of the user's first message, as a title of a session without one."""
    first = await store.read(id, first=0, last=_MAX_TITLE_EVENTS)
    return derive_title((event.fact, event.at) for event in first)


async def _sessions_as_json(args: Namespace) -> int:
    """Print what the store knows of its sessions; a store that does not exist has none."""
    found: list[SessionInfo] = []
    if args.store.exists():
        async with _open_store(args) as store:
            found = [info async for info in all_sessions(store)]
    # In ASCII: control characters in a title must not reach the terminal.
    print(json.dumps([asdict(info) for info in found], indent=2))
    return 0


# ── Import and export ────────────────────────────────────────────────────────────────────────────────────


async def import_(args: Namespace) -> int:
    async with _open_store(args, create=True) as store:
        imported = failed = 0
        for path in args.paths:
            try:
                for recording in transcripts.read(
                    path, format=args.format, progress=_progress(), skipped=print_skipped
                ):
                    print(await _import_one(store, recording, redacts=args.redact))
                    imported += 1
            except transcripts.UnreadableTranscript as problem:
                print_skipped(problem)
                failed += 1
    if imported:
        many = "s" * (imported != 1)
        print(f"imported {imported:,} conversation{many} into {visible(str(args.store))}")
    return 0 if imported and not failed else 1


async def _import_one(store: Store, recording: Transcript, *, redacts: bool) -> str:
    many = "s" * (recording.unknown != 1)
    note = f", {recording.unknown:,} line{many} not understood (kept as notes)" if recording.unknown else ""
    if redacts:
        given, recording = recording, _redact_transcript(recording)
        changed = sum(new is not old for new, old in zip(recording.facts, given.facts, strict=True))
        note += f", {changed:,} event{'s' * (changed != 1)} redacted" if changed else ""
    id = await _append_new(store, recording)
    if id != (name := _name(recording)):
        note += f"; {visible(name)} exists already, so this is another session"
    return f"{visible(id)}: {counted(len(recording.facts), 'event')} from {recording.source}{note}"


async def _append_new(store: Store, recording: Transcript) -> str:
    """Append a recording as a new session; if its id is in use, add a number."""
    name = _name(recording)
    id, number = name, 2
    while await session_exists(store, id):
        id, number = f"{name}-{number}", number + 1
    if not any(isinstance(fact, Opened) for fact, _ in recording.facts):
        opened = Opened(model=recording.model or "unknown", origin=f"{recording.source}: {recording.id}")
        await store.append(id, [Event(0, opened, recording.facts[0][1] if recording.facts else None)])
        events = list(recording.events(first=1))
    else:
        events = list(recording.events())
    for start in range(0, len(events), APPEND_BATCH_EVENTS):
        await store.append(id, events[start : start + APPEND_BATCH_EVENTS])
    if recording.title:
        await store.rename(id, _valid_unicode(recording.title))
    return id


def _name(recording: Transcript) -> str:
    return _valid_unicode(recording.id) or "imported"


def _valid_unicode(name: str) -> str:
    """Return a name without surrogates, which come from file names that are not valid UTF-8."""
    return name.encode("utf-8", "replace").decode()


def _redact_transcript(recording: Transcript) -> Transcript:
    """Return the transcript without its secrets; an unchanged fact is the same object with its time."""
    facts = tuple(_redact_fact(recording, timed) for timed in recording.facts)
    return replace(recording, facts=facts, title=scrub(recording.title))


def _redact_fact(recording: Transcript, timed: TimedFact) -> TimedFact:
    fact, at = timed
    new = redact_fact(fact)
    if isinstance(new, Clipped):
        new = _redact_spans(recording, new)
    return timed if new is fact else (new, at)


def _redact_spans(recording: Transcript, clipped: Clipped) -> Clipped:
    # A clipped result is stored as spans of its text. Where redaction changes that text, the spans become the text
    # that they showed, redacted, so that the view shows the same pieces.
    text = _clipped_text(recording, clipped)
    if scrub(text) is text:
        return clipped
    pieces = (piece if isinstance(piece, str) else scrub_span(text, *piece) for piece in clipped.pieces)
    return replace(clipped, pieces=tuple(pieces))


def _clipped_text(recording: Transcript, clipped: Clipped) -> str:
    """Return the text of which a clipped result has spans."""
    at = clipped.target - recording.first
    fact: AnyFact | None = recording.facts[at][0] if 0 <= at < len(recording.facts) else None
    content = fact.content if isinstance(fact, ToolReturned) else ""
    if isinstance(content, str):
        return content
    part = content[clipped.part] if 0 <= clipped.part < len(content) else None
    return part.text if isinstance(part, Text) else ""


async def export(args: Namespace) -> int:
    async with _open_store(args) as store:
        id = await find_session(store, args.session)
        exported = SessionExport(store, await store.info(id), args.to)
        if args.output is None:
            # The same JSON in ASCII: control characters in a text must not reach the terminal.
            escape = (
                {"foveal": _in_ascii, "markdown": _readable}.get(args.to) if sys.stdout.isatty() else None
            )
            async for data in exported.parts():
                sys.stdout.buffer.write(data if escape is None else escape(data))
            return 0
        advice = "name another file, or use --force"
        with open_output(args.output, replaces=args.force, advice=advice) as file:
            async for data in exported.parts():
                file.write(data)
        print(f"{exported.size} of {visible(id)} written to {visible(str(args.output))}")
    return 0


def _in_ascii(lines: bytes) -> bytes:
    return b"".join(json.dumps(json.loads(line)).encode() + b"\n" for line in lines.splitlines())


def _readable(text: bytes) -> bytes:
    return readable(text.decode()).encode()


# ── Log and show ─────────────────────────────────────────────────────────────────────────────────────────


async def log(args: Namespace) -> int:
    async with _open_store(args) as store:
        id = await find_session(store, args.session)
        end = (await store.end(id)).next_seq
        in_effect = {event.seq for event in (await find_effective(store, id, end=end)).events}
        async for events in read_slices(store, id, end=end):
            for event in events:
                mark = " " if event.seq in in_effect else "·"
                text = readable(_event_text(event)).replace("\n", "␊").replace("\t", " ")
                print(f"{event.handle:>8} {_minute(event.at)} {mark} {text}")
    return 0


async def show(args: Namespace) -> int:
    async with _open_store(args) as store:
        id = await find_session(store, args.session)
        last = (await store.end(id)).next_seq - 1
        at = last if args.at is None else args.at
        if not 0 <= at <= last:
            raise FovealError(f"session {id!r} has events 0 to {last}; there is no event {at}")
        view = await fold_view(store, id, end=at + 1)
    if args.json:
        fitted = Fitted.of(view)
        target = wire_for(args.to)
        if target.has_system_beside:
            writers = {"gemini": fitted.to_gemini, "bedrock": fitted.to_bedrock}
            messages = writers.get(args.to, fitted.to_anthropic)()
            system = [fitted.system] if fitted.system else []
        else:
            messages, _ = render_view(view, target)
            system = [original_text(fact) for fact in fitted.aside]
        print(json.dumps({"system": system, "tools": fitted.tools, "messages": messages}, indent=2))
    else:
        aside = [shown.fact for shown in view.asides.values()]
        print(readable(transcript_text([*aside, *(fact for step in view.steps for fact in step.facts())])))
    return 0


def _event_text(event: Event) -> str:
    """Return one event in words; ▼ marks a reduction, ▲ an event that takes something back."""
    fact = event.fact
    match fact:
        case Clipped() if fact.again >= 0:
            where = f"in {handle(fact.target)}, which only refers to it"
            return f"▲ shows {handle(fact.again)} again {where} ({fact.kept_tokens:,} tokens) {fact.rule}"
        case Clipped() if fact.shows_all:
            return f"▲ shows {handle(fact.target)} whole again {fact.rule}"
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
            ranges = ", ".join(_span(first, last) for first, last in fact.ranges)
            return f"▼ dropped {ranges} ({fact.reason}) {fact.rule}"
        case Compacted():
            span = _span(fact.first, fact.last)
            if fact.takes_item_back:
                return f"▼ {fact.rule} ({fact.reason}): {instead_text(fact)}"
            if fact.masks:
                return f"▼ cut {span} ({fact.reason}) {fact.rule}: {cut_text(fact)}"
            return f"▼ compacted {span} by {fact.by or 'an unknown writer'}: {_preview(event)}"
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
            return f"equipped with {counted(len(json.loads(bytes(fact.tools))), 'tool')}"
        case Pinned():
            return f"pinned {handle(fact.target) if fact.target is not None else ''} {one_line(fact.text)}"
        case Superseded():
            return f"{handle(fact.target)} replaced by {handle(fact.by)}"
        case Expanded():
            return f"▲ expanded {_span(fact.first, fact.last)}"
        case CompactionFailed():
            cause = f" ({fact.cause})" if fact.cause else ""
            return f"compaction of {_span(fact.first, fact.last)} failed{cause}: {one_line(fact.problem, width=70)}"
        case Marked():
            return f"marked {handle(fact.target)}: it came again with other fields"
        case ToolsLoaded():
            count = len(json.loads(bytes(fact.tools)))
            return f"loaded {count:,} tool{'s' * (count != 1)} for {handle(fact.target)}"
        case Prioritised():
            return f"{handle(fact.target)} has {fact.priority} priority"
        case ModelSaid():
            calls = " ".join(
                f"→ {call.name}({one_line(call.arguments, width=40)})" for _, call in calls_of(fact.content)
            )
            return f"model_said {_preview(event)} {visible(calls)}".rstrip()
        case Overflowed():
            size = f"{fact.needed or fact.sent:,} tokens, limit {fact.limit:,}" if fact.limit else "too large"
            return f"overflowed: {visible(fact.model)} refused the request ({size})"
        case _:
            return f"{visible(kind(fact))} {_preview(event)}".rstrip()


def _span(first: int, last: int) -> str:
    return handle(first) if first == last else f"{handle(first)}–{handle(last)}"


def _preview(event: Event) -> str:
    content = getattr(event.fact, "content", None)
    return one_line(original_text(event.fact) if content is None else text_of(content), width=70)


# ── Formatting ───────────────────────────────────────────────────────────────────────────────────────────


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at)) if at else "-".ljust(16)


def _minute(at: float | None) -> str:
    return time.strftime("%m-%d %H:%M", time.localtime(at)) if at else "-".ljust(11)


def _size(size: int) -> str:
    return f"{size / 1_000_000:,.1f} MB" if size >= 1_000_000 else f"{size / 1_000:,.1f} kB"


def _progress() -> Callable[[int, int], None] | None:
    """Return a function that prints how much was read to a terminal, or None outside of a terminal."""
    if not sys.stderr.isatty():
        return None

    def print_share(done: int, total: int) -> None:
        share = done / total if total else 1.0
        end = "\n" if done >= total else ""
        print(f"\rreading … {share:4.0%}", end=end, file=sys.stderr, flush=True)

    return print_share


def print_skipped(problem: transcripts.UnreadableTranscript) -> None:
    """Print the name of a file that could not be read, and why."""
    print(f"foveal: skipped {visible(str(problem))}", file=sys.stderr)


def print_damaged(problem: transcripts.UnreadableTranscript) -> None:
    """Print the name of a file that was read in part, and where it is damaged."""
    print(f"foveal: damaged: {visible(str(problem))}", file=sys.stderr)
