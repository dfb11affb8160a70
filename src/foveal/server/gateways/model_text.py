"""What the model gets of a message in a chat: text, author, quotes and files.

1. Lines that begin with `[foveal:` are written here only. A line of any other text that begins like one gets a
   backslash in front, so no text and no name can forge such a line or end a quote.
2. In a group the first line names the author: `[foveal: message from "Ana" (id 42)]`.
3. Each line of a quote begins with `> `. A quote that is too long is cut, and a line says by how much.

The system prompt of a chat's session (`server/chat_notice.md`) explains the lines to the model.
"""

from __future__ import annotations

import unicodedata
from base64 import b64encode
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Final

from msgspec.structs import replace

from foveal.agent.tool import document_part, image_part
from foveal.core.log.events import AnyPart, Content, Text
from foveal.core.wire.safe_print import readable
from foveal.server.chat_markers import END_MARKER, MARKER
from foveal.server.gateways import texts
from foveal.server.gateways.chat_files import NOT_FETCHED, file_noun
from foveal.server.gateways.incoming import EDITS, ChatAuthor, IncomingFile, IncomingMessage, QuotedText
from foveal.server.gateways.outgoing import Replies
from foveal.server.gateways.texts import without_footer

MAX_AUTHOR_CHARS: Final = 64
MAX_FILE_NAME_CHARS: Final = 100
MAX_REPLY_CHARS: Final = 2_000
MAX_FORWARD_CHARS: Final = 8_000
MAX_OWN_REPLY_CHARS: Final = 200
"""Characters of a quoted message of the bot, which the conversation has already."""
_JOINERS: Final = "\u200c\u200d"
_NAME_DELIMITERS: Final = dict.fromkeys(map(ord, '"\\[]()<>'), " ")


def model_text(message: IncomingMessage) -> Content:
    """Return a message as the model gets it; the files are fetched, or have a problem."""
    lines = [f"{MARKER} message from {_author(message.speaker)}]"] if message.speaker is not None else []
    for quote in message.quotes:
        lines += _quote_lines(quote)
    if message.text.strip():
        lines.append(escape_markers(message.text))
    lines += [
        f"{MARKER} attached {_file_name(file)} is not shown: {file.problem}]"
        for file in message.files
        if file.problem
    ]
    text = "\n".join(lines)
    parts = [part for file in message.files if not file.problem for part in _file_parts(file)]
    if not parts:
        return text
    return (Text(text=text), *parts) if text else tuple(parts)


def escape_markers(text: str) -> str:
    """Return a text in which no line begins like one of this module."""
    if "[" not in unicodedata.normalize("NFKC", text):
        return text
    return "".join(f"\\{line}" if _is_marker(line) else line for line in text.splitlines(keepends=True))


def _is_marker(line: str) -> bool:
    """Return whether a reader could take a line for one of this module: blanks, case and width do not matter."""
    seen = ""
    for character in _visible(line):
        seen += character
        if len(seen) >= len(MARKER):
            break
    return seen.startswith(MARKER)


def _visible(line: str) -> Iterator[str]:
    """Yield the characters of a line that can be seen, in their plain form."""
    for character in line:
        for plain in unicodedata.normalize("NFKC", character).casefold():
            if unicodedata.category(plain)[0] not in "CZM":
                yield plain


def _author(author: ChatAuthor) -> str:
    """Return an author on one line, without characters that end the name."""
    name = _clean(author.name, width=MAX_AUTHOR_CHARS)
    return f'"{name}"' + (f" (id {author.id})" if author.id else "")


def _clean(name: str, *, width: int) -> str:
    plain = " ".join(unicodedata.normalize("NFKC", name).translate(_NAME_DELIMITERS).split(maxsplit=width))
    shown = "".join(
        character if _joins(plain, place) else readable(character) for place, character in enumerate(plain)
    )
    safe = shown.replace("\\", "/") or "unnamed"
    return safe if len(safe) <= width else safe[: width - 1] + "…"


def _joins(text: str, place: int) -> bool:
    """Return whether a character joins two letters or emoji, or keeps two letters apart, as Persian needs it."""
    if text[place] not in _JOINERS or not 0 < place < len(text) - 1:
        return False
    return all(unicodedata.category(text[near])[0] in "LMS" for near in (place - 1, place + 1))


def _file_name(file: IncomingFile) -> str:
    return f'"{_clean(file.name, width=MAX_FILE_NAME_CHARS)}"'


def _quote_lines(quote: QuotedText) -> list[str]:
    author = f" from {_author(quote.author)}" if quote.author is not None else ""
    if quote.kind == "forward":
        begin, limit = f"{MARKER} forwarded message{author}]", MAX_FORWARD_CHARS
    elif quote.is_own:
        begin, limit = f"{MARKER} in reply to your message]", MAX_OWN_REPLY_CHARS
    else:
        begin, limit = f"{MARKER} in reply to this message{author}]", MAX_REPLY_CHARS
    text = without_footer(quote.text) if quote.is_own else quote.text
    left_out = max(0, len(text) - limit)
    return [
        begin,
        *(f"> {line}" for line in text[:limit].splitlines()),
        _end_line("the quote", left_out=left_out),
    ]


def _end_line(what: str, *, left_out: int) -> str:
    cut = f", {left_out:,} more characters are left out" if left_out else ""
    return f"{END_MARKER}{what}{cut}]"


def _file_parts(file: IncomingFile) -> list[AnyPart]:
    if file.mime.startswith("image/"):
        return [image_part(file.mime, file.data)]
    if file.mime == "application/pdf":
        name = _clean(file.name, width=MAX_FILE_NAME_CHARS)
        return [document_part(file.mime, b64encode(file.data).decode(), name=name)]
    text = escape_markers(file.data.decode("utf-8", "replace"))
    name = _file_name(file)
    end = _end_line(name, left_out=file.left_out)
    return [Text(text=f"{MARKER} attached {name}]\n{text}\n{end}")]


# ── Notices about what the model does not get ────────────────────────────────────────────────────────
# 1. Below an answer a cause is explained once a day in each place. Later a short line still counts the files.
# 2. A message that gets no answer always gets a line, apart from an edit.
# 3. A text that was cut is always named, with the numbers.

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
