"""Lists, searches and reads the sessions of several sources.

1. An answer is never longer than `tokens`; it says what it left out and how to get that.
2. Secrets are redacted in all that is shown.
3. A source that fails is named in the answer; the others answer.
4. A call works for at most about `MAX_WORK_S` and says what it did not get to; the same call again continues there.
   A look at the bytes of the files shows which to index first. With a lasting index, a task indexes the rest.
5. What a model passes wrongly raises `RecallProblem` with advice.

`RawScan` finds which sessions to index first, and `BackgroundIndexing` indexes the rest. A look at the bytes takes
about a fiftieth of the time of indexing them. It finds words by their letters, so a text that differs from the
query only in accents is found once it is indexed.
"""

from __future__ import annotations

import asyncio
import collections
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import takewhile
from math import inf, log
from typing import Final, NamedTuple, TypeAlias

from foveal.core.log.events import Event, Noted
from foveal.core.redaction import redact_fact, scrub
from foveal.core.tokens.counter import Counter, counter
from foveal.core.wire.event_text import inline, search_text
from foveal.errors import BadSetting, FovealError, StoreUnusable
from foveal.ports import Hit
from foveal.recall.archive.answer import (
    SessionMatches,
    left_lines,
    list_head,
    problem_lines,
    problem_text,
    recall_line,
    search_head,
    session_title,
)
from foveal.recall.archive.index import ArchiveIndex, IndexFile
from foveal.recall.archive.listing import (
    ListedSession,
    QueryPart,
    SessionFilter,
    SessionList,
    sessions_named,
    significant_parts,
)
from foveal.recall.archive.source import (
    ArchiveSource,
    RecallProblem,
    SessionDetails,
    SessionEntry,
    SessionLog,
)
from foveal.recall.archive.transcript_source import TranscriptSource
from foveal.recall.excerpts import ALL_LINES, LineSelection
from foveal.recall.recall import (
    MAX_ANSWER_TOKENS,
    MAX_CANDIDATE_MESSAGES,
    MAX_SEARCH_HITS,
    MIN_ANSWER_TOKENS,
    Recall,
    add_messages,
)
from foveal.recall.schemas import parse_handles
from foveal.stores.search_words import Tokenizer

INDEXING_SLICE_S: Final = 2.0
"""Time for which the task indexes until it lists the sessions again; it makes way for a call before that."""
OTHER_BUILDER_S: Final = 1.0
"""Time after which the task looks again whether another process has stopped building."""
_MIN_LETTERS: Final = 2


class RawScan:
    """What the bytes of sessions say of one query."""

    def __init__(self, query: str) -> None:
        terms = Tokenizer().terms(query)
        stems = [_same_letters(term.word, term.stem) or term.word for term in terms]
        can_scan = all(stem.isascii() and len(stem) >= _MIN_LETTERS for stem in stems)
        self.words: Final = [stem.encode() for stem in dict.fromkeys(stems)] if can_scan else []
        """What is looked for; none if bytes cannot show it, as of scripts that are written in several ways."""
        self._found: dict[str, frozenset[int]] = {}

    def add(self, handle: str, found: frozenset[int] | None) -> None:
        """Note which words a session has; None if that is not known."""
        if found is not None:
            self._found[handle] = found

    @property
    def without_words(self) -> set[str]:
        """The sessions that have none of the words."""
        return {handle for handle, found in self._found.items() if not found}

    def scores(self) -> dict[str, float]:
        """Return how well each session may answer; a word counts more if few sessions have it."""
        counts = collections.Counter(number for found in self._found.values() for number in found)
        rarity = {number: log(1 + len(self._found) / count) for number, count in counts.items()}
        return {handle: sum(rarity[number] for number in found) for handle, found in self._found.items()}


def _same_letters(word: str, stem: str) -> str:
    """Return how both begin: they differ at their ends, such as "pony" and "poni", the stem of "ponies" too."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(word, stem, strict=False))
    return "".join(letter for letter, _ in same)


class BackgroundIndexing:
    """A task that indexes what searches have left, in slices between which calls pass; for one event loop."""

    def __init__(self, work: Callable[[float], Awaitable[bool]], may_build: Callable[[], bool]) -> None:
        """`work` indexes for so many seconds and returns whether there is more; `may_build` says whether no other
        process does it."""
        self._work = work
        self._may_build = may_build
        self._task: asyncio.Task[None] | None = None
        self._until = 0.0
        self._stopped = asyncio.Event()

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    def start(self, *, for_s: float = inf) -> None:
        """Index for at most so long from now on."""
        self._until = time.monotonic() + for_s
        if not self.is_running and not self._stopped.is_set():
            self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        """End the task for good after its current step, because a thread of it cannot be interrupted."""
        self._until = 0.0
        self._stopped.set()
        if self._task is not None:
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        with suppress(FovealError, OSError):  # a call reports it
            while time.monotonic() < self._until:
                if not self._may_build():
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._stopped.wait(), OTHER_BUILDER_S)
                elif not await self._work(INDEXING_SLICE_S):
                    return


DEFAULT_ARCHIVE_TOKENS: Final = 4_000
MAX_WORK_S: Final = 20.0
"""Time for which one call reads and indexes; clients wait at least 60 s for a tool."""
MAX_ARCHIVE_PAGE_SESSIONS: Final = 100
MAX_PLACE_CHARS: Final = 200
MAX_SEARCH_ROUNDS: Final = 5
"""Searches of the index for one list of sessions, each in the sessions that the ones before have not found."""
MAX_COMPARED_EVENTS: Final = 200
"""Events of a session that are compared with an identifier or a phrase."""
_MIN_SESSION_TOKENS: Final = 300
"""Minimum share of a session in the answer to a search."""
_SCAN_SHARE: Final = 0.5
"""Part of a call's time in which it looks at bytes of sessions that are not indexed."""
_FRAME_TOKENS: Final = 300
"""Room for the first and the last lines of an answer."""

ReportProgress: TypeAlias = Callable[[float, float, str], Awaitable[None]]
"""Called with what is done, the total, and what is being done."""


class FoundSessions(NamedTuple):
    """What a search over all sessions found."""

    handles: tuple[str, ...]
    left: int
    """Sessions that are not indexed completely yet, without those that cannot be."""


class Archive:
    """The past sessions of several sources; for one event loop. Calls wait for one another."""

    def __init__(
        self,
        sources: Sequence[ArchiveSource],
        *,
        tokens: int = DEFAULT_ARCHIVE_TOKENS,
        counting: Counter | None = None,
        work_s: float = MAX_WORK_S,
        kept: IndexFile | None = None,
    ) -> None:
        """`kept`: the file of the index, which belongs to the archive then; without one, the index is in memory."""
        if not MIN_ANSWER_TOKENS <= tokens - _FRAME_TOKENS <= MAX_ANSWER_TOKENS:
            least, most = MIN_ANSWER_TOKENS + _FRAME_TOKENS, MAX_ANSWER_TOKENS + _FRAME_TOKENS
            raise BadSetting("tokens", tokens, f"from {least:,} to {most:,}")
        self._listed = SessionList(sources)
        self._sources = sources
        self._tokens = tokens
        self._counter = counting or counter()
        self._work_s = work_s
        self._index = ArchiveIndex(kept)
        self._indexing = BackgroundIndexing(
            lambda work_s: self.index_sessions(work_s=work_s), self._index.try_build
        )
        for source in sources:
            if isinstance(source, TranscriptSource):
                source.remember_parts(self._index.remembered_parts)
        self._lock = asyncio.Lock()
        self._waiting = 0
        """Calls that wait for their turn."""
        self._unreadable: dict[str, tuple[float, ...]] = {}
        """Versions of the sessions that could not be indexed, by handle."""

    async def close(self) -> None:
        """Close all sources, and the index."""
        await self._indexing.stop()
        async with self._lock:
            for source in self._sources:
                await source.close()
            self._index.close()

    async def check(self) -> list[str]:
        """Return what cannot be read, redacted; of the sessions, only one that is alone in its source is tried."""
        async with self._lock:
            located = await self._list(SessionFilter())
            for source in self._sources:
                entries = [each for each in located if each.source is source]
                if len(entries) == 1:
                    await self._details_if(SessionFilter(), entries[0])
            return [scrub(problem) for problem in self._listed.problems]

    # ── Calls ────────────────────────────────────────────────────────────────────────────────────────────

    async def sessions(self, wanted: SessionFilter | None = None, *, limit: int = 20, after: str = "") -> str:
        """List sessions, the most recently active first. `after`: the last session of the page before."""
        async with self._turn():
            located = await self._list(wanted or SessionFilter())
            if after:
                last = self._resolve(located, after).order
                located = [each for each in located if each.order < last]
            blocks: list[str] = []
            room, seen, shown = self._tokens - _FRAME_TOKENS, 0, ""
            until = time.monotonic() + self._work_s
            for each in located:
                details = await self._details_if(wanted or SessionFilter(), each)
                if details is not None:
                    block = session_title(each.entry, details)
                    room -= self._counter.count(block) + 2
                    if room < 0 or len(blocks) >= min(limit, MAX_ARCHIVE_PAGE_SESSIONS):
                        break
                    blocks.append(block)
                seen, shown = seen + 1, each.entry.handle
                if time.monotonic() > until:
                    break
            counts = len(blocks), len(located), seen
            is_empty = not self._listed or wanted in (None, SessionFilter())
            text = list_head(*counts, shown, is_empty=is_empty, is_page=bool(after))
            head = recall_line(text)
            return "\n".join([head, *blocks, *problem_lines(self._listed.problems)])

    async def search(
        self,
        query: str,
        *,
        session: str = "",
        wanted: SessionFilter | None = None,
        limit: int | None = None,
        progress: ReportProgress | None = None,
    ) -> str:
        """Return the messages of one session, or of all that match, with words of the query."""
        if not query.strip():
            raise RecallProblem('a search needs a query: {"query": "words, names or numbers to look for"}')
        async with self._turn():
            until = time.monotonic() + self._work_s
            while True:
                located, left = await self._list(wanted or SessionFilter()), 0
                listed = len(self._listed)
                if session:
                    located = [self._resolve(located, session)]
                elif wanted is not None and wanted.needs_details:
                    located, left = await self._select(located, wanted, until)
                searched = await self._bring_up_to_date(located, until, progress, query)
                if self._is_over(until) or await self._count_listed() == listed:
                    break
            # Also in sessions of which only a part is indexed yet.
            hits = await self._index.search([each.entry for each in located], query, MAX_SEARCH_HITS)
            blocks = [block async for block in self._matches(located, query, hits, limit)]
            left += len(located) - searched
            head = search_head(query, sessions=len(blocks), searched=searched, left=left)
            if self._index.lasts and (self._count_to_index(located) or self._index.needs_tidying):
                self._indexing.start()
            rest = left_lines(left, is_building=self._indexing.is_running, notice=self._index.notice)
            return "\n\n".join([head, *blocks, *rest, *problem_lines(self._listed.problems)])

    async def find_sessions(self, query: str, *, title_s: float, index_s: float) -> FoundSessions:
        """Return the sessions with all parts of the query in title, folder or id, the newest first, and then those
        with all of them in their text as far as it is indexed, the best first.

        Titles are read for about `title_s` seconds, identifiers and phrases are compared with texts for as long,
        and sessions are indexed for about `index_s`."""
        async with self._turn():
            located = await self._list(SessionFilter())
            if index_s:
                await self._bring_up_to_date(located, time.monotonic() + index_s, None)
                located = await self._list(SessionFilter())  # a file that was read may have several
            until = time.monotonic() + title_s
            named, _ = await self._select(located, SessionFilter(text=query), until)
            handles = [each.entry.handle for each in named]
            having = await self._with_all_parts(query, located, time.monotonic() + title_s)
            handles += await self._best_first(query, [each.entry for each in having])
            return FoundSessions(tuple(dict.fromkeys(handles)), self._count_to_index(located))

    async def index_sessions(self, *, work_s: float) -> bool:
        """Index sessions for about `work_s` seconds, or until a call waits; return whether there may be more."""
        async with self._lock:
            located = await self._list(SessionFilter())
            if not self._count_to_index(located):
                await self._index.tidy()
                self._index.end_build()
                return False
            is_over = partial(self._is_over, time.monotonic() + work_s)
            await self._index_missing(self._missing(located), lambda: is_over() or self._waiting > 0, None)
            return True  # a file that was read may have several conversations, which the next list has

    def index_in_background(self, *, for_s: float = inf) -> None:
        """Index all sessions in a task, for at most so long from now on."""
        self._indexing.start(for_s=for_s)

    @property
    def is_indexing(self) -> bool:
        """Whether the task indexes."""
        return self._indexing.is_running

    async def read(self, session: str, handle: str, lines: LineSelection = ALL_LINES) -> str:
        """Return a part of one event of a session, or of each event of a range."""
        seqs = parse_handles(handle)
        if isinstance(seqs, str):
            raise RecallProblem(seqs)
        async with self._turn():
            located = self._resolve(await self._list(SessionFilter()), session)
            log = await located.source.open(located.entry)
            if seqs[0] >= log.end:
                raise RecallProblem(
                    f"there is no {handle}: session {located.entry.handle} "
                    + (f"goes from e0 to e{log.end - 1}" if log.end else "is empty")
                )
            library = _SessionLibrary(log, with_notes=seqs[0] == seqs[1])
            tokens = min(self._tokens, MAX_ANSWER_TOKENS)
            recall = Recall(library, tokens=tokens, counting=self._counter, session=located.entry.handle)
            # Every log counts its events from e0, so the answer says whose event this is.
            place = inline(scrub(located.source.name), max_chars=MAX_PLACE_CHARS)
            name = inline(scrub(located.entry.name))
            whose = f"{handle} of session {located.entry.handle}, id {name}, in {place}"
            return f"{recall_line(whose)}\n{await recall.read(*seqs, lines)}"

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Wait until no other call or indexing works on the archive; the task that indexes makes way."""
        self._waiting += 1
        try:
            await self._lock.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._lock.release()

    # ── Sessions ─────────────────────────────────────────────────────────────────────────────────────────

    async def _list(self, wanted: SessionFilter) -> list[ListedSession]:
        """Return the sessions of a period, the newest first; what could not be read becomes a problem."""
        first, last = wanted.period()
        await self._listed.refresh(max_age=0.0)
        try:
            await self._index.forget_unlisted(self._listed.handles())
        except StoreUnusable as problem:
            self._listed.add_problem(problem)
        return [each for each in self._listed if first <= each.entry.active <= last]

    async def _count_listed(self) -> int:
        """Return how many sessions there are now: a file that was read to be searched may have several."""
        await self._listed.refresh(max_age=0.0)
        return len(self._listed)

    def _resolve(self, located: Sequence[ListedSession], session: str) -> ListedSession:
        """Return the session that a call names."""
        found = sessions_named(located, session.strip(), by_part=True)
        if len(found) == 1:
            return found[0]
        if not found:
            problems = self._listed.problems
            more = f"; {problem_text(problems)}" if problems else ""
            raise RecallProblem(f"there is no session {inline(session)}: recall_sessions lists them{more}")
        handles = ", ".join(each.entry.handle for each in found[:5])
        raise RecallProblem(f"{len(found)} sessions are called {inline(session)}: give one of {handles}")

    async def _details_if(self, wanted: SessionFilter, each: ListedSession) -> SessionDetails | None:
        """Return the details of a session, None if it does not match or cannot be read."""
        try:
            details = await each.source.describe(each.entry)
        except (FovealError, OSError) as problem:
            self._listed.add_problem(problem)
            return None
        return details if wanted.matches(each.entry, details) else None

    async def _select(
        self, located: Sequence[ListedSession], wanted: SessionFilter, until: float
    ) -> tuple[list[ListedSession], int]:
        """Return the sessions that match, and how many were not looked at until then."""
        found: list[ListedSession] = []
        for number, each in enumerate(located):
            if time.monotonic() > until:
                return found, len(located) - number
            found += [each] if await self._details_if(wanted, each) is not None else []
        return found, 0

    # ── Search ───────────────────────────────────────────────────────────────────────────────────────────

    async def _bring_up_to_date(
        self, located: Sequence[ListedSession], until: float, progress: ReportProgress | None, query: str = ""
    ) -> int:
        """Index the sessions until the time is over: those that may answer the query first, then the newest. Return
        how many are searched completely: they are indexed, or their bytes have no word of the query."""
        missing = self._missing(located)
        scan = await self._scan(missing, query, until)
        scores = scan.scores()
        missing.sort(key=lambda each: -scores.get(each.entry.handle, 0.0))
        if self._index.lasts:  # the task indexes those that cannot answer
            missing = [each for each in missing if each.entry.handle not in scan.without_words]
        await self._index_missing(missing, partial(self._is_over, until), progress)
        return len(self._index.current([each.entry for each in located]) | scan.without_words)

    def _missing(self, located: Sequence[ListedSession]) -> list[ListedSession]:
        """Return the sessions that are not indexed as they are now; all if a full index begins anew for them."""
        entries = [each.entry for each in located]
        current = self._index.current(entries)
        if len(current) < len(entries) and self._index.is_full and self._index.can_hold(entries):
            self._index.clear()
            current = set()
        return [each for each in located if each.entry.handle not in current]

    @staticmethod
    def _is_over(until: float) -> bool:
        return time.monotonic() > until

    async def _scan(self, missing: Sequence[ListedSession], query: str, until: float) -> RawScan:
        """Look for the words of the query in the bytes of sessions, for at most half of the time that is left."""
        scan, now = RawScan(query), time.monotonic()
        if scan.words and len(missing) > 1:
            for each in missing:
                if time.monotonic() > now + (until - now) * _SCAN_SHARE:
                    break
                scan.add(each.entry.handle, await each.source.find_raw(each.entry, scan.words))
        return scan

    async def _index_missing(
        self, missing: Sequence[ListedSession], is_over: Callable[[], bool], progress: ReportProgress | None
    ) -> None:
        total, done = sum(each.entry.size for each in missing), 0
        for each in missing:
            if is_over() or self._index.is_full:
                return

            async def report(part: float, entry: SessionEntry = each.entry, before: int = done) -> bool:
                if progress is not None:
                    await progress(before + part * entry.size, total, f"reading {inline(scrub(entry.name))}")
                return not is_over()

            try:
                log = await each.source.open(each.entry)
                await self._index.update(each.entry, each.source.name, log, report)
            except (FovealError, OSError) as problem:
                self._unreadable[each.entry.handle] = each.entry.version
                self._listed.add_problem(problem)
            done += each.entry.size

    async def _with_all_parts(
        self, query: str, located: Sequence[ListedSession], until: float
    ) -> Sequence[ListedSession]:
        """Return the sessions whose texts have all parts of the query.

        After `until`, an identifier or a phrase counts as found in a message with all its words."""
        for part in significant_parts(query):
            seqs = await self._index.events_with_all([each.entry for each in located], part.text)
            located = [each for each in located if each.entry.handle in seqs]
            if part.is_exact:
                located = [
                    each
                    for each in located
                    if time.monotonic() > until or await self._contains(each, seqs[each.entry.handle], part)
                ]
        return located

    async def _contains(self, each: ListedSession, seqs: Sequence[int], part: QueryPart) -> bool:
        """Return whether one of these events, of which the newest are read, has the part as it is written."""
        try:
            log = await each.source.open(each.entry)
            events = await log.pick(seqs[:MAX_COMPARED_EVENTS])
        except (FovealError, OSError) as problem:
            self._listed.add_problem(problem)
            return False
        return await asyncio.to_thread(
            lambda: any(part.occurs_in(search_text(event.fact)) for event in events)
        )

    async def _best_first(self, query: str, entries: Sequence[SessionEntry]) -> list[str]:
        """Return the sessions with words of the query, the best first."""
        found: dict[str, None] = {}
        for _ in range(MAX_SEARCH_ROUNDS):
            # The best messages of all can be those of a few long sessions.
            rest = [entry for entry in entries if entry.handle not in found]
            hits = await self._index.search(rest, query, MAX_SEARCH_HITS) if rest else []
            if not hits:
                break
            found.update(dict.fromkeys(handle for handle, _ in hits))
        return list(found)

    def _count_to_index(self, located: Sequence[ListedSession]) -> int:
        """Return how many sessions are not indexed completely, and can be."""
        if self._index.is_full:
            return 0
        entries = [each.entry for each in located]
        current = self._index.current(entries)
        return sum(
            entry.handle not in current and self._unreadable.get(entry.handle) != entry.version
            for entry in entries
        )

    async def _matches(
        self, located: Sequence[ListedSession], query: str, hits: Sequence[tuple[str, Hit]], limit: int | None
    ) -> AsyncIterator[str]:
        """Yield the messages found in each session, the session with the best message first."""
        by_session: dict[str, list[Hit]] = {}
        for handle, hit in hits:
            by_session.setdefault(handle, []).append(hit)
        room, places = self._tokens - _FRAME_TOKENS, {each.entry.handle: each for each in located}
        chosen = list(by_session.items())[: max(1, room // _MIN_SESSION_TOKENS)][:limit]
        for number, (handle, found) in enumerate(chosen):
            share = room // (len(chosen) - number)
            block = await self._session_matches(places[handle], query, found, share, limit)
            if block:
                room -= self._counter.count(block) + 2
                yield block

    async def _session_matches(
        self, located: ListedSession, query: str, hits: Sequence[Hit], tokens: int, limit: int | None
    ) -> str:
        try:
            details = await located.source.describe(located.entry)
            log = await located.source.open(located.entry)
            answer = SessionMatches(
                session_title(located.entry, details),
                query,
                hits,
                counter=self._counter,
                tokens=tokens,
                limit=limit or MAX_CANDIDATE_MESSAGES,
            )
            await add_messages(answer, _SessionLibrary(log), hits)
        except (FovealError, OSError) as problem:
            self._listed.add_problem(problem)
            return ""
        return answer.text()


class _SessionLibrary:
    """A past session for `Recall`: redacted events, none of which the model sees already."""

    def __init__(self, log: SessionLog, *, with_notes: bool = True) -> None:
        """`with_notes`: include notes, such as lines of a transcript that no model saw."""
        self._log = log
        self._with_notes = with_notes

    async def search(self, query: str, limit: int) -> list[Hit]:
        raise NotImplementedError("the archive searches its own index")

    async def pick(self, seqs: Sequence[int]) -> list[Event]:
        events = await self._log.pick(seqs)
        return [
            Event(event.seq, redact_fact(event.fact), event.at)
            for event in events
            if self._with_notes or not isinstance(event.fact, Noted)
        ]

    def visible(self, seq: int) -> bool:
        return False

    @property
    def last(self) -> int:
        return self._log.end - 1
