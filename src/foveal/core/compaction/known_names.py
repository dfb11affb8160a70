"""Names in the source of a summary, and the unknown names in a draft.

1. Names are looked up in the source as substrings, ignoring case, whole or composed of two or three names that
   occur there (`Class.method`, a folder and a file).
2. What must be exact: identifiers, paths, files with an extension or a known name (`Makefile`, `.env`), handles,
   branches, ports, environment variables, flags, and single words in backquotes.
3. Plain words, hyphenated words and bare numbers do not count as names: a summary may count and compare.

The lookup takes a few milliseconds for a thousand events with a megabyte of text.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Iterator, Sequence, Set
from functools import cached_property
from typing import Final

from foveal.core.log.events import Call, Event, ModelSaid, Text, ToolReturned, UserSaid, parts
from foveal.core.view.text_facts import find_names
from foveal.core.wire import original_text

MAX_EDGE_CHARS: Final = 50_000
"""Characters at each end of a text in which names are looked up."""
MAX_UTTERANCE_CHARS: Final = 500
"""Characters of a message that are searched for rare names."""
RARE_NAME_SAMPLE: Final = 40
"""Messages, about, that are searched for rare names, evenly spaced."""

# ── Names in the source ──────────────────────────────────────────────────────────────────────────────────

_NAME_BYTES: Final = bytes(
    byte if chr(byte) in "_./:@#-" or (byte < 128 and chr(byte).isalnum()) else 32 for byte in range(256)
)
_HANDLE: Final = re.compile(r"(?<![\w./-])(e\d{1,9})(?:[-–—](e\d{1,9})|–(\d{1,9}))?(?![\w/])")
"""One handle, or the two ends of a range."""
_SEPARATOR: Final = re.compile(r"[./:#@\-]+")
_LINE_NUMBER: Final = re.compile(r"(?::\d+)+(?:-\d+)?$|#L?\d+(?:-L?\d+)?$")
_LETTER_AND_DIGIT: Final = re.compile(r"[A-Za-z]\d|\d[A-Za-z]|^[A-Z]{2,10}-\d{3,}")
_CAMEL_CASE: Final = re.compile(r"[a-z][A-Z]")
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9]\.[A-Za-z][A-Za-z0-9]{0,5}$")
_NOT_A_NAME: Final = re.compile(
    r"\d[\d.,]*-?[A-Za-z]{1,3}|\d+(?:-[a-z]+)+|[A-Za-z]+-\d{1,2}|[a-z]+\d|e\d+(?:[-–]e?\d+)*|[\d.:/\-]+|v?\d+(?:\.\d+)*\+?"
)
"""Amounts, `two-step`, `step-2`, handles, dates and versions."""
_COMMON_TERMS: Final = frozenset({
    "amd64", "arm64", "base64", "devops", "github", "gitlab", "graphql", "http2", "ipv4", "ipv6", "iso-8601",
    "javascript", "latex", "macos", "mysql", "next.js", "node.js", "oauth", "oauth2", "openai", "postgresql",
    "pypi", "python3", "sha256", "sqlite", "typescript", "utf-8", "utf8", "vue.js", "x86_64", "youtube",
})  # fmt: skip
"""Technical terms that a draft may use without a source."""
_FORMATS: Final = """
    bash cfg conf cpp css csv dll doc docx exe gif gzip hpp htm html ini ipynb jar java jpeg jpg json jsonl jsx lock
    log mjs net pdf php png pyc pyi rst scss sql svg tar toml tsv tsx txt vue wasm whl xls xlsx xml yaml yml zip
"""
_EXTENSIONS: Final = frozenset(_FORMATS.split())
"""`.json` alone speaks of a format, `.env` names a file."""
_SHORT_NAME: Final = re.compile(
    r"(?<![\w./-])(?:"
    r"(?:GNU)?[Mm]akefile|(?:Docker|Container|Jenkins|Vagrant|Proc|Gem|Rake|Pip|Brew|Caddy|Just|Task|Tilt)file"
    r"|(?:feat|feature|fix|bugfix|hotfix|release|chore|refactor|wip|dependabot|renovate|origin|upstream)/[\w.-]+(?:/[\w.-]+)*"
    r"|(?:release|hotfix|bugfix|feature|sprint|rc)-v?\d[\w.]*"
    r")(?![\w-])"
    r"|(?<![\w./\\*-])\.[A-Za-z][\w-]{2,}(?:\.[\w-]+)*"
    r"|(?<![\w-])--[A-Za-z][\w-]+"
    r"|(?<=\$)[A-Z][A-Z0-9_]+|(?<=\$\{)[A-Z][A-Z0-9_]+"
    r"|(?<![\w.-])[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+(?!\w)"
)
"""Files without an extension, branches, flags and environment variables, also below five characters."""
_PORT: Final = re.compile(
    r"(?:\bports?|puerto|порт[а-я]{0,2}|端口|ポート|포트)\W{0,3}(\d{2,5})(?!\d)"
    r"|(?:\blocalhost|\d\.\d{1,3}|(?<![\w)\].:])):(\d{2,5})(?![\w:.])",
    re.IGNORECASE,
)
_BACKQUOTED: Final = re.compile(r"(?<!`)`\$?([A-Za-z_.~][A-Za-z0-9_./:@#+-]{2,79})(?:\(\))?`(?!`)")


class KnownNames:
    """The names a draft may use: those in its events, in further texts, and those shown elsewhere."""

    def __init__(
        self, events: Sequence[Event], *, also: Iterable[str] = (), elsewhere: Set[str] = frozenset()
    ) -> None:
        self.events = events
        self.also: tuple[str, ...] = tuple(also)
        self.elsewhere = elsewhere

    @cached_property
    def _bytes(self) -> bytes:
        """All texts in lower case; user and model messages come first, since most names are found there."""
        texts = sorted(map(_source_text, self.events), key=lambda pair: pair[0])
        joined = "\n".join((*(text for _, text in texts), *self.also))
        return joined.encode("utf-8", "surrogatepass").lower()

    @cached_property
    def _joined(self) -> bytes:
        """The same with words joined by underscores only."""
        return self._bytes.replace(b"-", b"_").replace(b" ", b"_")

    @cached_property
    def _shown(self) -> frozenset[str]:
        return frozenset(name.lower() for name in self.elsewhere)

    @cached_property
    def rare_names(self) -> frozenset[str]:
        """Names that the user or the model wrote in one or two messages only.

        They mattered, and other lines are unlikely to repeat them. Names that are shown elsewhere are not lost and
        do not count."""
        # About half of all events are such messages, often every second one: the stride is odd.
        some = self.events[:: 1 | len(self.events) // (2 * RARE_NAME_SAMPLE)]
        messages = [event for event in some if isinstance(event.fact, (UserSaid, ModelSaid))]
        counts: collections.Counter[bytes] = collections.Counter()
        for event in messages:
            text = _message_text(event)[:MAX_UTTERANCE_CHARS].encode("utf-8", "surrogatepass")
            counts.update(set(text.translate(_NAME_BYTES).split()))
        found: collections.Counter[str] = collections.Counter()
        for times in (1, 2):
            # Words are searched together, without the many short ones that are plain lower case and so no names.
            words = (word for word, count in counts.items() if count == times and not _is_plain(word))
            for name in find_names(b" ".join(words).decode()):
                found[name] += times
        return frozenset(name for name, times in found.items() if times <= 2 and name not in self.elsewhere)

    def unknown_names(self, text: str) -> Iterator[str]:
        """Yield the names in a text that do not occur here, and handles of events that do not exist."""
        last = max((event.seq for event in self.events), default=0)
        for found in dict.fromkeys(end for ends in _HANDLE.findall(text) for end in ends if end):
            if int(found.lstrip("e")) > last and not self._has_word(found):
                yield found
        for name in dict.fromkeys((*_identifiers(text), *_backquoted_names(text))):
            if not (self._has(name) or self._is_composed(name) or self._has_variant(name)):
                yield name
        for name in dict.fromkeys(_short_names(text)):
            if not (self._has_word(name) or name.lower() in self._shown):
                yield name

    def _has(self, name: str) -> bool:
        return name.lower().encode() in self._bytes or name.lower() in self._shown

    def _has_variant(self, name: str) -> bool:
        return name.lower().replace("-", "_").encode() in self._joined

    def _has_word(self, word: str) -> bool:
        """Return whether a word occurs on its own, judged by its first 100 occurrences."""
        searched, at = word.lower().encode(), -1
        for _ in range(100):
            at = self._bytes.find(searched, at + 1)
            around = (
                self._bytes[max(0, at - 1) : at] + self._bytes[at + len(searched) : at + len(searched) + 1]
            )
            if at < 0 or not any(chr(byte).isalnum() or byte == 95 for byte in around):
                return at >= 0
        return False

    def _is_composed(self, name: str) -> bool:
        """Return whether a name is composed of at most three names that occur, or is the plural of one."""
        if not _SEPARATOR.search(name.strip("./:#@-")):
            return len(name) > 5 and name.endswith("s") and self._has(name[:-1])
        used, rest = 0, name.strip("./:#@-")
        while rest and used < 3:
            cuts = [len(rest), *(found.start() for found in reversed(list(_SEPARATOR.finditer(rest))))]
            end = next((end for end in cuts if self._has_component(rest[:end])), 0)
            if not end:
                return False
            used, rest = used + 1, rest[end:].lstrip("./:#@-")
        return not rest

    def _has_component(self, name: str) -> bool:
        return self._has(name) and (len(name) > 3 or self._has_word(name))


def score_summary(summary: str, known: KnownNames) -> float | None:
    """Return the share of the source's rare names that occur in a summary; None when the source has none."""
    rare = known.rare_names
    return sum(name in summary for name in rare) / len(rare) if rare else None


def _is_plain(word: bytes) -> bool:
    return len(word) < 9 and word.isalpha() and word.islower()


def _source_text(event: Event) -> tuple[bool, str]:
    """Return whether an event is a tool result, and its text, reduced to both ends if it is long."""
    text = original_text(event.fact)
    short = text if len(text) <= 2 * MAX_EDGE_CHARS else text[:MAX_EDGE_CHARS] + "\n" + text[-MAX_EDGE_CHARS:]
    return isinstance(event.fact, ToolReturned), short


def _message_text(event: Event) -> str:
    """Return the text of a user or model message, with the arguments of calls."""
    fact = event.fact
    if not isinstance(fact, UserSaid | ModelSaid):
        return ""
    said = (part for part in parts(fact.content) if isinstance(part, Text | Call))
    return "\n".join(part.text if isinstance(part, Text) else part.arguments for part in said)


def _identifiers(text: str) -> Iterator[str]:
    """Yield the names in a text that look like code, files or ids, and so must be exact."""
    for found in find_names(text):
        for name in (found,) if "://" in found else found.replace("::", "/").split(":"):
            name = (
                _LINE_NUMBER.sub("", name).strip(".:-#/@")
                if not name.startswith("/")
                else _LINE_NUMBER.sub("", name)
            )
            if is_code_like(name):
                yield name


def _backquoted_names(text: str) -> Iterator[str]:
    """Yield the single words in backquotes: a draft that marks a word as code must have it from somewhere."""
    for found in _BACKQUOTED.findall(text):
        name = _LINE_NUMBER.sub("", found).strip(".:-#@")
        if name.lower() not in _COMMON_TERMS and not _NOT_A_NAME.fullmatch(name):
            yield name


def _short_names(text: str) -> Iterator[str]:
    """Yield the names in a text that are too short or too plain for `_identifiers`, and the numbers of ports."""
    for found in _SHORT_NAME.finditer(text):
        name = found.group().rstrip(".-/")
        if not (name.startswith(".") and name[1:].lower() in _EXTENSIONS):
            yield name
    for ends in _PORT.findall(text):
        yield from filter(None, ends)


def is_code_like(name: str) -> bool:
    """Return whether a name looks like code, a file or an id, and so must be exact."""
    if len(name) < 5 or name.lower() in _COMMON_TERMS or _NOT_A_NAME.fullmatch(name):
        return False
    if "_" in name or _CAMEL_CASE.search(name) or _FILE_NAME.search(name):
        return True
    return (
        bool(_LETTER_AND_DIGIT.search(name))
        or (name.startswith("/") and name.count("/") > 1)
        or name.count("/") > 2
    )
