"""Notices about content of a message that the model does not get.

1. Below an answer a cause is explained once a day in each place. Later a short line still counts the files.
2. A message that gets no answer always gets a line, apart from an edit.
3. A text that was cut is always named, with the numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Final

from msgspec.structs import replace

from foveal.apps.gateways import texts
from foveal.apps.gateways.channel import Replies
from foveal.apps.gateways.chat_files import NOT_FETCHED, file_noun
from foveal.apps.gateways.incoming import EDITS, IncomingFile, IncomingMessage
from foveal.server.chats import ChatPlace

NOTICE_INTERVAL_S: Final = 86_400.0
"""After which a place gets the same notice again."""
MAX_REMEMBERED_NOTICES: Final = 10_000


class ToldNotices:
    """Remembers which notices each place got."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._told: dict[tuple[ChatPlace, str], float] = {}

    def untold(self, place: ChatPlace, notices: Iterable[str]) -> list[str]:
        """Return the notices that the place has not got lately; they count as told from now on."""
        now = self._clock()
        new = [
            notice
            for notice in dict.fromkeys(notices)
            if now - self._told.get((place, notice), -NOTICE_INTERVAL_S) >= NOTICE_INTERVAL_S
        ]
        for notice in new:
            self._told.pop((place, notice), None)
            self._told[place, notice] = now
        while len(self._told) > MAX_REMEMBERED_NOTICES:
            del self._told[next(iter(self._told))]
        return new


def message_notices(message: IncomingMessage, told: ToldNotices, *, read: Sequence[str]) -> list[str]:
    """Return what the model does not get of a message, in words; `read` are the kinds of content that it reads."""
    is_answered = message.has_content
    problems = dict.fromkeys(file.problem for file in message.files if file.problem)
    new = told.untold(message.place, [*message.unread, *problems])
    lines = [
        texts.not_read(kind, read if kind in new else ())
        for kind in message.unread
        if kind in new or not (is_answered or kind == EDITS)
    ]
    for problem in problems:
        is_explained = problem in new or problem == NOT_FETCHED or not is_answered
        lines += _files_not_shown(message.files, problem, is_explained=is_explained)
    return lines + [texts.file_cut(file.name, file.extent) for file in message.files if file.extent]


def _files_not_shown(files: Sequence[IncomingFile], problem: str, *, is_explained: bool) -> Iterable[str]:
    """Yield a line for each kind of files that have a problem."""
    for noun in dict.fromkeys(file_noun(file) for file in files if file.problem == problem):
        of_kind = [file for file in files if file_noun(file) == noun]
        names = [file.name for file in of_kind if file.problem == problem]
        why = problem if is_explained else ""
        yield texts.files_not_shown(names, noun, total=len(of_kind), problem=why)


async def with_notices(replies: Replies, notices: list[str]) -> Replies:
    """Yield the replies with notices above the footer of each."""
    async with aclosing(replies):
        async for message in replies:
            lines = [*notices, message.footer] if message.footer else notices
            yield replace(message, footer="\n".join(lines))
