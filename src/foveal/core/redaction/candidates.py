"""Parts of a text that can contain a secret: one search with RE2.

1. The pattern asks less than the scans do: each secret that a scan can find contains a match, or stands near one.
   So the scans find the same secrets whether they read these parts or the whole text.
2. RE2 reads a text once, whatever it contains. The scans alone take up to twenty times as long in texts full of
   names, options, hashes or identifiers.
3. A new rule of a scan needs an alternative here. `tests/core/redaction/test_candidates.py` compares both ways.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, Final

from foveal.core.redaction.assignments import KEY_WORDS, WORDS_BEFORE_BLANK
from foveal.core.redaction.command_lines import CURL_FLAGS
from foveal.core.redaction.key_formats import ALPHABETS, FIELD, KEY_FORMATS, MAX_KEY_BLOCK_CHARS
from foveal.core.redaction.long_tokens import (
    ENCODED_JWT_START,
    ENCODED_KEY_START,
    JWT_START,
    SERVICE_NAMES,
)

MARGIN_CHARS: Final = 12_288
"""Characters around a match that are scanned with it: a secret and what introduces it are no longer."""
KEY_BLOCK_MARGIN_CHARS: Final = MAX_KEY_BLOCK_CHARS + MARGIN_CHARS
"""The same for a private key."""
MAX_SEARCH_BYTES: Final = 32 * 1024 * 1024
"""Memory of the search: with less, RE2 discards what it built, or uses a slower method, in ordinary texts."""
_BLANK: Final = re.compile(rb"[ \n]")

Search = Callable[[bytes, int], tuple[int, int] | None]
"""Returns where the next match after a position begins and ends."""


def find_parts(ascii_text: bytes, search: Search | None) -> list[tuple[int, int]] | None:
    """Return the parts that can contain a secret, in order; None if the whole text is to be scanned."""
    if search is None:
        return None
    parts: list[tuple[int, int]] = []
    hit = search(ascii_text, 0)
    while hit:
        last = parts[-1][1] if parts else 0
        margin = KEY_BLOCK_MARGIN_CHARS if ascii_text.startswith(b"--", hit[1] - 2) else MARGIN_CHARS
        start = _blank_before(ascii_text, last, hit[0] - margin)
        end = _blank_after(ascii_text, hit[1] + margin + MARGIN_CHARS)
        if parts and start <= last:
            parts[-1] = (parts[-1][0], end)
        else:
            parts.append((start, end))
        # Another margin was added, so matches before it change nothing, unless they are private keys.
        hit = search(ascii_text, end - MARGIN_CHARS) if end < len(ascii_text) else None
    return None if parts == [(0, len(ascii_text))] else parts


def _blank_before(ascii_text: bytes, first: int, at: int) -> int:
    """Return where the last blank before a position is; a part that begins with one cuts no word."""
    if at <= first:
        return first
    return max(first, ascii_text.rfind(b" ", first, at), ascii_text.rfind(b"\n", first, at))


def _blank_after(ascii_text: bytes, at: int) -> int:
    blank = _BLANK.search(ascii_text, at)
    return blank.start() if blank else len(ascii_text)


@cache
def re2_search() -> Search | None:
    """Compile the pattern at its first use; None without RE2."""
    try:
        re2: Any = import_module("re2")
    except ImportError:
        return None
    if not hasattr(re2, "Options"):  # another package of the same name
        return None

    class SearchOptions(re2.Options):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.max_mem = MAX_SEARCH_BYTES
            self.log_errors = False  # a search that needs more memory is slower, and its result is the same

    pattern = re2.compile(candidate_pattern(), SearchOptions())

    def search(ascii_text: bytes, at: int) -> tuple[int, int] | None:
        hit = pattern.search(ascii_text, at)
        return hit.span() if hit else None

    return search


# ── The pattern ────────────────────────────────────────────────────────────────────────────────────────

_SPACE: Final = r"\s\x0b\x1c-\x1f"
"""The inside of a class of what is blank for the scans."""
_EDGE: Final = r"(?:\A|[^A-Za-z0-9]|\\[nrtbf]|\\u[0-9A-Fa-f]{4}|%[0-9A-Fa-f]{2}|[\[;][0-9]{1,2}m)"
_RUN: Final = "[A-Za-z0-9_~+-]{20}"
_MARKS: Final = r"""["'`\\ \t:=>?,|\])]+"""
_VALUE_BELOW: Final = (
    rf"""["'\\]*(?:,[{_SPACE}]*|[{_SPACE}]+)(?i:["'\\]*type["'\\]*:[{_SPACE}]?["'\\]*[a-z0-9_]+["'\\]*,[{_SPACE}]*)?"""
    rf"""["'\\]*(?i:(?:parameter|option)?value)["'\\]*[{_SPACE}]?[:=]"""
)
_LEAD: Final = (
    rf"""(?:\*{{1,2}}|__|</[A-Za-z0-9_]+>)?[{_SPACE}]{{0,3}}(?:(?:&[A-Za-z0-9_-]+|!![A-Za-z0-9_]+) ){{0,2}}"""
    rf"""(?:[|>][0-9+-]{{0,2}}[ \t]*\n[ \t]+)?(?i:[bru]{{1,2}}|[enl@$]|u&|\{{)?"""
)
_AFTER_NAME: Final = rf"""s?[0-9]?(?:_id)?(?:["'`\\\])*{_SPACE}]{{0,9}}(?:[:=>,|]|%3[ad])|{_VALUE_BELOW})"""
_LETTER: Final = "[a-z_+/.~-]"
_KEY_VALUE: Final = (
    rf"""{_AFTER_NAME}{_LEAD}[=>{_SPACE}"'`\\]{{0,10}}(?:{_LETTER}{{8,}}[0-9]|[a-z+/]{{24}}|["'][^{_SPACE}"'`\\]{{32}}|"""
    + "|".join(f"{_LETTER}{{{at}}}[0-9][a-z0-9_+/.~-]{{{7 - at}}}" for at in range(8))
    + ")"
)
"""A value of at least eight characters with a digit, or a long one."""
_PASSWORD: Final = rf"""(?:\\{{0,7}}["'`][^$<{{\[*%(\n\\]|[^{_SPACE}"'`\\$<{{\[*%(][^{_SPACE}"'`\\]{{3}})"""
"""The beginning of a password that is no placeholder."""
_PASSWORD_VALUE: Final = (
    rf"""[0-9]?["'`\\\])*]{{0,9}}(?:[{_SPACE}]{{0,2}}(?::=|=>|[:=]|%3[ad])|>| +\|"""
    rf"""|[{_SPACE}](?:ist?|lautet)(?:[{_SPACE}]?[:=])?"""
    rf"""|{_VALUE_BELOW}){_LEAD}{_PASSWORD}"""
)
_LISTED: Final = rf"""\\*["'],[{_SPACE}]*\\*["']"""
_OPTION_PASSWORD: Final = rf"""(?:\$?["'][^$<{{\[*%(\n\\-]|[^{_SPACE}"'\\$<{{\[*%(-])"""
_COOKIE: Final = rf"""[{_SPACE}"'`\\]{{0,4}}[A-Za-z0-9_.%!#$&*+^|~-]+="""
_TO_OPTION: Final = r"(?:[^\n]|\\\n)*[^A-Za-z0-9_-]"
"""The rest of a command line up to an option."""


def candidate_pattern() -> bytes:
    """Return the pattern; it has no repetition that would make RE2 keep count at every character of a text."""
    parts = (*_token_alternatives(), *_named_alternatives(), *_command_line_alternatives())
    return "|".join(parts).encode()


def _token_alternatives() -> list[str]:
    """Return what `long_tokens` looks for."""
    starts = {
        re.escape(prefix) + _first_characters(row.rest)
        for row in KEY_FORMATS
        for prefix in row.prefixes.split()
    } | {JWT_START + "[A-Za-z0-9_-]{8}", ENCODED_JWT_START, ENCODED_KEY_START}
    return [
        f"{_EDGE}(?:{'|'.join(sorted(starts))})",
        r"\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_=-]{27}",
        r"\.atlasv1\.",
        r"[0-9]Q~[A-Za-z0-9_~.-]{31}",
        rf"""auth["'\\]{{0,4}}[{_SPACE}]?[:=][{_SPACE}]?["'\\]{{0,4}}{_RUN}""",
        r"[0-9](?::|%3[Aa])[A-Za-z0-9_-]{35}",
        rf"[0-9]\|{_RUN}",
        r"(?:hooks\.slack\.com/[a-z]{1,20}/|webhooks/[0-9]{6,25}/|webhook\.office\.com/webhookb2/)[A-Za-z0-9/_@-]{16}",
        rf"(?i:bearer)(?:[{_SPACE}]{{1,2}}|%20|\+)[A-Za-z0-9._~+/-]{{12}}",
        rf"(?i:{SERVICE_NAMES})[A-Za-z0-9_. -]*{_MARKS}{_RUN}",
    ]


def _first_characters(rest: str) -> str:
    field = FIELD.match(rest)
    return f"[{ALPHABETS[field['alphabet']]}]{{{min(int(field['low']), 16)}}}" if field else ""


def _named_alternatives() -> list[str]:
    """Return what `assignments`, `passwords` and `key_formats` look for."""
    return [
        rf"(?i:(?:(?:{KEY_WORDS})[_.-]?|(?:{WORDS_BEFORE_BLANK})[{_SPACE}])key{_KEY_VALUE})",
        rf"_KEY(?i:{_KEY_VALUE})",
        rf"(?i:(?:token|secret(?:_?value)?){_KEY_VALUE})",
        rf"(?i:cookie{_AFTER_NAME}{_COOKIE})",
        rf"(?i:(?:(?:passw|kennw|pw)(?:or)?[dt]|[_.-]pass|passphrase|psk){_PASSWORD_VALUE})",
        rf"pass{_PASSWORD_VALUE}",
        rf"""(?i:pass)(?:["'`\\]+[{_SPACE}]{{0,2}}[:=]|[{_SPACE}]{{0,2}}=|{_VALUE_BELOW}|:[{_SPACE}]{{0,3}}["'`])""",
        rf"""(?i:(?:passw|kennw|pw)(?:or)?[dt])(?:[{_SPACE}]{{1,4}}|\()(?i:[en]|u&)?["'][^$<{{\[*%(\n\\]""",
        rf"(?i:login|account)[{_SPACE}]+[^{_SPACE}]+[{_SPACE}]+password[{_SPACE}]",
        r"ENV [A-Z0-9_]*(?:PASSW|KENNW|PW)(?:OR)?[DT] ",
        rf"(?i:identified[{_SPACE}]+(?:with[{_SPACE}]+[^{_SPACE}]+[{_SPACE}]+)?(?:by|as)[{_SPACE}]+(?:password[{_SPACE}]+)?[ne]?[\"'])",
        rf"IDENTIFIED[{_SPACE}]+(?i:with[{_SPACE}]+[^{_SPACE}]+[{_SPACE}]+)?(?i:by|as)[{_SPACE}]",
        rf"(?i:(?:create|alter)[{_SPACE}]+(?:user|role)[{_SPACE}]+[^{_SPACE}]+[{_SPACE}]+identified[{_SPACE}])",
        rf"(?i:kind[\"']?:[{_SPACE}]?[\"']?secret)",
        r":(?:[1-9][0-9]{3,4}|\*)(?::(?:[^:\s\x0b\\]|\\[:\\])+){2}:(?:[^:\s\x0b\\]|\\[:\\]){4}",
        rf"""(?i:uthorization["'`\\\]]{{0,4}}(?:[{_SPACE}]?[:=,]|%3[ad])[{_SPACE}]{{0,3}}(?:\\{{0,3}}["'`])?(?:%20)?"""
        rf"""(?:[a-z0-9-]{{3,16}}(?:[{_SPACE}]{{1,2}}|%20|\+))?[A-Za-z0-9._~+/-]{{8}})""",
        r"(?i:private(?:[ +]|%20)key(?:(?:[ +]|%20)block)?)--",
    ]


def _command_line_alternatives() -> list[str]:
    """Return what `command_lines` looks for."""
    return [
        rf"--[a-z-]*(?:pass(?:word|wd|phrase)?|pwd)(?:[ =]{{1,2}}{_OPTION_PASSWORD}|{_LISTED}[^-])",
        rf"""--[a-z-]*(?:key|token|secret)(?: {{1,2}}["']?|=["']?|{_LISTED})[A-Za-z0-9_+/.~-]{{16}}""",
        rf"""(?:curl|wget|http|xh|aria2c){_TO_OPTION}-(?:(?:{CURL_FLAGS}*[uU]|-user|-proxy-user)"""
        rf"""(?:[ =]{{0,2}}["']?|{_LISTED})[^\s\x0b:"'/=$@]+:"""
        rf"""|(?:b|-cookie)(?:[ =]{{0,2}}["']?|{_LISTED}){_COOKIE})""",
        rf"(?:mysql|mariadb|mycli|sshpass|login|mongo|redis-cli){_TO_OPTION}-[pPa]"
        rf"(?:[ =]{{0,2}}{_OPTION_PASSWORD}|{_LISTED}[^-])",
        r"""/\\*/[^\s\x0b/?#@:,"'`<>\\]*:[^\s\x0b/?,"'`<>\\${\[*%(][^\s\x0b/?,"'`<>\\]*@""",
        r"%2[Ff]%2[Ff][A-Za-z0-9_.~+%-]*%3[Aa][A-Za-z0-9_.~+%-]+%40",
    ]
