"""Questions in a chat whether a tool may run: who may answer, where they are sent, and the buttons.

1. The owners of a bot answer: the users of the allow-list, or without one the user who was paired first. With
   `approvers = "admins"`, the administrators of a group who have access answer there too.
2. A question is sent where its turn runs. If that is the private chat of another user, an owner gets it in private.
3. It shows all arguments of the call, with a mark for each character that cannot be seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, NamedTuple

from foveal.server.chat_questions import ChatQuestion, ChatQuestions, questions_topic
from foveal.server.chat_records import ChatPlace, Chats, find_place
from foveal.server.gateways import texts
from foveal.server.gateways.incoming import AccessControl
from foveal.server.gateways.outgoing import Button, ChannelMessage
from foveal.server.pairing import ChatPlatform
from foveal.server.runtime import Runtime

ALLOW_ACTION: Final = "allow:"
"""Prefix of the action of the button that allows a call; the id of the question follows."""
DENY_ACTION: Final = "deny:"
IsAdmin = Callable[[], Awaitable[bool]]
"""Returns whether the user who pressed a button administers the group."""


async def never_admin() -> bool:
    return False


def is_answer(action: str) -> bool:
    """Return whether a button answers a question about a tool."""
    return action.startswith((ALLOW_ACTION, DENY_ACTION))


class QuestionNotice(NamedTuple):
    """What is to be sent about a question."""

    question: ChatQuestion
    message: ChannelMessage
    place: ChatPlace
    """Where the turn runs."""
    owners: tuple[int, ...] = ()
    """Users of whom one gets it in private, in the order of trials; none if it goes to the place."""


class ToolQuestions:
    """The questions of one chat app."""

    def __init__(
        self,
        runtime: Runtime,
        chats: Chats,
        access: AccessControl,
        *,
        platform: ChatPlatform,
        asks_admins: bool,
    ) -> None:
        self.is_used: bool = bool(runtime.chat_tools.get(platform))
        """Whether the model has tools in the chats."""
        self._questions: ChatQuestions = runtime.questions
        self._wakeups = runtime.storage.wakeups
        self._poll_s = runtime.answer_poll_s
        self._chats = chats
        self._access = access
        self._platform = platform
        self._asks_admins = asks_admins

    # ── Sending ──────────────────────────────────────────────────────────────────────────────────────

    async def changed(self) -> None:
        """Wait until there may be something to send."""
        woken = asyncio.Event()
        unsubscribe = self._wakeups.subscribe(questions_topic(self._platform), woken.set)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_s):
                    await woken.wait()
        finally:
            unsubscribe()

    async def due(self) -> list[QuestionNotice]:
        """Return what is to be sent now: new questions, and that one has expired."""
        notices = [await self._notice(one) for one in await self._questions.to_send(self._platform)]
        return [notice for notice in notices if notice is not None]

    async def mark_sent(self, question: ChatQuestion) -> None:
        await self._questions.mark_sent(self._platform, question)

    async def _notice(self, question: ChatQuestion) -> QuestionNotice | None:
        message = await self._chats.find_message(self._platform, question.key)
        place = message.place if message is not None else find_place(self._platform, question.session)
        if place is None:
            return None
        if question.state == "expired":
            return QuestionNotice(question, ChannelMessage(text=texts.question_expired(question)), place)
        owners = await self._access.owners()
        is_elsewhere = message is not None and not message.place_name and message.author not in owners
        text = texts.tool_question(question, asks_admins=self._asks_admins, is_elsewhere=is_elsewhere)
        buttons = (Button("Yes", f"{ALLOW_ACTION}{question.id}"), Button("No", f"{DENY_ACTION}{question.id}"))
        asked = ChannelMessage(text=text, buttons=buttons)
        return QuestionNotice(question, asked, place, owners=owners if is_elsewhere else ())

    # ── Answers ──────────────────────────────────────────────────────────────────────────────────────

    async def refusal(self, user: int, *, is_admin: IsAdmin) -> str:
        """Return why a user may not answer; "" if that is allowed."""
        if user in await self._access.owners() or (self._asks_admins and await is_admin()):
            return ""
        return texts.not_your_question(asks_admins=self._asks_admins)

    async def answer(self, action: str) -> ChannelMessage:
        """Record the answer of a user who may give it, and return the reply."""
        id, yes = action.partition(":")[2], action.startswith(ALLOW_ACTION)
        counts = await self._questions.answer(self._platform, id, yes=yes)
        question = await self._questions.find(self._platform, id)
        if question is None:
            return ChannelMessage(text=texts.OLD_BUTTON)
        return ChannelMessage(
            text=texts.question_answered(question, yes=yes) if counts else texts.ANSWERED_BEFORE
        )
