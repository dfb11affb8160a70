"""Scan for secrets in files and statements that name no password: `.pgpass`, Kubernetes secrets, `IDENTIFIED BY`.

1. Each form has a text that only it contains, so that one search decides whether a text has it.
2. In a Kubernetes secret every value of `data` and `stringData` counts, except short ones such as a port.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from foveal.core.redaction.passwords import password_at
from foveal.core.redaction.secret_values import (
    Secret,
    is_code,
    is_placeholder,
    looks_like_password,
    looks_like_spoken_password,
)

MAX_MANIFEST_CHARS: Final = 4_000
"""Characters of a Kubernetes secret around its `kind` that are read."""
_PGPASS: Final = re.compile(
    rb":(?=[0-9*])(?:[0-9]{4,5}|\*):[^:\s]{1,64}:[^:\s]{1,64}:(?P<password>[^\s:\"'`<>()]{4,128})(?=\s|\Z)"
)
"""A line of `.pgpass` after its host: port, database, user and password."""
_HOST: Final = re.compile(r"(?:\A|[\s\"'`])[A-Za-z0-9_.*-]{1,64}\Z")
_IDENTIFIED: Final = re.compile(
    r"(?i)identified\s{1,4}(?:with\s{1,4}['\"`]?\w{1,40}['\"`]?\s{1,4})?(?:by|as)\s{1,4}(?:password\s{1,4})?(?P<quote>['\"])"
)
_DATA: Final = re.compile(r"\b(?:data|stringData)[\"']?:[ \t]*(?=[\n{])")
_ENTRY: Final = re.compile(
    r"(?:\n[ \t]{1,64}|\{\s*|,\s*)[\"']?[A-Za-z0-9_.-]{1,64}[\"']?:[ \t]*"
    r"(?P<quote>[\"']?)(?P<value>[^\s\"',{}]{1,4096})(?P=quote)[ \t]*"
)
MIN_SECRET_DATA_CHARS: Final = 8
FOREIGN_NAMES: Final = (
    "密码", "密碼", "口令", "パスワード", "비밀번호", "암호", "пароль", "Пароль", "contraseña", "Contraseña", "κωδικός", "סיסמה",
)  # fmt: skip
"""Words for "password" that are not ASCII."""
_FOREIGN: Final = re.compile(
    rf"(?:{'|'.join(FOREIGN_NAMES)})(?:\s?(?:[:=：＝]|是|为|為|は|는|은|es\b|это)\s?|\s)(?P<quote>[\"'`])?(?=[!-~])"
)


def find_stored(text: str, folded: bytes) -> Iterator[Secret]:
    """Find the secrets of these forms; `folded` is the text in lower case, as bytes."""
    at = folded.find(b"identified")
    while at >= 0:
        yield from _identified(text, at)
        at = folded.find(b"identified", at + 1)
    for line in _PGPASS.finditer(folded):
        start, end = line.span("password")
        is_host = _HOST.search(text, max(0, line.start() - 65), line.start())
        if is_host and not is_placeholder(text[start:end]):
            yield Secret(start, end, "password", tail=False)


def find_foreign(text: str) -> Iterator[Secret]:
    """Find passwords after the word for it in a language whose letters are not ASCII."""
    for name in _FOREIGN.finditer(text):
        span = password_at(text, name.end(), quote=name["quote"] or "")
        password = _ascii_part(text[slice(*span)]) if span else ""
        if span and (looks_like_password(password) or looks_like_spoken_password(password)) and not is_code(password):
            yield Secret(span[0], span[0] + len(password), "password", tail=False)


def _ascii_part(password: str) -> str:
    """Return a password without the sentence that goes on after it."""
    return next((password[:at] for at, letter in enumerate(password) if ord(letter) > 127), password)


def _identified(text: str, at: int) -> Iterator[Secret]:
    """Find the password of a statement of SQL; in small letters the words are prose as well."""
    clause = _IDENTIFIED.match(text, at)
    span = password_at(text, clause.end(), quote=clause["quote"]) if clause else None
    if span and clause:
        password = text[slice(*span)]
        is_statement = clause.group().startswith("IDENTIFIED") or looks_like_spoken_password(password)
        if is_statement and not is_placeholder(password):
            yield Secret(*span, "password", tail=False)


def judge_manifest(text: str, hit: re.Match[bytes]) -> Iterator[Secret]:
    """Find the values of a Kubernetes secret, before or after its `kind`."""
    kind = hit.start()
    first = max(text.rfind("\n---", 0, kind), kind - MAX_MANIFEST_CHARS, 0)
    end = text.find("\n---", kind, kind + MAX_MANIFEST_CHARS)
    last = end if end >= 0 else kind + MAX_MANIFEST_CHARS
    for data in _DATA.finditer(text, first, last):
        at = data.end()
        while entry := _ENTRY.match(text, at, last):
            if len(entry["value"]) >= MIN_SECRET_DATA_CHARS and not is_placeholder(entry["value"]):
                yield Secret(*entry.span("value"), "secret value", tail=False)
            at = entry.end()
