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
    is_hexadecimal,
    is_placeholder,
    looks_like_password,
    looks_like_spoken_password,
    looks_random,
)

MAX_MANIFEST_CHARS: Final = 4_000
"""Characters of a Kubernetes secret around its `kind` that are read."""
_PGPASS: Final = re.compile(
    r":[0-9*]{1,5}(?::(?:[^:\s\\]|\\[:\\]){1,64}+){2}"
    r":(?P<password>(?:[^\s:\"'`<>()\\]|\\[:\\]|[\"'`<>()](?=\w)){4,128}+)(?=[\s\"'`\\]|\Z)"
)
"""A line of `.pgpass` after its host: port, database, user and password."""
_HOST: Final = re.compile(r"(?:\A|[\s\"'`])(?:\[[0-9A-Fa-f:.]{2,45}\]|(?:[A-Za-z0-9_.*/-]|\\[:\\]){1,64}+)\Z")
_IDENTIFIED: Final = re.compile(
    r"(?i)identified\s{1,4}(?:with\s{1,4}['\"`]?\w{1,40}['\"`]?\s{1,4})?(?:by|as)\s{1,4}(?:password\s{1,4})?"
    r"(?:[NE]?(?P<quote>['\"])|(?!(?:values|random|password)\b)(?=[^\s]))"
)
_ACCOUNT: Final = re.compile(r"(?i)(?:create|alter)\s{1,4}(?:user|role)\s{1,4}[^\s]{1,64}\s{1,4}\Z")
MAX_ACCOUNT_CHARS: Final = 100
"""Characters of a statement before `IDENTIFIED` that are read."""
_DOCUMENT_END: Final = re.compile(r"\n---|\bkind[\"']?:")
_DATA: Final = re.compile(r"\b(?:data|stringData)[\"']?:[ \t]*(?=[\n{])")
_ENTRY: Final = re.compile(
    r"(?:\n[ \t]{1,64}|\{\s*|,\s*)[\"']?[A-Za-z0-9_.-]{1,64}[\"']?:[ \t]*"
    r"(?P<quote>[\"']?)(?P<value>[^\s\"',{}]{1,4096})(?P=quote)[ \t]*"
)
MIN_SECRET_DATA_CHARS: Final = 8
MIN_CHARS_BEFORE_SENTENCE: Final = 4
MIN_FOREIGN_KEY_CHARS: Final = 16
_EAST_ASIAN: Final = re.compile("[\u3000-\u9fff\uac00-\ud7af\uff00-\uffef“”‘’]")
FOREIGN_KEY_NAMES: Final = ("密钥", "密鑰", "秘钥", "金鑰", "令牌", "トークン")
"""Words for "key" and "token" that are not ASCII."""
FOREIGN_NAMES: Final = (
    "密码", "密碼", "口令", "パスワード", "비밀번호", "암호", "пароль", "Пароль", "contraseña", "Contraseña",
)  # fmt: skip
"""Words for "password" that are not ASCII."""
MAX_FOREIGN_NAME_CHARS: Final = 12
_BORDER: Final = re.compile(rb"\?(?:(?<=\?\?)|(?<=ontrase\?)a) ?(?:[:=]|es )? ?[\"'`]?(?=[!->@-~])")
"""Where letters end that are not ASCII, and a word of ASCII begins."""
_LAST_LETTERS: Final = frozenset("：＝是为為は는은о“‘「") | {
    name.rstrip("a")[-1] for name in FOREIGN_NAMES + FOREIGN_KEY_NAMES
}
"""Letters right before such a word, if a name introduces it."""
_FOREIGN: Final = re.compile(
    rf"(?:{'|'.join(FOREIGN_NAMES)}|(?P<key>{'|'.join(FOREIGN_KEY_NAMES)}))(?:\s?(?:[:=：＝]|是|为|為|は|는|은|es\b|это)\s?|\s)[“‘「]?(?P<quote>[\"'`])?(?=[!-~])"
)


def find_stored(text: str, folded: bytes) -> Iterator[Secret]:
    """Find the secrets of these forms; `folded` is the text in lower case, as bytes."""
    at = folded.find(b"identified")
    while at >= 0:
        yield from _identified(text, at)
        at = folded.find(b"identified", at + 1)
    yield from _pgpass(text, folded, b":5432:")
    if b"*" in folded:
        yield from _pgpass(text, folded, b":*:")


def _pgpass(text: str, folded: bytes, port: bytes) -> Iterator[Secret]:
    """Find the passwords of `.pgpass` with this port: that of PostgreSQL, or any."""
    at = folded.find(port)
    while at >= 0:
        line = _PGPASS.match(text, at)
        is_host = line and _HOST.search(text, max(0, at - 65), at)
        if line and is_host and not is_placeholder(line["password"]):
            yield Secret(*line.span("password"), "password", tail=False)
        at = folded.find(port, at + 1)


def find_foreign(text: str, ascii_text: bytes) -> Iterator[Secret]:
    """Find passwords after the word for it in a language whose letters are not ASCII; `ascii_text` has `?` for
    each of these letters."""
    for border in _BORDER.finditer(ascii_text):
        if text[border.start()] not in _LAST_LETTERS:
            continue
        name = _FOREIGN.search(text, max(0, border.start() - MAX_FOREIGN_NAME_CHARS), border.end() + 1)
        if name is None:
            continue
        span = password_at(text, name.end(), quote=name["quote"] or "")
        if span is None:
            continue
        end = end_in_sentence(text, *span)
        value = text[span[0] : end]
        if (
            name["key"]
            and len(value) >= MIN_FOREIGN_KEY_CHARS
            and (looks_random(value) or is_hexadecimal(value))
        ):
            yield Secret(span[0], end, "secret key")
        elif not name["key"] and looks_like_spoken_password(value) and not is_code(value):
            yield Secret(span[0], end, "password", tail=False)


def end_in_sentence(text: str, start: int, end: int) -> int:
    """Return where a secret ends at the latest: before Chinese, Japanese or Korean text that goes on after it."""
    after = _EAST_ASIAN.search(text, start + MIN_CHARS_BEFORE_SENTENCE, end)
    return after.start() if after else end


def _identified(text: str, at: int) -> Iterator[Secret]:
    """Find the password of a statement of SQL; in small letters the words are prose as well."""
    clause = _IDENTIFIED.match(text, at)
    span = password_at(text, clause.end(), quote=clause["quote"] or "") if clause else None
    if span and clause:
        password = text[slice(*span)]
        is_capital = clause.group().startswith("IDENTIFIED")
        if clause["quote"]:
            is_statement = is_capital or looks_like_spoken_password(password)
        else:
            before = _ACCOUNT.search(text, max(0, at - MAX_ACCOUNT_CHARS), at)
            is_statement = before is not None or (is_capital and looks_like_password(password))
        if is_statement and not is_placeholder(password):
            yield Secret(*span, "password", tail=False)


def judge_manifest(text: str, hit: re.Match[bytes]) -> Iterator[Secret]:
    """Find the values of a Kubernetes secret, before or after its `kind`."""
    kind = hit.start()
    far = max(0, kind - MAX_MANIFEST_CHARS)
    first = max(far, text.rfind("\n---", far, kind), text.rfind("kind", far, kind))
    end = _DOCUMENT_END.search(text, hit.end(), hit.end() + MAX_MANIFEST_CHARS)
    last = end.start() if end else hit.end() + MAX_MANIFEST_CHARS
    for data in _DATA.finditer(text, first, last):
        at = data.end()
        while entry := _ENTRY.match(text, at, last):
            if len(entry["value"]) >= MIN_SECRET_DATA_CHARS and not is_placeholder(entry["value"]):
                yield Secret(*entry.span("value"), "secret value", tail=False)
            at = entry.end()
