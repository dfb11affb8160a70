"""Scan for keys and tokens: long runs of letters, digits and a few signs, judged by what they begin with.

1. A place is the beginning of a *chain*: a run of at least `MIN_TOKEN_CHARS` letters, digits and signs, with the
   parts that dots and slashes join to it. One search finds the places and leaves out ordinary names, paths and
   hashes; all other checks look only there. All work per chain is done by `re`: texts such as lock files have
   ten thousand of them per megabyte.
2. A run counts if it has the format of a service (`key_formats`), is a JWT, or stands after a text that introduces
   a secret (`Bearer`, the number of a bot, the address of a webhook, the name of a service).
3. A run that its label calls a hash (`sha256:…`) does not count as the value of a name.
4. Time is linear: a check reads a bounded part of the text before a run, and no part of a run again and again.
"""

from __future__ import annotations

import binascii
import re
from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import repeat
from typing import Final, NamedTuple

from foveal.core.redaction.key_formats import (
    ALPHABETS,
    FIELD,
    KEY_FORMATS,
    SERVICE_KEYS,
    UUID_FORMAT,
    to_pattern,
)
from foveal.core.redaction.secret_values import (
    Secret,
    has_digit,
    has_digit_or_capital,
    has_scattered_digits,
    is_random_token,
    looks_random,
)

MIN_TOKEN_CHARS: Final = 20
MIN_BLOB_CHARS: Final = 512
"""Base64 of this length is data, not a key; only its beginning is checked."""
JWT_START: Final = "eyJ"
ENCODED_JWT_START: Final = "ZXlK"
ENCODED_KEY_START: Final = "LS0tLS1CRUdJTi"
"""Base64 of `-----BEGIN`."""
_RUN: Final = re.compile(rf"[A-Za-z0-9_~+-]{{{MIN_TOKEN_CHARS},}}+")
_MIXED: Final = re.compile("[0-9A-Z]")
_BLOB: Final = re.compile(rf"[A-Za-z0-9+/]{{{MIN_BLOB_CHARS},}}+")
EDGE: Final = (
    r"(?:(?<![A-Za-z0-9])|(?<=\\[nrtbf])|(?<=%[0-9A-Fa-f]{2})|(?<=\\u[0-9A-Fa-f]{4})"
    r"|(?<=\x1b\[[0-9]m)|(?<=\x1b\[[0-9]{2}m)|(?<=\x1b\[[0-9];[0-9]{2}m))"
)
"""The beginning of a word, also after an escape of JSON, a URL or a terminal."""
_TOKEN_CHAR: Final = "[A-Za-z0-9_-]"


def find_tokens(text: str, ascii_text: bytes) -> Iterator[Secret]:
    """Find keys and tokens; `ascii_text` is the text with `?` for each other character."""
    for start, end, only_context in find_places(text, ascii_text):
        if only_context and not _may_introduce(text[max(0, start - MAX_NEAR_CHARS) : start]):
            continue
        yield from _find_in_chain(text, start, end, only_context=only_context)


def _find_in_chain(text: str, start: int, stop: int, *, only_context: bool) -> Iterator[Secret]:
    """Find the tokens in runs that dots and slashes join."""
    run = _RUN.search(text, start, stop)
    while run:
        at, end = run.span()
        if _MIXED.search(text, at, end):
            found = () if only_context else _find_by_format(text, at, end)
            if not found and _has_context(text, at, end) and (after := _find_by_context(text, at, end)):
                found = (after,)
            if found:
                yield from found
                end = max(end, found[-1].end)
            if text.startswith("/", end) and (blob := _BLOB.match(text, at)):
                end = blob.end()
        run = _RUN.search(text, end, stop)


# ── Places ─────────────────────────────────────────────────────────────────────────────────────────────

_IN_RUN: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-~+"
_CLASSES: Final = bytes(97 if byte in _IN_RUN else 46 if byte in b"./" else 32 for byte in range(256))
_RUN_CLASSES: Final = b"a" * MIN_TOKEN_CHARS
_JOINT: Final = ord(".")
_CHAIN: Final = re.compile(_RUN_CLASSES + rb"[a.]*+")
_MANY_RUNS: Final = 250
"""With more than one run per this many characters, a regular expression finds them faster than `bytes.find`."""
_FIRST_CHARS: Final = 20_000
"""Added to the characters read, since runs can be dense at the beginning of a text and nowhere else."""


_PIECE_CHARS: Final = 24_000
"""`bytes.replace` takes half the time per UUID in texts of this length."""


def _shape(byte: int) -> int:
    """Return `x` for a digit of a hexadecimal number, a quotation mark for both, and signs and letters as they are:
    in lower case, and `k` for `p` as well, so that one search for `k` finds the services."""
    sign = chr(byte).lower()
    if byte not in _IN_RUN:
        return ord({"'": '"', "/": "."}.get(sign, sign if sign in '".' else " "))
    return ord("x" if sign in "0123456789abcdef" else {"x": "y", "p": "k"}.get(sign, sign))


_SHAPES: Final = bytes(map(_shape, range(256)))
_QUOTED_UUID: Final = b'"xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"'
_UUID_SERVICE: Final = re.compile(
    b"|".join(
        b"k" + rest + b"(?<=" + before + b"k" + rest + b")"
        for row in SERVICE_KEYS
        if row.rest == UUID_FORMAT
        for before, _, rest in [row.service.encode().translate(_SHAPES).partition(b"k")]
    )
)
"""A pattern of the services whose keys are UUIDs, in shapes; each has a `k`."""


def find_places(text: str, ascii_text: bytes) -> Iterator[tuple[int, int, bool]]:
    """Yield where a chain begins and ends that may contain a token, and whether only its context suggests so."""
    classes = _without_uuids(ascii_text).translate(_CLASSES)
    for place in filter(None, map(_place().match, repeat(text), _chain_starts(classes))):
        start = place.start()
        end = classes.find(b" ", start)
        yield start, len(text) if end < 0 else end, place["context"] is not None


def _without_uuids(ascii_text: bytes) -> bytes:
    """Return the text, or its shapes with blanks for the UUIDs in quotes if it begins with many of them. They are
    no keys, unless the name of a service with such keys stands before them."""
    first = ascii_text[:_FIRST_CHARS].translate(_SHAPES)
    if first.count(_QUOTED_UUID) * _MANY_RUNS < len(first):
        return ascii_text
    shapes = ascii_text.translate(_SHAPES)
    if _UUID_SERVICE.search(shapes):
        return ascii_text
    pieces = (shapes[at : at + _PIECE_CHARS] for at in range(0, len(shapes), _PIECE_CHARS))
    return b"".join([piece.replace(_QUOTED_UUID, b" " * len(_QUOTED_UUID)) for piece in pieces])


def _chain_starts(classes: bytes) -> list[int]:
    """Return where the chains with a run begin."""
    starts: list[int] = []
    at = classes.find(_RUN_CLASSES)
    while at >= 0 and len(starts) * _MANY_RUNS < at + _FIRST_CHARS:
        starts.append(at)
        end = classes.find(b" ", at)
        at = classes.find(_RUN_CLASSES, end) if end >= 0 else -1
    if at >= 0:
        starts += map(re.Match.start, _CHAIN.finditer(classes, at))
    return [at if classes[at - 1] != _JOINT else classes.rfind(b" ", 0, at) + 1 for at in starts]


_SIGN: Final = "[_~+-]"
_WORD: Final = "[A-Za-z0-9]*+"
_IN_PART: Final = "[A-Za-z0-9_~+-]"
_IN_CHAIN: Final = "[A-Za-z0-9_.~+/-]"
_ORDINARY: Final = (
    rf"(?![a-z_.~+/-]*+(?:(?<={_IN_CHAIN})(?<![a-z])[0-9]++(?![a-z])[a-z_.~+/-]*+){{0,3}}+(?![A-Z0-9]))"
)
"""Fails at a chain of words in lower case and up to three numbers."""
_LOWER: Final = "(?![a-z_.~+/-]++(?![A-Z0-9]))"
"""Fails at a chain in lower case without a number: most chains, and no secret."""
_HASH_LABELS: Final = (
    "sha256:", "sha512:", "sha1:", "h1:", 'sha256": "', 'sha256":"', 'checksum = "', 'integrity": "', 'hash": "',
)  # fmt: skip
_ESCAPE_END: Final = (
    r"(?<=\\)(?:[nrtbf]|u[0-9A-Fa-f]{4})|(?<=%)[0-9A-Fa-f]{2}|(?<=\x1b\[)[0-9]{1,2}m|(?<=;)[0-9]{1,2}m"
)
_NO_HASH: Final = "(?!sha(?:1|256|384|512)-)" + "".join(f"(?<!{re.escape(label)})" for label in _HASH_LABELS)
_AFTER_AUTH: Final = "|".join(rf"(?<=auth[\s\S]{{{chars}}})" for chars in range(1, 12))
"""Text after `auth` and up to eleven signs: the only name whose value counts without a digit."""
_CONTEXT: Final = (
    rf"(?:(?<=[:=>,|?])|(?<=[\"'`\\:=>,|? \t][ \t\"'`\\])|(?<=[rR:=]\s)|(?<=[rR]\s\s)|(?<=[rR]%)20"
    rf"|(?<=[0-9]{{6}}%)3[Aa]|(?<![\s\S])){_NO_HASH}(?={_IN_PART}{{20}})(?=[A-Za-z_~+-]{{0,63}}[0-9]|(?<=[0-9]:){_IN_PART}{{35}}|(?:(?<=[:|])|{_AFTER_AUTH})[A-Za-z_~+/-]*+(?:[\"'`\\\s=,;}}<&|?]|\Z))"
)
"""A run after a name and a sign such as `=`, after `Bearer`, or at the beginning of the text."""
_UUID: Final = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_BLOB_START: Final = rf"[A-Za-z0-9+/]{{{MIN_BLOB_CHARS}}}"
_DISCORD_REST: Final = r"(?<=\.)[A-Za-z0-9_-]{6}\.[A-Za-z0-9_=-]{27}"
_CONTEXT_WORDS: Final = ("atlasv1.", "hooks.slack.com/", "webhooks/", "webhook.office.com/")
_JOINING_FIELD: Final = re.compile(r"\{[bpt]")
"""A field of a format whose alphabet has a dot or a slash."""
_DIGIT_OR_SIGN: Final = re.compile("[0-9_~+-]")
_BEARER_WORDS: Final = ("bearer", "Bearer", "BEARER")


@cache
def _place() -> re.Pattern[str]:
    """Compile the pattern at its first use, since that takes longer than importing this module."""
    start, joined = _starts(joined=False), _starts(joined=True)
    short = (  # parts that are no runs, up to one that may begin a key
        rf"(?:(?!{joined}|{_DISCORD_REST})(?={_IN_PART}{{0,{MIN_TOKEN_CHARS - 1}}}+[./])"
        rf"{_WORD}(?:{_SIGN}(?!{joined}){_WORD})*+[./]++)*+"
    )
    clean = rf"(?!{start}|{_DISCORD_REST}){_WORD}(?:{_SIGN}(?!{start}|(?<=Q~)){_WORD})*+"
    plain = rf"(?!{_starts(joined=False, plain=True)}|[MNO][A-Za-z]{{21}})[A-Za-z]{{1,48}}+"
    qualified = (  # fails at names such as `org.example.ThreadPool.run`, after text that introduces no value
        rf"(?!(?:(?<=\()|(?<=[^\s\"'`\\:=>,|?rR] ))(?:{plain}[./]){{0,8}}+{plain}[0-9]{{0,3}}+(?!{_IN_CHAIN}))"
    )
    chain = rf"{short}(?:{clean}(?:[./]++{short}|(?!{_IN_CHAIN})))*+(?={_IN_CHAIN})"
    word = rf"(?P<word>(?=(?:[A-Za-z0-9]{{{MIN_TOKEN_CHARS},}}+|{_UUID})(?!{_IN_CHAIN})))"
    return re.compile(
        rf"{_LOWER}{word}?+(?(word)|{_ORDINARY}{qualified})"
        rf"(?:(?(word)(?:{_ESCAPE_END})?(?:{start})|(?:(?={_BLOB_START})|(?:{_ESCAPE_END})?{chain}))|(?P<context>{_CONTEXT}))"
    )


def _starts(*, joined: bool, plain: bool = False) -> str:
    """Return a pattern of the beginnings of keys; `joined`: only of those whose first part can be short, because
    dots or slashes join further parts to it; `plain`: only of those without digits and signs."""
    starts = {
        (prefix, _first_field(row.rest))
        for row in KEY_FORMATS
        for prefix in row.prefixes.split()
        if not joined or "." in prefix + row.rest or _JOINING_FIELD.search(row.rest)
    }
    special = (JWT_START, ENCODED_JWT_START, ENCODED_KEY_START, *_CONTEXT_WORDS)
    starts |= {(word, "") for word in (special if joined else (*special, *_BEARER_WORDS))}
    if plain:
        starts = {(prefix, "") for prefix, _ in starts if not _DIGIT_OR_SIGN.search(prefix)}
    return _by_first_letter(starts)


def _by_first_letter(starts: Iterable[tuple[str, str]]) -> str:
    """Return a pattern of strings, each with a pattern of what follows it; the first letter is compared once."""
    groups: dict[str, list[str]] = {}
    for start, follows in sorted(starts):
        groups.setdefault(start[0], []).append(re.escape(start[1:]) + follows)
    return "|".join(f"{re.escape(letter)}(?:{'|'.join(rests)})" for letter, rests in groups.items())


def _first_field(rest: str) -> str:
    """Return a test of the characters right after a prefix."""
    field = FIELD.match(rest)
    return f"(?=[{ALPHABETS[field['alphabet']]}]{{{field['low']}}})" if field else ""


# ── Formats of services ────────────────────────────────────────────────────────────────────────────────


class _Format(NamedTuple):
    prefix: str
    pattern: str
    kind: str
    proof: Callable[[str], object]


_PROOFS: Final[dict[str, Callable[[str], object]]] = {
    "": bool,
    "mixed": has_digit_or_capital,
    "random": is_random_token,
}
_FORMATS: Final = sorted(
    (
        _Format(prefix, re.escape(prefix) + to_pattern(row.rest), row.kind, _PROOFS[row.proof])
        for row in KEY_FORMATS
        for prefix in row.prefixes.split()
    ),
    key=lambda each: -len(each.prefix),
)
"""Longer prefixes come first."""
_STARTS: Final = {each.prefix for each in _FORMATS} | {JWT_START, ENCODED_JWT_START, ENCODED_KEY_START}
_ANY_START: Final = _by_first_letter((start, "") for start in _STARTS)
_START: Final = re.compile(f"(?P<start>{_ANY_START})")
_INNER_START: Final = re.compile(f"[_.~+/-](?P<start>{_ANY_START})")
_ESCAPE: Final = re.compile(
    r"(?<=\\)[nrtbf]|(?<=\\)u[0-9A-Fa-f]{4}|(?<=%)[0-9A-Fa-f]{2}|(?<=\x1b\[)[0-9]{1,2}m|(?<=\x1b\[[0-9];)[0-9]{1,2}m"
)
"""An escape of JSON, a URL or a terminal, which ends where a token begins."""
_FORMATS_BY_START: Final = {
    start: [each for each in _FORMATS if start.startswith(each.prefix) or each.prefix.startswith(start)]
    for start in _STARTS
}


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compile a format when its prefix first occurs: all of them would take a tenth of a second at import."""
    return re.compile(pattern)


def _find_by_format(text: str, at: int, end: int) -> Sequence[Secret]:
    """Return the keys that begin in a run: at its start, after an escape, or after a sign in it."""
    if at and text[at - 1] in "./\\%[;":
        at = _start_of_format(text, at, end)
    hit = _START.match(text, at, end) or _INNER_START.search(text, at, end)
    if not hit:
        return ()
    found: list[Secret] = []
    while hit:
        prefix = hit["start"]
        secret, at = _format_at(text, hit.end() - len(prefix), prefix)
        if secret:
            found.append(secret)
        hit = _INNER_START.search(text, at, end)
    return found


def _start_of_format(text: str, at: int, end: int) -> int:
    """Return where a key can begin: at the parts that are joined to a run, or after an escape."""
    if text[at - 1] in "./":
        at = _start_of_parts(text, at)
    if at and text[at - 1] in "\\%[;" and (escape := _ESCAPE.match(text, at, end)):
        return escape.end()
    return at


def _format_at(text: str, start: int, prefix: str) -> tuple[Secret | None, int]:
    """Return the key that begins here, if any, and the end of the text that was read."""
    end = start + len(prefix)
    if special := _SPECIAL.get(prefix[:4]) or _SPECIAL.get(prefix[:3]):
        run = _BASE64_RUN.match(text, start)
        end = max(end, run.end() if run else 0)
        if secret := special(text, start):
            return secret, secret.end
    for each in _FORMATS_BY_START[prefix]:
        match = _compiled(each.pattern).match(text, start)
        if match and each.proof(match.group()[len(each.prefix) :]):
            return Secret(*match.span(), each.kind), match.end()
        end = max(end, match.end() if match else 0)
    return None, end


_JWT: Final = re.compile(
    rf"eyJ(?P<head>{_TOKEN_CHAR}{{8,}}+)\.(?:eyJ{_TOKEN_CHAR}{{4,}}+(?:\.{_TOKEN_CHAR}*+)?"
    rf"|{_TOKEN_CHAR}*+\.{_TOKEN_CHAR}{{8,}}+(?:\.{_TOKEN_CHAR}++)*+)"
)
_JWT_FIELD: Final = re.compile(rb'"(?:alg|typ|kid|enc)"')
_MAX_HEADER_CHARS: Final = 400
_BASE64_RUN: Final = re.compile(r"[A-Za-z0-9+/_-]++={0,2}")


def _jwt_at(text: str, start: int) -> Secret | None:
    hit = _JWT.match(text, start)
    if hit and _JWT_FIELD.search(_decode(f"eyJ{hit['head']}"[:_MAX_HEADER_CHARS])):
        return Secret(*hit.span(), "JWT")
    return None


def _encoded_jwt_at(text: str, start: int) -> Secret | None:
    hit = _BASE64_RUN.match(text, start)
    inner = _decode(hit.group()[:_MAX_HEADER_CHARS]) if hit else b""
    head = inner.partition(b".")[0].decode("ascii", "replace")
    return Secret(*hit.span(), "JWT") if hit and _JWT_FIELD.search(_decode(head)) else None


def _encoded_key_at(text: str, start: int) -> Secret | None:
    """Return a private key that is Base64-encoded again, as in a Kubernetes secret."""
    run = _BASE64_RUN.match(text, start)
    if run and len(run.group()) >= 56 and b"PRIVATE KEY" in _decode(run.group()[:56]):
        return Secret(*run.span(), "private key", tail=False)
    return None


_SPECIAL: Final[dict[str, Callable[[str, int], Secret | None]]] = {
    JWT_START: _jwt_at,
    ENCODED_JWT_START: _encoded_jwt_at,
    ENCODED_KEY_START[:4]: _encoded_key_at,
}


def _decode(encoded: str) -> bytes:
    try:
        return urlsafe_b64decode(encoded[: len(encoded) // 4 * 4].replace("+", "-").replace("/", "_"))
    except (binascii.Error, ValueError):
        return b""


# ── Context of a run ───────────────────────────────────────────────────────────────────────────────────

MAX_CONTEXT_CHARS: Final = 128
"""Characters before a run that can introduce it."""
MAX_PARTS_CHARS: Final = 64
"""Characters before a run that dots or slashes join to it."""
_PARTS: Final = re.compile(r"[A-Za-z0-9_~.+/-]*")


def _start_of_parts(text: str, at: int) -> int:
    """Return where the parts begin that dots or slashes join to a run."""
    backwards = _PARTS.match(text[max(0, at - MAX_PARTS_CHARS) : at][::-1])
    return at - len(backwards.group()) if backwards else at


def _has_context(text: str, at: int, end: int) -> bool:
    """Return whether `_find_by_context` may find something: a check that takes a fraction of its time."""
    near = text[at - MAX_NEAR_CHARS if at > MAX_NEAR_CHARS else 0 : at]
    if _may_introduce(near):
        return True
    if near[-1] == "/" and text.find("hook", max(0, at - MAX_CONTEXT_CHARS), at) >= 0:
        return True
    return text.find("Q~", at, end) >= 0 or (text[at] in "Bb" and text[at : at + 6].lower() == "bearer")


def _find_by_context(text: str, at: int, end: int) -> Secret | None:
    if text.find("auth", max(0, at - 12), at) >= 0 and (login := _basic_auth(text, at)):
        return login
    before = text[max(0, at - MAX_CONTEXT_CHARS) : at]
    last = before[-1:]
    if last == ":" or before.endswith("%"):
        found = _bot_token(text, at, end)
    elif last == ".":
        found = _dotted_token(text, at, end)
    elif last == "/":
        found = _webhook(text, before, at)
    elif last == "|":
        found = _facebook_token(text, at, end)
    else:
        found = None
    if found or not _DIGITS.search(text, at, min(end, at + 64)):
        return found
    return _azure_secret(text, at, end) or _bearer(text, before, at, end) or _service_key(text, before, at)


MAX_NEAR_CHARS: Final = 16
"""Characters before a run that mostly suffice to see that nothing introduces it."""


@lru_cache(maxsize=4096)
def _may_introduce(near: str) -> bool:
    """Return whether the text right before a run may introduce a secret, apart from the address of a webhook; a
    text repeats few of these places."""
    if near[-1:] in ("", "%", "|") or "auth" in near or "bearer" in near.lower():
        return True
    if near[-1] == ".":
        return near[-8:-7] == "." or near[-8:-1] == "atlasv1"
    return (near[-1] == ":" and near[-2:-1].isdigit()) or _may_name_service(near)


def _may_name_service(near: str) -> bool:
    """Return whether the text before a run may end with the name of a service, as `_service_key` reads it."""
    trimmed = near.rstrip(_VALUE_MARKS)
    if trimmed and trimmed[-1] not in ":>,|?" and "=" not in near[len(trimmed) :]:
        return False
    words = trimmed.rstrip(_NAME_MARKS)
    name = _NAME_BACKWARDS.match(words[::-1])
    is_whole = name is not None and name.end() < len(words)
    return not (is_whole and name and not _patterns_for(name.group()[::-1].lower()))


_AUTH_NAME: Final = re.compile(r"auth[\"'\\]{0,4}\s?[:=]\s?[\"'\\]{0,4}\Z")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/]++={0,2}")


def _basic_auth(text: str, at: int) -> Secret | None:
    """Return the value of `"auth": "…"` in a Docker configuration: Base64 of a user and a password."""
    value = _BASE64.match(text, at) if _AUTH_NAME.search(text, max(0, at - 12), at) else None
    decoded = _decode(value.group()) if value else b""
    return (
        Secret(*value.span(), "credential") if value and decoded.isascii() and b":" in decoded[1:] else None
    )


_BOT_ID: Final = re.compile(rf"(?:{EDGE}|(?<=bot))[0-9]{{6,12}}(?::|%)\Z")
_BOT_BODY: Final = re.compile(rf"{_TOKEN_CHAR}{{35}}(?!{_TOKEN_CHAR})")


def _bot_token(text: str, at: int, end: int) -> Secret | None:
    number = _BOT_ID.search(text, max(0, at - 20), at)
    encoded = 2 if text[at - 1] == "%" else 0
    if number is None or (encoded and text[at : at + 2].upper() != "3A"):
        return None
    body = _BOT_BODY.match(text, at + encoded)
    if body and (body.group().startswith("AA") or looks_random(body.group())):
        return Secret(number.start(), body.end(), "Telegram token")
    return None


_DISCORD: Final = re.compile(rf"{EDGE}[MNO]{_TOKEN_CHAR}{{21,29}}\.{_TOKEN_CHAR}{{6}}\.\Z")
_TERRAFORM: Final = re.compile(rf"{EDGE}[A-Za-z0-9]{{14}}\.atlasv1\.\Z")
_AZURE: Final = re.compile(
    r"(?<![A-Za-z0-9_~.-])[A-Za-z0-9_~.]{3}[0-9]Q~[A-Za-z0-9_~.-]{31,34}(?![A-Za-z0-9_~.-])"
)
_TOKEN_REST: Final = re.compile(r"[A-Za-z0-9_=-]+")


def _dotted_token(text: str, at: int, end: int) -> Secret | None:
    if text.startswith(".", max(0, at - 8)):
        kind, head = "Discord token", _DISCORD.search(text, max(0, at - 39), at)
    elif text.startswith("atlasv1", max(0, at - 8)):
        kind, head = "Terraform token", _TERRAFORM.search(text, max(0, at - 24), at)
    else:
        return None
    rest = _TOKEN_REST.match(text, at)
    if head and rest and rest.end() - at >= 27 and looks_random(text[head.start() : rest.end()]):
        return Secret(head.start(), rest.end(), kind)
    return None


def _azure_secret(text: str, at: int, end: int) -> Secret | None:
    if text.find("Q~", at, end) < 0:
        return None
    hit = _AZURE.search(text, max(0, at - 6), min(len(text), end + 64))
    return Secret(*hit.span(), "Azure secret") if hit and looks_random(hit.group()) else None


_WEBHOOK: Final = re.compile(
    r"(?:hooks\.slack\.com/[a-z]{1,20}/|webhooks/[0-9]{6,25}/|webhook\.office\.com/webhookb2/)(?P<value>[A-Za-z0-9/_@-]{16,}+)"
)


def _webhook(text: str, before: str, at: int) -> Secret | None:
    start = before.rfind("hook")
    if start < 0:
        return None
    hit = _WEBHOOK.search(text, max(0, at - MAX_CONTEXT_CHARS), min(len(text), at + 300))
    return Secret(*hit.span("value"), "webhook address") if hit and hit.end() > at else None


_FACEBOOK_ID: Final = re.compile(rf"{EDGE}[0-9]{{15,16}}\|\Z")


def _facebook_token(text: str, at: int, end: int) -> Secret | None:
    number = _FACEBOOK_ID.search(text, max(0, at - 18), at)
    return Secret(number.start(), end, "Facebook token") if number and 27 <= end - at <= 40 else None


_BEARER: Final = re.compile(r"(?i)bearer(?:\s{1,2}|%20|\+)(?P<value>[A-Za-z0-9._~+/-]{12,}+={0,2})")


def _bearer(text: str, before: str, at: int, end: int) -> Secret | None:
    near = before[-9:].lower()
    if "bearer" not in near and text[at : at + 6].lower() != "bearer":
        return None
    hit = _BEARER.search(text, max(0, at - 9), end)
    hit = _BEARER.match(text, hit.start()) if hit else None
    if (
        hit
        and not text.startswith("(", hit.end())
        and (has_digit(hit["value"]) or looks_random(hit["value"]))
    ):
        return Secret(*hit.span("value"), "bearer token")
    return None


_SERVICE_PATTERNS: Final = {
    name: [re.compile(to_pattern(row.rest)) for row in SERVICE_KEYS if name in row.service.split()]
    for row in SERVICE_KEYS
    for name in row.service.split()
}
SERVICE_NAMES: Final = _by_first_letter((name, "") for name in _SERVICE_PATTERNS)
"""A pattern that matches the name of a service in lower case."""
_SERVICES: Final = re.compile(SERVICE_NAMES)
_DIGITS: Final = re.compile("[0-9]")
_VALUE_MARKS: Final = "\"'`\\ \t="
_NAME_MARKS: Final = "\"'`\\ \t:=>?,|])"
_NAME_BACKWARDS: Final = re.compile(r"[A-Za-z0-9_. -]*")
_MAX_NAME_CHARS: Final = 48


def _service_key(text: str, before: str, at: int) -> Secret | None:
    """Return a key after a name that contains the name of its service."""
    trimmed = before.rstrip(_VALUE_MARKS)
    if not trimmed or (trimmed[-1] not in ":>,|?" and "=" not in before[len(trimmed) :]):
        return None
    backwards = _NAME_BACKWARDS.match(trimmed.rstrip(_NAME_MARKS)[: -_MAX_NAME_CHARS - 1 : -1])
    name = backwards.group()[::-1].lower() if backwards else ""
    end = _service_key_end(text, name, at)
    return Secret(at, end, "secret key") if end and has_scattered_digits(text[at:end]) else None


def _service_key_end(text: str, name: str, at: int) -> int | None:
    """Return where the key ends that begins here and has the format of the service that the name contains."""
    hits = (pattern.match(text, at) for pattern in _patterns_for(name))
    return next((hit.end() for hit in hits if hit), None)


@lru_cache(maxsize=1024)
def _patterns_for(name: str) -> list[re.Pattern[str]]:
    """Return the formats of the service that a name contains; a text repeats few names."""
    service = _SERVICES.search(name)
    return _SERVICE_PATTERNS[service.group()] if service else []


def is_service_key(name: str, value: str) -> bool:
    """Return whether a value has the format of the service that its name contains."""
    return _service_key_end(value, name.lower(), 0) == len(value)
