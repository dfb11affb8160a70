"""Patterns of secrets: keys, tokens, passwords and private keys.

Each scan yields the secrets of one family in a text.

1. A scan first searches for a character or word that every secret of its family contains (`_`, `-`, `.`, `:`,
   `=`), which is fast; the other checks run only at these places.
2. Time is linear: repetitions that can fail are bounded, and unbounded ones are possessive.
3. A secret without a distinctive prefix must have a name (`api_key = …`) and look random, so that hashes,
   UUIDs and identifiers are not redacted.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode, urlsafe_b64decode
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple


class Secret(NamedTuple):
    """A secret in a text."""

    start: int
    end: int
    name: str
    """The kind of secret, for the placeholder."""
    tail: bool = True
    """Whether the placeholder may show the last four characters."""


EDGE: Final = (
    r"(?:(?<![A-Za-z0-9])|(?<=\\[nrtbf])|(?<=%[0-9A-Fa-f]{2})|(?<=\\u[0-9A-Fa-f]{4})"
    r"|(?<=\x1b\[[0-9]m)|(?<=\x1b\[[0-9]{2}m)|(?<=\x1b\[[0-9];[0-9]{2}m))"
)
"""The beginning of a word, also after an escape of JSON, a URL or a terminal."""
_EDGE: Final = re.compile(EDGE)
_TOKEN_CHAR: Final = "[A-Za-z0-9_-]"

# ── Random values ───────────────────────────────────────────────────────────────────────────────

_MAX_MEAN_RUN: Final = 3.2
"""Mean run of letters or digits between changes of class: random text has shorter runs than names."""
_PIECE: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
_DIGIT: Final = re.compile("[0-9]")


def looks_random(value: str) -> bool:
    """Return whether a value looks like a key: letters with digits or both cases, and no words."""
    mixed = value.upper() != value.lower() and (
        _DIGIT.search(value) or not (value.islower() or value.isupper())
    )
    alphanumeric = sum(map(str.isalnum, value))
    return bool(mixed) and len(set(value)) >= 8 and alphanumeric <= len(_PIECE.findall(value)) * _MAX_MEAN_RUN


def has_digit(value: str) -> bool:
    return _DIGIT.search(value) is not None


def _always(value: str) -> bool:
    return True


# ── Secrets with a prefix ────────────────────────────────────────────────────────────────


class _Prefixed(NamedTuple):
    name: str
    pattern: str
    proof: Callable[[str], bool] = _always


_PREFIXED: Final = (
    _Prefixed("Anthropic key", r"sk-ant-[A-Za-z0-9_-]{16,}+", has_digit),
    _Prefixed("OpenRouter key", r"sk-or-[A-Za-z0-9_-]{24,}+", has_digit),
    _Prefixed("OpenAI key", r"sk-(?:proj|svcacct|admin|None)-[A-Za-z0-9_-]{16,}+", has_digit),
    _Prefixed("OpenAI key", r"sk-[A-Za-z0-9]{20,}+(?![A-Za-z0-9_-])"),
    _Prefixed("OpenAI key", r"sk-[A-Za-z0-9_-]{20,}+", looks_random),
    _Prefixed("GitHub token", r"gh[pousr]_[A-Za-z0-9]{30,}+(?:[_.-][A-Za-z0-9]+)*+"),
    _Prefixed("GitHub token", r"gh[pousr]_[A-Za-z0-9_-]{30,}+(?:\.[A-Za-z0-9_-]+)*+", looks_random),
    _Prefixed("GitHub token", r"github_pat_[A-Za-z0-9_]{22,}+", has_digit),
    _Prefixed(
        "GitLab token",
        r"gl(?:pat|ptt|dt|rt|soat|ft|cbt|agent|oas|imt|ffct)-[A-Za-z0-9_-]{20,}+(?:\.[a-z0-9]+)*+",
        has_digit,
    ),
    _Prefixed("Slack token", r"xox[a-z]-[A-Za-z0-9-]{18,}+", has_digit),
    _Prefixed("Slack token", r"xapp-[0-9]-[A-Za-z0-9-]{16,}+"),
    _Prefixed("Stripe key", r"sk_(?:live|test)_[A-Za-z0-9]{16,}+"),
    _Prefixed("Stripe key", r"rk_(?:live|test)_[A-Za-z0-9]{16,}+"),
    _Prefixed("webhook secret", r"whsec_[A-Za-z0-9+/_-]{24,}+={0,2}", looks_random),
    _Prefixed("Hugging Face token", r"hf_[A-Za-z0-9]{30,}+"),
    _Prefixed("Groq key", r"gsk_[A-Za-z0-9]{32,}+"),
    _Prefixed("xAI key", r"xai-[A-Za-z0-9]{32,}+"),
    _Prefixed("npm token", r"npm_[A-Za-z0-9]{36,}+"),
    _Prefixed("PyPI token", r"pypi-[A-Za-z0-9_-]{50,}+", has_digit),
    _Prefixed("Google secret", r"GOCSPX-[A-Za-z0-9_-]{20,}+"),
    _Prefixed("DigitalOcean token", r"do[opr]_v1_[a-f0-9]{64}"),
    _Prefixed("Docker token", r"dckr_[po]at_[A-Za-z0-9_-]{20,}+"),
    _Prefixed("Foveal token", r"fv_[A-Za-z0-9_-]{32,}+", looks_random),
)
_BEGINNING: Final = re.compile(
    rf"(?=[dfghnprswxG]){EDGE}(?:(?:[sr]k_(?:live|test)_|hf_|gsk_|xai-|npm_)(?=[A-Za-z0-9]{{16}})"
    r"|sk-|gh[pousr]_|github_pat_|gl[a-z]{2,5}-|xox[a-z]-|xapp-|whsec_|pypi-|GOCSPX-|do[opr]_v1_|dckr_|fv_)"
)
_PATTERNS_BY_START: Final = {
    start: [(shape, re.compile(shape.pattern)) for shape in _PREFIXED if shape.pattern.startswith(start)]
    for start in {shape.pattern[:2] for shape in _PREFIXED}
}
"""Patterns by their first two characters."""
_RUNS: Final = (re.compile(rf"_{_TOKEN_CHAR}{{20,}}+"), re.compile(rf"-{_TOKEN_CHAR}{{18,}}+"))
_MAX_PREFIX_CHARS: Final = 7
"""Characters of the longest prefix before its first separator."""


def _find_prefixed(text: str) -> Iterator[Secret]:
    for runs in _RUNS:
        for run in runs.finditer(text):
            at = max(0, run.start() - _MAX_PREFIX_CHARS)
            while hit := _BEGINNING.search(text, at, run.end()):
                secret, at = _secret_at(text, hit)
                if secret:
                    yield secret


def _secret_at(text: str, beginning: re.Match[str]) -> tuple[Secret | None, int]:
    """Return the secret that begins here, if any, and the end of the scanned text."""
    end = beginning.end()
    for shape, pattern in _PATTERNS_BY_START.get(beginning.group()[:2], ()):
        hit = pattern.match(text, beginning.start())
        if hit and shape.proof(hit.group()):
            return Secret(*hit.span(), shape.name), hit.end()
        end = max(end, hit.end() if hit else 0)
    return None, end


_GOOGLE_OR_AWS_KEY: Final = re.compile(
    rf"A(?:(?P<google>Iza{_TOKEN_CHAR}{{35}}(?!{_TOKEN_CHAR}))|(?:KIA|SIA|BIA|CCA)[A-Z2-7]{{16}}(?![A-Za-z0-9]))"
)


def _find_google_and_aws_keys(text: str) -> Iterator[Secret]:
    """Find keys of Google and Amazon, which contain no separator."""
    for hit in _GOOGLE_OR_AWS_KEY.finditer(text):
        if _EDGE.match(text, hit.start()):
            yield Secret(*hit.span(), "Google key" if hit["google"] else "AWS key id")


# ── Secrets with dots ─────────────────────────────────────────────────────────────

_DOTTED: Final = re.compile(
    rf"\.(?:(?P<discord>{_TOKEN_CHAR}{{6}}\.{_TOKEN_CHAR}{{27,}}+)|{_TOKEN_CHAR}{{20,}}+(?:\.{_TOKEN_CHAR}{{20,}}+)?+)"
)
_DISCORD: Final = re.compile(rf"{EDGE}[MNO]{_TOKEN_CHAR}{{21,29}}\Z")
_DOTTED_NAMES: Final = {"SG": "SendGrid key", "hvs": "Vault token", "ya29": "Google token"}
_WORD: Final = re.compile(r"(?:SG|hvs|ya29)\Z")


def _find_dotted(text: str) -> Iterator[Secret]:
    for hit in _DOTTED.finditer(text):
        start, end = hit.span()
        if hit["discord"]:
            head = _DISCORD.search(text, max(0, start - 30), start)
            if head and looks_random(text[head.start() : end]):
                yield Secret(head.start(), end, "Discord token")
        elif (head := _WORD.search(text, max(0, start - 4), start)) and _EDGE.match(text, head.start()):
            yield Secret(head.start(), end, _DOTTED_NAMES[head.group()])


_JWT: Final = re.compile(
    rf"J(?<=eyJ)(?P<head>{_TOKEN_CHAR}{{8,}}+)"
    rf"(?P<rest>\.(?:eyJ{_TOKEN_CHAR}{{4,}}+(?:\.{_TOKEN_CHAR}*+)?|{_TOKEN_CHAR}*+\.{_TOKEN_CHAR}{{8,}}+(?:\.{_TOKEN_CHAR}++)*+))?"
)
_JWT_FIELD: Final = re.compile(rb'"(?:alg|typ|kid|enc)"')


def _find_jwts(text: str) -> Iterator[Secret]:
    for hit in _JWT.finditer(text):
        start = hit.start() - 2
        header = "eyJ" + hit["head"][:397]
        if hit["rest"] and _EDGE.match(text, start) and _JWT_FIELD.search(_decode_base64_url(header)):
            yield Secret(start, hit.end(), "JWT")


def _decode_base64_url(encoded: str) -> bytes:
    return urlsafe_b64decode(encoded[: len(encoded) // 4 * 4])


PATTERN_SCANS: Final = (_find_prefixed, _find_google_and_aws_keys, _find_dotted, _find_jwts)
"""Each scan yields the secrets of one family in order."""


# ── Assignments: values after a name, in a URL, a header or an option ──────────────────────────────────
# A name alone proves little (`password=password`, `token: str`), so the value must look like a secret too. In
# a URL or a connection string any value counts, except an obvious placeholder.

_QUOTE: Final = r"\s{0,3}+(?:\\{0,3}[\"'`])?"
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_PLACEHOLDER: Final = re.compile(
    r"(?i)[$<{\[*%(].*|(.)\1*|\W*|none|null|true|false|changeme|example|undefined|redacted"
    r"|(?:my|your|the|some|db|user|test)?[_-]?(?:pass|passwd|password|pwd|pw|secret|token)"
)

# ── Logins in URLs, bot tokens, and named keys ──────────────────────────────────────────────────────

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
_MAX_NAME_CHARS: Final = 48


def _find_separated(text: str) -> Iterator[Secret]:
    for separators in _SEPARATORS:
        for hit in separators.finditer(text):
            secret = _MATCHERS[hit.lastgroup or "value"](text, hit)
            if secret:
                yield secret


def _match_named(text: str, hit: re.Match[str]) -> Secret | None:
    """Return a random-looking value whose name is that of a secret."""
    at = hit.start()
    last = text[max(0, at - 20) : at].rstrip("0123456789\"'`\\])\t ").lower()
    if not last.endswith(_LAST_WORDS):
        return None
    name = _NAME.search(text, max(0, at - _MAX_NAME_CHARS), at)
    if name is None or not looks_random(hit["value"]) or (name["token"] and _UUID.fullmatch(hit["value"])):
        return None
    return Secret(*hit.span("value"), "token" if name["token"] else "secret key")


def _match_login(text: str, hit: re.Match[str]) -> Secret | None:
    secret = hit["password"]
    if secret == hit["user"] or _PLACEHOLDER.fullmatch(secret):
        return None
    return Secret(*hit.span("password"), "password", tail=False)


def _match_bot(text: str, hit: re.Match[str]) -> Secret | None:
    number = _BOT_ID.search(text, max(0, hit.start() - 13), hit.start())
    return (
        Secret(number.start(), hit.end(), "Telegram token") if number and looks_random(hit["bot"]) else None
    )


_MATCHERS: Final = {"value": _match_named, "password": _match_login, "bot": _match_bot}

# ── Passwords ──────────────────────────────────────────────────────────────────────────────────────────

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


def _find_passwords(text: str) -> Iterator[Secret]:
    for passwords in _PASSWORDS:
        for hit in passwords.finditer(text):
            name = _PASSWORD_NAME.search(text, max(0, hit.start() - 20), hit.start())
            value = hit["value"]
            if name is None or _CODE.search(value) or _PLACEHOLDER.fullmatch(value):
                continue
            if _looks_like_password(value) or (
                hit["sign"] != ":" and _in_connection(text, name.start(), hit.end())
            ):
                yield Secret(*hit.span("value"), "password", tail=False)


def _in_connection(text: str, start: int, end: int) -> bool:
    """Return whether the pair is one of several `name=value` pairs, separated by semicolons or blanks."""
    return bool(_PAIR_BEFORE.search(text, max(0, start - 70), start) or _PAIR_AFTER.match(text, end))


def _looks_like_password(value: str) -> bool:
    """Return whether a value looks like a password: letters, digits, and a special character or both cases."""
    plain = value.islower() or value.isupper() or value.upper() == value.lower()
    return len(value) >= 8 and has_digit(value) and (not plain or _SIGNS.search(value) is not None)


# ── Values after a word ────────────────────────────────────────────────────────────────────────────────

_GAP_TO_VALUE: Final = r"(?:\s{1,2}|%20|\+)"
_CREDENTIAL: Final = r"(?P<value>[A-Za-z0-9._~+/-]{%d,}+={0,2})"
_WORDS: Final = (
    (
        re.compile(
            rf"z(?<=uthoriz)ation[\"'`\\\]]{{0,4}}(?:\s?[:=,]|%3[AaDd]){_QUOTE}(?:%20)?[A-Za-z0-9-]{{3,16}}{_GAP_TO_VALUE}"
            + _CREDENTIAL % 8
        ),
        "credential",
    ),
    (re.compile(rf"b(?=earer)\w{{5}}{_GAP_TO_VALUE}{_CREDENTIAL % 12}"), "bearer token"),
    (re.compile(rf"B(?i:earer){_GAP_TO_VALUE}{_CREDENTIAL % 12}"), "bearer token"),
    (
        re.compile(r"k(?<=hook)s(?:\.slack\.com/[a-z]{1,20}/|/[0-9]{6,25}/)(?P<value>[A-Za-z0-9/_-]{16,}+)"),
        "webhook address",
    ),
)
"""Each pattern starts at the least common character of its word."""


def _find_after_words(text: str) -> Iterator[Secret]:
    for pattern, name in _WORDS:
        for hit in pattern.finditer(text):
            is_call = text.startswith("(", hit.end())
            if not is_call and (has_digit(hit["value"]) or looks_random(hit["value"])):
                yield Secret(*hit.span("value"), name)


_OPTION: Final = re.compile(
    r"--(?<![A-Za-z0-9-]--)(?!-)(?i:[a-z-]{0,24}?(?:key|token|secret|password))(?: {1,2}|=)[\"']?"
    r"(?P<value>[A-Za-z0-9_+/.~-]{16,}+={0,2})"
)


def _find_options(text: str) -> Iterator[Secret]:
    """Find `--api-key …` on a command line."""
    for hit in _OPTION.finditer(text):
        if looks_random(hit["value"]):
            yield Secret(*hit.span("value"), "secret key")


ASSIGNMENT_SCANS: Final[tuple[Callable[[str], Iterator[Secret]], ...]] = (
    _find_separated,
    _find_passwords,
    _find_after_words,
    _find_options,
)


# ── Private keys ───────────────────────────────────────────────────────────────────────────────────────
# A block may be indented, quoted, numbered or have escaped line ends. A truncated block extends as far as its
# Base64. BEGIN and END lines without Base64 between them, as in documentation, are not a key.

MAX_KEY_BLOCK_CHARS: Final = 32_768
"""Characters of the longest block: a key of 16,384 bits, quoted and indented."""

_GAP: Final = r"(?:[ +]|%20)"
_MARK: Final = re.compile(
    rf"-----(?i:(?P<begin>begin)|end){_GAP}(?:[A-Za-z0-9]{{1,12}}{_GAP}){{0,3}}"
    rf"(?i:private{_GAP}key(?:{_GAP}block)?)-{{2,5}}"
)
_BREAK: Final = r"(?:\\{1,3}[nrt]|%0[AaDd]|[\s\"'`,+>|-]|[0-9]{1,6}[:|\t→])"
_BODY: Final = r"(?:[A-Za-z0-9/=+]|%2[BbFf]|%3[Dd]|\\/)"
_HEADER: Final = r"(?:Proc-Type|DEK-Info|Version|Comment):[^\n\\%]{0,120}"
_AFTER: Final = re.compile(
    rf"(?:{_BREAK}*+(?:{_HEADER}|{_BODY}{{24,}}+))*+"
    rf"(?:{_BREAK}{{1,8}}+(?=[A-Za-z]*(?:[0-9+/=]|[a-z][A-Z])){_BODY}{{1,23}}+(?![A-Za-z0-9_.]))?"
)
_REVERSED_BREAK: Final = r"(?:[\s\"'`,+>|-]|[nrt]\\{1,3}|[AaDd]0%)"
_BEFORE: Final = re.compile(
    rf"(?:{_REVERSED_BREAK}*+[A-Za-z0-9+/=]{{24,}}+)++"
    rf"(?:{_REVERSED_BREAK}{{1,8}}+(?=[A-Za-z]*(?:[0-9+/=]|[A-Z][a-z]))[A-Za-z0-9+/=]{{1,23}}+(?![A-Za-z0-9_.]))?"
)
"""`_AFTER` for a reversed text: the Base64 before an END line is read backwards."""
_BASE64: Final = re.compile(r"[A-Za-z0-9+/]{24}")
_ENCODED: Final = "LS0tLS1CRUdJTi"
_ENCODED_RUN: Final = re.compile(r"[A-Za-z0-9+/_-]{56,}+={0,2}")


def find_private_keys(text: str) -> Iterator[Secret]:
    marks = list(_MARK.finditer(text))
    last = 0
    for at, mark in enumerate(marks):
        if mark.start() < last:
            continue
        after = marks[at + 1] if at + 1 < len(marks) else None
        span = _block_from(text, mark, after) if mark["begin"] else _block_up_to(text, last, mark)
        if span:
            yield Secret(*span, "private key", tail=False)
            last = span[1]
        else:
            last = mark.end()
    yield from _find_encoded_keys(text)


def _block_from(text: str, mark: re.Match[str], after: re.Match[str] | None) -> tuple[int, int] | None:
    """Return the block that begins here, up to its END line or as far as its Base64 goes."""
    if after and not after["begin"] and after.start() - mark.end() < MAX_KEY_BLOCK_CHARS:
        found = _BASE64.search(text, mark.end(), after.start())
        return (mark.start(), after.end()) if found else None
    rest = _AFTER.match(text, mark.end())
    return (mark.start(), rest.end()) if rest and _BASE64.search(rest.group()) else None


def _block_up_to(text: str, last: int, mark: re.Match[str]) -> tuple[int, int] | None:
    """Return the rest of a block whose beginning was cut off."""
    backwards = text[max(last, mark.start() - MAX_KEY_BLOCK_CHARS) : mark.start()][::-1]
    rest = _BEFORE.match(backwards)
    return (mark.start() - rest.end(), mark.end()) if rest else None


def _find_encoded_keys(text: str) -> Iterator[Secret]:
    """Find blocks that are Base64-encoded again, as in a Kubernetes secret."""
    at = text.find(_ENCODED)
    while at >= 0:
        run = _ENCODED_RUN.match(text, at)
        if run and b"PRIVATE KEY" in _decode_base64(run.group()[:56]):
            yield Secret(*run.span(), "private key", tail=False)
        at = text.find(_ENCODED, run.end() if run else at + len(_ENCODED))


def _decode_base64(text: str) -> bytes:
    try:
        return b64decode(text)
    except binascii.Error:
        return b""
