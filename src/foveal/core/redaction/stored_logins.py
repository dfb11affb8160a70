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
    r"(?:\A|(?<=\n))[A-Za-z0-9_.*-]{1,128}:(?:[0-9]{2,5}|\*):[^:\s]{1,64}:[^:\s]{1,64}:(?P<password>[^\s:]{4,128})(?=\s|\Z)"
)
_PORT: Final = re.compile(rb":(?=[0-9*])(?:[0-9]{4,5}|\*):[^:\s]{1,64}:[^:\s]{1,64}:[^:\s]{4}")
_IDENTIFIED: Final = re.compile(
    r"(?i)identified\s{1,4}(?:with\s{1,4}['\"`]?\w{1,40}['\"`]?\s{1,4})?(?:by|as)\s{1,4}(?:password\s{1,4})?(?P<quote>['\"])"
)
_KIND: Final = re.compile(rb"kind[\"']?:\s?[\"']?secret(?![a-z])")
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
    if b"identified" in folded:
        yield from _identified(text)
    if _PORT.search(folded):
        for line in _PGPASS.finditer(text):
            if not is_placeholder(line["password"]):
                yield Secret(*line.span("password"), "password", tail=False)
    for kind in _KIND.finditer(folded):
        yield from _manifest(text, kind.start())


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


def _identified(text: str) -> Iterator[Secret]:
    for clause in _IDENTIFIED.finditer(text):
        span = password_at(text, clause.end(), quote=clause["quote"])
        if span and not is_placeholder(text[slice(*span)]):
            yield Secret(*span, "password", tail=False)


def _manifest(text: str, kind: int) -> Iterator[Secret]:
    """Find the values of a Kubernetes secret, before or after its `kind`."""
    first = max(text.rfind("\n---", 0, kind), kind - MAX_MANIFEST_CHARS, 0)
    end = text.find("\n---", kind, kind + MAX_MANIFEST_CHARS)
    last = end if end >= 0 else kind + MAX_MANIFEST_CHARS
    for data in _DATA.finditer(text, first, last):
        at = data.end()
        while entry := _ENTRY.match(text, at, last):
            if len(entry["value"]) >= MIN_SECRET_DATA_CHARS and not is_placeholder(entry["value"]):
                yield Secret(*entry.span("value"), "secret value", tail=False)
            at = entry.end()
