"""Notices about content of a message that the model does not get.

1. Below an answer a cause is explained once a day in each place. Later a short line still counts the files.
2. A message that gets no answer always gets a line, apart from an edit.
3. A text that was cut is always named, with the numbers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import aclosing
from typing import Final

from msgspec.structs import replace

from foveal.server.gateways import texts
from foveal.server.gateways.chat_files import NOT_FETCHED, file_noun
from foveal.server.gateways.incoming import EDITS, IncomingFile, IncomingMessage
from foveal.server.gateways.outgoing import Replies

NOTICE_INTERVAL_S: Final = 86_400.0
"""After which a place gets the same notice again."""


def notice_causes(message: IncomingMessage) -> list[str]:
    """Return the kinds of content and the problems of files that a notice about a message would explain."""
    return [*message.unread, *(file.problem for file in message.files if file.problem)]


def message_notices(message: IncomingMessage, *, new: Collection[str], read: Sequence[str]) -> list[str]:
    """Return what the model does not get of a message, in words; `new` are the causes that the place was not told
    lately, and `read` the kinds of content that the model reads."""
    is_answered = message.has_content
    problems = dict.fromkeys(file.problem for file in message.files if file.problem)
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
    """Yield the replies, the last one with notices above its footer."""
    async with aclosing(replies):
        async for message in replies:
            lines = [*notices, message.footer] if message.footer else notices
            yield replace(message, footer="\n".join(lines)) if message.is_last else message
