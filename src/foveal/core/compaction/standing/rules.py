"""Recognises standing rules in what the user says, in several languages.

A standing rule stays in force after its turn: "never push to main", "from now on, answer in German". The words
below are common in such sentences. They also occur in sentences that state no rule: a request that is taken for a
rule by mistake stays visible for longer, while a rule that is missed may be lost.

Questions state no rule, unless they ask for a habit ("could you always …?"). Pasted text states none either.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from heapq import merge
from itertools import islice
from typing import Final

from foveal.core.compaction.ledger.pasted_text import is_pasted_line, pasted_spans

MAX_RULE_CHARS_READ: Final = 40_000
"""Characters of one text that are searched for rules, at its two ends."""
_MAX_RULES_PER_TEXT: Final = 20
_CHUNK_CHARS: Final = 2_000
"""Characters that are searched at a time: often the first rule of a text is all that is asked for."""
_MAX_SENTENCE_CHARS: Final = 300
"""Characters of one sentence that are taken for the rule."""
_UNPUNCTUATED_LEAD_CHARS: Final = 60
"""Characters before the word of a rule if no sentence begins near it, as in text without punctuation."""

_ENGLISH: Final = """
    never, always, must, mustn't, do not, don't, dont, does not, doesn't, you cannot, you can't, may not, no longer
    shall, should not, shouldn't, should always, should never, should only, you should, instead, rather than, only
    solely, exclusively, from now on, from here on, from today, going forward, henceforth, remember, keep in mind
    make sure, ensure, avoid, prefer, stick to, stick with, at most, at least, no more than, no less than
    not more than, maximum, minimum, forbidden, prohibited, forbid, prohibit, not allowed
    required, mandatory, under no circumstances
    whenever, every time, each time, unless, without, until i, stop using, stop doing, stop writing, stop adding
    stop asking, by default, rule, rules, off limits, off-limits, hands off, stay away, refrain, in future
    whatever you do, no matter what, at all costs, ask me, ask first, check with me, wait for my, before every
    before each, before any, before you, after every, after each, stop and, at all times
    needs to be, need to be, has to be, have to be, my name is, call me, allergic to
"""
_GERMAN: Final = """
    nie, niemals, immer, stets, muss, musst, müssen, müsst, soll, sollst, sollen, sollte, sollten, darf, darfst
    dürfen, nicht, kein, keine, keinen, keinem, keiner, nur, ausschließlich, ab jetzt, ab sofort, ab nun, künftig
    in zukunft, merke dir, merk dir, denk daran, denke daran, achte, stelle sicher, stell sicher, vermeide
    bevorzuge, statt, stattdessen, anstatt, anstelle, höchstens, mindestens, jedes mal, jedesmal, verboten
"""
_FRENCH: Final = """
    jamais, toujours, dois, doit, doivent, devez, devons, devra, il faut, ne, seulement, uniquement, désormais
    dorénavant, souviens, rappelle, assure, assurez, évite, évitez, éviter, préfère, privilégie, au lieu, plutôt
    au plus, au moins, interdit, à partir de maintenant, chaque fois, sans
"""
_SPANISH: Final = """
    nunca, jamás, siempre, debe, debes, deben, deberá, debería, tiene que, tienes que, hay que, prohibido, solo
    sólo, solamente, únicamente, a partir de ahora, de ahora en adelante, recuerda, asegúrate, evita, evite
    prefiere, prefiero, en vez de, en lugar de, como máximo, al menos, cada vez, sin
"""
_PORTUGUESE: Final = """
    jamais, sempre, deve, deves, devem, deverá, precisa, proibido, não, nao, só, apenas, somente, a partir de agora
    lembre, certifique, evite, prefira, em vez de, no máximo, pelo menos, sem
"""
_ITALIAN: Final = """
    mai, deve, devi, devono, bisogna, non, soltanto, solamente, d'ora in poi, ricorda, ricordati, assicurati
    preferisci, invece, piuttosto, al massimo, almeno, vietato, ogni volta, senza
"""
_SLAVIC: Final = """
    никогда, всегда, должен, должна, должно, должны, нельзя, не, ни в коем случае, только, лишь, отныне, впредь
    запомни, запомните, помни, помните, убедись, убедитесь, избегай, избегайте, предпочитай, вместо, максимум
    минимум, обязательно, запрещено, запрещается, каждый раз, без, ніколи, завжди, повинен, треба, тільки, замість
    nigdy, zawsze, musi, musisz, nie wolno, tylko, od teraz
"""
_OTHERS: Final = """
    nooit, altijd, moet, moeten, niet, geen, alleen, voortaan, aldrig, alltid, måste, inte, endast, asla, her zaman
    daima, sadece, yalnızca, bundan sonra, jangan, selalu, harus, hanya, không, đừng, luôn, phải, chỉ
    لا, أبدا, أبدًا, دائما, دائمًا, يجب, فقط, कभी, हमेशा, मत, केवल, सिर्फ, ज़रूर, जरूर
"""
_PARTS_OF_WORDS: Final = re.compile(
    # Chinese, in simplified and traditional characters
    "不要|不得|不能|不可|不许|不許|不准|不应|不應|禁止|必须|必須|务必|務必|一定要|总是|總是|始终|始終|永远|永遠|绝不|絕不|从不|從不"
    "|切勿|请勿|請勿|别|別|只能|只用|只准|只有|仅|僅|从现在|從現在|今后|今後|以后|以後|记住|記住|确保|確保|避免|优先|優先|改用"
    "|而不是|而非|至少|最多|不超过|不超過|应该|應該|每次"
    # Japanese
    "|ないで|いけません|いけない|ならない|なりません|絶対|必ず|常に|いつも|決して|だけ|のみ|これから|覚えて|避け|代わりに|以内|以下|以上"
    "|べき|せず|ないこと|ように|毎回"
    # Korean and Thai
    "|절대|항상|언제나|반드시|지 ?마|지 ?말|말아|말고|금지|오직|앞으로|이제부터|기억|꼭|피하|피해|우선|대신"
    "|이상|이하|최대|최소|해야|하도록|만 사용|ห้าม|อย่า|เสมอ|ต้อง|เท่านั้น"
)
"""Rule words of languages that write without blanks or join their endings to the word."""
# A bare "no" may answer a question: it counts before a Spanish verb at the start of a clause.
_SPANISH_NO: Final = re.compile(r"no (?:(?:lo|la|los|las|me|te|se) )?\w+(?:[aeáé]s?|[ae]n|éis)\b")
_CLAUSE_START: Final = re.compile(r"(?:^|[.!?;:,¡(\n]|\bpor favor)\s*\Z")
_FRENCH_NOT: Final = re.compile(r"(?<!\w)n'\w")
_ENGLISH_FORMS: Final = (
    # "use tabs, not spaces"
    (", not ", re.compile(r", not (?!sure|yet|working|because|really|even|that|just|so|too|always|only)\w")),
    (
        "keep ",
        re.compile(
            r"\bkeep (?:[^.!?\n]{0,60}[^\w.!?\n])?"
            r"(?:below|under|within|short|small|simple|concise|brief|unchanged|compatible|secret|as is|in sync)\b"
        ),
    ),
    (
        "leave ",
        re.compile(
            r"\bleave (?:[^.!?\n]{0,60}[^\w.!?\n])?(?:alone|as is|as it is|as they are|unchanged|untouched)\b"
        ),
    ),
    # "no emojis, please", but not "no problem"
    (
        "no ",
        re.compile(
            r"(?:^|[.!?;:,(\n]\s*|\b(?:and|so|but|please) )no (?:more )?"
            r"(?!problem|idea|one|longer|worries|thank|need|matter|way|such|doubt|rush|error|issue|result|luck|clue"
            r"|question|wonder|change|file|test|output|match|i\b|it\b|that\b|you\b|we\b|they\b|the\b|this\b)[a-z]{4,}"
        ),
    ),
    (" should ", re.compile(r"\b(?:all|every|each|any) [^.!?\n]{0,60}[^\w.!?\n]should\b")),
)
"""Rules without a word of the lists. The text before the pattern is part of it, and is looked for first."""
_INSIDE_WORDS: Final = ("'", "_")
_TOKEN: Final = re.compile(r"[\w'’-]+")
_ASCII_SEPARATORS: Final = {code: " " for code in range(128) if not _TOKEN.match(chr(code))}
_SENTENCE_END: Final = re.compile(r"[.!?](?=\s)|[\n。！？；]")
_SENTENCE_MARKS: Final = (".", "!", "?", "。", "！", "？", "；", "؟", "\n")


def _phrases_by_word(*lists: str) -> Mapping[str, tuple[str, ...]]:
    """Return the phrases by their first word."""
    phrases: dict[str, tuple[str, ...]] = {}
    for phrase in (
        phrase.strip() for words in lists for line in words.split("\n") for phrase in line.split(",")
    ):
        if phrase:
            first = phrase.partition(" ")[0]
            phrases[first] = (*phrases.get(first, ()), phrase)
    return phrases


_PHRASES: Final = _phrases_by_word(
    _ENGLISH, _GERMAN, _FRENCH, _SPANISH, _PORTUGUESE, _ITALIAN, _SLAVIC, _OTHERS
)
_FIRST_WORDS: Final = frozenset(_PHRASES)
# "I don't know", "can't remember" and "it always fails" describe; "I don't want that" is a rule.
_DESCRIBED: Final = frozenset(
    ["i", "it", "they", "he", "she", "we", "that", "which", "still", "don't", "can't", "cannot"]
)
_DESCRIBING: Final = frozenset(
    ["do", "does", "don't", "dont", "doesn't", "can't", "cannot", "never", "always", "only", "remember"]
)
_WISH: Final = re.compile(
    r"\s+(?:not\s+)?(?:want|like|wish|allow|accept|need|use|support|ship|deploy|commit|merge|mock)\b"
)
# "I'll avoid that" and "I spent at least an hour" tell of the user; "I want you to avoid that" is a rule.
_TOLD_BY: Final = re.compile(r"(?:^|[\s(\"])(?:i|i'm|i'll|i've|i'd|we|we're|we've|my)\s")
_ASKED_FOR: Final = re.compile(r"\b(?:you|your|please|want|wish|need|let's|prefer)\b")
_WEAK: Final = frozenset(
    ["at", "only", "without", "ensure", "remember", "unless", "instead", "avoid", "make", "always", "never"]
)
# "to ensure quality" names a purpose, and "I want to make sure I'm on time" is about the user.
_PURPOSE: Final = re.compile(r"(?:^|\s)to\s+\Z")
_OWN_AIM: Final = re.compile(
    r"(?:make sure|ensure)(?: that)? (?:i|i'm|i'll|i've|i'd)\b(?![^.\n]{0,80}\byou\b)"
)
_MAX_LEAD_CHARS: Final = 90
_MAX_QUESTION_CHARS: Final = 600
"""Characters after a word of a rule in which the end of its sentence is looked for."""
_ASKS_FOR_HABIT: Final = re.compile(
    r"\b(?:you|please)\b.*\b(?:always|never|from now on|going forward|in future|stop|don't|do not)\b"
    r"|\bfrom now on\b.*\byou\b",
    re.DOTALL,
)


def find_rules(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of the sentences that may state a rule, in their order."""
    return islice(_rule_sentences(text), _MAX_RULES_PER_TEXT)


def _rule_sentences(text: str) -> Iterator[tuple[int, int]]:
    half = MAX_RULE_CHARS_READ // 2
    regions = ((0, len(text)),) if len(text) <= 2 * half else ((0, half), (len(text) - half, len(text)))
    end = 0
    pasted: list[tuple[int, int]] | None = None
    for low, high in regions:
        for at in _rule_words(text[low:high].lower().replace("’", "'")):
            if low + at < end:
                continue
            if pasted is None:
                pasted = pasted_spans(text)
            start, end = _sentence(text, low + at)
            is_pasted = any(first <= low + at < last for first, last in pasted)
            if not is_pasted and not is_pasted_line(text, low + at) and not _is_question(text, start, end):
                yield start, end


def _is_question(text: str, start: int, end: int) -> bool:
    """Return whether a sentence asks something, and not for a habit."""
    last = text[start:end]
    if last[-1:] not in _SENTENCE_MARKS:  # the sentence may be longer than what is taken for the rule
        found = _SENTENCE_END.search(text, end, end + _MAX_QUESTION_CHARS)
        last = text[end : found.end() if found else end + _MAX_QUESTION_CHARS] or last
    last = last.rstrip()
    if last[-1:] not in ("?", "？", "؟"):
        return False
    return not _ASKS_FOR_HABIT.search(text[start:end].lower().replace("’", "'"))


def _rule_words(lowered: str) -> Iterator[int]:
    """Yield the positions of the words of rules, in their order."""
    found = [_rule_phrases(lowered), *_rule_forms(lowered)]
    if not lowered.isascii():
        found.append(match.start() for match in _PARTS_OF_WORDS.finditer(lowered))
    return merge(*found) if len(found) > 1 else found[0]


def _rule_forms(lowered: str) -> Iterator[Iterator[int]]:
    """Yield the positions of the rules of each form that occurs."""
    for part, form in _ENGLISH_FORMS:
        if part in lowered:
            # The last character, because a form can begin with the end of the sentence before it.
            yield (match.end() - 1 for match in form.finditer(lowered))


def _rule_phrases(lowered: str) -> Iterator[int]:
    # Both ways find the same words in ASCII text; there the first one takes half the time.
    words = lowered.translate(_ASCII_SEPARATORS).split() if lowered.isascii() else _TOKEN.findall(lowered)
    first = _FIRST_WORDS.intersection(words)
    phrases = [phrase for word in first for phrase in _PHRASES[word] if phrase in lowered]
    if not phrases and "no" not in lowered and "n'" not in lowered:
        return
    for start in range(0, len(lowered), _CHUNK_CHARS):
        for at, phrase in sorted(_phrases_between(lowered, phrases, start, start + _CHUNK_CHARS)):
            if not _is_description(lowered, at, phrase.partition(" ")[0]):
                yield at


def _phrases_between(lowered: str, phrases: list[str], start: int, end: int) -> Iterator[tuple[int, str]]:
    """Yield the phrases that begin between two positions, each with its position, in any order."""
    for phrase in phrases:
        for at in _places(lowered, phrase, start, end):
            yield at, phrase
    for at in _find_all(lowered, "n'", start, end):
        if _FRENCH_NOT.match(lowered, at):
            yield at, ""
    for at in _places(lowered, "no", start, end):
        if _forbids_in_spanish(lowered, at):
            yield at, ""


def _forbids_in_spanish(lowered: str, at: int) -> bool:
    return bool(_SPANISH_NO.match(lowered, at) and _CLAUSE_START.search(lowered[max(0, at - 12) : at]))


def _places(lowered: str, phrase: str, start: int, end: int) -> Iterator[int]:
    """Yield where a phrase that begins between two positions stands as whole words."""
    for at in _find_all(lowered, phrase, start, end):
        before, after = lowered[at - 1 : at], lowered[at + len(phrase) : at + len(phrase) + 1]
        if not (before.isalnum() or before in _INSIDE_WORDS or after.isalnum() or after in _INSIDE_WORDS):
            yield at


def _find_all(text: str, part: str, start: int, end: int) -> Iterator[int]:
    limit = end + len(part) - 1
    at = text.find(part, start, limit)
    while at >= 0:
        yield at
        at = text.find(part, at + len(part), limit)


def _is_description(lowered: str, start: int, word: str) -> bool:
    if word not in _DESCRIBING and word not in _WEAK:
        return False
    end = start + len(word)
    lead = _SENTENCE_END.split(lowered[max(0, start - _MAX_LEAD_CHARS) : start])[-1]
    before = lead.split()[-1:]
    if before and before[0] in _DESCRIBED and word in _DESCRIBING and not _WISH.match(lowered, end):
        return True
    if word not in _WEAK:
        return False
    if word in ("make", "ensure") and _OWN_AIM.match(lowered, start) and _TOLD_BY.search(lead):
        return True
    if word == "ensure" and _PURPOSE.search(lead) and not _ASKED_FOR.search(lead):
        return True
    return bool(_TOLD_BY.search(lead)) and not _ASKED_FOR.search(lead + lowered[end : end + 12])


def _sentence(text: str, at: int) -> tuple[int, int]:
    """Return the bounds of the sentence around a position."""
    low, high = max(0, at - _MAX_SENTENCE_CHARS // 2), min(len(text), at + _MAX_SENTENCE_CHARS // 2)
    ends = [found.end() for found in _SENTENCE_END.finditer(text, low, at)]
    if ends:
        low = ends[-1]
    elif low:  # the sentence begins farther away: whole words in front of the rule
        low = at - _UNPUNCTUATED_LEAD_CHARS
        low = max(low, text.find(" ", low, at) + 1)
    after = _SENTENCE_END.search(text, at, high)
    lead = text[low:at]
    return low + len(lead) - len(lead.lstrip()), after.end() if after else high
