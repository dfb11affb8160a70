"""Detects the writing systems of a text, to compare a draft with its conversation.

1. Words are counted by the Unicode block of their letters. Code, quotes and names do not count: they keep their
   script in any language.
2. Han characters beside Kana are Japanese, beside Hangul they are Korean.
3. Languages that share a writing system are not told apart: a French draft of an English conversation passes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from typing import Final

MAX_SCRIPT_CHARS: Final = 8_000
"""Characters of a draft whose words are counted, and of the messages from which on ASCII is taken for Latin."""
MAX_SCRIPT_CHARS_PER_MESSAGE: Final = 600
MAX_SCRIPT_MESSAGES: Final = 1_000
MIN_SCRIPT_WORDS: Final = 8
"""With fewer words the script of a text is unknown."""
MIN_OWN_WORDS: Final = 3
"""Words in the messages that make a script one of the conversation's: one rule in it is enough."""
MIN_OWN_LATIN_SHARE: Final = 0.1
"""Share of the words that does the same for Latin script: technical terms are Latin in every language."""
MAX_FOREIGN_SHARE: Final = 0.6
"""Share of a draft's words that may be in scripts that the conversation does not use."""
MAX_FOREIGN_LATIN_SHARE: Final = 0.9
"""The same for Latin script."""

_BLOCKS: Final = {
    "Latin": "A-Za-zªº\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u1e00-\u1eff",
    "Greek": "\u0370-\u03ff\u1f00-\u1fff",
    "Cyrillic": "\u0400-\u052f",
    "Armenian": "\u0530-\u058f",
    "Hebrew": "\u0590-\u05ff",
    "Arabic": "\u0600-\u06ff\u0750-\u077f\u08a0-\u08ff\ufb50-\ufdff\ufe70-\ufefe",
    "Devanagari": "\u0900-\u097f",
    "Bengali": "\u0980-\u09ff",
    "Gurmukhi": "\u0a00-\u0a7f",
    "Gujarati": "\u0a80-\u0aff",
    "Tamil": "\u0b80-\u0bff",
    "Telugu": "\u0c00-\u0c7f",
    "Kannada": "\u0c80-\u0cff",
    "Malayalam": "\u0d00-\u0d7f",
    "Sinhala": "\u0d80-\u0dff",
    "Thai": "\u0e00-\u0e7f",
    "Lao": "\u0e80-\u0eff",
    "Burmese": "\u1000-\u109f",
    "Georgian": "\u10a0-\u10ff",
    "Ethiopic": "\u1200-\u137f",
    "Khmer": "\u1780-\u17ff",
    "Hangul": "\u1100-\u11ff\u3130-\u318f\uac00-\ud7a3",
    "Kana": "\u3040-\u30ff\uff66-\uff9d",
    "Han": "\u3400-\u9fff\uf900-\ufaff",
}
_UNSPACED: Final = {"Thai": 5, "Lao": 5, "Burmese": 5, "Khmer": 5, "Kana": 2, "Han": 2}
"""Letters of a word, about, in scripts that write without blanks."""
_WORDS: Final = re.compile(
    "|".join(
        f"(?P<{script}>[{letters}]{{1,{_UNSPACED.get(script, 40)}}})" for script, letters in _BLOCKS.items()
    )
)
_NOT_PROSE: Final = re.compile(
    r"```[\s\S]*?(?:```|\Z)|`[^`\n]*`|^[ \t]*[>#][^\n]*|\"[^\"\n]*\"|“[^”\n]*”|«[^»\n]*»|「[^」\n]*」|『[^』\n]*』"
    r"|[A-Za-z.-]{0,60}[0-9_./\\@:=-][A-Za-z0-9_./\\@:=-]{0,200}[A-Za-z0-9]",
    re.MULTILINE,
)
"""Code, quotes, headings, and tokens with a digit or a separator in them."""


def find_foreign_script(draft: str, messages: Iterable[str]) -> str:
    """Return the script of a draft if the conversation's messages do not use it, else ""."""
    own = _own_scripts(messages)
    words = _count_words(draft[:MAX_SCRIPT_CHARS])
    if not own or words.total() < MIN_SCRIPT_WORDS:
        return ""
    foreign = Counter({script: count for script, count in words.items() if script not in own})
    if not foreign:
        return ""
    limit = MAX_FOREIGN_LATIN_SHARE if set(foreign) == {"Latin"} else MAX_FOREIGN_SHARE
    return foreign.most_common(1)[0][0] if foreign.total() / words.total() > limit else ""


def _own_scripts(messages: Iterable[str]) -> frozenset[str]:
    """Return the scripts of the conversation, none when there are too few words to tell."""
    words: Counter[str] = Counter()
    room = MAX_SCRIPT_CHARS
    for message in islice(messages, MAX_SCRIPT_MESSAGES):
        short = message[:MAX_SCRIPT_CHARS_PER_MESSAGE]
        # Further messages in ASCII have no script that is not known yet: they are not read.
        if room > 0 or not short.isascii():
            words.update(_count_words(short))
        room -= len(short)
    if words.total() < MIN_SCRIPT_WORDS // 2:
        return frozenset()
    return frozenset(script for script, count in words.items() if _is_own(script, count, words.total()))


def _is_own(script: str, count: int, total: int) -> bool:
    return count >= (MIN_OWN_LATIN_SHARE * total if script == "Latin" else MIN_OWN_WORDS)


def _count_words(text: str) -> Counter[str]:
    """Return the number of words in each script."""
    prose = _NOT_PROSE.sub(" ", text)
    words = Counter(found.lastgroup or "" for found in _WORDS.finditer(prose))
    # A Japanese text has Kana in every sentence, a Korean one hardly any Han.
    for joined in ("Kana", "Hangul"):
        if words["Han"] and words[joined] * 8 >= words["Han"]:
            words[joined] += words.pop("Han")
    return +words
