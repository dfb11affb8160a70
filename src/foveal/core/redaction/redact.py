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
from collections.abc import Sequence
from typing import Any, Final, TypeVar, cast

import msgspec
from msgspec import Raw, UnsetType
from msgspec.structs import replace

from foveal.core.log.events import AnyFact
from foveal.core.redaction.assignments import FOLDED, find_named, find_names
from foveal.core.redaction.candidates import find_parts, re2_search
from foveal.core.redaction.command_lines import COMMAND_NAMES, find_logins, find_options
from foveal.core.redaction.key_formats import MAX_KEY_BLOCK_CHARS, find_private_keys, open_block_start
from foveal.core.redaction.long_tokens import SERVICE_NAMES, find_tokens
from foveal.core.redaction.passwords import (
    FOREIGN_KEY_NAMES,
    FOREIGN_NAMES,
    MAX_MANIFEST_CHARS,
    end_in_sentence,
    find_foreign,
    find_stored,
)
from foveal.core.redaction.secret_values import Secret

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
