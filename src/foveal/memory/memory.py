"""`Memory`: what an owner wants to be known in every conversation, in a store.

    memory = foveal.Memory("ada", store=store)
    await memory.remember("Answer in French.")
    session = await foveal.Session.open(store, "demo", model="gpt-4.1", memory=memory)

1. A memory is an append-only log in the store, apart from the sessions; what is shown is its fold. Its entries
   belong to one owner: no other owner's memory reads them.
2. Every method reads what is new first, so that what one process forgets is forgotten in the next request of all.
   Without news, that is one query.
3. Of writers at the same time, each appends after the other: none loses an entry. An append is one transaction.
4. An entry comes from words of its owner: told to the memory itself, or said in a message of the user. Anything
   else is a proposal, which no request shows before the owner accepts it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from typing import Final, NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from foveal.core.compaction.summariser import Summarise, summariser_chain
from foveal.core.log.events import MEMORY_LOG_PREFIX, Event, UserSaid, handle, parse_handle
from foveal.core.models.budget import DEFAULT_MEMORY_TOKENS, MAX_MEMORY_TOKENS, MIN_MEMORY_TOKENS
from foveal.core.tokens.counter import Counter, counter
from foveal.core.wire.safe_print import counted
from foveal.errors import BadSetting, NotRemembered, UnknownSession
from foveal.memory.entry_search import ComparedEntries, EntryIndex
from foveal.memory.facts import (
    TOLD,
    Accepted,
    AnyMemoryFact,
    Cleared,
    Edited,
    EntryKind,
    EntryOrigin,
    FileTaken,
    Forgotten,
    Proposed,
    Recalled,
    Rejected,
    Remembered,
    Replaced,
    Undone,
    append_decided,
    to_event,
)
from foveal.memory.files import FILES_LOG_SUFFIX, MemoryFiles
from foveal.memory.fold import MemoryEntry, MemoryState, memory_text, texts_of
from foveal.memory.markdown import FileEdits
from foveal.memory.proposed import joined_proposals, model_proposals, propose_from
from foveal.memory.quotes import (
    MAX_ENTRY_CHARS,
    entry_text,
    find_quote,
    is_long_enough,
    is_surely_typed,
    kind_of,
    typed_words,
)
from foveal.memory.spoken import (
    CALLS_OFF,
    EVERYTHING,
    SAID_WRONG,
    SpokenRequest,
    is_only_requests,
    spoken_requests,
)
from foveal.ports import Store

MAX_OWNER_CHARS: Final = 400
_KINDS: Final = ("preference", "fact", "rule", "procedure")
_DONE: Final = {"remember": "remembered", "forget": "forgotten"}

DecideFacts = Callable[[MemoryState], Sequence[AnyMemoryFact]]
"""Returns the facts to append to a memory in this state."""


class QuotedLog(Protocol):
    """A conversation in which words of the user are looked up.

    A `Session` is one. Where several people speak in it, give a log with the messages of the owner alone.

    Examples:
        ```python
        import foveal

        async with foveal.stores.MemoryStore() as store:
            session = await foveal.Session.open(store, "demo", model="gpt-4.1")
            log: foveal.memory.QuotedLog = session
        ```
    """

    id: str
    """The id of the session."""

    async def events(self, *, first: int = 0, last: int | None = None) -> list[Event]:
        """Return the events of a range.

        Args:
            first: The first seq.
            last: The last seq, included. None reads to the end.
        """
        ...

    async def left_behind(self) -> frozenset[int]:
        """Return the seqs of what was rewound or replaced."""
        ...


class MemoryNote(msgspec.Struct, frozen=True, kw_only=True):
    """What a memory did because the user asked for it.

    Examples:
        ```python
        import foveal

        async with foveal.stores.MemoryStore() as store:
            memory = foveal.Memory("ada", store=store)
            said = foveal.Event(4, foveal.UserSaid(content="Please remember that I use tabs."))
            (note,) = await memory.hear([said], session="monday")
            assert note.text == "Remembered m0: I use tabs."
        ```
    """

    text: str
    """The sentence for the user."""
    entry: MemoryEntry | None = None
    """The entry as it is now; None if nothing was done, and the sentence says why."""


class Memory:
    """What one owner wants to be known in every conversation.

    Give it to `Context` or `Session.open`: their requests then show its text behind the instructions. The methods
    are coroutines, for any event loop that the store allows.

    Args:
        owner: Whose memory it is: any text that names one user or project. Two owners share nothing.
        store: The store that keeps it, such as that of the sessions.
        budget: Most tokens of the text that requests show, from 100 to 32,000.
        title: The name of the memory in that text.
        letter: The beginning of the ids of its entries. Two memories of one conversation need different ones.
        hears: Whether "remember that …" in a message of the user is obeyed.
        counting: Counts the tokens. None uses the counter `"auto"`.
        clock: Returns the time in seconds since 1970.

    Raises:
        BadSetting: An argument is not allowed.

    Examples:
        ```python
        import foveal

        async with foveal.open_store("chats.db") as store:
            memory = foveal.Memory("ada", store=store)
            await memory.remember("Answer in French.")
            session = await foveal.Session.open(store, "demo", model="gpt-4.1", memory=memory)
            await session.append(foveal.UserSaid(content="Why is CI red?"))
            assert "Answer in French." in str((await session.fit()).to_openai())
        ```
    """

    def __init__(
        self,
        owner: str,
        *,
        store: Store,
        budget: int = DEFAULT_MEMORY_TOKENS,
        title: str = "the user",
        letter: str = "m",
        hears: bool = True,
        counting: Counter | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not isinstance(owner, str) or not owner.strip() or len(owner) > MAX_OWNER_CHARS:
            raise BadSetting(
                "owner", owner, f"the name of an owner, a text of 1 to {MAX_OWNER_CHARS} characters"
            )
        if owner.endswith(FILES_LOG_SUFFIX):
            raise BadSetting("owner", owner, "another ending: this is that of the files of a memory")
        if isinstance(budget, bool) or not isinstance(budget, int):
            raise BadSetting("budget", budget, "a whole number of tokens")
        if not MIN_MEMORY_TOKENS <= budget <= MAX_MEMORY_TOKENS:
            raise BadSetting("budget", budget, f"from {MIN_MEMORY_TOKENS} to {MAX_MEMORY_TOKENS:,}")
        if len(letter) != 1 or not ("a" <= letter <= "z") or letter == "e":
            raise BadSetting(
                "letter", letter, "a small letter other than e, with which handles of events begin"
            )
        self.owner: Final = owner
        """Whose memory it is."""
        self.store: Final = store
        """The store that keeps it."""
        self.budget: Final = budget
        """Most tokens of the text that requests show."""
        self.letter: Final = letter
        """The beginning of the ids of its entries."""
        self.files: Final = MemoryFiles(owner, store=store, clock=clock)
        """The files that the model keeps with `memory_tool`."""
        self.hears: Final = hears
        """Whether "remember that …" in a message of the user is obeyed."""
        self._title = title
        self._log = f"{MEMORY_LOG_PREFIX}{owner}"
        self._counter = counting or counter()
        self._clock = clock
        self._lock = Lock()
        self._state = MemoryState(letter)
        self._shown: tuple[int, str] = (-1, "")
        """The version of the entries, and their text."""
        self._compared = ComparedEntries()
        self._index = EntryIndex()
        self._uses: list[int] = []
        """Entries that were used and are not recorded yet."""

    def __repr__(self) -> str:
        return f"<Memory of {self.owner}: {counted(len(self._state.counting()), 'entry', 'entries')}>"

    # ── Reading ──────────────────────────────────────────────────────────────────────────────────────

    async def refresh(self) -> None:
        """Read what is new in the store. Without news, that is one query.

        Raises:
            StoreError: The store cannot be read.
        """
        first = self._state.next_seq
        try:
            events, _ = await self.store.read_new(self._log, first=first)
        except UnknownSession:
            events = []
        self._take(events)

    def _take(self, events: Iterable[Event]) -> None:
        with self._lock:
            for event in events:
                if event.seq == self._state.next_seq:
                    self._state.advance(event)

    @property
    def state(self) -> MemoryState:
        """The entries as they were read last. `refresh` reads what is new."""
        return self._state

    @property
    def text(self) -> str:
        """The text that requests show, as it was read last; "" if there are no entries."""
        with self._lock:
            if self._shown[0] != self._state.version:
                shown = memory_text(
                    [*self._state.entries.values()],
                    title=self._title,
                    budget=self.budget,
                    counter=self._counter,
                )
                self._shown = (self._state.version, shown)
            return self._shown[1]

    async def entries(self, *, all: bool = False) -> list[MemoryEntry]:
        """Return the entries that count, oldest first.

        Args:
            all: Whether to return those too that are proposed, replaced or forgotten.

        Raises:
            StoreError: The store cannot be read.
        """
        await self.refresh()
        with self._lock:
            return [*self._state.entries.values()] if all else self._state.counting()

    async def proposals(self) -> list[MemoryEntry]:
        """Return the entries that wait for the owner's yes, oldest first.

        Raises:
            StoreError: The store cannot be read.
        """
        await self.refresh()
        with self._lock:
            return self._state.proposals()

    async def why(self, id: str) -> MemoryEntry:
        """Return one entry with its origin, also one that does not count any more.

        Args:
            id: The id of the entry, such as `"m12"`.

        Returns:
            The entry. Its `origin` has the words of the user, the session and the message.

        Raises:
            NotRemembered: No entry has this id.
            StoreError: The store cannot be read.
        """
        await self.refresh()
        return self._state.entries[self._number(self._state, id)]

    async def search(self, words: str, *, limit: int = 20) -> list[MemoryEntry]:
        """Return the entries that count and have words of the query, best first.

        Args:
            words: Any text.
            limit: Most entries to return.

        Raises:
            StoreError: The store cannot be read.

        Examples:
            ```python
            import foveal

            async with foveal.stores.MemoryStore() as store:
                memory = foveal.Memory("ada", store=store)
                await memory.remember("The staging port is 8081.")
                (entry,) = await memory.search("which port has staging?")
            ```
        """
        await self.refresh()
        return self.find(words, limit=limit)

    def find(self, words: str, *, limit: int = 20) -> list[MemoryEntry]:
        """Do what `search` does on the entries as they were read last, without waiting.

        Args:
            words: Any text.
            limit: Most entries to return.
        """
        with self._lock:
            return self._index.search(words, self._state.counting(), limit=limit)

    # ── Changing ─────────────────────────────────────────────────────────────────────────────────────

    async def remember(
        self,
        text: str,
        *,
        kind: EntryKind | None = None,
        quote: str = "",
        event: str | int | None = None,
        log: QuotedLog | None = None,
        by: str = "",
    ) -> MemoryEntry:
        """Keep a statement. A later one about the same subject replaces earlier ones.

        Without `quote`, the owner says it here and now: pass only what the owner wrote. With `quote`, the words are
        looked up in the messages of the user, and the entry is the whole sentence in which they were said. If
        `text` says something else, it is only proposed.

        Args:
            text: The statement, of at most 500 characters.
            kind: What it is. None decides by its words.
            quote: Words of the user, from a message of `log`.
            event: The handle or seq of the message. None looks in all messages.
            log: The conversation in which the user said it, such as a `Session`.
            by: Who said it, where several people speak.

        Returns:
            The entry: a new one, or the one that says the same already.

        Raises:
            NotRemembered: The statement is empty or too long, or the user did not say the quote.
            BadSetting: `kind` is unknown, or `quote` comes without `log`.
            StoreError: The store cannot write.

        Examples:
            ```python
            import foveal

            async with foveal.stores.MemoryStore() as store:
                memory = foveal.Memory("ada", store=store)
                await memory.remember("The deadline is 14 March.")
                await memory.remember("The deadline moved to 2 April.")
                (entry,) = await memory.entries()
                assert entry.corrects
            ```
        """
        if kind is not None and kind not in _KINDS:
            raise BadSetting("kind", kind, f"one of {', '.join(_KINDS)}, or None")
        if not quote:
            return await self._keep(entry_text(text), kind, EntryOrigin(by=by))
        found = await _quote_in(_checked_log(log), quote, event)
        words = entry_text(found.text)
        requests = spoken_requests(found.text)
        if any(request.action == "forget" for request in requests):
            raise NotRemembered("with these words the user asked to forget something")
        spoken = {request.text.casefold() for request in requests}
        said = entry_text(text or (requests[0].text if requests else found.text))
        origin = EntryOrigin(
            source="quoted", by=by, session=found.session, event=handle(found.event.seq), quote=words
        )
        is_said = said.casefold() in {words.casefold(), *spoken}
        if is_said and is_surely_typed(found.event):
            return await self._keep(said, kind, origin)
        return await self._propose(said, kind, origin)

    async def hear(self, events: Iterable[Event], *, session: str = "", by: str = "") -> list[MemoryNote]:
        """Obey "remember that …" and "forget that …" in messages of the user.

        `Session.append` and `Context.fit` call it for new messages of the user, if the memory `hears`.

        Args:
            events: The new events of a conversation. Only messages of the user count.
            session: The id of the session.
            by: Who spoke, where several people speak.

        Returns:
            What was remembered, forgotten, and in messages that say other things too proposed, for the user to
            see; also that a statement is too long, or that it is not clear which entry is to be forgotten.

        Raises:
            StoreError: The store cannot write.
        """
        notes: list[MemoryNote] = []
        for event in events:
            if isinstance(event.fact, UserSaid):
                said = typed_words(event.fact.content)
                is_alone = is_surely_typed(event) and is_only_requests(said)
                for request in spoken_requests(said):
                    origin = EntryOrigin(source="spoken", by=by, session=session, event=event.handle)
                    try:
                        notes += await self._obey(request, origin, is_alone=is_alone)
                    except NotRemembered as problem:
                        notes.append(MemoryNote(text=f"Not {_DONE[request.action]}: {problem}"))
        return notes

    async def _obey(self, request: SpokenRequest, origin: EntryOrigin, *, is_alone: bool) -> list[MemoryNote]:
        text = entry_text(request.text)
        origin = replace(origin, quote=entry_text(request.quote[:MAX_ENTRY_CHARS]))
        if not is_alone:
            # The words may be another person's: those neither become an entry nor take one away.
            if request.action == "forget":
                raise NotRemembered("the message says other things too; send the request alone")
            proposal = await self._propose(text, None, origin)
            if not proposal.proposed or proposal.forgotten:
                return []  # it is an entry already, or the owner said no
            said = f"Proposed {proposal.id}, because the message says other things too: {proposal.text}"
            return [MemoryNote(text=said, entry=proposal)]
        if request.action == "remember":
            entry = await self._keep(text, None, origin)
            return [MemoryNote(text=f"Remembered {entry.id}: {entry.text}", entry=entry)]
        return await self._forget_meant(request, origin)

    async def _forget_meant(self, request: SpokenRequest, origin: EntryOrigin) -> list[MemoryNote]:
        """Forget the one entry that the user means; raises `NotRemembered` if it is not clear which one."""
        if EVERYTHING.match(request.text):
            raise NotRemembered("say which entry, or erase the memory to forget everything")
        meant: list[int] = []
        near: list[int] = []

        def decide(state: MemoryState) -> Sequence[AnyMemoryFact]:
            meant[:] = self._compared.meant(state, request)
            near[:] = meant or self._compared.near(state, request.text)
            return [Forgotten(target=meant[0], origin=origin)] if len(meant) == 1 else []

        await self._change(decide)
        named = self._named(self._state, near)
        if len(meant) > 1:
            raise NotRemembered(
                f"several entries are about “{request.text}”: {named}; say which one by its id"
            )
        if meant:
            entry = self._state.entries[meant[0]]
            return [MemoryNote(text=f"Forgot {entry.id}: {entry.text}", entry=entry)]
        if CALLS_OFF.match(request.quote):
            return []
        advice = f"; if you mean one of these, say its id: {named}" if named else ""
        raise NotRemembered(f"no entry says “{request.text}”{advice}")

    async def forget(self, id: str, *, quote: str = "", log: QuotedLog | None = None) -> MemoryEntry:
        """Take an entry out of all later requests. `undo` brings it back, `erase` deletes the text for good.

        Without `quote`, the owner asks for it here and now. With it, the user must have asked for it with these
        words.

        Args:
            id: The id of the entry.
            quote: Words of the user, from a message of `log`, that revoke the entry.
            log: The conversation in which the user said it, such as a `Session`.

        Returns:
            The forgotten entry.

        Raises:
            NotRemembered: No entry has this id, it does not count any more, or the user did not ask for it.
            BadSetting: `quote` comes without `log`.
            StoreError: The store cannot write.
        """
        if not quote:
            return await self._change_entry(id, lambda state, seq: [Forgotten(target=seq)])
        found = await _quote_in(_checked_log(log), quote, None)
        if not is_surely_typed(found.event):
            raise NotRemembered(
                "the words stand in a long message, in which text may be pasted: ask the user"
            )
        words = entry_text(found.text)

        def decide(state: MemoryState, seq: int) -> Sequence[AnyMemoryFact]:
            if not self._revokes(state, words, seq):
                raise NotRemembered(f"the user did not ask to forget {state.name(seq)} with these words")
            event = handle(found.event.seq)
            return [
                Forgotten(
                    target=seq,
                    origin=EntryOrigin(source="quoted", session=found.session, event=event, quote=words),
                )
            ]

        return await self._change_entry(id, decide)

    async def edit(self, id: str, text: str) -> MemoryEntry:
        """Change the text of an entry, as its owner.

        Args:
            id: The id of the entry.
            text: The new text, of at most 500 characters.

        Returns:
            The entry as it is now.

        Raises:
            NotRemembered: No entry has this id, it does not count any more, or the text is empty or too long.
            StoreError: The store cannot write.
        """
        new = entry_text(text)
        return await self._change_entry(id, lambda state, seq: [Edited(target=seq, text=new)])

    async def accept(self, id: str, text: str | None = None) -> MemoryEntry:
        """Keep a proposal, as its owner.

        Args:
            id: The id of the proposal.
            text: Another text for it. None keeps it as it was proposed.

        Returns:
            The entry, which counts from now on.

        Raises:
            NotRemembered: No proposal with this id waits, or the text is empty or too long.
            StoreError: The store cannot write.
        """
        new = None if text is None else entry_text(text)

        def decide(state: MemoryState, seq: int) -> Sequence[AnyMemoryFact]:
            entry = state.entries[seq]
            edits = [] if new is None or new == entry.text else [Edited(target=seq, text=new)]
            replaced = self._compared.replaced_by(state, seq, new or entry.text, entry.kind)
            return [*edits, Accepted(target=seq), *(Replaced(target=old, by=seq) for old in replaced)]

        return await self._change_entry(id, decide, is_proposal=True)

    async def reject(self, id: str) -> MemoryEntry:
        """Say no to a proposal, as its owner. The same statement is not proposed again.

        Args:
            id: The id of the proposal.

        Returns:
            The rejected entry.

        Raises:
            NotRemembered: No proposal with this id waits.
            StoreError: The store cannot write.
        """
        return await self._change_entry(id, lambda state, seq: [Rejected(target=seq)], is_proposal=True)

    async def undo(self, id: str | None = None) -> MemoryEntry | None:
        """Take back the newest change of one entry, or of all.

        A change is a statement with what it replaced, an edit, a yes or no, or forgetting. Of one entry, it is also
        that another one replaced it.

        Args:
            id: The id of the entry. None takes back the newest change of the memory.

        Returns:
            The entry as it is now; None if the change was that it was remembered.

        Raises:
            NotRemembered: There is nothing to take back.
            StoreError: The store cannot write.
        """
        changed: list[int] = []

        def decide(state: MemoryState) -> Sequence[AnyMemoryFact]:
            number = None if id is None else self._number(state, id)
            newest = state.newest_change(number)
            if not newest:
                raise NotRemembered("there is nothing to take back")
            changed[:] = [state.changed_entry(newest[0])]
            return [Undone(target=seq) for seq in newest]

        await self._change(decide)
        return self._state.entries.get(changed[0])

    async def use(self, *ids: str) -> None:
        """Record that entries were used, so that they stay in the budget longer.

        Args:
            *ids: The ids of the entries. Those that do not exist are left out.

        Raises:
            StoreError: The store cannot write.
        """
        await self.refresh()
        self.note_use(*ids)
        await self._change(lambda state: [])

    def note_use(self, *ids: str) -> None:
        """Do what `use` does without waiting: the next change of the memory records it.

        Args:
            *ids: The ids of the entries.
        """
        with self._lock:
            self._uses += [seq for id in ids if (seq := self._state.number(id)) is not None]

    async def propose(
        self, events: Iterable[Event], *, session: str = "", model: Summarise | None = None
    ) -> list[MemoryEntry]:
        """Propose what the user stated in a conversation.

        These are the rules, corrections and facts that hold at its end.
        Nothing is proposed twice, and nothing that an entry says or said, also in other words of the owner.

        Args:
            events: The effective events of the conversation.
            session: The id of the session.
            model: What `summarise=` takes. It is asked once for further statements, each with words of the user,
                which are looked up in the messages. If it fails, the statements that code finds are proposed.

        Returns:
            The new proposals, which wait for `accept` or `reject`.

        Raises:
            StoreError: The store cannot write.

        Examples:
            ```python
            import foveal

            async with foveal.stores.MemoryStore() as store:
                memory = foveal.Memory("ada", store=store)
                said = [foveal.Event(1, foveal.UserSaid(content="Never push to main."))]
                (proposal,) = await memory.propose(said, session="monday")
                assert await memory.entries() == []
                await memory.accept(proposal.id)
            ```
        """
        known_events = [*events]
        found = propose_from(known_events)
        for writer in summariser_chain(model)[:1]:
            found = joined_proposals(found, await model_proposals(writer, known_events))

        def decide(state: MemoryState) -> Sequence[AnyMemoryFact]:
            known = state.ever_said()
            return [
                Proposed(
                    text=one.text,
                    entry=one.kind,
                    origin=EntryOrigin(source="proposed", session=session, event=one.event, quote=one.text),
                )
                for one in found
                if one.text.casefold() not in known
            ]

        return [
            self._state.entries[seq] for seq, _ in await self._change(decide) if seq in self._state.entries
        ]

    async def suggest(self, text: str, *, kind: EntryKind | None = None, by: str = "") -> MemoryEntry:
        """Propose a statement that another program or model wrote.

        Args:
            text: The statement, of at most 500 characters.
            kind: What it is. None decides by its words.
            by: Who suggests it.

        Returns:
            The proposal, which waits for `accept` or `reject`, or the entry that says the same already.

        Raises:
            NotRemembered: The statement is empty or too long.
            StoreError: The store cannot write.

        Examples:
            ```python
            import foveal

            async with foveal.stores.MemoryStore() as store:
                memory = foveal.Memory("ada", store=store)
                proposal = await memory.suggest("The staging port is 8081.", by="the deploy script")
                assert await memory.entries() == []
            ```
        """
        return await self._propose(entry_text(text), kind, EntryOrigin(source="proposed", by=by))

    async def apply_edits(self, edits: FileEdits) -> None:
        """Record what the owner changed in the file of the memory.

        Args:
            edits: What `read_edits` found.

        Raises:
            NotRemembered: A line is too long.
            StoreError: The store cannot write.
        """
        origin = EntryOrigin(source="file")
        changed = [(id, entry_text(text)) for id, text in edits.changed]
        added = [(kind, entry_text(text)) for kind, text in edits.added]

        def decide(state: MemoryState) -> Sequence[AnyMemoryFact]:
            facts: list[AnyMemoryFact] = []
            for id in edits.deleted:
                seq = state.number(id)
                if seq is not None and state.entries[seq].counts:
                    facts.append(Forgotten(target=seq, origin=origin))
            for id, text in changed:
                seq = state.number(id)
                if seq is not None and state.entries[seq].counts and state.entries[seq].text != text:
                    facts.append(Edited(target=seq, text=text, origin=origin))
            touched = {fact.target for fact in facts if isinstance(fact, Forgotten | Edited)}
            lines = [(text, kind or kind_of(text), origin) for kind, text in added]
            new = self._new_entries(state, state.next_seq + len(facts), lines)
            facts += [one for one in new if not (isinstance(one, Replaced) and one.target in touched)]
            return [*facts, FileTaken(facts=len(facts))] if facts else []

        await self._change(decide)

    # ── The memory as a whole ────────────────────────────────────────────────────────────────────────

    async def export(self) -> str:
        """Return the entries that count as lines of JSON.

        Raises:
            StoreError: The store cannot be read.
        """
        lines: list[str] = []
        for entry in await self.entries():
            fields = msgspec.to_builtins(entry)
            fields["origin"] = {"source": entry.origin.source, **fields["origin"]}
            lines.append(f"{msgspec.json.encode(fields).decode()}\n")
        return "".join(lines)

    async def import_(self, lines: str) -> list[MemoryEntry]:
        """Keep the entries of an export, as their owner. They get new ids.

        Args:
            lines: What `export` returned, or lines of JSON of another program: each needs `text`, and may have
                `kind` and an `origin` with `by` and `quote`. Other fields are left out.

        Returns:
            The entries that say it now.

        Raises:
            NotRemembered: A line is no entry. Nothing is kept then.
            StoreError: The store cannot write.

        Examples:
            ```python
            import foveal

            async with foveal.stores.MemoryStore() as store:
                ada = foveal.Memory("ada", store=store)
                await ada.remember("Answer in French.")
                await foveal.Memory("grace", store=store).import_(await ada.export())
            ```
        """
        texts: dict[str, tuple[str, _ImportedEntry]] = {}
        for number, line in enumerate(lines.splitlines(), 1):
            if line.strip():
                try:
                    entry = msgspec.json.decode(line, type=_ImportedEntry)
                    text = entry_text(entry.text)
                except (msgspec.DecodeError, NotRemembered) as problem:
                    raise NotRemembered(f"line {number:,} is no entry: {problem}") from None
                texts[text.casefold()] = (text, entry)
        new = [(text, entry.kind or kind_of(text), _imported(entry)) for text, entry in texts.values()]
        await self._change(lambda state: self._new_entries(state, state.next_seq, new))
        return [entry for entry in self._state.counting() if entry.text.casefold() in texts]

    async def erase(self) -> None:
        """Delete the text of all entries and files from the store for good.

        The memory is empty then, and can be used again.

        Raises:
            StoreError: The store cannot write.
        """
        await self.refresh()
        if self._state.next_seq:
            await self._change(lambda state: [Cleared()])
            await self.store.erase(self._log)
        await self.files.erase()
        with self._lock:  # the texts in memory go too
            self._shown, self._compared = (-1, ""), ComparedEntries()
            self._index, self._uses = EntryIndex(), []

    # ── Appending ────────────────────────────────────────────────────────────────────────────────────

    async def _keep(self, text: str, kind: EntryKind | None, origin: EntryOrigin) -> MemoryEntry:
        """Remember a statement, unless an entry says the same; a proposal that says it is accepted."""
        chosen = kind or kind_of(text)
        same = text.casefold()

        def decide(state: MemoryState, seq: int) -> Sequence[AnyMemoryFact]:
            waiting = [entry.seq for entry in state.proposals() if entry.text.casefold() == same]
            seq = waiting[-1] if waiting else seq
            replaced = self._compared.replaced_by(state, seq, text, chosen)
            kept = Accepted(target=seq) if waiting else Remembered(text=text, entry=chosen, origin=origin)
            return [kept, *(Replaced(target=old, by=seq) for old in replaced)]

        return await self._add(text, decide, lambda state: state.counting())

    def _new_entries(
        self, state: MemoryState, seq: int, given: Iterable[tuple[str, EntryKind, EntryOrigin]]
    ) -> list[AnyMemoryFact]:
        """Return the facts that bring several entries from `seq` on, with what they replace; without those that an
        entry says already."""
        known = {*texts_of(state.counting())}
        new = [one for one in given if one[0].casefold() not in known]
        replaced = {
            old: seq + place
            for place, (text, kind, _) in enumerate(new)
            for old in self._compared.replaced_by(state, seq + place, text, kind)
        }
        return [
            *(Remembered(text=text, entry=kind, origin=origin) for text, kind, origin in new),
            *(Replaced(target=old, by=by) for old, by in replaced.items()),
        ]

    async def _propose(self, text: str, kind: EntryKind | None, origin: EntryOrigin) -> MemoryEntry:
        """Propose a statement, unless an entry says the same, or said it."""
        proposed = Proposed(text=text, entry=kind or kind_of(text), origin=origin)
        return await self._add(text, lambda state, seq: [proposed], lambda state: state.entries.values())

    async def _add(
        self,
        text: str,
        decide: Callable[[MemoryState, int], Sequence[AnyMemoryFact]],
        known: Callable[[MemoryState], Iterable[MemoryEntry]],
    ) -> MemoryEntry:
        """Append what brings a new entry, or return the one of the known entries that says the same."""
        same, found = text.casefold(), list[MemoryEntry]()

        def checked(state: MemoryState) -> Sequence[AnyMemoryFact]:
            found[:] = [entry for entry in known(state) if entry.text.casefold() == same]
            return [] if found else decide(state, state.next_seq)

        added = await self._change(checked)
        if found:
            return found[-1]
        seq, fact = added[0]
        return self._state.entries[fact.target if isinstance(fact, Accepted) else seq]

    async def _change_entry(
        self,
        id: str,
        decide: Callable[[MemoryState, int], Sequence[AnyMemoryFact]],
        *,
        is_proposal: bool = False,
    ) -> MemoryEntry:
        numbers: list[int] = []

        def checked(state: MemoryState) -> Sequence[AnyMemoryFact]:
            number = self._number(state, id)
            entry = state.entries[number]
            if entry.forgotten or entry.proposed is not is_proposal or entry.replaced_by:
                raise NotRemembered(_why_not(entry, is_proposal=is_proposal))
            numbers[:] = [number]
            return decide(state, number)

        await self._change(checked)
        return self._state.entries[numbers[0]]

    async def _change(self, decide: DecideFacts) -> list[tuple[int, AnyMemoryFact]]:
        """Append what `decide` returns for the newest state, and the uses so far; return it with its seqs."""
        facts: list[AnyMemoryFact] = []
        uses: list[int] = []

        def decided() -> list[Event]:
            with self._lock:
                uses[:], seq, now = self._uses, self._state.next_seq, self._clock()
                facts[:] = [*decide(self._state), *([Recalled(targets=tuple(uses))] if uses else [])]
            return [to_event(seq + place, fact, now) for place, fact in enumerate(facts)]

        events = await append_decided(self.store, self._log, decided, self.refresh)
        if events:
            with self._lock:
                del self._uses[: len(uses)]
            self._take(events)
        return [(event.seq, fact) for event, fact in zip(events, facts, strict=True)]

    @staticmethod
    def _named(state: MemoryState, seqs: Iterable[int]) -> str:
        return ", ".join(f"{state.name(seq)} “{state.entries[seq].text}”" for seq in seqs)

    def _number(self, state: MemoryState, id: str) -> int:
        number = state.number(id) if isinstance(id, str) else None
        if number is None:
            named = self._named(state, self._compared.near(state, id)) if isinstance(id, str) else ""
            advice = f"; entries with such words: {named}" if named else ""
            raise NotRemembered(f"no entry has the id {id!r}: ids look like {self.letter}12{advice}")
        return number

    def _revokes(self, state: MemoryState, words: str, seq: int) -> bool:
        """Return whether a sentence of the user takes back an entry: it names its id, says something else about the
        same subject, says its opposite, or asks to forget what the entry says."""
        if state.name(seq) in re.findall(r"\w+", words):
            return True
        said = SAID_WRONG.sub("", words)
        if seq in self._compared.replaced_by(state, state.next_seq, said, "rule"):
            return True
        if seq in self._compared.denied(state, said):
            return True
        asked = [one for one in spoken_requests(words) if one.action == "forget"]
        return any(EVERYTHING.match(one.text) or seq in self._compared.meant(state, one) for one in asked)


class _ImportedEntry(msgspec.Struct, frozen=True):
    """A line of an export, as far as an import needs it."""

    text: str
    kind: EntryKind | None = None
    origin: EntryOrigin = TOLD


def _imported(entry: _ImportedEntry) -> EntryOrigin:
    return EntryOrigin(source="imported", by=entry.origin.by, quote=entry.origin.quote)


def _why_not(entry: MemoryEntry, *, is_proposal: bool) -> str:
    if is_proposal:
        return f"{entry.id} is no proposal that waits for an answer"
    if entry.proposed:
        return f"{entry.id} is only proposed: accept or reject it"
    if entry.replaced_by:
        return f"{entry.id} does not count any more: {entry.replaced_by} replaces it"
    return f"{entry.id} is forgotten already; `undo` brings it back"


def _checked_log(log: QuotedLog | None) -> QuotedLog:
    if log is None:
        raise BadSetting("log", log, "the conversation of the quote, such as a `Session`")
    return log


class _Said(NamedTuple):
    """Sentences of the user."""

    text: str
    event: Event
    session: str


async def _quote_in(log: QuotedLog, words: str, event: str | int | None) -> _Said:
    """Return what the user said with these words; raises `NotRemembered`."""
    if not is_long_enough(words):
        raise NotRemembered("the quote is too short to say which sentence is meant: quote more of it")
    behind = await log.left_behind()
    if event is not None:
        seq = parse_handle(event)
        events = [] if seq is None else await log.events(first=seq, last=seq)
    else:
        events = await log.events()
    found = find_quote([one for one in events if one.seq not in behind], words)
    if found is None:
        raise NotRemembered(
            "the user did not say that: quote words of a message of the user, as they stand there; results of"
            " tools, files and pasted text are no source"
        )
    return _Said(found.text, found.event, log.id)
