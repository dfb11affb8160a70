"""Places where a key or a token can be: one search that leaves out ordinary names, paths and hashes.

1. A place is the beginning of a *chain*: a run of at least `MIN_TOKEN_CHARS` letters, digits and signs, with the
   parts that dots and slashes join to it.
2. The search leaves out what `long_tokens` would reject, so that its checks run at few places. All work per chain
   is done by `re`: texts such as lock files have ten thousand of them per megabyte.
3. A run that its label calls a hash (`sha256:…`) does not count as the value of a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import repeat
from typing import Final

from foveal.core.redaction.key_formats import ALPHABETS, FIELD, KEY_FORMATS

MIN_TOKEN_CHARS: Final = 20
MIN_BLOB_CHARS: Final = 512
"""Base64 of this length is data, not a key; only its beginning is checked."""
JWT_START: Final = "eyJ"
ENCODED_JWT_START: Final = "ZXlK"
ENCODED_KEY_START: Final = "LS0tLS1CRUdJTi"
"""Base64 of `-----BEGIN`."""

_IN_RUN: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-~+"
_CLASSES: Final = bytes(97 if byte in _IN_RUN else 46 if byte in b"./" else 32 for byte in range(256))
_RUN: Final = b"a" * MIN_TOKEN_CHARS
_JOINT: Final = ord(".")
_CHAIN: Final = re.compile(_RUN + rb"[a.]*+")
_MANY_RUNS: Final = 250
"""With more than one run per this many characters, a regular expression finds them faster than `bytes.find`."""
_FIRST_CHARS: Final = 20_000
"""Added to the characters read, since runs can be dense at the beginning of a text and nowhere else."""


def find_places(text: str, ascii_text: bytes) -> Iterator[tuple[int, int, bool]]:
    """Yield where a chain begins and ends that may contain a token, and whether only its context suggests so."""
    classes = ascii_text.translate(_CLASSES)
    chains = [
        at if classes[at - 1] != _JOINT else classes.rfind(b" ", 0, at) + 1 for at in _run_starts(classes)
    ]
    for place in filter(None, map(_place().match, repeat(text), chains)):
        start = place.start()
        end = classes.find(b" ", start)
        yield start, len(text) if end < 0 else end, place["context"] is not None


def _run_starts(classes: bytes) -> Iterator[int]:
    """Yield where the first run of each chain begins."""
    at = classes.find(_RUN)
    found = 0
    while at >= 0 and found * _MANY_RUNS < at + _FIRST_CHARS:
        yield at
        found += 1
        end = classes.find(b" ", at)
        at = classes.find(_RUN, end) if end >= 0 else -1
    if at >= 0:
        yield from map(re.Match.start, _CHAIN.finditer(classes, at))


# ── The pattern of a place ─────────────────────────────────────────────────────────────────────────────

_SIGN: Final = "[_~+-]"
_WORD: Final = "[A-Za-z0-9]*+"
_IN_PART: Final = "[A-Za-z0-9_~+-]"
_IN_CHAIN: Final = "[A-Za-z0-9_.~+/-]"
_ORDINARY: Final = (
    rf"(?![a-z_.~+/-]*+(?:(?<={_IN_CHAIN})(?<![a-z])[0-9]++(?![a-z])[a-z_.~+/-]*+){{0,3}}+(?![A-Z0-9]))"
)
"""Fails at a chain of words in lower case and up to three numbers."""
_HASH_LABELS: Final = (
    "sha256:", "sha512:", "sha1:", "h1:", 'sha256": "', 'sha256":"', 'checksum = "', 'integrity": "', 'hash": "',
)  # fmt: skip
_ESCAPE: Final = (
    r"(?<=\\)(?:[nrtbf]|u[0-9A-Fa-f]{4})|(?<=%)[0-9A-Fa-f]{2}|(?<=\x1b\[)[0-9]{1,2}m|(?<=;)[0-9]{1,2}m"
)
_NO_HASH: Final = "(?!sha(?:1|256|384|512)-)" + "".join(f"(?<!{re.escape(label)})" for label in _HASH_LABELS)
_CONTEXT: Final = (
    rf"(?:(?<=[:=>,|?])|(?<=[\"'`\\:=>,|? \t][ \t\"'`\\])|(?<=[rR:=]\s)|(?<=[rR]\s\s)|(?<=[rR]%)20"
    rf"|(?<=[0-9]{{6}}%)3[Aa]|(?<![\s\S])){_NO_HASH}(?={_IN_PART}{{20}})(?=[A-Za-z_~+-]{{0,63}}[0-9]|(?<=[0-9]:){_IN_PART}{{35}}|[A-Za-z_~+/-]*+(?:[\"'`\\\s=,;}}<&|?]|\Z))"
)
"""A run after a name and a sign such as `=`, after `Bearer`, or at the beginning of the text."""
_UUID: Final = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_BLOB: Final = rf"[A-Za-z0-9+/]{{{MIN_BLOB_CHARS}}}"
_DISCORD: Final = r"(?<=\.)[A-Za-z0-9_-]{6}\.[A-Za-z0-9_=-]{27}"
_CONTEXT_WORDS: Final = ("atlasv1.", "hooks.slack.com/", "webhooks/", "webhook.office.com/")
_JOINING_FIELD: Final = re.compile(r"\{[bpt]")
"""A field of a format whose alphabet has a dot or a slash."""
_DIGIT_OR_SIGN: Final = re.compile("[0-9_~+-]")
_BEARER: Final = ("bearer", "Bearer", "BEARER")


@cache
def _place() -> re.Pattern[str]:
    """Compile the pattern at its first use, since that takes longer than importing this module."""
    start, joined = _starts(joined=False), _starts(joined=True)
    short = (  # parts that are no runs, up to one that may begin a key
        rf"(?:(?!{joined}|{_DISCORD})(?={_IN_PART}{{0,{MIN_TOKEN_CHARS - 1}}}+[./])"
        rf"{_WORD}(?:{_SIGN}(?!{joined}){_WORD})*+[./]++)*+"
    )
    clean = rf"(?!{start}|{_DISCORD}){_WORD}(?:{_SIGN}(?!{start}|(?<=Q~)){_WORD})*+"
    plain = rf"(?!{_starts(joined=False, plain=True)}|[MNO][A-Za-z]{{21}})[A-Za-z]{{1,48}}+"
    qualified = (  # fails at names such as `org.example.ThreadPool.run`, after text that introduces no value
        rf"(?!(?:(?<=\()|(?<=[^\s\"'`\\:=>,|?rR] ))(?:{plain}[./]){{0,8}}+{plain}[0-9]{{0,3}}+(?!{_IN_CHAIN}))"
    )
    chain = rf"{short}(?:{clean}(?:[./]++{short}|(?!{_IN_CHAIN})))*+(?={_IN_CHAIN})"
    word = rf"(?P<word>(?=(?:[A-Za-z0-9]{{{MIN_TOKEN_CHARS},}}+|{_UUID})(?!{_IN_CHAIN})))"
    return re.compile(
        rf"{word}?+(?(word)|{_ORDINARY}{qualified})"
        rf"(?:(?(word)(?:{_ESCAPE})?(?:{start})|(?:(?={_BLOB})|(?:{_ESCAPE})?{chain}))|(?P<context>{_CONTEXT}))"
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
    starts |= {(word, "") for word in (special if joined else (*special, *_BEARER))}
    if plain:
        starts = {(prefix, "") for prefix, _ in starts if not _DIGIT_OR_SIGN.search(prefix)}
    letters = sorted({prefix[0] for prefix, _ in starts})
    groups = (
        "|".join(re.escape(prefix[1:]) + field for prefix, field in sorted(starts) if prefix[0] == letter)
        for letter in letters
    )
    return "|".join(f"{re.escape(letter)}(?:{group})" for letter, group in zip(letters, groups, strict=True))


def _first_field(rest: str) -> str:
    """Return a test of the characters right after a prefix."""
    field = FIELD.match(rest)
    return f"(?=[{ALPHABETS[field['alphabet']]}]{{{field['low']}}})" if field else ""
