"""Statements that have only one value at a time, such as a name: the later one counts.

    single_value("My name is Ada.")              → ("name", "Ada", True)
    single_value("We use pytest for tests.")     → ("use for tests", "pytest", False)
    single_value("Answer in French.")            → ("choice 0: answ", "french", False)

The statements of one conversation stay side by side unless one of them says that something changed. In a
memory, a person has one name. Recognition is conservative, because a wrong pair hides an entry:

1. The sentence must say that one thing, without a condition, an addition or a second statement.
2. The value must be of the kind of the subject: "my job is hard" names no job, and "I am German" no person.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from foveal.core.compaction.standing.statement_reader import CHOICE_CLASSES, read_statement
from foveal.core.compaction.standing.statement_words import words_of
from foveal.core.compaction.standing.statements import STYLE_ORDERS

MAX_VALUE_WORDS: Final = 8
MAX_NAME_WORDS: Final = 3
_BEGINNINGS: Final[Mapping[str, str]] = {
    "name": r"i'm called|i am called|call me|mein name ist|ich hei(?:ß|ss)e|nenn mich|je m'appelle|mon nom est"
    r"|appelle-moi|me llamo|mi nombre es|llámame|(?:o )?meu nome é|(?:eu )?me chamo|chamo-me|mi chiamo"
    r"|il mio nome è|меня зовут|мо[её] имя|我叫|我的名字[叫是]|私の名前は",
    "person": r"i am|i'm|je suis|(?:yo )?soy|(?:eu )?sou|(?:io )?sono",
    "birthday": r"i was born on|mein geburtstag ist|mon anniversaire est|mi cumpleaños es|(?:o )?meu aniversário é"
    r"|мой день рождения|我的生日是|私の誕生日は",
    "home": r"i (?:now )?live in|i(?:'ve| have)? relocated to|ich wohne (?:jetzt )?in|j'habite (?:maintenant )?à"
    r"|(?:ahora )?vivo (?:ahora )?en|moro (?:agora )?(?:em|no|na)|abito a|я (?:теперь )?живу в|我(?:现在)?住在",
    "job": r"i (?:now )?work as|ich arbeite (?:jetzt )?als|je travaille comme|trabajo como|trabalho como",
    "employer": r"i (?:now )?work (?:for|at)|ich arbeite (?:jetzt )?(?:bei|für)"
    r"|je travaille (?:pour|chez)|trabajo (?:para|en)",
    "weight": r"i weigh|ich wiege|je pèse|peso|я вешу",
    "email": r"meine e-?mail(?:-adresse)? ist|mon (?:e-?mail|adresse e-?mail) est|mi correo es|meu e-?mail é",
}
"""How statements about the user begin, by their subject."""
_AGE: Final = re.compile(
    r"(?:(?:i am|i'm)\s+(?P<en>\d{1,3})(?: years old)?|ich bin (?P<de>\d{1,3})(?: jahre alt)?"
    r"|j'ai (?P<fr>\d{1,3}) ans"
    r"|tengo (?P<es>\d{1,3}) años|tenho (?P<pt>\d{1,3}) anos|мне (?P<ru>\d{1,3}) (?:лет|год|года)"
    r"|我(?:今年)?(?P<zh>\d{1,3})岁|(?:私は)?(?P<ja>\d{1,3})歳(?:です)?)",
    re.IGNORECASE,
)
_HOME_JAPANESE: Final = re.compile(r"(?:私は)?(?P<value>[^、。はがもの]{1,20}?)に住んでい(?:ます|る)")
_VALUE_NOUNS: Final = (
    r"name|birthday|birth ?date|date of birth|age|pronouns|e-?mail|e-?mail address|phone|phone number|address"
    r"|time ?zone|job|job title|role|title|position|profession|employer|native language|user ?name|locale"
)
_RELATIONS: Final = (
    "boss|manager|supervisor|team lead|mentor|wife|husband|spouse|partner|mother|father|mum|mom|dad|doctor|dentist"
    "|landlord|landlady"
)
"""People of whom everyone has one at a time."""
_ABOUT_USER: Final = re.compile(
    rf"(?P<whose>my|our) (?:(?P<of>(?:(?!not\b)[\w'-]+ ){{0,2}}?)(?P<noun>{_VALUE_NOUNS})"
    rf"|(?P<favourite>favou?rite [\w-]+)|(?P<relation>{_RELATIONS}))(?: is|'s) "
    r"|(?:" + "|".join(f"(?P<{subject}>{begin})" for subject, begin in _BEGINNINGS.items()) + ")",
    re.IGNORECASE,
)
_TOPICS: Final = {
    "name": re.compile(
        r"meinen? namen?|mon nom|mi nombre|(?:o )?meu nome|мо[её] имя|我的?名字|私の名前|who i am|wie ich heiße",
        re.IGNORECASE,
    ),
    "birthday": re.compile(
        r"mein(?:en)? geburtstag|mon anniversaire|mi cumpleaños|(?:o )?meu aniversário|мой день рождения|我的?生日"
        r"|私の誕生日|when i was born",
        re.IGNORECASE,
    ),
    "home": re.compile(
        r"where i live|wo ich wohne|où j'habite|dónde vivo|onde (?:eu )?moro|где я живу|我住(?:在)?哪里?|my home",
        re.IGNORECASE,
    ),
    "employer": re.compile(
        r"where i work|wo ich arbeite|où je travaille|dónde trabajo|где я работаю", re.IGNORECASE
    ),
    "age": re.compile(
        r"how old i am|wie alt ich bin|mein alter|mon âge|mi edad|我的?年龄|私の年齢", re.IGNORECASE
    ),
}
"""How a topic names the subject of a value, beside "my" and its English noun."""
_TOOL: Final = re.compile(
    r"(?:(?:we|i) (?:now )?use|wir (?:be)?nutzen(?: jetzt)?|wir verwenden(?: jetzt)?|ich (?:be)?nutze|ich verwende)"
    r" (?P<value>[\w.+#-]+(?: [\w.+#-]+)?) (?:for|für) (?P<purpose>[\w .'-]+)",
    re.IGNORECASE,
)
_CALLED: Final = re.compile(
    r"(?:my (?P<en>[\w-]+(?: [\w-]+)?) is (?:now )?(?:called|named)|meine? (?P<de>\w+) heißt) (?P<value>.+)",
    re.IGNORECASE,
)
_FAVOURITES: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"meine? liebling(?P<thing>s\w+) ist (?P<value>.+)",
        r"(?:mon|ma) (?P<thing>\w+) préférée? est (?P<value>.+)",
        r"mi (?P<thing>\w+) (?:favorit|preferid)[oa] es (?P<value>.+)",
        r"(?:[oa] )?(?:meu|minha) (?P<thing>\w+) (?:favorit|preferid)[oa] é (?P<value>.+)",
        r"мо\w+ любим\w+ (?P<thing>\w+)(?: [—-])?(?: это)? (?P<value>.+)",
        r"我最喜[欢歡]的(?P<thing>\w{1,6}?)是(?P<value>.+)",
        r"私の(?:一番)?好きな(?P<thing>\w{1,8}?)は(?P<value>.+)",
    )
)
_MAX_FAVOURITE_WORDS: Final = 3
_COUNTRIES: Final = words_of(
    """
    germany france spain italy portugal switzerland austria poland russia ukraine china japan india brazil mexico
    canada usa us america england scotland wales ireland uk britain netherlands holland belgium denmark sweden
    norway finland iceland greece turkey israel egypt australia argentina chile peru colombia korea vietnam
    thailand indonesia europe asia africa deutschland frankreich spanien italien schweiz österreich polen japon
    allemagne espagne italie suisse autriche alemania francia españa italia suiza alemanha frança espanha itália
    brasil méxico россии германии франции японии китае 中国 日本 美国 德国 法国 アメリカ ドイツ フランス
    """
)
"""Places in which a town may be: who lives in Berlin lives in Germany too."""
_EXCLUSIVE: Final = frozenset(
    CHOICE_CLASSES[word]
    for word in words_of(
        "english tabs short npm pip postgres dark metric formal vim pytest camelcase celsius black"
    )
) | {"choice language", "choice indent", "choice length", "choice style"}
"""Classes of choices of which an order names one for all: who says "use Rust" may use Python too."""
_PREFERS: Final = re.compile(
    r"(?:(?:i|we)(?:'d)? prefer|ich bevorzuge|je préfère|prefiero|prefiro|я предпочитаю)\b", re.IGNORECASE
)
_ORDERS_UNSPACED: Final = re.compile("回答|回复|回覆|缩进|答えて|返信して|書いて|インデント")
_NOW: Final = re.compile(r",? (?:now|from now on|as of today|these days)$", re.IGNORECASE)
_MORE: Final = re.compile(
    r"[,;:!?，、；：！？]|\b(?:and|or|but|not|also|too|as well|if|when|while|unless|except|only|sometimes|here|this"
    r"|than|und|oder|aber|nicht|auch|wenn|et|ou|mais|pas|aussi|si|y|pero|también|e|mas|também|и|или|но|не|если"
    r"|также)\b|[和也不]",
    re.IGNORECASE,
)
"""What makes a sentence more than one plain statement."""
_PLACES: Final = re.compile(r"\b(?:in|on|at|for|from|during|within)\b", re.IGNORECASE)
"""Where a value holds, if not everywhere: "my name is Bob in the tests"."""
_LANGUAGE_PLACE: Final = re.compile(r"\b(?:in|for|für|en|em|pour|para) (?:Go|C|R|D|V|Dart|Swift|Make)\b")
_BRITISH: Final = re.compile(r"(?<=[a-z]{2})our\b")


# ── Kinds of values ──────────────────────────────────────────────────────────────────────────────────────

_NO_PERSON: Final = words_of(
    """
    admin root boss lead chief head captain president chair mom mum dad tech support sales legal marketing
    team user greek swiss turk dane swede finn pole scot scots arab kurd serb croat slovak slovene lao
    basque celt latino latina filipino filipina hindu sikh muslim jew black white deaf bi gay trans blind
    sorry sick ill busy free late ready happy hungry angry new left right not sure here back online offline
    away home gone fine good bad done aries taurus gemini cancer libra scorpio capricorn aquarius pisces
    virgo ok okay also both still just very the a an linux windows mac android
    """
)
_NO_PERSON_ENDINGS: Final = (
    "an", "ese", "sh", "ch", "i", "ist", "er", "or", "ic", "ed", "ing", "al", "ful", "less", "ous", "ive", "able",
)  # fmt: skip
"""Ends of words for where people come from, what they believe, do and feel; some names end so too."""
_JOBS: Final = words_of(
    """
    nurse cook chef pilot clerk lead head student intern architect analyst judge guard coach agent host
    officer assistant consultant accountant president professor farmer engineer research support sales cto
    ceo cfo coo vp midwife tutor scientist artist volunteer founder sre qa arzt ärztin koch köchin anwalt anwältin
    beamter wirt bauer
    """
)
_JOB_ENDINGS: Final = ("er", "or", "ist", "ian", "ant", "man", "woman", "ing")
_NO_JOBS: Final = words_of(
    """
    harder easier better worse higher lower other another over under super clever bitter sober together
    former boring exhausting interesting demanding challenging tiring amazing rewarding exciting missing
    pending changing annoying draining frustrating depressing confusing overwhelming nothing something
    anything everything important relevant constant distant major minor poor human poorer richer later
    sooner never ever
    """
)
_JUDGEMENTS: Final = words_of(
    """
    hard easy great good bad fine nice fun new old gone dead slow fast broken taken wrong right long short
    weird unclear secret private public safe best worst better worse unknown unusual boring too very so
    really quite pretty rather still always never often no none nothing hidden obvious stupid silly missing
    unique the a an kaputt weg langsam toll gut schlecht cassé lent roto lento quebrado сломан
    """
)
_NO_EMPLOYERS: Final = words_of("nacht tag tage regen licht wind kälte hitze bedarf gelegenheit night home")
"""When or how work is done, in words that begin as names do."""
_NUMBERED: Final = words_of("birthday birthdate dateofbirth age weight phone address")
"""Subjects whose values have digits."""


def _is_person(value: str) -> bool:
    """Return whether a value can only be the name of a person."""
    words = value.split()
    return 0 < len(words) <= MAX_NAME_WORDS and all(
        word[:1].isupper()
        and (not word.isupper() or len(word) == 1)
        and word.isalpha()
        and word.lower() not in _NO_PERSON
        and not word.lower().endswith(_NO_PERSON_ENDINGS)
        for word in words
    )


def _is_name(value: str) -> bool:
    """Return whether a value begins as names do, and holds everywhere."""
    return not value[:1].islower() and _PLACES.search(value) is None


def _is_employer(value: str) -> bool:
    return _is_name(value) and value.casefold() not in _NO_EMPLOYERS


def _is_job(value: str) -> bool:
    words = re.split(r" (?:of|for|at|in)\b", value.lower())[0].split()
    last = words[-1].strip(".-") if words else ""
    return last in _JOBS or (last.endswith(_JOB_ENDINGS) and last not in _NO_JOBS)


def _is_neutral(value: str) -> bool:
    """Return whether a value is no judgement: "my favourite editor is broken"."""
    first = value.lower().split()[0]
    return first not in _JUDGEMENTS and not first.endswith(
        ("ated", "ined", "shed", "ful", "less", "ous", "able")
    )


def _has_digit(value: str) -> bool:
    return any(map(str.isdigit, value))


_CHECKS: Final[Mapping[str, Callable[[str], bool]]] = {
    "name": _is_name,
    "person": _is_person,
    "home": _is_name,
    "employer": _is_employer,
    "nativelanguage": _is_name,
    "timezone": _is_name,
    "job": _is_job,
    "jobtitle": _is_job,
    "role": _is_job,
    "title": _is_job,
    "position": _is_job,
    "profession": _is_job,
    "email": lambda value: "@" in value,
    "pronouns": lambda value: "/" in value,
    "locale": lambda value: len(value) == 2 or "_" in value or "-" in value,
    **dict.fromkeys(_NUMBERED, _has_digit),
}
"""Whether a value is one of its subject; other subjects take what is no judgement."""


# ── Reading ──────────────────────────────────────────────────────────────────────────────────────────────


class SingleValue(NamedTuple):
    """What a statement gives one value to."""

    subject: str
    value: str
    is_about_user: bool
    """Whether it describes the user, and asks for nothing."""


def single_value(text: str) -> SingleValue | None:
    """Return what a statement gives its one value to; None if it is another kind of statement."""
    sentence = _NOW.sub("", text.strip().rstrip(".。"))
    return _about_user(sentence) or _named(sentence) or _tool(sentence) or _choice(sentence)


def are_apart(earlier: str, later: str) -> bool:
    """Return whether two statements are about different things, however alike they are: "my email" and "my work
    email", or an order for one place and one for all."""
    subjects = {_subject(found) if found else "" for found in map(_ABOUT_USER.match, (earlier, later))}
    return ("" not in subjects and len(subjects) > 1) or bool(_place(earlier)) != bool(_place(later))


def topic_subject(topic: str) -> str:
    """Return the subject of what a topic names: "name" of "my name"; "" if it is no subject of one value."""
    for subject, words in _TOPICS.items():
        if words.fullmatch(topic):
            return subject
    found = _ABOUT_USER.fullmatch(f"{topic} is ")
    return _subject(found) if found and found["whose"] else ""


def _about_user(sentence: str) -> SingleValue | None:
    if found := _AGE.fullmatch(sentence):
        return SingleValue("age", str(found[str(found.lastgroup)]), is_about_user=True)
    if found := _HOME_JAPANESE.fullmatch(sentence):
        return SingleValue("home", found["value"], is_about_user=True)
    found = _ABOUT_USER.match(sentence)
    if found is None:
        return None
    value = sentence[found.end() :].strip()
    if not _is_one_value(value):
        return None
    subject = kind = _subject(found)
    if found["whose"]:
        kind = _plain(found["noun"] or ("person" if found["relation"] else ""))
    if not _CHECKS.get(kind, _is_neutral)(value):
        return None
    if subject == "home" and value.casefold() in _COUNTRIES:
        subject = "home country"
    return SingleValue("name" if subject == "person" else subject, value, is_about_user=True)


def _named(sentence: str) -> SingleValue | None:
    """Return what a person, an animal or a thing of the user is called, or a favourite of the user."""
    if found := _CALLED.fullmatch(sentence):
        subject = f"{_plain(found['en'] or found['de'])}'sname"
        is_one = _is_one_value(found["value"]) and _is_name(found["value"])
        return SingleValue(subject, found["value"], is_about_user=True) if is_one else None
    for pattern in _FAVOURITES:
        if found := pattern.fullmatch(sentence):
            value = found["value"]
            is_one = (
                _is_one_value(value) and len(value.split()) <= _MAX_FAVOURITE_WORDS and _is_neutral(value)
            )
            return (
                SingleValue(f"favorite {_plain(found['thing'])}", value, is_about_user=True)
                if is_one
                else None
            )
    return None


def _subject(found: re.Match[str]) -> str:
    """Return what the beginning of a statement about the user gives a value to."""
    if found["whose"] is None:
        return str(found.lastgroup)
    subject = _plain((found["of"] or "") + (found["noun"] or found["favourite"] or found["relation"]))
    return subject if found["whose"].lower() == "my" else f"our {subject}"


def _tool(sentence: str) -> SingleValue | None:
    found = _TOOL.fullmatch(sentence)
    if found is None or not _is_one_value(f"{found['value']} {found['purpose']}"):
        return None
    return SingleValue(f"use for {found['purpose'].casefold()}", found["value"], is_about_user=False)


def _choice(sentence: str) -> SingleValue | None:
    """Return what an order or a preference chooses: "answer in French", "indent with 4 spaces"."""
    first = sentence.split(maxsplit=1)[0].lower() if sentence else ""
    is_order = first in STYLE_ORDERS or _PREFERS.match(sentence) or _ORDERS_UNSPACED.search(sentence)
    if not is_order or not _is_one_value(sentence):
        return None
    read = read_statement(sentence)
    chosen = [(kind, values) for kind, values in read.values.items() if kind != "amount"]
    if len(chosen) != 1 or chosen[0][0] not in _EXCLUSIVE or len(chosen[0][1]) != 1:
        return None
    if (
        read.polarity not in ("", "requires")
        or read.replaced
        or read.has_condition
        or read.adds
        or read.revokes
        or read.is_compound
    ):
        return None
    if _place(sentence):
        return None
    (value,) = chosen[0][1]
    return SingleValue(f"{chosen[0][0]}: {' '.join(sorted(read.subject))}", value, is_about_user=False)


def _place(sentence: str) -> str:
    """Return the language for which an order holds, where its name is a word of other meanings: "in Go"."""
    found = _LANGUAGE_PLACE.search(sentence)
    return found[0] if found else ""


def _plain(noun: str) -> str:
    """Return a noun as subjects are compared: without blanks, in American spelling."""
    plain = re.sub("[ -]", "", _BRITISH.sub("or", noun.casefold().replace("favourite", "favorite")))
    return re.sub("(?<=email)address$|(?<=phone)number$", "", plain)


def _is_one_value(text: str) -> bool:
    return 0 < len(text.split()) <= MAX_VALUE_WORDS and _MORE.search(text) is None
