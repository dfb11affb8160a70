"""Questions to users of a chat whether a tool may run, in the database.

1. A question is in the database from the moment it is asked until the call has its answer, so a restart loses none:
   the turn that continues finds its question, and the answer to it, by the id of the call.
2. A question is answered once, whichever process receives the button and how often it is pressed.
3. A question without an answer expires: the call is not run, and the chat is told.
4. The gateway that listens to the chat app sends the questions, and the process that runs the turn waits for the
   answer. They can be on different machines.

    new → open → yes or no → done          `new` is not sent yet, and an answer is `done` when its call has it
    new or open → expired → done           `expired` is not told to the chat yet
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from typing import Any, Final, Literal

import msgspec

from foveal.core.log.events import Call
from foveal.server.databases import Database, Transaction
from foveal.server.storage import Wakeups

MAX_QUESTION_CHARS: Final = 20_000
"""Characters that a question can show: a call with longer arguments is not run."""
QUESTION_TTL_S: Final = 48 * 3600.0
"""Seconds for which a question is known after it has expired, so that an old button gets a reply."""
QuestionState = Literal["new", "open", "yes", "no", "expired", "done"]


class ChatQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A question about a call."""

    id: str
    session: str
    key: str
    """The key of the message whose turn asks."""
    tool: str
    text: str
    """All arguments of the call, each character visible; "" when it is answered."""
    at: float
    until: float
    state: QuestionState = "new"

    @property
    def minutes(self) -> int:
        """Minutes that there are for an answer."""
        return round((self.until - self.at) / 60)


def question_id(turn: str, call: Call) -> str:
    """Return the id of the question about a call: the same one when the turn continues after a restart."""
    asked = "\0".join((turn, call.id, call.name, call.arguments))
    return blake2b(asked.encode("utf-8", "surrogatepass"), digest_size=10).hexdigest()


def questions_topic(platform: str) -> str:
    """Return the topic of the wake-up after there is something to send to a chat app."""
    return f"questions/{platform}"


def _answer_topic(id: str) -> str:
    return f"question/{id}"


class ChatQuestions:
    """The questions of all chat apps, in a database that several processes may share."""

    def __init__(
        self, database: Database, wakeups: Wakeups, *, clock: Callable[[], float], poll_s: float
    ) -> None:
        self._database = database
        self._wakeups = wakeups
        self._clock = clock
        self._poll_s = poll_s

    # ── For the turn ─────────────────────────────────────────────────────────────────────────────────

    async def ask(self, platform: str, question: ChatQuestion) -> bool:
        """Ask, and wait for the answer; return whether it is yes."""
        sql = f"""INSERT INTO chat_questions (face, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
            ON CONFLICT (face, id) DO UPDATE SET text = excluded.text, at = excluded.at, until = excluded.until,
            state = excluded.state WHERE chat_questions.state IN ('expired', 'done')"""
        values = (platform, *msgspec.structs.astuple(question))
        await self._database.write(lambda db: db.execute(sql, *values), repeatable=True)
        return await self.wait(platform, question.id)

    async def wait(self, platform: str, id: str) -> bool:
        """Wait for the answer to a question that was asked, perhaps by a process that has ended."""
        woken = asyncio.Event()
        unsubscribe = self._wakeups.subscribe(_answer_topic(id), woken.set)
        try:
            await self._wakeups.notify(questions_topic(platform))
            while (answer := await self._take_answer(platform, id)) is None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._poll_s):
                        await woken.wait()
                woken.clear()
        finally:
            unsubscribe()
        if not answer:
            await self._wakeups.notify(questions_topic(platform))  # the chat is told if it has expired
        return answer

    async def _take_answer(self, platform: str, id: str) -> bool | None:
        """Return the answer, once; False if the question has expired or is gone, and None if it waits."""
        now, found = self._clock(), await self.find(platform, id)
        if found is not None and found.state in ("new", "open") and now < found.until:
            return None

        async def act(db: Transaction) -> bool | None:
            sql = "SELECT state FROM chat_questions WHERE face = ? AND id = ?"
            rows = await db.fetch(sql, platform, id)
            state = rows[0][0] if rows else "done"
            if state in ("new", "open"):
                await _expire(
                    db, platform, id, now=now
                )  # the next look finds that, or an answer that came first
                return None
            sql = "UPDATE chat_questions SET state = 'done' WHERE face = ? AND id = ? AND state = ?"
            is_taken = state in ("yes", "no") and await db.execute(sql, platform, id, state) == 1
            return is_taken and state == "yes"

        return await self._database.write(act)

    async def is_waiting(self, platform: str, id: str) -> bool:
        """Return whether a call has not run because its question, or the answer to it, waits."""
        found = await self.find(platform, id)
        return found is not None and found.state in ("new", "open", "yes", "no")

    async def withdraw(self, platform: str, id: str) -> None:
        """End a question whose turn was stopped."""
        sql = "UPDATE chat_questions SET state = 'done', text = '' WHERE face = ? AND id = ?"
        await self._database.write(lambda db: db.execute(sql, platform, id), repeatable=True)

    # ── For the gateway ──────────────────────────────────────────────────────────────────────────────

    async def find(self, platform: str, id: str) -> ChatQuestion | None:
        sql = f"SELECT {_COLUMNS} FROM chat_questions WHERE face = ? AND id = ?"
        rows = await self._database.read(lambda db: db.fetch(sql, platform, id))
        return _question(*rows[0]) if rows else None

    async def to_send(self, platform: str) -> list[ChatQuestion]:
        """Return the questions that are not sent, and those that have expired and are not told, oldest first."""
        now = self._clock()
        sql = """SELECT 1 FROM chat_questions WHERE face = ? AND (
            state IN ('new', 'expired') OR (state = 'open' AND until <= ?) OR until < ?) LIMIT 1"""
        due = await self._database.read(lambda db: db.fetch(sql, platform, now, now - QUESTION_TTL_S))
        if not due:  # most often: a look that writes nothing
            return []

        async def act(db: Transaction) -> list[ChatQuestion]:
            await _expire(db, platform, now=now)
            sql = "DELETE FROM chat_questions WHERE face = ? AND until < ?"
            await db.execute(sql, platform, now - QUESTION_TTL_S)
            sql = f"""SELECT {_COLUMNS} FROM chat_questions WHERE face = ? AND state IN ('new', 'expired')
                ORDER BY at, id"""
            return [_question(*row) for row in await db.fetch(sql, platform)]

        return await self._database.write(act)

    async def mark_sent(self, platform: str, question: ChatQuestion) -> None:
        """Record that the chat has a question, or knows that it has expired."""
        after = "open" if question.state == "new" else "done"
        sql = "UPDATE chat_questions SET state = ? WHERE face = ? AND id = ? AND state = ?"
        values = (after, platform, question.id, question.state)
        await self._database.write(lambda db: db.execute(sql, *values), repeatable=True)

    async def answer(self, platform: str, id: str, *, yes: bool) -> bool:
        """Record the answer to a question; return False if it has one, or has expired."""
        now = self._clock()
        sql = """UPDATE chat_questions SET state = ?, text = '' WHERE face = ? AND id = ?
            AND state IN ('new', 'open') AND until > ?"""
        values = ("yes" if yes else "no", platform, id, now)
        counts = await self._database.write(lambda db: db.execute(sql, *values)) == 1
        if counts:
            await self._wakeups.notify(_answer_topic(id))
        return counts


async def delete_questions(db: Transaction, platform: str, session: str) -> None:
    """Delete the questions of a session that is deleted."""
    await db.execute("DELETE FROM chat_questions WHERE face = ? AND session = ?", platform, session)


_COLUMNS: Final = "id, session, key, tool, text, at, until, state"


def _question(*values: Any) -> ChatQuestion:
    return ChatQuestion(**dict(zip(_COLUMNS.split(", "), values, strict=True)))


async def _expire(db: Transaction, platform: str, id: str = "", *, now: float) -> None:
    """End the wait of a question whose time is over; without an id, of all of them."""
    sql = """UPDATE chat_questions SET state = 'expired', text = ''
        WHERE face = ? AND (? = '' OR id = ?) AND state IN ('new', 'open') AND until <= ?"""
    await db.execute(sql, platform, id, id, now)
