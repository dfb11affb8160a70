"""Scan for values after a name: `api_key = …`, `DB_PASSWORD=…`, `Cookie: …`, "my password is …".

1. A scan searches for the names; the other checks run only at these places.
2. A name alone proves little (`password=password`, `token: str`), so the value must look like a secret too. After
   the name of an environment variable (`DB_PASSWORD=`) every value counts that is no placeholder.
3. Time is linear: repetitions that can fail are bounded, and unbounded ones are possessive.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Final

from foveal.core.redaction.long_tokens import is_service_key
from foveal.core.redaction.passwords import (
    STRING_IN_BRACES,
    VALUE_BELOW,
    VALUE_LEAD,
    judge_manifest,
    judge_password,
    name_start,
)
from foveal.core.redaction.secret_values import (
    Secret,
    has_digit,
    has_scattered_digits,
    is_hexadecimal,
    is_lower_key,
    is_placeholder,
    is_uuid,
    looks_random,
)

FOLDED: Final = bytes(
    ord("k") if chr(byte).lower() in ("p", "z") else ord(chr(byte).lower()) if byte < 128 else byte
    for byte in range(256)
)
"""Table for `bytes.translate`: lower case, and `k` for `p` and `z`. All names but `secret` have one of these
letters, so one search for `k` finds them: in `key`, `token`, `cookie`, `pass`, `pwd`, `authoriz`."""
_VALUE_BELOW: Final = VALUE_BELOW.encode().translate(FOLDED)
_NO_VALUE: Final = (
    rb"(?!\s[^\s\"'`\\\])*:=>,|%tkov])(?! ?[:=,][ \n]{0,16}+(?!value)[a-z]{1,7}+[^a-z0-9_+/.~\-\"'`\\&:=])"
)
"""Fails before words without a sign, as in `for key in`, and before a word too short for a value: `token: str`."""
_AFTER_NAME: Final = rb"s?[0-9]?(?:_id)?(?:[\"'`\\\])*\s]{0,9}+(?:[:=>,|]|%3[ad])|" + _VALUE_BELOW + rb")"
_BEFORE_VALUE: Final = (
    rb"(?="
    + VALUE_LEAD.encode()
    + rb"[=>\s\x1c-\x1f\"'`\\]{0,10}+(?:(?=[a-z0-9_+/.~-]{8})(?:[a-z_+/.~-]*+[0-9]|[a-z+/]{24})"
    rb"|(?<=[\"'])[^\s\"'`\\]{32}))"
)
"""What `_judge` asks of a value first, in the search itself: most names have no such value."""
_BEFORE_PASSWORD: Final = (
    rb"(?=[0-9\"'`\\\])*\s:=>%,(])(?![:=] ?\$[^'])"
    rb"(?![0-9]?[\"'`\\\])*]{0,9}\s{0,2}+(?:=|:=?)\s{0,3}+[\"'`]?(?:"
    + rb"(?!"
    + STRING_IN_BRACES.encode()
    + rb")[{\[%(]|\$(?!')|<(?!/)|\*(?!\*?\s)))"
    rb"(?=[0-9]?[\"'`\\\])*]{0,9}(?:\s{0,2}(?:[:=>]|%3[ad]|is?t?[\s:=]|lautet[\s:=])|"
    + _VALUE_BELOW
    + rb")|\s[^\s]|\s{2,8}[^\s]{4}|\s{2,40}\||\([enu]?&?['\"])"
)
"""The same for a password."""
# What the checks would reject first is left out in the search itself: `"key":` without a word before it, frequent
# harmless keys, and a password that begins like a placeholder. The cheapest test of each name comes first.
_NAMES: Final = re.compile(
    rb"k(?:e(?:y(?:(?=[s0-9_\"'`\\\])*\s:=>,|%])(?<!sort_key)(?<!ary_key)(?<!cache_key)"
    rb"(?<=[a-z0-9_.\-\s\x1c-\x1f]key)(?P<key>)"
    + _NO_VALUE
    + _AFTER_NAME
    + _BEFORE_VALUE
    + rb"|(?=[ +%-])(?:(?:[ +]|%20)block)?--(?P<private_key>))"
    + rb"|n(?:(?<=token)(?P<token>)"
    + _NO_VALUE
    + _AFTER_NAME
    + _BEFORE_VALUE
    + rb"|nw(?:or[dt]|[dt])(?P<kennwort>)"
    + _BEFORE_PASSWORD
    + rb"))|i(?:e(?<=cookie)(?P<cookie>)"
    + _AFTER_NAME
    + rb"|nd[\"']?:\s?[\"']?secret(?![a-z])(?P<manifest>))"
    + rb"|w(?:or[dt]|[dt])(?P<pwd>)"
    + _BEFORE_PASSWORD
    + rb"|a(?:ss(?:w(?:or[dt]|[dt])(?P<password>)"
    + _BEFORE_PASSWORD
    + rb"|(?:khrase|(?![a-z_.])(?<![a-z0-9]kass))(?P<passphrase>)(?=[\"'`\\]{0,9}\s{0,2}[:=]|"
    + _VALUE_BELOW
    + rb"))|tion(?<=uthorikation)(?P<authorization>))"
    + rb"|[:=\"'](?<=ksk.)(?P<psk>))"
)
_SECRET_NAMES: Final = re.compile(
    rb"secret(?![a-rtuxy-])(?:_?value)?(?P<secret>)" + _NO_VALUE + _AFTER_NAME + _BEFORE_VALUE
)
_AUTHORIZATION: Final = re.compile(
    r"(?i)z(?<=uthoriz)ation[\"'`\\\]]{0,4}(?:\s?[:=,]|%3[ad])\s{0,3}+(?:\\{0,3}[\"'`])?(?:%20)?"
    r"(?P<scheme>[a-z0-9-]{3,16}(?:\s{1,2}|%20|\+))?(?P<value>[A-Za-z0-9._~+/-]{8,}+={0,2})"
)


def find_names(folded: bytes) -> list[re.Match[bytes]]:
    """Find the names that introduce a secret, in a text translated with `FOLDED`; the last group is the kind."""
    names = list(_NAMES.finditer(folded))
    first = folded.find(b"secret")  # takes less time than `re` in a text without the word
    return [*names, *_SECRET_NAMES.finditer(folded, first)] if first >= 0 else names


def find_named(text: str, names: list[re.Match[bytes]]) -> Iterator[Secret]:
    """Find the secrets after the names."""
    for hit in names:
        letters, judge = _JUDGES.get(hit.lastgroup or "", ("", None))
        if judge and text[hit.start()] in letters:
            yield from judge(text, hit)


# ── Keys, tokens and secrets ───────────────────────────────────────────────────────────────────────────

_VALUE: Final = re.compile(
    VALUE_LEAD + r"[=>\s\"'`\\]{0,10}+(?P<value>[A-Za-z0-9_+/.~-]{8,}+={0,2})(?![(\[{])"
)
_QUOTED_VALUE: Final = re.compile(
    VALUE_LEAD + r"[=>\s\\]{0,6}+(?P<quote>[\"'])(?P<value>[^\s\"'`\\]{32,128})(?P=quote)"
)
WORDS_BEFORE_BLANK: Final = "api|access|secret|private|signing|auth|master|account|bot|refresh"
"""A pattern that matches a word that makes a following `key` the name of a secret, with a blank between them."""
_NAME_WITH_BLANK: Final = re.compile(rf"(?i)(?:{WORDS_BEFORE_BLANK})\s\Z")
_MAX_QUALIFIER_CHARS: Final = 8
"""Characters of the longest word and blank in `_NAME_WITH_BLANK`."""
_VARIABLE: Final = re.compile(r"[A-Z][A-Z0-9_]*\Z")
KEY_WORDS: Final = (
    "api|access|secret|private|signing|encryption|master|account|storage|auth|admin|sharedaccess|subscription"
    "|service|license|webhook|deploy|hmac|aes"
)
"""A pattern that matches a word before `key` that makes it the name of a secret."""
_KEY_WORDS: Final = re.compile(rf"(?:{KEY_WORDS})[_.-]?\Z")
_HARMLESS_WORDS: Final = re.compile(
    r"(?:cache|primary|foreign|public|pub|sort|partition|idempotency|object|lookup|index|natural|unique|row|group|dedup"
    r"|page|next|prev|previous|continuation|pagination|sync|csrf|xsrf|resume|cursor|cancellation|shard|routing|registry|s3|publickey|public_key"
    r"|bucket|hash|host|sync|event|dict|map|translation|message|mon|tur|don)[_.-]?\Z"
)
_DOTTED_NAME: Final = re.compile(
    r"\.[A-Za-z_]+\.|^[a-z_]+\.[a-z_]|^[a-z_][a-z0-9_]*\.[A-Z]\w*(?:Key|Token|Secret|Password)\Z"
)
_PHRASE_SIGNS: Final = re.compile(r"[!@#$%^&*()+=]")
MIN_PHRASE_SIGNS: Final = 4
MIN_LETTERS_CHARS: Final = 24
"""Characters of the shortest key without a digit."""
MIN_KEY_CHARS: Final = 16
"""Characters of the shortest value of a key outside environment variables."""


def _judge_key(text: str, hit: re.Match[bytes]) -> Iterator[Secret]:
    return _judge(text, hit, kind="secret key")


def _judge_token(text: str, hit: re.Match[bytes]) -> Iterator[Secret]:
    return _judge(text, hit, kind="token")


def _judge(text: str, hit: re.Match[bytes], *, kind: str) -> Iterator[Secret]:
    end = hit.end(hit.lastgroup or "")
    start = name_start(text, end)
    name = text[start:end]
    if not is_secret_name(name, before=text[max(0, start - _MAX_QUALIFIER_CHARS) : start]):
        return
    value = _VALUE.match(text, hit.end())
    quoted = _QUOTED_VALUE.match(text, hit.end())
    if quoted and _is_phrase(quoted["value"]):
        yield Secret(*quoted.span("value"), kind)
    elif value and _is_key(name, value["value"]):
        yield Secret(*value.span("value"), kind)


def is_secret_name(name: str, *, before: str = "") -> bool:
    """Return whether a name that ends with `key`, `token` or `secret` is that of a secret."""
    if name.lower() == "key":
        return before[-1:].isspace() and _NAME_WITH_BLANK.search(before) is not None
    return _is_secret_name(name)


@lru_cache(maxsize=1024)
def _is_secret_name(name: str) -> bool:
    lower = name.lower()
    word = next(word for word in ("key", "token", "value", "secret") if lower.endswith(word))
    stem = lower[: -len(word)]
    if _HARMLESS_WORDS.search(stem):
        return False
    if word != "key":
        return True
    return bool(_KEY_WORDS.search(stem)) or (_VARIABLE.match(name) is not None and stem.endswith("_"))


def _is_key(name: str, value: str) -> bool:
    """Return whether a value looks like a key; the value of an environment variable needs less proof."""
    if is_placeholder(value) or _DOTTED_NAME.search(value):
        return False
    if not has_digit(value):
        return len(value) >= MIN_LETTERS_CHARS and looks_random(value)
    if is_uuid(value):
        return name.lower() != "token"
    if is_service_key(name, value):
        return True
    long = len(value) >= MIN_KEY_CHARS
    if _VARIABLE.match(name) and "_" in name:
        return looks_random(value) or (long and has_scattered_digits(value))
    return long and (looks_random(value) or is_hexadecimal(value) or is_lower_key(value))


def _is_phrase(value: str) -> bool:
    """Return whether a value has letters, digits and several signs without an order, as the keys of Django do."""
    return (
        has_digit(value)
        and len(_PHRASE_SIGNS.findall(value)) >= MIN_PHRASE_SIGNS
        and not is_placeholder(value)
    )


def _judge_authorization(text: str, word: re.Match[bytes]) -> Iterator[Secret]:
    hit = _AUTHORIZATION.match(text, word.start())
    if hit is None:
        return
    is_call = text.startswith("(", hit.end())
    value = hit["value"]
    if (
        not is_call
        and (hit["scheme"] or len(value) >= MIN_KEY_CHARS)
        and (has_digit(value) or looks_random(value))
    ):
        yield Secret(*hit.span("value"), "credential")


# ── Cookies ────────────────────────────────────────────────────────────────────────────────────────────

_COOKIE: Final = re.compile(
    r"[\s\"'`\\]{0,4}(?P<name>[A-Za-z0-9_.%!#$&*+^|~-]{1,64})=\"?(?P<value>[^\s;,\"'`\\<>]{1,4096}+)\"?(?:;|%3[Bb])?"
)
_COOKIE_ATTRIBUTES: Final = frozenset(
    ["path", "domain", "expires", "max-age", "samesite", "priority", "comment", "version"]
)
_SESSION_NAME: Final = re.compile(r"(?i)sess|sid|auth|token|jwt|remember|csrf|login|user")
MIN_COOKIE_CHARS: Final = 8


def _judge_cookies(text: str, hit: re.Match[bytes]) -> Iterator[Secret]:
    """Find the cookies of a header; after a comma they are a string, since code lists names."""
    is_header = text[hit.end() - 1] != "," or text[hit.end() : hit.end() + 4].lstrip()[:1] in ("'", '"', "\\")
    return find_cookies(text, hit.end()) if is_header else iter(())


def find_cookies(text: str, at: int) -> Iterator[Secret]:
    """Find the values in a `Cookie` or `Set-Cookie` header whose pairs begin here."""
    while pair := _COOKIE.match(text, at):
        value = pair["value"]
        if pair["name"].lower() not in _COOKIE_ATTRIBUTES and _is_session(pair["name"], value):
            yield Secret(*pair.span("value"), "cookie")
        if not pair.group().endswith((";", "%3B", "%3b")):
            return
        at = pair.end()


def _is_session(name: str, value: str) -> bool:
    if len(value) < MIN_COOKIE_CHARS or is_placeholder(value) or "(" in value:
        return False
    return has_digit(value) or looks_random(value) or _SESSION_NAME.search(name) is not None


_JUDGES: Final[dict[str, tuple[str, Callable[[str, re.Match[bytes]], Iterator[Secret]]]]] = {
    "key": ("kK", _judge_key),
    "token": ("kK", _judge_token),
    "secret": ("sS", _judge_key),
    "cookie": ("kK", _judge_cookies),
    "password": ("pP", judge_password),
    "pwd": ("pP", judge_password),
    "kennwort": ("kK", judge_password),
    "psk": ("kK", judge_password),
    "passphrase": ("pP", judge_password),
    "manifest": ("kK", judge_manifest),
    "authorization": ("zZ", _judge_authorization),
}
"""The judge of each kind of name, and the letter for which `_NAMES` searches: `FOLDED` makes others equal to it."""
