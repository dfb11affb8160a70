"""Rules for instruction files: order, settings, the facts to record, and the paths in tool calls.

This module works on names and texts; `files` finds, reads and cuts the files. The rules:

1. The order is: the user's own file, the project's root, each folder down to the working directory, then the user's
   preferences. In each folder, the first usable file of `InstructionRules.names` counts.
2. All files together take at most `max_bytes`, headings and notices included. The user's own file has a share of
   it that a project cannot take. Of a project's files, the most specific is cut last: while a file is cut, of those
   above it only a notice is shown. Cuts are at line ends.
3. Files are `Instructed` facts among the messages, one per file, never `aside`. At the start of a session they come
   before everything else, as system text. A file that is found later is added at the end, so that nothing before it
   moves; text beside the messages would move the whole prompt. A new version replaces the old one in its place.
4. So each file is in the request exactly once, in its newest version, whatever was masked, summarised, dropped or
   rewound. For a file that no longer counts, a notice replaces it once.
5. The folders of the paths that a tool call touches (`paths_in`) may have instructions of their own.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, NamedTuple

import msgspec

from foveal.core.log.events import Event, Instructed, Reverted, Rewound, text_of
from foveal.core.models.budget import check_whole_number
from foveal.core.tokens.counter import Counter
from foveal.core.view.fold import effective_events
from foveal.core.wire.safe_print import one_line
from foveal.errors import BadSetting

# ── Paths in tool calls ──────────────────────────────────────────────────────────────────────────────────


# ── Rules ────────────────────────────────────────────────────────────────────────────────────────────────

STANDARD_NAMES: Final = ("AGENTS.override.md", "AGENTS.md")
ROOT_MARKERS: Final = (".git", ".hg", "pyproject.toml", "package.json", "go.mod")
PREFERENCES_NAME: Final = "preferences.md"
WITHDRAWN_PREFIX: Final = "[foveal: no longer in force: "
"""Start of the notice that replaces a file which no longer counts."""
MAX_RULE_BYTES: Final = 1 << 30


class InstructionRules(msgspec.Struct, frozen=True, kw_only=True):
    """The user's settings for instruction files."""

    max_bytes: int = 32 * 1024
    """Limit for all files together, in bytes of UTF-8; 0 disables reading."""
    preferences_max_bytes: int = 4 * 1024
    """Limit for preferences.md of the user and of the project together; 0 disables reading."""
    fallback_names: tuple[str, ...] = ()
    """File names to try where there is no AGENTS.md."""
    root_markers: tuple[str, ...] = ROOT_MARKERS
    """A folder that contains one of these is the root of a project; without any, the working directory is."""
    ignore: tuple[str, ...] = ()
    """Folders whose files are ignored: patterns relative to the root, such as `vendor` or `third_party/*`."""

    def __post_init__(self) -> None:
        check_whole_number("max_bytes", self.max_bytes, most=MAX_RULE_BYTES)
        check_whole_number("preferences_max_bytes", self.preferences_max_bytes, most=MAX_RULE_BYTES)
        for name in self.fallback_names:
            if not name or "/" in name or "\\" in name or name in (".", ".."):
                raise BadSetting("fallback_names", name, "names of files, without a folder")

    @property
    def names(self) -> tuple[str, ...]:
        """The names to try in each folder, in this order."""
        return (*STANDARD_NAMES, *(name for name in self.fallback_names if name not in STANDARD_NAMES))

    def ignores(self, folder: str) -> bool:
        """Return whether a folder, given relative to the root, or a folder above it is ignored."""
        parts = [part for part in folder.split("/") if part not in ("", ".")]
        prefixes = ("/".join(parts[:depth]) for depth in range(1, len(parts) + 1))
        return any(fnmatchcase(prefix, rule.strip("/")) for prefix in prefixes for rule in self.ignore)


InstructionKind = Literal["user", "project", "preferences"]


class InstructionFile(NamedTuple):
    """A file as it was read."""

    path: str
    text: str
    kind: InstructionKind = "project"
    unread: int = 0
    """Bytes of the file that were not read."""


class ShownFile(NamedTuple):
    """What the model sees of one file."""

    path: str
    content: str
    lines: int
    """Lines of the file that are shown."""
    total: int
    """Lines of the file, or of the part that was read if the file is too large."""
    whole: bool

    def tokens(self, counter: Counter) -> int:
        """Return the size of what is shown."""
        return counter.count(self.content)


# ── Folders ──────────────────────────────────────────────────────────────────────────────────────────────


def folders_between(root: str, folder: str) -> tuple[str, ...]:
    """Return the folders from the root down to `folder`; none if it is not inside the root."""
    top, deepest = root.rstrip("/"), folder.rstrip("/")
    if deepest != top and not deepest.startswith(f"{top}/"):
        return ()
    found = [top]
    for part in deepest[len(top) :].split("/")[1:]:
        found.append(f"{found[-1]}/{part}")
    return tuple(name or "/" for name in found)


# ── Size limits ──────────────────────────────────────────────────────────────────────────────────────────


def _safe_path(path: str) -> str:
    """Return a path on one line, so that names of folders cannot imitate other lines of the prompt."""
    return one_line(path, width=4_096)


# ── Facts to record ──────────────────────────────────────────────────────────────────────────────────────


class InstructedFile(NamedTuple):
    """A file as the model sees it now, according to the log."""

    seq: int
    source: str
    content: str
    first: int
    """The event of its first version, which determines its place."""

    @property
    def is_withdrawn(self) -> bool:
        """Whether it is only the notice of a file that no longer counts."""
        return self.content.startswith(WITHDRAWN_PREFIX)


class InstructionSet(NamedTuple):
    """All instruction files that the model sees."""

    files: dict[str, InstructedFile]
    """By slot, in the order of the prompt."""
    duplicates: tuple[InstructedFile, ...]
    """Files that are shown a second time, because two processes used one session."""


def slot_of(source: str) -> str:
    """Return a key that is equal for files that replace each other: those of a folder, preferences apart."""
    folder, _, name = source.rpartition("/")
    return source if name == PREFERENCES_NAME else folder or "/"


def affects_instructions(event: Event) -> bool:
    """Return whether an event changes which instructions are shown."""
    fact = event.fact
    return isinstance(fact, Rewound | Reverted) or (isinstance(fact, Instructed) and _is_from_file(fact))


def instruction_set(log: Iterable[Event]) -> InstructionSet:
    """Return the files that the model sees; only events that `affects_instructions` accepts are needed."""
    live: dict[int, InstructedFile] = {}
    for event in effective_events([event for event in log if affects_instructions(event)]):
        fact = event.fact
        if isinstance(fact, Instructed) and (fact.replaces is None or fact.replaces in live):
            first = event.seq if fact.replaces is None else live.pop(fact.replaces).first
            live[event.seq] = InstructedFile(event.seq, fact.source, text_of(fact.content), first)
    ascending = sorted(live.values(), key=lambda file: (not file.is_withdrawn, file.seq))
    newest = {slot_of(file.source): file for file in ascending}
    duplicates = [
        file for file in live.values() if newest[slot_of(file.source)] is not file and not file.is_withdrawn
    ]
    files = sorted(newest.items(), key=lambda item: item[1].first)
    return InstructionSet(dict(files), tuple(duplicates))


def _is_from_file(fact: Instructed) -> bool:
    return not fact.aside and (fact.source.startswith("/") or fact.source[1:3] == ":/")


def changed_facts(
    shown: InstructionSet, wanted: Sequence[ShownFile], gone: Mapping[str, str]
) -> tuple[Instructed, ...]:
    """Return the facts after which the model sees exactly the `wanted` files.

    `gone` says for each slot why its file no longer counts."""
    facts: list[Instructed] = []
    for file in wanted:
        old = shown.files.get(slot_of(file.path))
        if old is None:
            facts.append(Instructed(content=file.content, source=file.path))
        elif (old.source, old.content) != (file.path, file.content):
            facts.append(Instructed(content=file.content, source=file.path, replaces=old.seq))
    kept = {slot_of(file.path) for file in wanted}
    for key, old in shown.files.items():
        if key not in kept and not old.is_withdrawn:
            facts.append(_withdrawal(old, gone.get(key, "is not used any more")))
    return (*facts, *(_withdrawal(file, "is shown again below") for file in shown.duplicates))


def _withdrawal(file: InstructedFile, why: str) -> Instructed:
    return Instructed(
        content=f"{WITHDRAWN_PREFIX}{file.source} {why}]", source=file.source, replaces=file.seq
    )


_COMMAND_ARGUMENTS: Final = ("command", "cmd", "script", "shell", "argv", "args")
"""Names of arguments whose text is a command."""


def paths_in(arguments: str | Mapping[str, Any], *, max_paths: int = 200) -> tuple[str, ...]:
    """Return what may be a path in a call's arguments: strings of one line, and words of commands except flags.

    Does not check whether the files exist; returns at most `max_paths`."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return ()
    found: dict[str, None] = {}
    for text in _argument_texts(arguments, command=False, depth=0):
        if text and not text.startswith("-") and "\0" not in text and len(text) <= 4_096:
            found[text] = None
        if len(found) >= max_paths:
            break
    return tuple(found)


def _argument_texts(value: Any, *, command: bool, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        if command:
            yield from _command_words(value[:16_384])
        elif "\n" not in value:
            yield value
    elif isinstance(value, Mapping) and depth < 8:
        for key, inner in value.items():
            yield from _argument_texts(inner, command=str(key) in _COMMAND_ARGUMENTS, depth=depth + 1)
    elif isinstance(value, list) and depth < 8:
        for inner in value:
            if command and isinstance(inner, str):  # a single argument, or itself a command (`sh -c "…"`)
                yield from _argument_texts(inner, command=False, depth=depth + 1)
            yield from _argument_texts(inner, command=command, depth=depth + 1)


def _command_words(command: str) -> list[str]:
    reader = shlex.shlex(command, posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    reader.commenters = ""
    try:
        return list(reader)
    except ValueError:  # an unclosed quote
        return command.split()
