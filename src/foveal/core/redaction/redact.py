"""Redaction of facts and streams: each secret is replaced by a placeholder that names its kind.

1. A fact without secrets is returned as the same object.
2. The same secret always gets the same placeholder, and a placeholder is not redacted again.
3. At most four characters of a secret remain, and none of a password.
4. JSON stays valid: a secret is replaced inside its string.
5. Ids of calls and results, and names of tools, are never changed.
6. A stream is masked as if it had arrived whole, however it is split: only text that may become a secret is held
   back, the last word and the words before it after a name or a command that can introduce a secret.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Final, TypeVar, cast

import msgspec
from msgspec import Raw, UnsetType
from msgspec.structs import replace

from foveal.core.log.events import AnyFact
from foveal.core.redaction.assignments import FOLDED, KEY_WORDS, WORDS_BEFORE_BLANK, find_named, find_names
from foveal.core.redaction.command_lines import COMMAND_NAMES, CURL_FLAGS, find_logins, find_options
from foveal.core.redaction.key_formats import (
    ALPHABETS,
    FIELD,
    KEY_FORMATS,
    MAX_KEY_BLOCK_CHARS,
    find_private_keys,
    open_block_start,
)
from foveal.core.redaction.long_tokens import (
    ENCODED_JWT_START,
    ENCODED_KEY_START,
    JWT_START,
    SERVICE_NAMES,
    find_tokens,
)
from foveal.core.redaction.passwords import (
    FOREIGN_KEY_NAMES,
    FOREIGN_NAMES,
    MAX_MANIFEST_CHARS,
    end_in_sentence,
    find_foreign,
    find_stored,
)
from foveal.core.redaction.secret_values import Secret

# ── Parts that can contain a secret ──────────────────────────────────────────────────────────────────────
# 1. The pattern asks less than the scans do: each secret that a scan can find contains a match, or stands near
#    one. So the scans find the same secrets whether they read these parts or the whole text.
# 2. RE2 reads a text once, whatever it contains. The scans alone take up to twenty times as long in texts full of
#    names, options, hashes or identifiers.
# 3. A new rule of a scan needs an alternative here. `tests/core/redaction/test_candidates.py` compares both ways.

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


# ── Texts ────────────────────────────────────────────────────────────────────────────────────────────────

REFERENCE_FIELDS: Final = frozenset({"id", "call_id", "name", "origin"})
"""Fields of facts that are references, not text."""
MIN_TEXT_CHARS: Final = 8
"""Characters of the shortest text that can contain a secret: `a://b:c@`."""
MAX_PASSES: Final = 8
"""Replacing one secret can reveal where an adjacent one ends, so scans repeat up to this often."""
EDGE_CHARS: Final = 8_192
"""A secret this near to the edge of a part of a text is searched again in the whole text."""
_COLOUR: Final = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]")
"""A sequence that sets the colour of a terminal, or moves its cursor."""
TAIL_CHARS: Final = 4
MIN_CHARS_WITH_TAIL: Final = 20
"""A secret with at least this many characters keeps its last `TAIL_CHARS`, so that its owner can identify
it."""

T = TypeVar("T")


def find_secrets(text: str) -> list[Secret]:
    """Return the secrets in a text, in order; overlapping hits are merged."""
    if len(text) < MIN_TEXT_CHARS:
        return []
    ranked = _scan(text)
    if "\x1b" in text:
        ranked += _scan_without_colours(text)
    merged: list[Secret] = []
    for hit, _ in sorted(ranked, key=lambda ranked: (ranked[0].start, ranked[1])):
        if merged and hit.start < merged[-1].end:
            last = merged[-1]
            merged[-1] = last._replace(end=max(last.end, hit.end), tail=last.tail and hit.tail)
        else:
            merged.append(hit)
    return merged


def _scan(text: str) -> list[tuple[Secret, int]]:
    """Return the hits of all scans with their rank; for overlapping hits the first rank names the secret."""
    ascii_text = text.encode("ascii", "replace")  # one byte per character, so that positions agree
    if text.isascii():
        return _scan_ascii(text, ascii_text)
    found = _scan_ascii(ascii_text.decode("ascii"), ascii_text)
    ranked = [(_without_sentence(hit, text), rank) for hit, rank in found]
    return ranked + [(hit, 6) for hit in find_foreign(text, ascii_text)]


def _without_sentence(hit: Secret, text: str) -> Secret:
    """Return the secret without the words of another script that follow it; a private key has its own end."""
    if hit.name == "private key":
        return hit
    return hit._replace(end=end_in_sentence(text, hit.start, hit.end))


def _scan_ascii(text: str, ascii_text: bytes) -> list[tuple[Secret, int]]:
    """Return the hits in the parts of a text that can contain a secret."""
    parts = find_parts(ascii_text, re2_search())
    if parts is None:
        return scan_part(text, ascii_text)
    ranked: list[tuple[Secret, int]] = []
    for start, end in parts:
        found = scan_part(text[start:end], ascii_text[start:end])
        if any(_is_cut(hit, start, end, len(text)) for hit, _ in found):
            return scan_part(text, ascii_text)
        ranked += [(hit._replace(start=hit.start + start, end=hit.end + start), rank) for hit, rank in found]
    return ranked


def _scan_without_colours(text: str) -> list[tuple[Secret, int]]:
    """Return the hits in a text of a terminal as it is shown, at their places in the text with the colours."""
    colours = list(_COLOUR.finditer(text))
    shown, removed, starts = [], 0, [0]
    at, offsets = 0, [0]
    for colour in colours:
        shown.append(text[at : colour.start()])
        removed += colour.end() - colour.start()
        at = colour.end()
        starts.append(at - removed)
        offsets.append(removed)
    shown.append(text[at:])

    def place(position: int) -> int:
        return position + offsets[bisect_right(starts, position) - 1]

    return [
        (hit._replace(start=place(hit.start), end=place(hit.end - 1) + 1), rank)
        for hit, rank in _scan("".join(shown))
    ]


def _is_cut(hit: Secret, start: int, end: int, size: int) -> bool:
    """Return whether a secret may extend beyond its part: it reaches the part's edge inside the text."""
    return (start > 0 and hit.start < EDGE_CHARS) or (end < size and hit.end > end - start - EDGE_CHARS)


def scan_part(text: str, ascii_text: bytes) -> list[tuple[Secret, int]]:
    """Return the hits in a text of ASCII characters, given as a string and as bytes."""
    folded = ascii_text.translate(FOLDED)
    names = find_names(folded)
    ranked = [(hit, 1) for hit in find_tokens(text, ascii_text)]
    ranked += [(hit, 2) for hit in find_named(text, names)]
    ranked += [(hit, 3) for hit in find_options(text, ascii_text)]
    ranked += [(hit, 4) for hit in find_logins(text, ascii_text)]
    ranked += [(hit, 5) for hit in find_stored(text, folded)]
    if any(name.lastgroup == "private_key" for name in names):
        ranked += [(hit, 0) for hit in find_private_keys(text, ascii_text.lower())]
    return ranked


def scrub(text: str, *, under: str = "") -> str:
    """Return the text without its secrets. `under` is the key that the text belongs to, if any."""
    context = f"{under[-64:]}: " if under else ""
    for _ in range(MAX_PASSES):
        secrets = [hit for hit in find_secrets(context + text) if hit.end > len(context)]
        if not secrets:
            break
        if (
            context
            and secrets[0].name == "password"
            and secrets[0].start <= len(context)
            and "\n" not in text
        ):
            secrets = [
                secrets[0]._replace(end=len(context) + len(text))
            ]  # the value of a field is one password
        text = _replace_secrets(text, secrets, shift=len(context))
    return text


def scrub_span(text: str, start: int, end: int) -> str:
    """Return a part of a text without the secrets of the whole text, also those that the part cuts."""
    inside = [
        hit._replace(start=max(hit.start, start), end=min(hit.end, end))
        for hit in find_secrets(text)
        if hit.start < end and hit.end > start
    ]
    return scrub(_replace_secrets(text[start:end], inside, shift=start))


def redact_fact(fact: AnyFact) -> AnyFact:
    """Return the fact without the secrets in any of its texts."""
    return _redact_struct(fact)


def _replace_secrets(text: str, secrets: Sequence[Secret], *, shift: int) -> str:
    """Replace the secrets; `shift` is the offset of the text when they were found."""
    pieces: list[str] = []
    at = 0
    for secret in secrets:
        start, end = max(0, secret.start - shift), secret.end - shift
        pieces += [text[at:start], _placeholder(text[start:end], secret)]
        at = end
    return "".join([*pieces, text[at:]])


def _placeholder(words: str, secret: Secret) -> str:
    tail = (
        words[-TAIL_CHARS:]
        if secret.tail and len(words) >= MIN_CHARS_WITH_TAIL and words[-TAIL_CHARS:].isalnum()
        else ""
    )
    return f"[foveal: redacted {secret.name} …{tail}]"


# ── JSON ───────────────────────────────────────────────────────────────────────────────────────────────

_STRING: Final = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_STRINGS: Final = re.compile(
    rf"(?s:(?P<key>{_STRING})(?P<colon>\s*+:\s*+)(?P<value>{_STRING})?|(?P<alone>{_STRING}))"
)
_ESCAPED: Final = re.compile(r"\\/|\\u00[2-7]")
"""Escapes that can hide characters of a secret until they are decoded."""


def scrub_json(text: str) -> str:
    """Return a JSON text without the secrets in its strings, at any depth. The key of a string counts as its
    name; a name in another string (`["--password", "…"]`) counts as it does in any text.

    The text is not parsed as a whole, so unchanged parts stay as they were and depth is unlimited."""
    hits = find_secrets(text)
    if not hits and not _ESCAPED.search(text):
        return text
    ends = [hit.end for hit in hits]
    keys = list(find_private_keys(text, text.encode("ascii", "replace").lower()))
    starts = [key.start for key in keys]

    def redacted(match: re.Match[str], group: str, *, under: str = "") -> str:
        start, end = match.span(group)
        at = bisect_left(starts, end) - 1  # a private key given as a list of lines spans several strings
        if at >= 0 and keys[at].end > start and not start < keys[at].start <= keys[at].end < end:
            return f'"{_placeholder("", keys[at])}"'
        literal = match[group]
        done = _redact_literal(literal, under=under)
        if done is not literal or "\\" in done or group == "key":
            return done
        inside = [
            hit for hit in hits[bisect_left(ends, start) : bisect_right(ends, end - 1)] if hit.start > start
        ]
        return _replace_secrets(done, inside, shift=start) if inside else done

    def scrubbed(match: re.Match[str]) -> str:
        if match["alone"] is not None:
            return redacted(match, "alone")
        value = redacted(match, "value", under=match["key"][1:-1]) if match["value"] is not None else ""
        return redacted(match, "key") + match["colon"] + value

    done = _STRINGS.sub(scrubbed, text)
    return text if done == text else done


def _redact_arguments(text: str) -> str:
    """Redact the arguments of a call, which are not always JSON."""
    if not _may_have_secret(text):
        return text
    return scrub_json(text) if _is_json(text) else scrub(text)


def _may_have_secret(text: str) -> bool:
    return bool(find_secrets(text) or _ESCAPED.search(text))


def _redact_literal(literal: str, *, under: str = "") -> str:
    try:
        text = cast(str, json.loads(literal, strict=False))
    except ValueError:  # an invalid escape, which a model's arguments can have
        text = literal[1:-1]
    scrubbed = scrub(text, under=under)
    return literal if scrubbed is text else _to_json_string(scrubbed)


def _to_json_string(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(text)
    return json.dumps(text, ensure_ascii=False)


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except RecursionError:
        return True
    except (msgspec.DecodeError, UnicodeEncodeError):
        return False
    return True


# ── Facts ──────────────────────────────────────────────────────────────────────────────────────────────


_WITHOUT_TEXT: Final = frozenset({int, float, bool, type(None), UnsetType})
"""Types of most fields."""


def _redact_struct(value: T) -> T:
    changed = {}
    for name in cast(Any, value).__struct_fields__:
        old = getattr(value, name)
        if old and type(old) not in _WITHOUT_TEXT and name not in REFERENCE_FIELDS:
            new = _redact_value(old, arguments=name == "arguments")
            if new is not old:
                changed[name] = new
    return cast(T, replace(cast(Any, value), **changed)) if changed else value


def _redact_value(value: Any, *, arguments: bool = False) -> Any:
    if isinstance(value, str):
        return _redact_arguments(value) if arguments else scrub(value)
    if isinstance(value, Raw):
        text = bytes(value).decode("utf-8", "surrogateescape")  # these bytes may be invalid UTF-8
        scrubbed = scrub_json(text)
        return value if scrubbed is text else Raw(scrubbed.encode("utf-8", "surrogateescape"))
    if isinstance(value, tuple):
        if _WITHOUT_TEXT.issuperset(map(type, value)):  # the seqs that a summary keeps
            return value
        new = tuple(map(_redact_value, value))
        return value if all(a is b for a, b in zip(new, value, strict=True)) else new
    return _redact_struct(value) if isinstance(value, msgspec.Struct) else value


# ── Streams ────────────────────────────────────────────────────────────────────────────────────────────

MAX_HELD_BACK_CHARS: Final = MAX_KEY_BLOCK_CHARS + 8_192
"""Characters held back at most; a longer text without a place to cut is redacted as it stands."""
MAX_CUTS_TRIED: Final = 64
"""Places that are tried in one call, from the last."""
_INTRODUCTION: Final = re.compile(
    r"""(?ix) (?: key | token | secret | cookie | authoriz | bearer | auth ) [^\n]{0,24} \s* \Z
      | (?: key | token | secret ) [^\n]{0,8} \s* ["'\\]* (?: type .{0,40} )? \w{0,9}value .{0,8} \Z
      | (?: key | token | secret ) .{0,8} type .{0,40} \Z
      | (?: passw | pwd | pwor | kennw | passphrase | identified ) .{0,260} \Z
      | (?<![a-z0-9]) (?: pass | psk ) [^a-z] .{0,260} \Z
      | (?: machine \s+ \S{0,128} | default ) (?: \s+ (?: (?:login|account) .{0,80} )? )? \Z | machine \s* \Z
      | (?: login | account ) \s+ \S{0,64} \s* \Z
      | (?: api | access | private | signing | master | account ) \s \Z
      | ; \s{0,4} \Z | [a-z]=[^\s,;()]{1,64} \s \Z
      | (?: create | alter ) \s+ (?: (?:user|role) \s .{0,80} )? \Z
      | (?-i: \b (?: ENV | WITH | ENCRYPTED | SET
          | (?:USER|ROLE|LOGIN|FOR) \s+ (?: \S{1,64} (?:\s=)? )? ) \s{1,4} ) \Z
      | -[\w-]{1,40} (?: \s{1,2} | ["'\\]{1,8}, \s* ) \Z
    """,
    re.DOTALL,
)
_INTRODUCTION_CHARS: Final = 300
_SERVICE: Final = re.compile(f"(?i)(?:{SERVICE_NAMES})[^\\n]{{0,80}}\\Z")
_COMMAND: Final = re.compile(rf"(?<![A-Za-z0-9_])(?:{COMMAND_NAMES})\b(?:[^\n]|(?<=\\)\n)*\Z")
_COMMAND_CHARS: Final = 480
_MANIFEST: Final = re.compile(
    r"""(?ix) kind["']?:\s?["']?secret(?![a-z]) | apiversion["']?:\s?["']? (?: v1(?![a-z0-9]) | v?\Z )
      | kind["']?: \s? ["']? (?:s(?:e(?:c(?:r(?:et?)?)?)?)?)? \Z"""
)
"""A Kubernetes secret, in which every later value counts."""
_FOREIGN: Final = re.compile(
    f"(?:{'|'.join((*FOREIGN_NAMES, *FOREIGN_KEY_NAMES))})\\W{{0,8}}\\w{{0,4}}\\s?\\Z"
)


class StreamRedactor:
    """Redacts a text that arrives in pieces."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, piece: str) -> str:
        """Take the next piece and return the text that is complete, without its secrets."""
        self._held += piece
        cut = _safe_cut(self._held)
        if not cut and len(self._held) > MAX_HELD_BACK_CHARS:
            cut = len(self._held)
        done, self._held = self._held[:cut], self._held[cut:]
        return scrub(done)

    def close(self) -> str:
        """Return the rest at the end of the stream."""
        done, self._held = self._held, ""
        return scrub(done)


def _safe_cut(text: str) -> int:
    """Return the last position at which no secret can begin before and end after; 0 if there is none."""
    open_block = open_block_start(text)
    end = len(text) if open_block is None else open_block
    blocks = list(find_private_keys(text, text.encode("ascii", "replace").lower())) if "-----" in text else []
    for _ in range(MAX_CUTS_TRIED):
        while end and not text[end - 1].isspace():
            end -= 1
        around = next((block for block in blocks if block.start < end < block.end), None)
        if around is None and (not end or _is_safe(text, end)):
            return end
        end = around.start if around else end - 1
    return 0


def _is_safe(text: str, cut: int) -> bool:
    near = text[max(0, cut - _INTRODUCTION_CHARS) : cut]
    if _INTRODUCTION.search(near) or _SERVICE.search(near) or (not near.isascii() and _FOREIGN.search(near)):
        return False
    if _MANIFEST.search(text, max(0, cut - MAX_MANIFEST_CHARS), cut):
        return False
    return _COMMAND.search(text, max(0, cut - _COMMAND_CHARS), cut) is None
