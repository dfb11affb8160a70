"""Redaction of a stream: text that arrives in pieces is masked as if it had arrived whole.

1. However the text is split, the results of `feed` and `close`, joined, are `scrub` of the whole text.
2. Only text that may become a secret is held back: the last word, and the words before it after a name or a command
   that can introduce a secret. At most `MAX_HELD_BACK_CHARS` characters are held back; a longer text without a
   place to cut is redacted as it stands.
"""

from __future__ import annotations

import re
from typing import Final

from foveal.core.redaction.command_lines import COMMAND_NAMES
from foveal.core.redaction.long_tokens import SERVICE_NAMES
from foveal.core.redaction.private_keys import MAX_KEY_BLOCK_CHARS, find_private_keys, open_block_start
from foveal.core.redaction.redact import scrub
from foveal.core.redaction.stored_logins import FOREIGN_KEY_NAMES, FOREIGN_NAMES, MAX_MANIFEST_CHARS

MAX_HELD_BACK_CHARS: Final = MAX_KEY_BLOCK_CHARS + 8_192
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
