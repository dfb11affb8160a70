"""Attachments: files, folders and images that a message names with `@path`.

1. A name that does not exist and looks like a path is an error. Other names stay text: e-mail addresses,
   decorators, names in pasted text. `\\@path` is never attached.
2. A path outside of the working folder is attached only if the user agrees; a no returns the message to the input
   line. Without a user to ask, the message is sent without it.
3. All texts together are clipped to the limits of one tool result, and to a share of the room for messages, because
   the latest message of the user is never reduced.
4. What was piped into `foveal run` is attached in the same way.
5. The absolute path of an image, as terminals paste it for a dropped file, attaches the image without `@`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import msgspec
from msgspec.structs import replace

from foveal.agent.terminal.chat_state import ChatState
from foveal.agent.terminal.factory import is_bundled
from foveal.agent.terminal.user_interface import Question
from foveal.agent.terminal.user_message import Attachment, UserMessage
from foveal.agent.tool import InvalidArguments, Toolbox, media_dialect
from foveal.agent.tools.files import file_tools
from foveal.agent.tools.workspace import Workspace
from foveal.core.engine.settings import result_limits
from foveal.core.log.events import ATTACHED_MARK, Content, Media, Text, text_of
from foveal.core.reduction.truncation import clip_parts, join_pieces
from foveal.core.wire.safe_print import exact_line, one_line
from foveal.errors import FovealError

MAX_ATTACHMENTS: Final = 20
"""Files of one message."""
MAX_ATTACHED_SHARE: Final = 0.35
"""Share of the room for messages that the texts of one message may take: its message is always shown whole."""
PIPED_NAME: Final = "standard input"
_MAX_CHECKED_NAMES: Final = 1_000
"""Names of one message for which a file is looked for."""
_MENTION: Final = re.compile(r"""(?<![^\s(\[{"'<])(\\?)@(?:"([^"\n]+)"|([^\s"]+))""")
"""`@path` or `@"path with spaces"` at the beginning of a word, with the backslash that escapes it."""
_IMAGE_PATH: Final = re.compile(
    r"""(?<!\S)(?:(['"])((?:file://|~?/)[^'"\n]+\.(?:png|jpe?g|gif|webp))\1"""
    r"""|((?:file://|~?/)(?:\\.|[^\s\\'"])+\.(?:png|jpe?g|gif|webp)))(?!\S)""",
    re.IGNORECASE,
)
_PUNCTUATION: Final = ".,;:!?)]}>'\"`"
"""Characters after a path that belong to the sentence, unless a file has such a name."""


MAX_TYPED_CHARS: Final = 1_500
"""A longer message has pasted text, in which a name after `@` is seldom meant as a file."""
_FILE_ENDING: Final = re.compile(
    r"""\.(?: bat|c|cc|cfg|conf|cpp|cs|css|csv|diff|env|gif|go|h|hpp|html?|ini|ipynb|java|jpe?g|jsonl?|jsx?|kt
    |lock|log|lua|md|patch|pdf|php|png|ps1|pyi?|rb|rs|rst|scala|sh|sql|svg|swift|tex|toml|tsv|tsx?|txt|vue|webp|xml
    |ya?ml|zig )""",
    re.IGNORECASE | re.VERBOSE,
)
"""Endings of names that are meant as files: `@notes.md`, but not `@app.get`."""


class _Mention(msgspec.Struct, frozen=True):
    """A place of a message that names an existing path."""

    start: int
    end: int
    path: str
    is_escaped: bool = False


class _NotSent(FovealError):
    """The message is not sent; it returns to the input line."""


# ── Finding mentions ─────────────────────────────────────────────────────────────────────────────────────


def _find_mentions(text: str, folder: Path) -> list[_Mention]:
    """Return the mentions of existing paths, in their order."""
    found: list[_Mention] = []
    for checked, match in enumerate(_MENTION.finditer(text)):
        if checked == _MAX_CHECKED_NAMES:
            break
        quoted, bare = match[2], match[3] or ""
        names = [quoted] if quoted else _without_punctuation(bare)
        name = next((name for name in names if _exists(folder, name)), None)
        if name is not None:
            end = match.end() if quoted else match.start(3) + len(name)
            found.append(_Mention(match.start(), end, name, is_escaped=bool(match[1])))
    taken = {place for one in found for place in range(one.start, one.end)}
    for match in _IMAGE_PATH.finditer(text):
        path = match[2] or re.sub(r"\\(.)", r"\1", match[3])
        path = unquote(path.removeprefix("file://")) if path.startswith("file://") else path
        if match.start() not in taken and _exists(folder, path):
            found.append(_Mention(match.start(), match.end(), path))
    return sorted(found, key=lambda one: one.start)


def _missing_names(text: str, folder: Path) -> list[str]:
    """Return the names of a typed message that look like paths and do not exist."""
    if len(text) > MAX_TYPED_CHARS:
        return []
    missing = []
    for match in _MENTION.finditer(text):
        is_own_word = match.start() == 0 or text[match.start() - 1].isspace()
        names = [match[2]] if match[2] else list(_without_punctuation(match[3]))
        if names and is_own_word and not match[1] and not any(_exists(folder, name) for name in names):
            missing += [names[-1]] if match[2] or _looks_like_path(names[-1], folder) else []
    return list(dict.fromkeys(missing))


def _looks_like_path(name: str, folder: Path) -> bool:
    """Return whether a name has the ending of a file, or begins with a folder that exists."""
    first, slash, _ = name.partition("/")
    has_ending = _FILE_ENDING.fullmatch(Path(name).suffix) is not None
    return has_ending or bool(slash and (first in ("", ".", "..", "~") or _exists(folder, first)))


def _without_punctuation(name: str) -> Iterator[str]:
    """Yield a name, and the name without the punctuation after it."""
    while any(map(str.isalnum, name)) or name == "./":
        yield name
        if name[-1] not in _PUNCTUATION:
            return
        name = name[:-1]


def _exists(folder: Path, name: str) -> bool:
    try:
        return os.path.exists(folder / Path(name).expanduser())
    except (OSError, ValueError, RuntimeError):
        return False


# ── Reading ──────────────────────────────────────────────────────────────────────────────────────────────


async def prepare_message(text: str, state: ChatState, *, piped: str = "", typed: str = "") -> UserMessage:
    """Return a message with the files that it names and what was piped, asking the user about files outside of the
    working folder. `typed` returns to the input line if the message cannot be sent, by default its text."""
    try:
        return await _prepare(text, state, piped)
    except _NotSent:
        state.ui.suggest_input(typed or text)
        raise


async def _prepare(text: str, state: ChatState, piped: str) -> UserMessage:
    if missing := _missing_names(text, state.options.folder):
        names = ", ".join(map(exact_line, missing))
        raise _NotSent(
            f"there is no file {names}: nothing was sent. \\@ in place of @ sends the name as text"
        )
    mentions = _find_mentions(text, state.options.folder)
    if not mentions and not piped:
        return UserMessage(content=text, shown=text)
    notes: list[str] = []
    contents: dict[str, Content] = {}
    for path in dict.fromkeys(one.path for one in mentions if not one.is_escaped):
        if len(contents) == MAX_ATTACHMENTS:
            notes.append(f"only {MAX_ATTACHMENTS} files are attached to one message")
            break
        try:
            contents[path] = await _read(path, state)
        except InvalidArguments as problem:
            notes.append(str(problem))
    if piped:
        contents[PIPED_NAME] = piped
    attachments = _clip(contents, state)
    chips = {path: attachment.chip for path, attachment in attachments.items()}
    sent = _replace(text, mentions, {})
    parts = (attachment.part for attachment in attachments.values())
    content: Content = (Text(text=sent), *parts) if attachments else sent
    return UserMessage(
        content=content,
        dialect=media_dialect(content),
        shown=_replace(text, mentions, chips),
        attachments=tuple(attachments.values()),
        notes=tuple(notes),
    )


def _replace(text: str, mentions: list[_Mention], chips: dict[str, str]) -> str:
    """Return a message with its chips, and without the backslash of escaped mentions."""
    pieces, at = [], 0
    for one in mentions:
        mention = text[one.start : one.end]
        shown = mention[1:] if one.is_escaped else chips.get(one.path, mention)
        pieces += [text[at : one.start], shown]
        at = one.end
    return "".join([*pieces, text[at:]])


async def _read(path: str, state: ChatState) -> Content:
    """Return a file or a folder as the tools show it.

    Raises `InvalidArguments` with the reason if it cannot be, and `_NotSent` if the user says no."""
    root = state.options.folder
    target = Path(os.path.realpath(root / Path(path).expanduser()))
    is_outside = not target.is_relative_to(os.path.realpath(root))
    if is_outside and not await _may_read_outside(target, state):
        shown = exact_line(str(target))
        if state.ui.can_ask:
            raise _NotSent(f"{shown} is not attached, and nothing was sent: the message is in the input line")
        raise InvalidArguments(f"{shown} is outside of the working folder: not attached")
    # The session's own tool also records that the model knows the file.
    name = "list" if target.is_dir() else "read"
    tools = state.toolbox
    if is_outside or tools.get(name) is None:
        allowed = target if target.is_dir() else target.parent
        tools = Toolbox(file_tools(Workspace(root, extra_folders=[allowed])))
    output = await tools.call(name, msgspec.json.encode({"path": str(target)}).decode())
    if output.error:
        raise InvalidArguments(f"not attached: {text_of(output.content)}")
    if not isinstance(output.content, str) and not reads_images(state):
        raise InvalidArguments(
            f"{one_line(path)} is not attached: {state.provider.name} does not read images"
        )
    return output.content


async def _may_read_outside(target: Path, state: ChatState) -> bool:
    shown = exact_line(str(target))
    question = Question(
        text=f"Send {shown} with your message? It is outside of the working folder.",
        unattended_advice="Copy it into the working folder to attach it.",
    )
    return await state.ui.ask(question) == "y"


def reads_images(state: ChatState) -> bool:
    """Return whether the model accepts images; only the bundled models are known not to."""
    return not is_bundled(state.provider)


def _clip(contents: dict[str, Content], state: ChatState) -> dict[str, Attachment]:
    """Return the attachments, their texts together within the configured limits of a result of the tool `read`.
    The agent's own limit does not count: the user has asked for these texts."""
    settings = state.config.engine_settings(state.provider.model)
    room = state.message_room()
    limits = result_limits(state.config.loaded.policy(), "read", None, hard_limit=room)
    most = int(room * MAX_ATTACHED_SHARE)
    limits = replace(limits, tokens=most if limits.tokens is None else min(most, limits.tokens))
    texts = {path: content for path, content in contents.items() if isinstance(content, str)}
    source = PIPED_NAME if list(texts) == [PIPED_NAME] else "the file"
    clips = clip_parts(list(texts.values()), limits, handle=source, counter=settings.counter)
    attached: dict[str, Attachment] = {}
    for (path, text), clip in zip(texts.items(), clips, strict=True):
        shown = text if clip is None else join_pieces(text, clip.pieces)
        name = one_line(path, width=200)
        whole = f"{ATTACHED_MARK}{name}]\n{shown}\n[foveal: end of {name}]"
        tokens = settings.counter.count(shown)
        total = tokens if clip is None else clip.total_tokens
        attached[path] = Attachment(name=name, part=Text(text=whole), tokens=tokens, total_tokens=total)
    for path, content in contents.items():
        media = [part for part in content if isinstance(part, Media)] if not isinstance(content, str) else []
        if media:
            attached[path] = Attachment(name=one_line(path, width=200), part=media[0], tokens=media[0].units)
    return {path: attached[path] for path in contents if path in attached}
