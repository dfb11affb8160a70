"""Removes from a draft what a model says about the user: a summary speaks about work.

What the user permits, forbids, decides and reveals is quoted from the log (`ledger.user_requests`). Sentences of a
model about it are removed, true or not:

1. sentences about the user, or addressed to the reader or the agent;
2. sentences about a will: a rule, a permission, a prohibition, an agreement, a request, a confirmation;
3. sentences that tell a password or a key;
4. orders to do what needs the user's word: delete, disable, skip, push, publish;
5. what stands under a heading, or in the list after a line, that was removed.

Names of code do not count, nor do words that are parts of a program ("the user table", "a lint rule"). Invisible
characters, markup, compatible letters and letters of another script that look the same make no difference.

Sentences are judged by their words, in ten languages (`user_sentence_words`). In doubt a sentence is removed: the
user's words are in the record anyway, and the model's are in the log.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from foveal.core.compaction import user_sentence_words as words

EMPTY_SECTION: Final = "-"
"""Stands in a section of which nothing is left."""
MAX_READ_CHARS: Final = 1_000
"""Characters of a sentence that are read at once; a longer one is read in parts."""
OVERLAP_CHARS: Final = 100
"""Characters that two parts share."""
_END_CHARS: Final = 40
"""Characters at the end of a sentence in which its last mark is looked for."""
_INVISIBLE: Final = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\U000e0000-\U000e0fff]"
)
_MARKUP_TAG: Final = re.compile(r"<!--.*?-->|</?[A-Za-z][^<>\n]{0,200}>", re.DOTALL)
_EMPHASIS: Final = re.compile(r"[*~]+|(?<![^\W_])_+|_+(?![^\W_])|\\(?=\W)")
_SPACED_LETTERS: Final = re.compile(r"(?<!\w)(?:[^\W\d_][ .·-]){3,}[^\W\d_](?!\w)")
_CODE_SPAN: Final = re.compile(r"`+([^`\n]+)`+")
_FILE_ENDINGS: Final = (
    "py|pyi|js|jsx|mjs|ts|tsx|go|rs|rb|java|kt|c|h|cc|cpp|hpp|cs|php|sh|bash|ps1|sql|db|sqlite|jsonl?|ya?ml|toml|ini|cfg|conf"
    "|env|md|rst|txt|csv|html?|s?css|xml|lock|logs?|gz|zip|png|svg|vue|swift|scala|proto|tf|patch|diff"
)
_CODE: Final = re.compile(
    r"https?://\S+|(?<![\w.@+/~-])(?:[~.]{0,2}(?:/[\w.@+-]+){2,}/?|[\w.@+-]+(?:/[\w.@+-]+)*/[\w@+-]+\.\w{1,5}\b"
    rf"|[\w-]+(?:/[\w.-]+){{2,}}|[\w.-]{{0,80}}[\w-]\.(?:{_FILE_ENDINGS})\b(?::\d+)*|\.(?:{_FILE_ENDINGS}|git\w*)\b)"
    r"|\b\w[\w.]{0,80}\([\w.,\"'=*]{0,80}\)|\b\w*[^\W_]_+[^\W_]\w*(?:\.\w+)*|\b\w*[a-z][A-Z]\w*|\b\w+(?:\.\w+){2,}"
    r"|(?<!\S)--[a-z][\w-]*|\$\{?\w+\}?"
)
"""Paths, file names, calls and identifiers."""
_HANDLE: Final = re.compile(r"\be\d+(?:[-–]e?\d+)?\b")
_LOOKALIKES: Final = str.maketrans("асекморртухііѕјԁһνοαερτυιкзвнԛ", "acekmopptyxiisjdhvoaeptuikzbhq")
"""Letters of other scripts that look like Latin ones."""
_WORD: Final = re.compile(r"\w+")
_HEADING: Final = re.compile(r"[ \t>]*(#{1,6})[ \t]")
_BOLD_LINE: Final = re.compile(r"[ \t>]*(?:\*\*|__)[^*_\n]+(?:\*\*|__):?[ \t]*$")
_MARKER: Final = re.compile(r"[ \t>]*(?:(?:[-*+•–—·]|\d{1,3}[.)]|[a-z][.)])[ \t]+)?(?:\[[ xX]\][ \t]*)?")
_FENCE: Final = re.compile(r"[ \t>]*(?:```|~~~)")
_SENTENCE: Final = re.compile(r".+?(?:[.!?…]+[\"')\]*_`”»]*(?=\s|$)\s*|;\s+|[；。！？]+[」』”]?\s*|$)")
_UNFINISHED: Final = re.compile(r"[^.!?…。！？;；\"')\]`*_|”»\s][\"')\]*_`]*\s*$")
_LEAD_END: Final = re.compile(r"[:：][\s*_`)]*$")


def remove_user_sentences(text: str, *, headings: Collection[str] = ()) -> tuple[str, int]:
    """Return a draft without what it says about the user, and how many sentences were removed.

    The `headings` are those that were asked for: they stay, and a section without any other text has a dash."""
    removal = _Removal(frozenset(_heading_words(heading) for heading in headings))
    blocks = [removal.keep(block) for block in _split_blocks(text)]
    lines = "".join(filter(None, blocks)).split("\n")
    return _with_dashes(lines, removal.asked), removal.count


def is_about_user(sentence: str) -> bool:
    """Return whether a sentence is about the user or a will, tells a secret, or orders what needs permission."""
    step = MAX_READ_CHARS - OVERLAP_CHARS
    parts = range(0, max(1, len(sentence) - OVERLAP_CHARS), step)
    return any(_is_part_about_user(sentence[start : start + MAX_READ_CHARS]) for start in parts)


def _is_part_about_user(sentence: str) -> bool:
    text, has_code = _readable(sentence)
    plain = words.TECHNICAL.sub(words.CODE_MARK, text)
    if any(pattern.search(plain) for pattern in _ALWAYS) or words.SECRET_TOLD.search(plain):
        return True
    is_report = has_code and words.WORK_REPORT.search(text) is not None
    if words.AMBIGUOUS_WILL.search(plain) and not is_report:
        return True
    return not has_code and words.DUTY.search(plain) is not None


_ALWAYS: Final = (
    words.USER, words.SUBJECT_USER, words.ADDRESS, words.WILL, words.RULE_START, words.GUARDED_ORDER
)  # fmt: skip


# ── Reading a sentence ───────────────────────────────────────────────────────────────────────────────────


def _readable(sentence: str) -> tuple[str, bool]:
    """Return a sentence as `user_sentence_words` expects it, with a mark for code, and whether it has code."""
    text = unicodedata.normalize("NFKC", html.unescape(sentence))
    text = _MARKUP_TAG.sub("", _INVISIBLE.sub("", text))
    text = _CODE_SPAN.sub(_code_or_prose, text)
    text, names = _CODE.subn(f" {words.CODE_MARK} ", text)
    has_code = names > 0 or words.CODE_MARK in text
    text = _HANDLE.sub(" ", text)
    text = _EMPHASIS.sub("", _MARKER.sub("", text, count=1))
    text = _SPACED_LETTERS.sub(lambda found: re.sub(r"[ .·-]", "", found[0]), text)
    return " ".join(words.fold(_WORD.sub(_latin, text)).split()), has_code


def _code_or_prose(found: re.Match[str]) -> str:
    """Return a mark for a code span, but its text if it consists of plain words."""
    inside = found[1].strip()
    is_prose = re.fullmatch(r"[^\W\d_]+(?:['’ ,.!?-]+[^\W\d_]+)*[.!?]?", inside) and not _CODE.search(inside)
    return inside if is_prose else f" {words.CODE_MARK} "


def _latin(found: re.Match[str]) -> str:
    """Return a word with letters of two scripts in one."""
    word = found[0]
    if word.isascii() or not re.search("[A-Za-z]", word):
        return word
    return word.casefold().translate(_LOOKALIKES)


# ── Splitting a draft ────────────────────────────────────────────────────────────────────────────────────


class _DraftBlock(NamedTuple):
    """A heading, a list item with its further lines, a paragraph, a line of code, or blank lines."""

    text: str
    """With its line breaks."""
    kind: str
    """`heading`, `item`, `text`, `code` or `blank`."""
    depth: int = 0
    """The level of a heading, or the indent of an item."""


def _split_blocks(text: str) -> list[_DraftBlock]:
    blocks: list[_DraftBlock] = []
    is_code = False
    for line in (text + "\n").splitlines(keepends=True):
        is_fence = _FENCE.match(line) is not None
        if is_fence:
            is_code = not is_code
        last = blocks[-1] if blocks else None
        block = _DraftBlock(line, "code") if is_code or is_fence else _read_line(line)
        if (
            block.kind == "text"
            and last
            and last.kind in ("text", "item")
            and not line.lstrip(" \t>").startswith("|")
        ):
            blocks[-1] = last._replace(text=last.text + line)
        else:
            blocks.append(block)
    return blocks


def _read_line(line: str) -> _DraftBlock:
    if not line.strip(" \t>\n"):
        return _DraftBlock(line, "blank")
    if found := _HEADING.match(line):
        return _DraftBlock(line, "heading", len(found[1]))
    if _BOLD_LINE.match(line):
        return _DraftBlock(line, "heading", 7)
    marker = _MARKER.match(line)
    if marker and marker[0].strip(" \t>"):
        return _DraftBlock(line, "item", len(line) - len(line.lstrip(" \t>")))
    return _DraftBlock(line, "text")


def _split_sentences(block: str) -> list[str]:
    """Return the sentences of a block; joined they are the block. A line that begins a new sentence is one too."""
    units: list[str] = []
    for line in block.splitlines():
        marker = _MARKER.match(line)
        start = marker.end() if marker else 0
        sentences = _SENTENCE.findall(line[start:]) or [""]
        sentences[0] = line[:start] + sentences[0]
        sentences[-1] += "\n"
        if units and line[start : start + 1].islower() and _is_unfinished(units[-1]):
            units[-1] += sentences.pop(0)
        units += sentences
    return units


# ── Removing ─────────────────────────────────────────────────────────────────────────────────────────────


class _Removal:
    """The removal from one draft, block by block."""

    def __init__(self, asked: frozenset[str]) -> None:
        self.asked = asked
        """Headings that were asked for, in comparable form."""
        self.count: int = 0
        self._heading_depth = 0
        """The level of the removed heading above, 0 if there is none."""
        self._lead_depth: int | None = None
        """The indent of the removed line above that announces what follows."""
        self._announced = ""
        """The kind of the blocks that it announces: those of a list, of a code block, or one paragraph."""

    def keep(self, block: _DraftBlock) -> str:
        """Return what stays of the next block."""
        if block.kind == "blank":
            return block.text
        if block.kind == "heading":
            return self._keep_heading(block)
        if self._heading_depth or self._is_below_lead(block):
            self.count += len(_split_sentences(block.text))
            return ""
        self._lead_depth = None
        if block.kind == "code":
            return self._keep_line(block.text)
        return self._keep_sentences(block)

    def _keep_heading(self, block: _DraftBlock) -> str:
        self._lead_depth = None
        if _heading_words(block.text) in self.asked:
            self._heading_depth = 0
            return block.text
        if self._heading_depth and block.depth > self._heading_depth:
            self.count += 1
            return ""
        self._heading_depth = block.depth if is_about_user(block.text) else 0
        self.count += bool(self._heading_depth)
        return "" if self._heading_depth else block.text

    def _is_below_lead(self, block: _DraftBlock) -> bool:
        if self._lead_depth is None or self._announced not in ("", block.kind) or self._announced == "text":
            return False
        if not self._announced and block.kind == "item":
            # A list may stand at the indent of the item that announces it.
            self._lead_depth = min(self._lead_depth, block.depth - 1)
        self._announced = block.kind
        return block.kind != "item" or block.depth > self._lead_depth

    def _keep_line(self, line: str) -> str:
        if not is_about_user(line):
            return line
        self.count += 1
        return ""

    def _keep_sentences(self, block: _DraftBlock) -> str:
        sentences = _split_sentences(block.text)
        removed = list(_removed(sentences))
        if not any(removed):
            return block.text
        self.count += sum(removed)
        if removed[-1] and _LEAD_END.search(sentences[-1][-_END_CHARS:]):
            self._lead_depth, self._announced = (block.depth if block.kind == "item" else -1), ""
        marker = _MARKER.match(block.text)
        start = marker[0] if marker and removed[0] else ""
        rest = ""
        for sentence, is_removed in zip(sentences, removed, strict=True):
            if not is_removed:
                rest += sentence
            elif sentence.endswith("\n") and rest.strip() and not rest.endswith("\n"):
                rest = rest.rstrip() + "\n"
        if not re.search(r"\w", rest):
            return ""
        rest = rest.rstrip()
        rest = rest[:-1] + "." if removed[-1] and rest.endswith(";") else rest
        return start + rest.lstrip(" \t" if start else "") + "\n"


def _removed(sentences: list[str]) -> Iterator[bool]:
    """Yield for each sentence whether it goes: by itself, or as the rest of an unfinished line before it."""
    found = [is_about_user(sentence) for sentence in sentences]
    for place, sentence in enumerate(sentences):
        before = sentences[place - 1] if place and _is_unfinished(sentences[place - 1]) else ""
        after = sentences[place + 1] if place + 1 < len(sentences) and _is_unfinished(sentence) else ""
        yield (
            found[place]
            or (bool(before) and (found[place - 1] or is_about_user(f"{before} {sentence}")))
            or (bool(after) and not found[place + 1] and is_about_user(f"{sentence} {after}"))
        )


def _is_unfinished(sentence: str) -> bool:
    return _UNFINISHED.search(sentence[-_END_CHARS:]) is not None


def _heading_words(line: str) -> str:
    return " ".join(re.findall(r"\w+", words.fold(line)))


def _with_dashes(lines: list[str], asked: frozenset[str]) -> str:
    """Return the lines with a dash in each section that was asked for and has none left."""
    kept: list[str] = []
    is_empty = False
    for line in (*lines, "#"):
        is_heading = line.lstrip().startswith("#") or _heading_words(line) in asked
        if is_heading and is_empty:
            while kept and not kept[-1].strip():
                kept.pop()
            kept += [EMPTY_SECTION, ""]
        if line.strip():
            is_empty = _heading_words(line) in asked if is_heading else False
        kept.append(line)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept[:-1])).strip()
