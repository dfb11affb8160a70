"""Commands and buttons of the bots: their effect on the session of a chat.

The output of a command is sent and not stored: it does not enter the conversation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence, Set
from contextlib import aclosing, contextmanager, suppress
from typing import Final, cast
from weakref import WeakValueDictionary

from msgspec.structs import replace

from foveal.core.compaction.health import CutCounts, read_metrics
from foveal.core.engine.operations import OPERATIONS, newest_to_undo
from foveal.core.engine.unreadable_summaries import instead_text
from foveal.core.log.events import (
    REDUCTIONS,
    AnyFact,
    Clipped,
    Compacted,
    Dropped,
    Equipped,
    Event,
    Masked,
    ModelSaid,
    Reverted,
    UserSaid,
    parse_handle,
)
from foveal.core.policies import AGREED, NO_CONSENT
from foveal.core.policies.ladder.mask import REFUSED_MEDIA
from foveal.core.view.fold import effective_events
from foveal.core.wire.safe_print import one_line
from foveal.errors import (
    ContextOverflow,
    FovealError,
    NotCompacted,
    NotRemembered,
    UnknownHandle,
    UnknownSession,
)
from foveal.memory.fold import MemoryEntry
from foveal.memory.memory import Memory
from foveal.server.chat_records import ChatPlace, Chats, find_place
from foveal.server.gateways import outgoing as channel
from foveal.server.gateways import texts
from foveal.server.gateways.outgoing import (
    MEMORY_ACTION,
    Button,
    ChannelMessage,
    MessageComposer,
    Replies,
    text_reply,
)
from foveal.server.inbox import SessionSetup
from foveal.server.live_session import LiveSession
from foveal.server.pairing import ChatPlatform
from foveal.server.tenants import Tenant
from foveal.server.turns import Turn
from foveal.sessions.continuation import CARRY_CHOICES, Carry

# ── Reductions below an answer ───────────────────────────────────────────────────────────────────────────
# The log has them: the reductions between the last message before a turn and the last message in it. So each
# reduction is reported with one answer, whichever process made it, also after a crash.

MAX_EVENTS_BEFORE_TURN: Final = 64
"""Events before a turn that are read; there are few between two turns."""


async def turn_reductions(session: LiveSession, first_message: str) -> list[Event]:
    """Return the reductions to report with a turn, given the handle of its first message.

    Reductions that a user requested, agreed to or undid before the turn are left out. One that was undone after it
    is reported: the reply to /undo names it. Tools that came with the first one are the last event.
    """
    seq = parse_handle(first_message)
    if seq is None:
        return []
    events = await session.events(first=max(0, seq - MAX_EVENTS_BEFORE_TURN))
    first, last = _message_range(events, seq)
    undone = {event.fact.target for event in events if isinstance(event.fact, Reverted) and event.seq < last}
    said = {event.seq for event in events if isinstance(event.fact, UserSaid)}
    between = [event for event in events if first < event.seq < last]
    reported = [
        event
        for event in between
        if (is_reported(event.fact) or _is_clip_of(event.fact, said)) and event.seq not in undone
    ]
    tools = [event for event in between if isinstance(event.fact, Equipped) and reported]
    return reported + [event for event in tools[-1:] if event.seq > reported[0].seq]


def _is_clip_of(fact: AnyFact, said: Set[int]) -> bool:
    """Return whether a message of the user was clipped, which is always reported."""
    return isinstance(fact, Clipped) and fact.target in said and not fact.rule.endswith(AGREED)


def is_reported(fact: AnyFact) -> bool:
    """Return whether a reduction is reported: not one that the user requested or agreed to. A clip or a mask is a
    detail and reported only in mode `confirm`, where the user is told of all that happens without a yes, or if it
    hides a file that the provider refused."""
    if isinstance(fact, Compacted | Dropped):
        return fact.reason != "hand" and not fact.rule.endswith(AGREED)
    if isinstance(fact, Masked) and fact.reason == REFUSED_MEDIA:
        return True
    if isinstance(fact, Clipped) and fact.shows_all:
        return False
    return isinstance(fact, Masked | Clipped) and fact.rule.endswith(NO_CONSENT)


async def is_unreported(session: LiveSession, event: Event) -> bool:
    """Return whether a reduction was made since the last message, so that no answer has reported it."""
    later = await session.events(first=event.seq)
    return is_reported(event.fact) and not any(isinstance(e.fact, UserSaid | ModelSaid) for e in later)


def _message_range(events: list[Event], seq: int) -> tuple[int, int]:
    """Return the last message before the turn that begins at `seq`, and the last message in it."""
    before, last = -1, seq
    for event in events:
        if isinstance(event.fact, UserSaid) and event.seq > seq:
            break  # the next turn
        if isinstance(event.fact, UserSaid | ModelSaid):
            before, last = (event.seq, last) if event.seq < seq else (before, event.seq)
    return before, last


def find_reduction(events: Sequence[Event], name: str = "") -> list[Event]:
    """Return the events of one reduction, oldest first: what users see as one line. It is the one with the event
    `name`, or the newest. Raises `UnknownHandle` if there is none."""
    chosen = newest_to_undo(events) if not name else None
    chosen = chosen or next((event for event in events if event.handle == name), None)
    if chosen is None:
        raise UnknownHandle(f"there is no event {name}")
    kind = _line_of(chosen.fact)
    if kind is None:
        return [chosen]
    effective = [event for event in effective_events(events) if _line_of(event.fact) == kind]
    if kind == _ASKED_FOR:  # one command makes them without anything between them
        seqs = {event.seq for event in effective}
        first = next(seq for seq in range(chosen.seq, -1, -1) if seq - 1 not in seqs)
        last = next(seq for seq in range(chosen.seq, len(events)) if seq + 1 not in seqs)
        return [event for event in effective if first <= event.seq <= last]
    turns = _turns_of_reductions(events)
    return [event for event in effective if turns[event.seq] == turns[chosen.seq]] or [chosen]


_ASKED_FOR: Final = "asked for"


def _line_of(fact: AnyFact) -> str | None:
    """Return what the reductions of one line have in common; None for one that has a line of its own."""
    if isinstance(fact, REDUCTIONS) and (getattr(fact, "reason", "") == "hand" or fact.rule.endswith(AGREED)):
        return _ASKED_FOR
    if _is_summary(fact):
        return "summary"
    return f"clip {fact.rule}" if isinstance(fact, Clipped) else None


def _turns_of_reductions(events: Iterable[Event]) -> dict[int, int]:
    """Return for each reduction the turn with whose answer it is reported: the next one, if it was made after an
    answer."""
    turns: dict[int, int] = {}
    turn, waiting = 0, list[int]()
    for event in events:
        if isinstance(event.fact, UserSaid | ModelSaid):
            turn += isinstance(event.fact, UserSaid)
            turns |= dict.fromkeys(waiting, turn)
            waiting = []
        elif isinstance(event.fact, REDUCTIONS):
            waiting.append(event.seq)
    return turns | dict.fromkeys(waiting, turn + 1)


# ── Lines ──────────────────────────────────────────────────────────────────────────────────────────────


def reduction_notes(events: Iterable[Event], *, tool_tokens: int = 0) -> list[str]:
    """Return the reductions that were made for an answer, with the command that undoes each; all summaries are one
    line, and all clips are another. `tool_tokens` is what the tools take that came with them."""
    listed = list(events)
    tools = [event for event in listed if isinstance(event.fact, Equipped)]
    listed = [event for event in listed if event not in tools]
    summaries = [event for event in listed if _is_summary(event.fact)]
    clips = [event for event in listed if isinstance(event.fact, Clipped)]
    groups = [summaries, *([event] for event in listed if event not in summaries + clips), clips]
    lines = [
        f"{_reduction_note([event.fact for event in group])}. {texts.undo_hint(group)}"
        for group in groups
        if group
    ]
    return [*lines, *([texts.added_tools(tool_tokens)] if tools and tool_tokens else [])]


def _is_summary(fact: AnyFact) -> bool:
    return isinstance(fact, Compacted) and not fact.takes_item_back


def _summary_sizes(facts: list[Compacted]) -> tuple[int, int]:
    """Return the tokens before and after. A summary that became part of a later one counts in neither."""
    inner = sum(
        read_metrics(fact).after
        for place, fact in enumerate(facts)
        if any(later.first <= fact.first <= fact.last <= later.last for later in facts[place + 1 :])
    )
    before, after = (sum(getattr(read_metrics(fact), name) for fact in facts) for name in ("before", "after"))
    return before - inner, after - inner


def _compacted_text(facts: list[Compacted]) -> str:
    """Return what summaries and cuts did: a cut leaves the steps of the agent and hides their results."""
    if not all(fact.masks for fact in facts):
        return "I summarised older messages"
    counts = list(map(CutCounts.of, facts))
    results, shortened = sum(count.results for count in counts), sum(count.shortened for count in counts)
    done = []
    if results:
        done.append(f"hid {results:,} older result{'s' if results != 1 else ''}")
    if shortened:
        done.append(f"shortened {shortened:,} long message{'s' if shortened != 1 else ''}")
    return f"I {' and '.join(done)}"


def _reduction_note(facts: list[AnyFact]) -> str:
    """Return what reductions of one kind did."""
    match facts[0]:
        case Compacted() as fact if fact.takes_item_back:
            return f"⚠️ The model cannot read a summary of another model or account: {instead_text(fact)}"
        case Compacted():
            summaries = [fact for fact in facts if isinstance(fact, Compacted)]
            before, after = _summary_sizes(summaries)
            is_early = all(fact.reason == "price" for fact in summaries)
            why = " to make further answers cheaper" if is_early else ""
            return f"🗜 {_compacted_text(summaries)}{why}: {before:,} → {after:,} tokens"
        case Masked() as fact if fact.reason == REFUSED_MEDIA:
            files = "a file" if len(fact.masks) == 1 else f"{len(fact.masks):,} files"
            return f"⚠️ The model could not read {files}, so this answer does without"
        case Masked() as fact:
            count = len(fact.masks)
            return f"✂️ I put placeholders in place of {count:,} older result{'s' if count != 1 else ''}"
        case Clipped():
            clips = [fact for fact in facts if isinstance(fact, Clipped)]
            newest = {clip.target: clip for clip in clips}  # a text may be clipped again and again
            kept = sum(clip.kept_tokens for clip in newest.values())
            total = sum({clip.target: clip.total_tokens for clip in reversed(clips)}.values())
            what = "a long text" if len(newest) == 1 else f"{len(newest):,} long texts"
            return f"✂️ I clipped {what} to {kept:,} of {total:,} tokens"
        case _:
            return "✂️ I left older messages out to make room"


# ── Commands ─────────────────────────────────────────────────────────────────────────────────────────────


class RunningTurns:
    """The turns of each place that have not ended, oldest first, and the messages whose files are fetched."""

    def __init__(self) -> None:
        self._turns: dict[ChatPlace, list[Turn]] = {}
        self._fetching: dict[ChatPlace, bool] = {}
        """Places with a message that is no turn yet, and whether that turn is to be stopped."""

    def add(self, place: ChatPlace, turn: Turn) -> None:
        self._turns[place] = [*self.running(place), turn]

    def running(self, place: ChatPlace) -> list[Turn]:
        turns = [turn for turn in self._turns.pop(place, []) if turn.state != "ended"]
        if turns:
            self._turns[place] = turns
        return turns

    @contextmanager
    def fetching(self, place: ChatPlace) -> Iterator[None]:
        """Hold a place in which a message becomes a turn in this block, and stop that turn if `/stop` came."""
        self._fetching[place] = False
        try:
            yield
        finally:
            if self._fetching.pop(place, False):
                for turn in self.running(place)[-1:]:
                    turn.stop()

    def stop_fetched(self, place: ChatPlace) -> bool:
        """Stop the turn of the message whose files are fetched; return False if there is none to stop."""
        is_new = self._fetching.get(place) is False
        if is_new:
            self._fetching[place] = True
        return is_new

    def waiting(self, place: ChatPlace) -> int:
        """Return how many messages have no answer yet."""
        return len(self.running(place)) + (self._fetching.get(place) is False)


class ChatCommands:
    """Runs the commands of one chat app."""

    def __init__(
        self,
        tenant: Tenant,
        chats: Chats,
        *,
        platform: ChatPlatform,
        agents: Sequence[str],
        composer: MessageComposer,
        turns: RunningTurns,
    ) -> None:
        """`agents` are those of the configuration, which /new can choose."""
        self.platform = platform
        self._agents = agents
        self._tenant = tenant
        self._chats = chats
        self._composer = composer
        self._turns = turns
        self._changing: WeakValueDictionary[ChatPlace, asyncio.Lock] = WeakValueDictionary()
        """Held while a command changes the session of a place."""

    async def run(self, name: str, argument: str, *, place: ChatPlace) -> Replies:
        """Run /new and /stop at once, because later messages depend on them; the others run with their reply.

        The output of a command does not enter the conversation.
        """
        match name:
            case "help" | "start":
                return text_reply(texts.help_text())
            case "new":
                return text_reply(await self._new(place, argument.split()))
            case "stop":
                return text_reply(await self._stop(place))
            case "compact":
                return self._change(place, lambda live: self._compact(live, argument))
            case "undo":
                return self._change(place, lambda live: self._undo(live, argument))
            case "context":
                return self._with_session(place, _context)
            case "tokens":
                return self._with_session(place, _tokens)
            case _:
                return text_reply(texts.unknown_command(f"/{name}"))

    async def _with_session(
        self, place: ChatPlace, command: Callable[[LiveSession], Awaitable[ChannelMessage]]
    ) -> Replies:
        """Yield the output of a command on the chat's session."""
        yield await command(await self._live_session(place))

    async def _change(
        self, place: ChatPlace, command: Callable[[LiveSession], Awaitable[ChannelMessage]]
    ) -> Replies:
        """Yield the output of a command that changes the session.

        It runs after the answer that is being written and after earlier such commands; then a line says so first.
        """
        lock = self._changing.setdefault(place, asyncio.Lock())
        waits = lock.locked() or self._is_answering(place)
        # Begun before the first line is sent, so that commands keep their order.
        running = asyncio.create_task(self._run_in_order(command, place, lock))
        try:
            if waits:
                yield ChannelMessage(text=texts.AFTER_ANSWER)
            yield replace(await running, is_in_order=True)
        finally:
            running.cancel()

    async def _run_in_order(
        self,
        command: Callable[[LiveSession], Awaitable[ChannelMessage]],
        place: ChatPlace,
        lock: asyncio.Lock,
    ) -> ChannelMessage:
        async with lock:
            return await command(await self._live_session(place))

    def _is_answering(self, place: ChatPlace) -> bool:
        return any(
            live.is_answering and find_place(self.platform, live.id) == place
            for live in self._tenant.live_sessions
        )

    async def _new(self, place: ChatPlace, words: Sequence[str]) -> str:
        """Move the chat to a new session. The words say what that takes over, by default nothing, and which agent
        answers in it, by default that of the bot."""
        agents = [word for word in words if word in self._agents]
        carries = [word.lower() for word in words if word not in agents]
        if len(agents) > 1 or len(carries) > 1 or any(word not in CARRY_CHOICES for word in carries):
            return texts.bad_new(self._agents)
        agent, carry = "".join(agents), "".join(carries)
        session = await self._chats.session(self.platform, place)
        try:
            live = await self._tenant.session(session)
        except UnknownSession:
            if not agent or carry or await self._tenant.is_erased(session):
                return texts.NO_MESSAGES
            await self._tenant.ensure(session, agent=agent)
            return texts.new_session(agent=agent)
        new = await self._chats.start_next_session(self.platform, place, session=session)
        self._composer.reset_warning(session)
        if carry:
            title, carried = (await live.info()).title, cast(Carry, carry)
            setup = SessionSetup(agent=agent, user=live.user)
            await self._tenant.create(new, setup, title=title, continue_from=session, carry=carried)
        elif agent:
            await self._tenant.create(new, SessionSetup(agent=agent, user=live.user))
        proposals, waiting = await self._propose(live), self._turns.waiting(place)
        return texts.new_session(carry=carry, agent=agent, proposals=proposals, waiting=waiting)

    async def _propose(self, live: LiveSession) -> int:
        """Propose what the user stated in a session; return how many proposals are new. An error does not keep the
        chat from its new session."""
        with suppress(FovealError):
            return len(await self._tenant.propose(live))
        return 0

    async def _stop(self, place: ChatPlace) -> str:
        """Stop the oldest turn of the chat, or a turn of its session that another source started."""
        turns, waiting = self._turns.running(place), self._turns.waiting(place)
        if turns:
            turns[0].stop()
        elif not self._turns.stop_fetched(place):
            try:
                live = await self._live_session(place)
            except UnknownSession:
                return texts.IDLE
            if not live.is_busy:
                return texts.IDLE
            live.stop()
        return texts.stopping(waiting - 1)

    async def _compact(self, live: LiveSession, focus: str = "", *, agreed: bool = False) -> ChannelMessage:
        try:
            result = await live.compact(focus, agreed=agreed, waits=True)
        except NotCompacted as problem:
            return ChannelMessage(text=texts.not_compacted(problem, await live.report()))
        self._composer.reset_warning(live.id)
        events = result.events or (result.event,)
        text = texts.compacted(events, before=result.before.used, after=result.after.used)
        return ChannelMessage(text=text, footer=self._composer.footer(await live.report()))

    async def _compact_if_full(self, live: LiveSession) -> ChannelMessage:
        """Compact, unless the button is an old one and the window has space again."""
        report = await live.report()
        if report.state == "ok":
            return ChannelMessage(text=texts.compaction_not_needed(report))
        return await self._compact(live)

    async def _agree(self, live: LiveSession) -> ChannelMessage:
        """Do what the question of mode `confirm` asks, unless the button is an old one."""
        report = await live.report()
        if not report.question:
            return ChannelMessage(text=texts.compaction_not_needed(report))
        return await self._compact(live, agreed=True)

    async def _undo(self, live: LiveSession, handle: str) -> ChannelMessage:
        """Undo a reduction; if the window is too full then, the reply says so."""
        try:
            name = OPERATIONS["undo"].read_line(handle).event
            done = await live.undo_all(lambda events: find_reduction(events, name), waits=True)
            undone = [await live.session.event(one.named) for one in done]
        except UnknownHandle:
            return ChannelMessage(text=texts.nothing_to_undo(handle))
        except ContextOverflow as problem:
            return ChannelMessage(text=texts.not_undone(problem))
        report, is_new = await live.report(), await is_unreported(live, undone[0])
        warning = next((one.warning for one in done if one.warning), "")
        text = texts.undone(undone, report, is_new=is_new, warning=warning)
        if report.state == "over":  # the text says what the warning would
            return ChannelMessage(text=text, footer=self._composer.footer(report))
        return self._composer.card(text, report, session=live.id)

    async def _remove(self, live: LiveSession, handle: str) -> ChannelMessage:
        """Take out a message that fits into no request, if nothing was said after it."""
        try:
            is_removed = await live.take_out(handle, waits=True)
        except UnknownHandle:  # the button belongs to an earlier session of the chat
            return ChannelMessage(text=texts.OLD_BUTTON)
        if not is_removed:
            return ChannelMessage(text=texts.NOT_TAKEN_OUT)
        return self._composer.card(texts.TAKEN_OUT, await live.report(), session=live.id)

    # ── Buttons ──────────────────────────────────────────────────────────────────────────────────────

    async def press(self, action: str, *, place: ChatPlace) -> Replies:
        """Run the action of a button, which may be an old one."""
        match action:
            case channel.COMPACT_ACTION:
                replies = self._change(place, self._compact_if_full)
            case channel.AGREE_ACTION:
                replies = self._change(place, self._agree)
            case channel.DECLINE_ACTION:
                replies = self._with_session(place, _decline)
            case _ if action.startswith(channel.REMOVE_ACTION):
                handle = action.removeprefix(channel.REMOVE_ACTION)
                replies = self._change(place, lambda live: self._remove(live, handle))
            case _:
                replies = text_reply(texts.OLD_BUTTON)
        async with aclosing(replies):
            async for message in replies:
                yield message

    async def _live_session(self, place: ChatPlace) -> LiveSession:
        return await self._tenant.session(await self._chats.session(self.platform, place))


async def _decline(live: LiveSession) -> ChannelMessage:
    report = await live.report()
    return ChannelMessage(text=texts.DECLINED if report.question else texts.compaction_not_needed(report))


async def _context(live: LiveSession) -> ChannelMessage:
    return ChannelMessage(text=texts.context(await live.report(with_statements=True)))


async def _tokens(live: LiveSession) -> ChannelMessage:
    return ChannelMessage(text=texts.tokens(await live.report(), await live.usage()))


# ── The memory of a user ─────────────────────────────────────────────────────────────────────────────────

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
    """Runs the memory commands and buttons of one chat app.

    A memory belongs to one user of a chat app, in private chats and in groups. A button acts for the user whose
    memory the message shows: a press of another user changes nothing.
    """

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
