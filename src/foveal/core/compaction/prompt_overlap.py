"""Finds drafts that repeat the instructions for writing a summary instead of following them.

Small models do this. Words are compared in phrases of four, without case, punctuation, numbers and line breaks, so
a copy with small changes is found as well.

1. A draft, or one of its sections, must not consist of the texts, the built-in ones or the user's prompt.
2. No sentence of a built-in text may stand among other words. A sentence of the user's prompt may: it can contain
   facts that belong into a summary.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Final

from foveal.core.compaction.draft_text import is_heading

PHRASE_WORDS: Final = 4
"""Words of the phrases that are compared."""
MAX_COPIED_SHARE: Final = 0.2
"""Share of a draft's words that may be copied from the prompt; recorded summaries and answers have at most 0.05."""
MAX_COPIED_SECTION_SHARE: Final = 0.6
"""The same for one section."""
MIN_COPIED_WORDS: Final = 8
"""Fewer words that are also in the prompt are a coincidence."""
MAX_COPIED_RUN_WORDS: Final = 8
"""Words in a row that may be copied from a built-in text; recorded summaries and answers have at most 4."""

_WORD: Final = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]|[^\W\d_]+")
"""A word, or one character of a script that writes without blanks."""
_PLACEHOLDER: Final = re.compile(r"\{[a-z]+\}")


class PromptPhrases:
    """The phrases of the texts that a writer is given as instructions."""

    def __init__(self, texts: Iterable[str] = (), *, built_in: Iterable[str] = ()) -> None:
        self.texts: tuple[str, ...] = tuple(texts)
        self.built_in: tuple[str, ...] = tuple(built_in)

    @cached_property
    def _phrases(self) -> frozenset[tuple[str, ...]]:
        return self._built_in_phrases | _phrases_of(self.texts)

    @cached_property
    def _built_in_phrases(self) -> frozenset[tuple[str, ...]]:
        return _phrases_of(self.built_in)

    def is_repeated_in(self, draft: str) -> bool:
        """Return whether a draft, or one of its sections, consists of the prompt's text or has a sentence of it."""
        sections = [_words(section) for section in _sections(draft)]
        whole = [word for section in sections for word in section]
        return (
            self._is_copied(whole, MAX_COPIED_SHARE)
            or any(self._is_copied(section, MAX_COPIED_SECTION_SHARE) for section in sections)
            or any(map(self._has_copied_run, sections))
        )

    def _has_copied_run(self, words: Sequence[str]) -> bool:
        """Return whether too many words in a row are in phrases of a built-in text."""
        run = 0
        for phrase in _phrases(words):
            run = run + 1 if phrase in self._built_in_phrases else 0
            if run + PHRASE_WORDS - 1 > MAX_COPIED_RUN_WORDS:
                return True
        return False

    def _is_copied(self, words: Sequence[str], max_share: float) -> bool:
        """Return whether too many of the words belong to a phrase of the prompt."""
        copied: set[int] = set()
        for place, phrase in enumerate(_phrases(words)):
            if phrase in self._phrases:
                copied.update(range(place, place + PHRASE_WORDS))
        return len(copied) >= max(MIN_COPIED_WORDS, max_share * len(words))


def _phrases_of(texts: Iterable[str]) -> frozenset[tuple[str, ...]]:
    bodies = (_PLACEHOLDER.sub(" ", _body(text.split("\n"))) for text in texts)
    return frozenset(phrase for body in bodies for phrase in _phrases(_words(body)))


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _phrases(words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    return zip(*(words[start:] for start in range(PHRASE_WORDS)), strict=False)


def _body(lines: Sequence[str]) -> str:
    """Return the lines without headings, which a draft is asked to copy."""
    return "\n".join(line for line in lines if not is_heading(line))


def _sections(text: str) -> Iterator[str]:
    lines: list[str] = []
    for line in text.split("\n"):
        if is_heading(line):
            yield "\n".join(lines)
            lines = []
        else:
            lines.append(line)
    yield "\n".join(lines)
