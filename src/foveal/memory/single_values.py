"""Statements that have only one value at a time, such as a name: the later one counts.

    single_value("My name is Ada.")              → ("name", "Ada", True)
    single_value("We use pytest for tests.")     → ("use for tests", "pytest", False)

The statements of one conversation stay side by side unless one of them says that something changed. In a
memory, a person has one name. Recognition is conservative, because a wrong pair hides an entry: the sentence must
say that one thing, without a condition, an addition or a second statement.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

MAX_VALUE_WORDS: Final = 8
_NOUNS: Final = (
    r"name|birthday|birth ?date|date of birth|age|pronouns|e-?mail|e-?mail address|phone|phone number|address"
    r"|time ?zone|job|job title|role|title|position|profession|employer|native language|user ?name|locale"
)
_BEGINNINGS: Final[Mapping[str, str]] = {
    "name": r"i'm called|i am called|mein name ist|ich hei(?:ß|ss)e|je m'appelle|mon nom est|me llamo|mi nombre es"
    r"|(?:o )?meu nome é|(?:eu )?me chamo|chamo-me|меня зовут|мо[её] имя|我叫|我的名字[叫是]|私の名前は",
    "birthday": r"i was born on|mein geburtstag ist|mon anniversaire est|mi cumpleaños es|(?:o )?meu aniversário é"
    r"|мой день рождения|我的生日是|私の誕生日は",
    "home": r"i live in|ich wohne in|j'habite à|vivo en|moro em|я живу в|我住在",
    "job": r"i work as|ich arbeite als|je travaille comme|trabajo como|trabalho como",
    "employer": r"i work (?:for|at)|ich arbeite (?:bei|für)|je travaille (?:pour|chez)|trabajo (?:para|en)",
    "email": r"meine e-?mail(?:-adresse)? ist|mon (?:e-?mail|adresse e-?mail) est|mi correo es|meu e-?mail é",
}
"""How statements about the user begin, by their subject."""
_ABOUT_USER: Final = re.compile(
    "|".join(f"(?P<{subject}>{begin})" for subject, begin in _BEGINNINGS.items())
    + rf"|(?:my|our) (?P<noun>(?:(?!not\b)[\w'-]+ ){{0,2}}?(?:{_NOUNS})|favou?rite [\w-]+) is",
    re.IGNORECASE,
)
_TOOL: Final = re.compile(
    r"(?:we|i) (?:now )?use (?P<value>[\w.+#-]+(?: [\w.+#-]+)?) for (?P<purpose>[\w .'-]+)", re.IGNORECASE
)
_NOW: Final = re.compile(r",? (?:now|from now on|as of today|these days)$", re.IGNORECASE)
_MORE: Final = re.compile(
    r"[,;:!?，、；：！？]|\b(?:and|or|but|not|also|too|as well|if|when|while|unless|except|only|sometimes|here|this"
    r"|und|oder|aber|nicht|auch|wenn|et|ou|mais|pas|aussi|si|y|pero|también|e|mas|também|и|или|но|не|если|также)\b"
    r"|[和也不]",
    re.IGNORECASE,
)
"""What makes a sentence more than one plain statement."""
_PLACES: Final = re.compile(r"\b(?:in|on|at|for|during|within)\b", re.IGNORECASE)
"""Where a name holds, if not everywhere: "my name is Bob in the tests"."""


_NAMED: Final = frozenset({"name", "home", "employer"})
"""Subjects whose values are names: "I live in fear of merges" and "I work at night" give none."""


class SingleValue(NamedTuple):
    """What a statement gives one value to."""

    subject: str
    value: str
    is_about_user: bool
    """Whether it describes the user, and asks for nothing."""


def single_value(text: str) -> SingleValue | None:
    """Return what a statement gives its one value to; None if it is another kind of statement."""
    sentence = _NOW.sub("", text.strip().rstrip(".。"))
    if found := _ABOUT_USER.match(sentence):
        noun = found["noun"]
        subject = re.sub("[ -]", "", noun).casefold() if noun else str(found.lastgroup)
        value = sentence[found.end() :].strip()
        is_plain = subject != "name" or not _PLACES.search(value)
        is_plain = is_plain and not (subject in _NAMED and value[:1].islower())
        is_plain = is_plain and (subject != "birthday" or any(map(str.isdigit, value)))
        return SingleValue(subject, value, is_about_user=True) if is_plain and _is_one_value(value) else None
    if (found := _TOOL.fullmatch(sentence)) and _is_one_value(f"{found['value']} {found['purpose']}"):
        return SingleValue(f"use for {found['purpose'].casefold()}", found["value"], is_about_user=False)
    return None


def _is_one_value(text: str) -> bool:
    return 0 < len(text.split()) <= MAX_VALUE_WORDS and _MORE.search(text) is None
