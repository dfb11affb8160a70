"""Checks that words are the user's own, and cleans the texts of entries.

1. Only messages of the user are a source, never results of tools, files, instructions or texts of the model. In a
   message of the user, attached files and pasted text (code, logs, quoted mails, reports of tools) are none either.
   Short pasted text cannot be told from typed text, so only a message of `MAX_TYPED_LINES` lines and one part is
   surely the user's (`is_surely_typed`); what is said in a longer one is proposed, not kept.
2. A quote stands for the whole sentences in which it was said: a part of one may say the opposite.
3. What follows "Bob wrote:", "here is the log:" or "translate this." is not the user's (`foreign_spans`).
4. Texts are compared and kept in NFC and on one line, without control, invisible and bidirectional characters.
   Other characters that look alike stay different, so a quote with them is not found.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from foveal.core.compaction.ledger.pasted_text import is_harness_text, is_pasted_line, pasted_spans
from foveal.core.compaction.standing.rules import find_rules
from foveal.core.compaction.standing.statements import find_sentences, split_sentences
from foveal.core.log.events import ATTACHED_MARK, Content, Event, Text, UserSaid, text_of
from foveal.core.wire.safe_print import TERMINAL_SEQUENCE
from foveal.errors import BadSetting, NotRemembered
from foveal.memory.facts import EntryKind
from foveal.memory.single_values import single_value

MAX_ENTRY_CHARS: Final = 500
"""Characters of one entry."""
MAX_TYPED_LINES: Final = 2
"""Lines of a message that is surely typed, without empty ones."""
_MIN_QUOTED_CHARS: Final = 6
"""Letters and digits of a quote; half of them in scripts with more meaning per character."""
_AROUND_CHARS: Final = 1_500
"""Characters before and after a quote in which the ends of its sentences are looked for."""
_INVISIBLE: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Cs"})
_FILLERS: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Letters and marks that are drawn as nothing."""
_ANNOUNCED: Final = re.compile(
    r"""(?:
      (?<!\bi\ )(?<!\bwe\ )(?<!\bich\ )(?<!\bwir\ )(?<!\bje\ )(?<!j'ai\ )(?<!\byo\ )(?<!\beu\ )(?<!\bя\ )
      \b(?:wrote|writes|says|said|replied|commented|posted|schrieb|schreibt|sagt|sagte|meint|a\ écrit|écrit|a\ dit
        |escribió|escribe|dijo|dice|escreveu|escreve|disse|diz|ha\ scritto|scrive|написал|написала|пишет|сказал
        |сказала|говорит)(?:\ (?:to\ me|me|mir|that|this|today|yesterday|earlier|heute|gestern))?\s*:
    | (?<![我私])(?:写道|写着|说道|说|寫道|と書いて(?:い(?:ます|る))?|と言って(?:い(?:ます|る))?)\s*[：:]
    | (?:^|(?<=[.!?\n]))[ \t]{0,8}(?:please\ )?(?:translate|proofread|rephrase|rewrite|correct|fix
        |summari[sz]e|explain|übersetze|korrigiere|traduis|corrige|traduce|resume|traduza|resuma|переведи|исправь)
      \b(?!\ (?:and|then)\b)(?:\ [^\n:.!?]{1,40})?\s*:
    | (?:^|(?<=[.!?\n])|\bhere(?:['’]s|\ is|\ are)|\bthis\ is|\bbelow\ is|\bhier\ ist|\bvoici|\baquí\ está
        |\baqui\ está|\becco|\bвот|这是|以下是|これは)
      \s{0,8}(?:(?:the|a|an|their|his|her|die|der|das|eine|ein|le|la|un|une|el|una|o|a|um|uma|il)\ )?
      (?:\w+(?:['’]s)?\ ){0,2}?
      (?:e-?mail|mail|message|letter|logs?|log\ file|output|traceback|stack\ trace|transcript|readme|documentation
        |docs|article|thread|ticket|issue|review|comment|page|quote|quotation|zitat|citation|cita|цитата
        |web\ ?site|nachricht|brief|ausgabe|protokoll|courriel|lettre
        |journal|sortie|correo|mensaje|carta|salida|registro|mensagem|saída|messaggio|письмо|сообщение|лог|вывод
        |error|error\ message|邮件|日志|消息|メール|ログ)
      (?:\ (?:from|by|of|in|at|that|which|i\ got|we\ got|von|vom|de|du|da|do|dal|от|из)\b[^\n:.!?]{1,60})?
      (?:\ is)?\s{0,4}[：:]
    )\Z""",
    re.IGNORECASE | re.VERBOSE | re.MULTILINE,
)
"""What announces words of others, or words to work on: "Bob wrote:", "here is the mail from Bob:", "translate:"."""
_HANDED_OVER: Final = re.compile(
    r"""(?:^|(?<=[.!?\n。？！]))\s*(?:
      (?:(?:please|can\ you|could\ you|bitte|kannst\ du)\ )*
        (?:translate|proofread|rephrase|rewrite|correct|summari[sz]e|übersetze?|korrigiere?|traduis|traduisez
        |corrige[sz]?|relis|résume|traduce|traduza|traduz|resume|переведи(?:те)?|исправь(?:те)?)\ (?:\w+\ )?
        (?:this|that|it|these|following|das|dies(?:en)?|diesen?|folgende\w*|cette|ceci|ça|ce|esto|esta|este|isto|isso|это|этот|эту)\b[^\n.!?:]{0,40}
    | is\ (?:this|that|it)\ (?:an?\ )?(?:phishing|scam|spam|fraud|fake|legit\w*)\b[^\n.!?]{0,20}
    | (?:how|what)\ (?:do|does|would|can)\ (?:i|you|one|this|that|it)\ (?:say|translate|mean|put)\b[^\n.!?]{0,40}
    | (?:请|請|帮我|幫我)*(?:翻译|翻譯|校对|修改|总结)[^\n。？！：:]{0,12}
    | [^\n。？！：:]{0,12}(?:翻訳|添削|校正|要約)して[^\n。？！：:]{0,8}
    | (?:subject|from|betreff|von|objet|asunto|assunto|тема|件名|主题)\ ?(?=[:：])
    | [^\n:：.!?]{0,40}\b(?:message|mail|e-?mail|note|nachricht|courriel|correo|mensaje|mensagem|письмо|сообщение)
        \ (?:from|by|von|de|от)\ [^\n:.!?]{1,40}(?=\n)
    | \w+(?:\ \w+)?,?\ [\[(]?\d{1,2}:\d{2}(?:\ ?[ap]m)?[\])]?(?=\n)
    )\s*[:：.!?\n。？！]""",
    re.IGNORECASE | re.VERBOSE,
)
"""A sentence that hands over text to work on, or the head of a message of others."""
_ANNOUNCED_CHARS: Final = 160
"""Characters before a colon that are read for it."""
_MAX_COLONS_READ: Final = 200
_REPORTS: Final = re.compile(
    r"\W*(?:(?:according to|laut|selon|según|segundo|secondo|по словам"
    r"|he|she|they|his|her|their|er|il|elle|él|ella|ele|ela|он|она|они)\b"
    r"|(?!(?:i|we|you|ich|wir|je|j|nous|yo|eu|я|мы)\b)(?:[\w.'’-]+\s+){1,4}?(?<!\bi )(?<!\bwe )"
    r"(?:says?|said|wrote|writes|thinks?|claims?|tells|told|asks|asked|replied|sagt|sagte|schreibt|schrieb|dit|écrit|dice|dijo|escribió|disse|diz|escreveu"
    r"|говорит|сказал|сказала|пишет|написал|написала)\b)",
    re.IGNORECASE,
)
"""Sentences about what others said: "Bob told me that …"."""
_REPORTED: Final = re.compile(
    r", ?(?:says|said|wrote|sagt|sagte|dit|dice|disse|diz) (?:the |my |[A-Z])\w+\W*$"
)
_PREFERENCES: Final = re.compile(
    r"\b(?:i(?:'d| would)? (?:prefer|like|love|want|hate|dislike)|my favou?rite"
    r"|ich (?:bevorzuge|mag|möchte|hätte gern)"
    r"|je (?:préfère|préférerais|voudrais|veux)|j'aime|prefiero|me gusta|quiero|prefiro|gosto de|quero"
    r"|предпочитаю|мне нравится|я люблю|я хочу)\b|我(?:更)?(?:喜欢|喜歡|偏好)|好き|がいい|ほうがいい",
    re.IGNORECASE,
)


class Quote(NamedTuple):
    """Words that the user said."""

    text: str
    """The whole sentences, as an entry has them."""
    event: Event
    """The message."""


def plain_lines(text: str) -> str:
    """Return a text in NFC without characters that are not seen and orders to a terminal; its lines stay."""
    if "\x1b" in text or "\x9b" in text:
        text = TERMINAL_SEQUENCE.sub("", text)
    text = unicodedata.normalize("NFC", text).replace("\r\n", "\n").replace("\t", " ").replace("’", "'")
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    seen = (one for one in text if one == "\n" or unicodedata.category(one) not in _INVISIBLE)
    return _FILLERS.sub("", "".join(seen))


def typed_words(content: Content) -> str:
    """Return the text of a user's message without the files that are attached to it."""
    if isinstance(content, str):
        return content
    return text_of(
        tuple(
            part for part in content if not (isinstance(part, Text) and part.text.startswith(ATTACHED_MARK))
        )
    )


def is_surely_typed(event: Event) -> bool:
    """Return whether all of an event is typed by the user: one text of a few lines. A longer one may have text of
    others pasted into it, and another part may be a file."""
    if not isinstance(event.fact, UserSaid):
        return False
    content = event.fact.content
    if not isinstance(content, str):
        texts = [
            part for part in content if isinstance(part, Text) and not part.text.startswith(ATTACHED_MARK)
        ]
        if len(texts) != 1:
            return False
        content = texts[0].text
    return sum(bool(line.strip()) for line in plain_lines(content).split("\n")) <= MAX_TYPED_LINES


def is_long_enough(quote: str) -> bool:
    """Return whether a quote has enough words to say which sentence is meant."""
    letters = [one for one in plain_lines(quote) if one.isalnum()]
    return len(letters) >= (_MIN_QUOTED_CHARS if "".join(letters).isascii() else _MIN_QUOTED_CHARS // 2)


def is_reported(sentence: str) -> bool:
    """Return whether a sentence says what others said."""
    return _REPORTS.match(sentence) is not None or _REPORTED.search(sentence) is not None


def entry_text(text: str) -> str:
    """Return a text as an entry has it: on one line, without secrets; raises `NotRemembered`, and `BadSetting` for
    what is no text."""
    from foveal.core.redaction import scrub  # takes a tenth of a second

    if not isinstance(text, str):
        raise BadSetting("text", text, "the statement, a text")
    line = " ".join(scrub(plain_lines(text)).split())
    if not any(one.isalnum() for one in line):
        raise NotRemembered("there is nothing to remember: give a statement in words")
    if len(line) > MAX_ENTRY_CHARS:
        raise NotRemembered(
            f"the statement has {len(line):,} characters, and an entry at most {MAX_ENTRY_CHARS}: shorten it"
        )
    return line


def kind_of(text: str, *, is_rule: bool = False) -> EntryKind:
    """Return what a statement is, as far as its words tell. `is_rule` says that its conversation shows a rule."""
    if _PREFERENCES.search(text):
        return "preference"
    value = single_value(text)
    if value is not None and value.is_about_user:
        return "fact"
    return "rule" if is_rule or next(find_rules(text), None) is not None else "fact"


def find_quote(events: Iterable[Event], words: str) -> Quote | None:
    """Return the sentences of the user that have these words, of the newest message that has them; None if the user
    did not say them."""
    wanted = plain_lines(words).split()
    if not wanted:
        return None
    pattern = re.compile(r"\s+".join(map(re.escape, wanted)), re.IGNORECASE)
    for event in sorted(events, key=lambda event: event.seq, reverse=True):
        if isinstance(event.fact, UserSaid):
            text = plain_lines(typed_words(event.fact.content))
            for start, end in own_places(text, pattern):
                sentences = _sentences_around(text, start, end)
                if sentences and not _only_asks(sentences):
                    return Quote(sentences, event)
    return None


def foreign_spans(text: str) -> list[tuple[int, int]]:
    """Return the parts of a message that are pasted, or announced as words of others; they may overlap. What is
    announced goes to the end: where it ends cannot be told."""
    colons = islice(re.finditer("[:：]", text), _MAX_COLONS_READ)
    ends = (found.end() for found in colons)
    announced = next(
        (end for end in ends if _ANNOUNCED.search(text, max(0, end - _ANNOUNCED_CHARS), end)), None
    )
    handed = _HANDED_OVER.search(text)
    ends_before = [end for end in (announced, handed and handed.end()) if end is not None]
    return [*pasted_spans(text), *([(min(ends_before), len(text))] if ends_before else [])]


def own_places(text: str, pattern: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """Yield where a pattern occurs in the user's own words."""
    if is_harness_text(text):
        return
    foreign: Sequence[tuple[int, int]] | None = None
    for found in pattern.finditer(text):
        foreign = foreign_spans(text) if foreign is None else foreign
        is_inside = any(low < found.end() and found.start() < high for low, high in foreign)
        lines = (found.start(), found.end() - 1)
        if not is_inside and not any(is_pasted_line(text, at) for at in lines):
            yield found.span()


def _sentences_around(text: str, start: int, end: int) -> str:
    """Return the whole sentences of a part of a text, on one line."""
    low = max(0, start - _AROUND_CHARS)
    around = text[low : end + _AROUND_CHARS]
    bounds = [
        (first, last) for first, last in split_sentences(around) if first < end - low and last > start - low
    ]
    return " ".join(around[bounds[0][0] : bounds[-1][1]].split()) if bounds else ""


def _only_asks(sentence: str) -> bool:
    """Return whether a sentence is a question that asks for nothing lasting."""
    return sentence.endswith(("?", "？", "؟")) and not find_sentences(sentence)
