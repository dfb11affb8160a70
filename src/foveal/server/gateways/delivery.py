"""Delivery of answers: a queue per place, kept until the chat app has accepted them.

1. The answers of a place are sent in the order in which their messages were stored. Other places do not wait, and
   neither does the output of commands.
2. An answer that could not be sent stays first in its queue. It is sent again after growing pauses, and as soon as
   the chat app can be reached again, for two days; then it is given up and counted.
3. The number of accepted parts of an answer is recorded after each part, and a restart continues with the next one.
4. An answer that its place refuses, such as a closed topic, waits in the same way, and a user of the bot is told
   (`ClosedPlaces`). If the place is gone for good, the answer stays in the session on the server. The output of a
   command goes to the private chat with its user instead.
5. An answer to a user who has blocked the bot is kept, and offered when the user writes again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager, nullcontext, suppress
from typing import Any, Final, Generic, NamedTuple
from weakref import WeakValueDictionary

from msgspec.structs import replace

from foveal.errors import FovealError
from foveal.server.chat_records import ChatMessage, ChatPlace
from foveal.server.gateways import texts
from foveal.server.gateways.chat_sessions import ChatSessions, PendingAnswer
from foveal.server.gateways.outgoing import (
    ChannelMessage,
    OutgoingPart,
    PartSender,
    PartT,
    PlaceClosed,
    Replies,
    ReplyTarget,
    Undelivered,
    outgoing_parts,
)
from foveal.server.gateways.tool_questions import QuestionNotice

# ── The answers of one place, in order ───────────────────────────────────────────────────────────────────


class QueuePosition:
    """The position of one answer, or of the output of one command, in the queue of its place."""

    def __init__(self) -> None:
        self.is_first: asyncio.Event = asyncio.Event()
        self.ready_at: float | None = None
        """Since when the answer is ready and not delivered."""
        self.is_refused = False
        """Whether the place refuses the answer, or the answer before it."""


class PlaceQueue:
    """What one place is to get, oldest first: answers that are not delivered, and the output of commands."""

    def __init__(self) -> None:
        self.sending: asyncio.Lock = asyncio.Lock()
        self.failures = 0
        """How often the first answer could not be sent."""
        self._has_failed: asyncio.Event = asyncio.Event()
        self.retry: asyncio.Event = asyncio.Event()
        """Ends the pause before the first answer is sent again."""
        self._positions: deque[QueuePosition] = deque()

    def join(self) -> QueuePosition:
        position = QueuePosition()
        self._positions.append(position)
        self._positions[0].is_first.set()
        return position

    def leave(self, position: QueuePosition) -> None:
        self._positions.remove(position)
        if self._positions:
            self._positions[0].is_first.set()

    def count_failure(self) -> None:
        """Count an attempt to send the first answer that failed."""
        self.failures += 1
        self._has_failed.set()

    def clear_failures(self) -> None:
        """Record that the first answer was sent, or is not tried again."""
        self.failures = 0
        self._has_failed.clear()

    async def wait_in_order(self, position: QueuePosition) -> None:
        """Wait for what is to come before a position, unless an answer cannot be sent at present."""
        await _first_of(position.is_first.wait(), self._has_failed.wait())

    def ready_times(self) -> list[float]:
        """Return since when each answer is ready; without answers that the place refuses."""
        waiting = (position.ready_at for position in self._positions if not position.is_refused)
        return [at for at in waiting if at is not None]

    def mark_refused(self) -> int:
        """Record that the place refuses the answers that are ready; return how many were not recorded before."""
        before = self.count_refused()
        for position in self._positions:
            position.is_refused = position.ready_at is not None
        return self.count_refused() - before

    def mark_open(self) -> None:
        """Record that the place accepts answers."""
        for position in self._positions:
            position.is_refused = False

    def count_refused(self) -> int:
        return sum(position.is_refused for position in self._positions)


class TypingStatus:
    """Shows in places that the bot is typing, while answers are written."""

    def __init__(self, show: Callable[[ChatPlace], Awaitable[None]], *, interval_s: float) -> None:
        self._show = show
        self._interval_s = interval_s
        self._shown: dict[ChatPlace, tuple[int, asyncio.Task[None]]] = {}
        """For each place the number of answers being written, and the task that shows it."""

    @asynccontextmanager
    async def shown(self, place: ChatPlace) -> AsyncIterator[None]:
        """Show the typing status while any such block of the place runs."""
        count, task = self._shown.get(place, (0, None))
        self._shown[place] = count + 1, task or asyncio.create_task(self._keep_showing(place))
        try:
            yield
        finally:
            count, task = self._shown.pop(place)
            if count > 1:
                self._shown[place] = count - 1, task
            else:
                task.cancel()
                await asyncio.wait([task])

    async def _keep_showing(self, place: ChatPlace) -> None:
        while True:
            await self._show(place)
            await asyncio.sleep(self._interval_s)


# ── Places that refuse messages ──────────────────────────────────────────────────────────────────────
# 1. An answer counts once, when its place refuses it or the answer before it.
# 2. A user is told in private: at most once an hour for each place and cause, also after a restart, and only of
#    further answers.
# 3. It is the first user who can be reached: the author of the message if the allow-list has them, else another
#    user of the allow-list, else the author. No other user is told.

CLOSED_NOTICE_INTERVAL_S: Final = 3_600.0
"""Time between two notices about a place and cause."""
MAX_USERS_TRIED: Final = 5
"""Users to whom a notice is sent in turn, until one gets it."""

MAX_CLOSED_PLACES: Final = 1_000
"""Places and causes of which answers are counted."""

Tell = Callable[[int, ChannelMessage, ReplyTarget], Awaitable[bool]]
"""Sends a notice about a place to a user in private; returns whether that worked."""


class ClosedPlaces:
    """The places of one chat app in which the bot cannot write."""

    def __init__(self, chats: ChatSessions, tell: Tell) -> None:
        self.refused: int = 0
        """Answers since the start that a place refused."""
        self._chats = chats
        self._tell = tell
        self._untold: dict[tuple[ChatPlace, str], int] = {}
        """For each place that refuses answers, and cause, the answers of which no user was told."""

    async def on_refused(self, answer: PendingAnswer, problem: PlaceClosed, queue: PlaceQueue) -> None:
        """Count the answers that a place refuses, and tell a user unless one was told lately."""
        assert answer.message is not None
        new = queue.mark_refused()
        self.refused += new
        if problem.is_gone:
            LOG.info("a chat is gone: its answers stay on the server")
            return
        about = answer.message.place, problem.cause
        untold = self._untold.pop(about, 0) + new
        self._untold[about] = untold
        while len(self._untold) > MAX_CLOSED_PLACES:
            del self._untold[next(iter(self._untold))]
        if untold and await self._is_due(*about):
            self._untold[about] = 0
            count = queue.count_refused() if problem.may_reopen else untold
            await self._tell_one(answer, answer.message, problem, count=count)

    async def on_open(self, place: ChatPlace, queue: PlaceQueue) -> None:
        """Forget that a place was closed, because it has accepted a message."""
        queue.mark_open()
        for about in [about for about in self._untold if about[0] == place]:
            del self._untold[about]
            with suppress(FovealError):  # then it is told again after the interval
                await self._chats.forget_notice(place, _notice(about[1]))

    async def _is_due(self, place: ChatPlace, cause: str) -> bool:
        """Return whether no user was told of a place and cause within the interval, and count that as told."""
        try:
            return bool(
                await self._chats.untold_notices(place, [_notice(cause)], interval_s=CLOSED_NOTICE_INTERVAL_S)
            )
        except FovealError as problem:
            LOG.warning("a notice could not be recorded and is sent later: %s", type(problem).__name__)
            return False

    async def _tell_one(
        self, answer: PendingAnswer, message: ChatMessage, problem: PlaceClosed, *, count: int
    ) -> None:
        LOG.warning("answers to %s cannot be sent: %s", message.session, problem.cause)
        text = texts.place_closed(message, problem.cause, count=count, may_reopen=problem.may_reopen)
        for user in await self._users(answer.user):
            target = ReplyTarget(message.place, 0, f"{message.key}/notice")
            if await self._tell(user, ChannelMessage(text=text), target):
                return
        LOG.warning("no user could be told that answers to %s cannot be sent", message.session)

    async def _users(self, author: int) -> list[int]:
        try:
            users = await self._chats.users_to_tell(author)
        except FovealError as problem:
            LOG.warning("the paired users could not be read: %s", type(problem).__name__)
            users = list(self._chats.owners)
        return users[:MAX_USERS_TRIED]


def _notice(cause: str) -> str:
    """Return the name under which it is recorded that a user was told."""
    return f"closed: {cause}"


# ── Delivery ─────────────────────────────────────────────────────────────────────────────────────────────

LOG: Final = logging.getLogger("foveal.gateways")
SEND_PAUSES_S: Final = (1.0, 2.0, 4.0, 8.0)
"""Pauses between the attempts to send a part, after which the answer waits in its queue."""
REDELIVERY_PAUSES_S: Final = (60.0, 120.0, 240.0, 480.0, 960.0, 1_800.0)
"""Pauses before an answer that waits in its queue is sent again; the last one is repeated."""
RESCAN_INTERVAL_S: Final = 600.0
"""Time between two searches for answers that another server of this folder left."""
MIN_ORPHAN_AGE_S: Final = 300.0
"""Age at which an undelivered answer of another server counts as left: it tries to deliver its answers once."""

Sleep = Callable[[float], Awaitable[None]]


class OwedAnswers(NamedTuple):
    """Answers that are ready and not delivered."""

    number: int
    oldest_at: float | None
    """When the oldest one became ready."""


class Delivery(Generic[PartT]):
    """Delivers the answers of one chat app.

    `may_retry` is False while another server of the same folder is responsible for undelivered answers.
    """

    def __init__(
        self,
        chats: ChatSessions,
        sender: PartSender[PartT],
        *,
        typing_interval_s: float,
        may_retry: Callable[[], bool],
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.tasks: DeliveryTasks = DeliveryTasks(on_failure=self._rescan_later)
        self.given_up: int = 0
        """Answers that were not delivered within two days."""
        self.last_error: tuple[float, str] = (0.0, "")
        """When and why the newest attempt failed that did; without secrets."""
        self.chats: ChatSessions = chats
        """The chats to whose messages it delivers answers."""
        self._sender = sender
        self._may_retry = may_retry
        self._sleep = sleep
        self._typing = TypingStatus(sender.show_typing, interval_s=typing_interval_s)
        self._queues: WeakValueDictionary[ChatPlace, PlaceQueue] = WeakValueDictionary()
        self._closing = asyncio.Event()
        self._closed_places = ClosedPlaces(chats, self._tell)
        self._rescan: asyncio.TimerHandle | None = None
        self._has_read = False
        """Whether the answers that were undelivered at the start were read."""
        self._sends_questions = False

    def start(
        self,
        answer: PendingAnswer,
        *,
        place: ChatPlace,
        reply_to: int = 0,
        key: str = "",
        sender: PartSender[PartT] | None = None,
        typing: bool = True,
    ) -> None:
        """Start the delivery: of an answer in the queue of its message's place, of other replies at once, unless
        they come after the answers before them."""
        sender = sender or self._sender
        place = place if answer.message is None else answer.message.place
        queue = self._queue(place)
        position = queue.join()
        if answer.message is not None:
            self.tasks.spawn(self._deliver(answer, answer.message, queue, position, sender))
        else:
            origin = ReplyTarget(place, reply_to, key)
            sending = self._send_unrecorded(answer, origin, queue, position, sender, typing=typing)
            self.tasks.spawn(sending)

    def _queue(self, place: ChatPlace) -> PlaceQueue:
        queue = self._queues.get(place)
        if queue is None:
            queue = self._queues[place] = PlaceQueue()
        return queue

    def start_recorded(self, answer: PendingAnswer) -> None:
        """Start the delivery of an answer in the place of its message."""
        assert answer.message is not None
        self.start(answer, place=answer.message.place)

    async def deliver_all(self) -> None:
        """Start the delivery of every undelivered answer, and look for further ones from time to time."""
        if self.chats.questions.is_used and not self._sends_questions:
            self._sends_questions = True
            self.tasks.spawn(self._send_questions())
        try:
            if not self._has_read:
                self._count_given_up(await self.chats.give_up_expired())
            min_age_s = MIN_ORPHAN_AGE_S if self._has_read else 0.0
            undelivered = await self.chats.undelivered(min_age_s=min_age_s)
            self._has_read = True
        except Exception as problem:  # noqa: BLE001  (the answers stay undelivered)
            LOG.warning("the undelivered answers could not be read: %s", type(problem).__name__)
            self._rescan_later()
        else:
            for answer in undelivered:
                self.start_recorded(answer)
            self._rescan_later(RESCAN_INTERVAL_S)

    def retry_now(self) -> None:
        """Send what waits for another attempt, because the chat app can be reached again."""
        for queue in list(self._queues.values()):
            queue.retry.set()

    def owed(self) -> OwedAnswers:
        """Return what is ready and not delivered, without answers that their place refuses."""
        ready = [at for queue in list(self._queues.values()) for at in queue.ready_times()]
        return OwedAnswers(len(ready), min(ready, default=None))

    @property
    def refused(self) -> int:
        """Answers since the start that their place refused."""
        return self._closed_places.refused

    async def close(self, *, seconds: float) -> None:
        """Finish what is being sent, within this time; what waits for another attempt stays undelivered."""
        self._closing.set()
        if self._rescan is not None:
            self._rescan.cancel()
        await self.tasks.finish(seconds=seconds)

    # ── One answer ───────────────────────────────────────────────────────────────────────────────────

    async def _deliver(
        self,
        answer: PendingAnswer,
        message: ChatMessage,
        queue: PlaceQueue,
        position: QueuePosition,
        sender: PartSender[PartT],
    ) -> None:
        """Send an answer when it is first in its queue, and leave the queue."""
        try:
            async with aclosing(answer.replies):
                while (reply := await self._next(answer.replies, message.place)) is not None:
                    position.ready_at = position.ready_at or self.chats.now()
                    if not position.is_first.is_set():
                        queue.retry.set()  # the user writes, so the first answer may arrive now
                    await position.is_first.wait()
                    await self._send_reply(reply, answer, message, queue, sender)
                    position.ready_at = None
        except Undelivered:
            pass  # it stays recorded, for the next start or another server
        finally:
            queue.leave(position)

    async def _send_reply(
        self,
        reply: ChannelMessage,
        answer: PendingAnswer,
        message: ChatMessage,
        queue: PlaceQueue,
        sender: PartSender[PartT],
    ) -> None:
        """Send a reply until it is accepted, cannot be accepted, or has expired."""
        origin = ReplyTarget(message.place, message.reply_to, message.key)
        parts = outgoing_parts(reply, origin, sender, first=message.parts if reply.is_answer else 0)
        while True:
            try:
                await self._send_parts(parts, queue, sender, message if reply.is_answer else None)
                queue.clear_failures()
                await self._closed_places.on_open(message.place, queue)
                return
            except PlaceClosed as problem:
                await self._closed_places.on_refused(answer, problem, queue)
                if problem.is_gone and reply.is_answer:
                    queue.clear_failures()
                    await self.chats.keep_answer(message)
                    raise Undelivered("the answer is kept until its user returns") from None
                if not problem.may_reopen:
                    queue.clear_failures()
                    return
            except Undelivered as problem:
                if queue.failures == 0:
                    LOG.warning("an answer could not be delivered and is kept: %s", problem)
            queue.count_failure()
            if self.chats.is_expired(message):
                self._count_given_up(1)
                return
            if self._closing.is_set() or not self._may_retry():
                raise Undelivered("the answer is kept for the next start or another server")
            await self._wait_for_retry(queue)

    async def _send_parts(
        self,
        parts: deque[OutgoingPart[PartT]],
        queue: PlaceQueue,
        sender: PartSender[PartT],
        message: ChatMessage | None,
    ) -> None:
        """Send the parts, and remove each part that was accepted; record them if they answer a message."""
        if queue.failures and self._closing.is_set():
            raise Undelivered("an earlier answer of this place is undelivered")
        async with queue.sending:  # no other message of the bot between the parts of one
            while parts:
                await self._send_part(parts[0], sender)
                part = parts.popleft()
                if message is not None:
                    await self._record(message, part)
        self._on_sent()

    async def _send_part(self, part: OutgoingPart[PartT], sender: PartSender[PartT]) -> None:
        """Send a part, a few times if need be. Raises `Undelivered` and `PlaceClosed`."""
        for pause in (*SEND_PAUSES_S, None):
            try:
                return await sender.send(part)
            except Undelivered as problem:
                self.last_error = self.chats.now(), str(problem)
                if pause is None:
                    raise
            await self._sleep(pause)
        return None

    async def _record(self, message: ChatMessage, part: OutgoingPart[PartT]) -> None:
        try:
            await self.chats.record_parts(message, part.number + 1)
        except FovealError as problem:  # after a restart this part is sent again
            LOG.warning("a delivered part was not recorded: %s", type(problem).__name__)

    def _on_sent(self) -> None:
        """Wake places that have failed once; a place that failed again has a problem of its own, and pauses."""
        for queue in list(self._queues.values()):
            if queue.failures == 1:
                queue.retry.set()

    async def _wait_for_retry(self, queue: PlaceQueue) -> None:
        queue.retry.clear()
        pause = REDELIVERY_PAUSES_S[min(queue.failures, len(REDELIVERY_PAUSES_S)) - 1]
        await _first_of(self._sleep(pause), queue.retry.wait(), self._closing.wait())

    async def _send_unrecorded(
        self,
        answer: PendingAnswer,
        origin: ReplyTarget,
        queue: PlaceQueue,
        position: QueuePosition,
        sender: PartSender[PartT],
        *,
        typing: bool,
    ) -> None:
        """Send replies that are not kept, such as the output of a command: to their user if the place is closed."""
        replies, count = answer.replies, 0
        try:
            async with aclosing(replies):
                while (reply := await self._next(replies, origin.place, typing=typing)) is not None:
                    if reply.is_in_order:
                        await queue.wait_in_order(position)
                    key = f"{origin.key}/{count}"
                    target = origin._replace(key=key, reply_to=origin.reply_to * (not count))
                    count += 1
                    if not await self._send_once(reply, answer.user, target, queue, sender):
                        return
        finally:
            queue.leave(position)

    async def _send_once(
        self,
        reply: ChannelMessage,
        user: int,
        target: ReplyTarget,
        queue: PlaceQueue,
        sender: PartSender[PartT],
    ) -> bool:
        """Send a reply that is not kept; return whether the replies after it may be sent."""
        try:
            await self._send_parts(outgoing_parts(reply, target, sender), queue, sender, None)
        except Undelivered as problem:
            LOG.warning("a reply could not be delivered: %s", problem)
            return False
        except PlaceClosed as problem:
            if problem.is_gone:
                return False
            await self._send_to_user(user, reply, target, problem)
        else:
            queue.retry.set()  # the place accepts messages, so the first answer may arrive now
        return True

    async def _send_to_user(
        self, user: int, reply: ChannelMessage, target: ReplyTarget, problem: PlaceClosed
    ) -> None:
        """Send a reply that its place refuses to the private chat with its user, without buttons: they would act
        there."""
        text = f"{texts.moved_reply(problem.cause)}\n\n{reply.text}"
        is_sent = bool(user) and await self._tell(user, replace(reply, text=text, buttons=()), target)
        where = "and was sent to its user in private" if is_sent else "and was dropped"
        LOG.info("a reply could not be sent %s: %s", where, problem)

    # ── Questions whether a tool may run ─────────────────────────────────────────────────────────────

    async def _send_questions(self) -> None:
        """Send questions as they are asked, until the gateway closes. One that cannot be sent is tried again until
        it expires."""
        questions = self.chats.questions
        while not self._closing.is_set():
            try:
                notices = await questions.due() if self._may_retry() else []
                sent = [await self._send_question(notice) for notice in notices]
            except FovealError as problem:
                LOG.warning("a question could not be read: %s", type(problem).__name__)
                sent = [False]
            waits = [questions.changed()] if all(sent) else [self._sleep(SEND_PAUSES_S[-1])]
            await _first_of(*waits, self._closing.wait())

    async def _send_question(self, notice: QuestionNotice) -> bool:
        question, place = notice.question, notice.place
        target = ReplyTarget(place, 0, f"{question.id}/{question.state}/{question.at}")
        if notice.owners:
            is_sent = False
            for owner in notice.owners[:MAX_USERS_TRIED]:
                is_sent = is_sent or await self._tell(owner, notice.message, target)
            message = ChannelMessage(text=texts.asked_owner(question))
        else:
            is_sent, message = True, notice.message
        try:
            if is_sent:
                parts = outgoing_parts(message, target, self._sender)
                await self._send_parts(parts, self._queue(place), self._sender, None)
        except (Undelivered, PlaceClosed):
            is_sent = bool(notice.owners)  # the owner has the question
        if is_sent:
            await self.chats.questions.mark_sent(question)
        return is_sent

    async def _next(
        self, replies: Replies, place: ChatPlace, *, typing: bool = True
    ) -> ChannelMessage | None:
        async with self._typing.shown(place) if typing else nullcontext():
            return await anext(replies, None)

    # ── Answers that are not delivered ───────────────────────────────────────────────────────────────

    def _count_given_up(self, count: int) -> None:
        if count:
            self.given_up += count
            LOG.error("%d undelivered answers were given up after two days; the sessions hold them", count)

    async def _tell(self, user: int, notice: ChannelMessage, target: ReplyTarget) -> bool:
        """Send to a user in private what does not go to its target; return whether that worked."""
        try:
            place = await self._sender.private_place(user)
            if place == target.place:
                return False
            for part in outgoing_parts(notice, ReplyTarget(place, 0, target.key), self._sender):
                await self._send_part(part, self._sender)
        except (Undelivered, PlaceClosed):
            return False
        return True

    def _rescan_later(self, pause: float = REDELIVERY_PAUSES_S[0]) -> None:
        """Look for undelivered answers after a pause, unless that is planned for an earlier time."""
        loop = asyncio.get_running_loop()
        due = loop.time() + pause
        if self._closing.is_set() or (self._rescan is not None and self._rescan.when() <= due):
            return
        if self._rescan is not None:
            self._rescan.cancel()
        self._rescan = loop.call_at(due, self._rescan_now)

    def _rescan_now(self) -> None:
        self._rescan = None
        if self._may_retry():
            self.tasks.spawn(self.deliver_all())


async def _first_of(*waits: Awaitable[Any]) -> None:
    """Return when the first of them is done, and cancel the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


class DeliveryTasks:
    """Background tasks of a gateway; a task that fails calls `on_failure`."""

    def __init__(self, on_failure: Callable[[], None]) -> None:
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    async def finish(self, *, seconds: float) -> None:
        """Wait for the tasks for at most this time, then cancel them."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            LOG.error("an answer was not delivered and is kept: %s", type(problem).__name__)
            LOG.debug("the traceback", exc_info=problem)
            self._on_failure()
