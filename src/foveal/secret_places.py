"""Secrets that are known by the place where they stand: after a name, in a URL, in a header, in an option.

A place alone proves little (`password=password`, `token: str`), so that the value has to look like one, too; only
in a URL and in a connection string is it a password whatever it looks like, unless it is plainly a placeholder.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from foveal.secret_shapes import EDGE, Found, looks_random, numbered

_QUOTE: Final = r"\s{0,3}+(?:\\{0,3}[\"'`])?"
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_PLACEHOLDER: Final = re.compile(
    r"(?i)[$<{\[*%(].*|(.)\1*|\W*|none|null|true|false|changeme|example|undefined|redacted"
    r"|(?:my|your|the|some|db|user|test)?[_-]?(?:pass|passwd|password|pwd|pw|secret|token)"
)

# ── logins in addresses, bots, and keys with a name ──────────────────────────────────────────────────────

_LOGIN: Final = r"//(?P<user>[^\s/?#@:,\"'`<>\\]*+):(?P<password>[^\s/?,\"'`<>\\]*)@"
_LOGIN_ENCODED: Final = (
    r"%2[Ff]%2[Ff](?P<user>(?:[A-Za-z0-9_.~+-]|%(?!3[Aa]|40|2[Ff]))*+)%3[Aa]"
    r"(?P<password>(?:[A-Za-z0-9_.~+-]|%(?!40|2[Ff]))++)%40"
)
_BOT: Final = r"(?P<bot>(?<=[0-9]{})[A-Za-z0-9_-]{{35}})(?![A-Za-z0-9_-])"
_KEY: Final = r"[=>\s\"'`\\]{0,6}+(?P<value>[A-Za-z0-9_+/.~-]{16,}+={0,2})(?![(\[{])"
_SEPARATORS: Final = (
    re.compile(f":(?:{_BOT.format(':')}|{_LOGIN}|{_KEY})"),
    re.compile(f"={_KEY}"),
    re.compile(f"%3[AaDd](?:{_BOT.format('%3[Aa]')}|{_LOGIN_ENCODED}|{_KEY})"),
)
_BOT_ID: Final = re.compile(rf"(?:{EDGE}|(?<=bot))[0-9]{{6,12}}\Z")
_LAST_WORDS: Final = ("key", "token", "secret", "keys", "credential", "credentials", "secret_value")
_NAME: Final = re.compile(
    r"""(?ix) (?: (?P<token> (?:access|auth|api|bot|refresh|bearer|session|id|security|private|deploy|oauth)
        [_.\ -]?token | (?<![a-z0-9_.-])token | (?<![a-z])x-[a-z-]{0,20}(?:key|token|secret) )
      | (?:api|access|secret|private|signing|encryption|master|account|storage|auth|admin) [_.\ -]?keys?
      | sharedaccesskey | (?<![a-z])secret | secret[_.-]?(?:token|value) | credentials?
      | (?:client|app|api|auth|shared|consumer|webhook|oauth) [_.\ -]?secret
    ) [0-9]? [\"'`\\\]\s)]{0,4} \Z"""
)
_NAME_LENGTH: Final = 48


def _separated(text: str) -> Iterator[Found]:
    for separators in _SEPARATORS:
        for hit in separators.finditer(text):
            secret = _SORTS[hit.lastgroup or "value"](text, hit)
            if secret:
                yield secret


def _named(text: str, hit: re.Match[str]) -> Found | None:
    """A value that looks random, if what stands before its separator is the name of a secret."""
    at = hit.start()
    last = text[max(0, at - 20) : at].rstrip("0123456789\"'`\\])\t ").lower()
    if not last.endswith(_LAST_WORDS):
        return None
    name = _NAME.search(text, max(0, at - _NAME_LENGTH), at)
    if name is None or not looks_random(hit["value"]) or (name["token"] and _UUID.fullmatch(hit["value"])):
        return None
    return Found(*hit.span("value"), "token" if name["token"] else "secret key")


def _login(text: str, hit: re.Match[str]) -> Found | None:
    secret = hit["password"]
    if secret == hit["user"] or _PLACEHOLDER.fullmatch(secret):
        return None
    return Found(*hit.span("password"), "password", tail=False)


def _bot(text: str, hit: re.Match[str]) -> Found | None:
    number = _BOT_ID.search(text, max(0, hit.start() - 13), hit.start())
    return Found(number.start(), hit.end(), "Telegram token") if number and looks_random(hit["bot"]) else None


_SORTS: Final = {"value": _named, "password": _login, "bot": _bot}

# ── passwords ────────────────────────────────────────────────────────────────────────────────────────────

_PASSWORDS: Final = tuple(
    re.compile(
        rf"{w}(?:or|OR)?[dD][0-9]?[\"'`\\\])]{{0,3}}\s?(?P<sign>[:=]|%3[AaDd]){_QUOTE}"
        r"(?P<value>[^\s\"'`\\;&<>,)\]}%]{4,128}+)(?![^\s\"'`\\;&<>,)\]}%])"
    )
    for w in "wW"
)
_PASSWORD_NAME: Final = re.compile(r"(?i)(?<![a-z])(?:[a-z]{1,12}[_.-])?(?:passw?|pw?)\Z|[a-z]pass\Z")
_CODE: Final = re.compile(r"[(\[{=]|::|\.\w+\.|^/")
_SIGNS: Final = re.compile(r"[^A-Za-z0-9_./-]")
_PAIR_BEFORE: Final = re.compile(r"(?:;\s?|[A-Za-z]=[^\s,;()]{1,64} )\Z")
_PAIR_AFTER: Final = re.compile(r";|\s[A-Za-z_]{2,20}=[^\s,]")


def _passwords(text: str) -> Iterator[Found]:
    for passwords in _PASSWORDS:
        for hit in passwords.finditer(text):
            name = _PASSWORD_NAME.search(text, max(0, hit.start() - 20), hit.start())
            value = hit["value"]
            if name is None or _CODE.search(value) or _PLACEHOLDER.fullmatch(value):
                continue
            if _made_up(value) or (hit["sign"] != ":" and _in_connection(text, name.start(), hit.end())):
                yield Found(*hit.span("value"), "password", tail=False)


def _in_connection(text: str, start: int, end: int) -> bool:
    """Whether it stands among other `name=value` pairs, with semicolons or only blanks between them."""
    return bool(_PAIR_BEFORE.search(text, max(0, start - 70), start) or _PAIR_AFTER.match(text, end))


def _made_up(value: str) -> bool:
    """Whether somebody thought of this as a password: letters, digits, and either a sign or both cases."""
    plain = value.islower() or value.isupper() or value.upper() == value.lower()
    return len(value) >= 8 and numbered(value) and (not plain or _SIGNS.search(value) is not None)


# ── after a word ─────────────────────────────────────────────────────────────────────────────────────────

_GAP: Final = r"(?:\s{1,2}|%20|\+)"
_CREDENTIAL: Final = r"(?P<value>[A-Za-z0-9._~+/-]{%d,}+={0,2})"
_WORDS: Final = (
    (
        re.compile(
            rf"z(?<=uthoriz)ation[\"'`\\\]]{{0,4}}(?:\s?[:=,]|%3[AaDd]){_QUOTE}(?:%20)?[A-Za-z0-9-]{{3,16}}{_GAP}"
            + _CREDENTIAL % 8
        ),
        "credential",
    ),
    (re.compile(rf"b(?=earer)\w{{5}}{_GAP}{_CREDENTIAL % 12}"), "bearer token"),
    (re.compile(rf"B(?i:earer){_GAP}{_CREDENTIAL % 12}"), "bearer token"),
    (
        re.compile(r"k(?<=hook)s(?:\.slack\.com/[a-z]{1,20}/|/[0-9]{6,25}/)(?P<value>[A-Za-z0-9/_-]{16,}+)"),
        "webhook address",
    ),
)
"""A word is looked for by the character of it that is seldom elsewhere."""


def _after_words(text: str) -> Iterator[Found]:
    for pattern, name in _WORDS:
        for hit in pattern.finditer(text):
            called = text.startswith("(", hit.end())
            if not called and (numbered(hit["value"]) or looks_random(hit["value"])):
                yield Found(*hit.span("value"), name)


_OPTION: Final = re.compile(
    r"--(?<![A-Za-z0-9-]--)(?!-)(?i:[a-z-]{0,24}?(?:key|token|secret|password))(?: {1,2}|=)[\"']?"
    r"(?P<value>[A-Za-z0-9_+/.~-]{16,}+={0,2})"
)


def _options(text: str) -> Iterator[Found]:
    """`--api-key …` on a command line."""
    for hit in _OPTION.finditer(text):
        if looks_random(hit["value"]):
            yield Found(*hit.span("value"), "secret key")


SCANS: Final[tuple[Callable[[str], Iterator[Found]], ...]] = (_separated, _passwords, _after_words, _options)
