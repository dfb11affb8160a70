"""Instructions for agents: which files count, in which order, cut to which size, and what must be recorded.

Works on names and texts; `instruction_files` finds and reads them. The rules:

1. The order is: the user's own file, the project's root, then each folder down to the working directory, then
   what the user prefers. Of the names in `Rules.names`, the first that can be used counts in its folder.
2. All that is shown of them takes at most `max_bytes`, headings and notices included. The most specific file is
   kept longest: as long as one is cut, nothing but a notice is shown of those above it. Cuts are at line ends.
3. Files are `Instructed` facts among the messages, one a file, never `aside`. At the start of a session they stand
   in front of everything, as system text. One that is found later is added at the end, where it moves nothing;
   beside the messages it would move the whole prompt. A new version replaces the old one in its place.
4. So each file stands in the request exactly once, in its newest version, whatever was masked, summarised, dropped
   or rewound; a file that no longer counts is announced once, in its place.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, NamedTuple

import msgspec

from foveal.core.log.events import Event, Instructed, Reverted, Rewound, text_of
from foveal.core.models.budget import whole
from foveal.core.tokens.counter import Counter
from foveal.core.view.fold import effective
from foveal.core.wire.safe_print import one_line
from foveal.errors import BadSetting

# ── mentioned ─────────────────────────────────────────────────────────────────────────────────────
# Which paths a tool call mentions: folders of these files may have instructions of their own.

_COMMANDS: Final = ("command", "cmd", "script", "shell", "argv", "args")
"""Arguments whose text is a command, word by word."""


def paths_in(arguments: str | Mapping[str, Any], *, most: int = 200) -> tuple[str, ...]:
    """What may be a path in a call's arguments: texts of one line, and the words of a command that are no flags.
    Whether there is such a file is for others to say."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return ()
    found: dict[str, None] = {}
    for text in _texts(arguments, command=False, depth=0):
        if text and not text.startswith("-") and "\0" not in text and len(text) <= 4_096:
            found[text] = None
        if len(found) >= most:
            break
    return tuple(found)


def _texts(value: Any, *, command: bool, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        if command:
            yield from _words(value[:16_384])
        elif "\n" not in value:
            yield value
    elif isinstance(value, Mapping) and depth < 8:
        for key, inner in value.items():
            yield from _texts(inner, command=str(key) in _COMMANDS, depth=depth + 1)
    elif isinstance(value, list) and depth < 8:
        for inner in value:
            if command and isinstance(inner, str):  # one argument, or a command for another shell
                yield from _texts(inner, command=False, depth=depth + 1)
            yield from _texts(inner, command=command, depth=depth + 1)


def _words(command: str) -> list[str]:
    reader = shlex.shlex(command, posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    reader.commenters = ""
    try:
        return list(reader)
    except ValueError:  # a quote that is never closed
        return command.split()


# ── instructions ──────────────────────────────────────────────────────────────────────────────────

STANDARD: Final = ("AGENTS.override.md", "AGENTS.md")
MARKERS: Final = (".git", ".hg", "pyproject.toml", "package.json", "go.mod")
PREFERENCES: Final = "preferences.md"
WITHDRAWN: Final = "[foveal: no longer in force: "
"""How the text begins that stands in the place of a file that no longer counts."""
LARGEST: Final = 1 << 30


class InstructionRules(msgspec.Struct, frozen=True, kw_only=True):
    """What the user says about instructions."""

    max_bytes: int = 32 * 1024
    """For all files together, in UTF-8; 0 reads none."""
    preferences_max_bytes: int = 4 * 1024
    """For preferences.md of the user and of the project; 0 reads none."""
    fallback_names: tuple[str, ...] = ()
    """Names of files that count where there is no AGENTS.md."""
    root_markers: tuple[str, ...] = MARKERS
    """A folder that has one of these is the root of a project; with none, the working directory is."""
    ignore: tuple[str, ...] = ()
    """Folders whose files do not count: patterns such as `vendor` or `third_party/*`, from the root."""

    def __post_init__(self) -> None:
        whole("max_bytes", self.max_bytes, most=LARGEST)
        whole("preferences_max_bytes", self.preferences_max_bytes, most=LARGEST)
        for name in self.fallback_names:
            if not name or "/" in name or "\\" in name or name in (".", ".."):
                raise BadSetting("fallback_names", name, "names of files, without a folder")

    @property
    def names(self) -> tuple[str, ...]:
        """What is looked for in each folder, the first that can be used counts."""
        return (*STANDARD, *(name for name in self.fallback_names if name not in STANDARD))

    def ignores(self, folder: str) -> bool:
        """Whether a folder, relative to the root, or one above it is left out."""
        parts = [part for part in folder.split("/") if part not in ("", ".")]
        tails = ("/".join(parts[:depth]) for depth in range(1, len(parts) + 1))
        return any(fnmatchcase(tail, rule.strip("/")) for tail in tails for rule in self.ignore)


InstructionKind = Literal["user", "project", "preferences"]


class InstructionFile(NamedTuple):
    """One file as it was read."""

    path: str
    text: str
    kind: InstructionKind = "project"
    unread: int = 0
    """Bytes beyond what was read."""


class ShownFile(NamedTuple):
    """What the model sees of one file."""

    path: str
    content: str
    lines: int
    """Lines of the file that are shown …"""
    total: int
    """… of so many; at least so many when the file was too large to be read whole."""
    whole: bool

    def tokens(self, counter: Counter) -> int:
        return counter.count(self.content)


# ── which ────────────────────────────────────────────────────────────────────────────────────────────────


def folders(root: str, folder: str) -> tuple[str, ...]:
    """The folders from the root down to this one; none when it does not lie in the root."""
    top, deep = root.rstrip("/"), folder.rstrip("/")
    if deep != top and not deep.startswith(f"{top}/"):
        return ()
    found = [top]
    for part in deep[len(top) :].split("/")[1:]:
        found.append(f"{found[-1]}/{part}")
    return tuple(name or "/" for name in found)


# ── cut to which size ────────────────────────────────────────────────────────────────────────────────────


def fit(files: Sequence[InstructionFile], room: int) -> list[ShownFile | None]:
    """What is shown of each file, the least specific first, in so many bytes together; None where there is no room
    even for a notice."""
    shown: list[ShownFile | None] = []
    lines = [_lines(file.text) for file in files]
    notices = [_size(_notice(file, len(parts))) for file, parts in zip(files, lines, strict=True)]
    full = False
    for file in reversed(files):
        own, parts = notices.pop(), lines.pop()
        allowed = max(room - sum(notices), min(room, own))  # those above it shall at least be named
        one = _named(file, parts, allowed) if full else _cut(file, parts, allowed)
        full = full or one is None or not one.whole
        room -= _size(one.content) if one is not None else 0
        shown.append(one)
    return shown[::-1]


def _lines(text: str) -> list[str]:
    *lines, last = text.split("\n")
    return [f"{line}\n" for line in lines] + ([last] if last else [])


def _cut(file: InstructionFile, lines: Sequence[str], room: int) -> ShownFile | None:
    heading, total = _heading(file), len(lines)
    if not file.unread and _size(heading) + _size(file.text) <= room:
        return ShownFile(file.path, heading + file.text, total, total, whole=True)
    left = room - _size(heading) - _size(_notice(file, total))
    kept = 0
    while kept < total and (left := left - _size(lines[kept])) >= 0:
        kept += 1
    if not kept:
        return _named(file, lines, room)
    content = f"{heading}{''.join(lines[:kept])}{_notice(file, total - kept)}"
    return ShownFile(file.path, content, kept, total, whole=False)


def _named(file: InstructionFile, lines: Sequence[str], room: int) -> ShownFile | None:
    notice = _notice(file, len(lines))
    return ShownFile(file.path, notice, 0, len(lines), whole=False) if _size(notice) <= room else None


def _heading(file: InstructionFile) -> str:
    path = _line(file.path)
    match file.kind:
        case "user":
            return f"# Instructions of the user, for every project ({path})\n\n"
        case "preferences":
            return f"# What the user prefers, remembered from earlier work ({path})\n\n"
        case "project":
            folder = path.rpartition("/")[0] or "/"
            return f"# Instructions for {folder} ({path}); they go before those of folders above it\n\n"


def _notice(file: InstructionFile, lines: int) -> str:
    more = "more than " if file.unread else ""
    return f"[foveal: {more}{lines:,} lines of {_line(file.path)} are not shown; read the file for the rest]"


def _line(path: str) -> str:
    """A path that cannot pass for lines of ours, whatever its folders are called."""
    return one_line(path, width=4_096)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


# ── what must be recorded ────────────────────────────────────────────────────────────────────────────────


class HeldFile(NamedTuple):
    """What the model sees of one file now, by the log."""

    seq: int
    source: str
    content: str
    first: int
    """The event that its first version came with: where it stands."""

    @property
    def withdrawn(self) -> bool:
        return self.content.startswith(WITHDRAWN)


class InstructionSet(NamedTuple):
    files: dict[str, HeldFile]
    """By slot, in the order in which they stand."""
    doubles: tuple[HeldFile, ...]
    """Shown a second time: two processes were at work on one session."""


def slot(source: str) -> str:
    """What replaces each other: the files of one folder; preferences apart from instructions."""
    folder, _, name = source.rpartition("/")
    return source if name == PREFERENCES else folder or "/"


def concerns(event: Event) -> bool:
    """Whether an event says something about the instructions that are shown."""
    fact = event.fact
    return isinstance(fact, Rewound | Reverted) or (isinstance(fact, Instructed) and _from_file(fact))


def instruction_set(log: Iterable[Event]) -> InstructionSet:
    """The files that the model sees by this log; needs only the events that `concerns` is true of."""
    live: dict[int, HeldFile] = {}
    for event in effective([event for event in log if concerns(event)]):
        fact = event.fact
        if isinstance(fact, Instructed) and (fact.replaces is None or fact.replaces in live):
            first = event.seq if fact.replaces is None else live.pop(fact.replaces).first
            live[event.seq] = HeldFile(event.seq, fact.source, text_of(fact.content), first)
    ascending = sorted(live.values(), key=lambda held: (not held.withdrawn, held.seq))
    newest = {slot(held.source): held for held in ascending}
    doubles = [held for held in live.values() if newest[slot(held.source)] is not held and not held.withdrawn]
    files = sorted(newest.items(), key=lambda item: item[1].first)
    return InstructionSet(dict(files), tuple(doubles))


def _from_file(fact: Instructed) -> bool:
    return not fact.aside and (fact.source.startswith("/") or fact.source[1:3] == ":/")


def changes(
    shown: InstructionSet, wanted: Sequence[ShownFile], gone: Mapping[str, str]
) -> tuple[Instructed, ...]:
    """The facts after which the model sees exactly what is wanted. `gone` says for a slot why its file no longer
    counts."""
    facts: list[Instructed] = []
    for one in wanted:
        old = shown.files.get(slot(one.path))
        if old is None:
            facts.append(Instructed(content=one.content, source=one.path))
        elif (old.source, old.content) != (one.path, one.content):
            facts.append(Instructed(content=one.content, source=one.path, replaces=old.seq))
    kept = {slot(one.path) for one in wanted}
    for place, old in shown.files.items():
        if place not in kept and not old.withdrawn:
            facts.append(_withdrawn(old, gone.get(place, "is not used any more")))
    return (*facts, *(_withdrawn(double, "is shown again below") for double in shown.doubles))


def _withdrawn(held: HeldFile, why: str) -> Instructed:
    return Instructed(content=f"{WITHDRAWN}{held.source} {why}]", source=held.source, replaces=held.seq)
