"""Digest of code: its definitions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain
from typing import Final

from foveal.core.reduction.digest.pieces import (
    MAX_SAMPLE_LINES,
    MAX_VALUE_CHARS,
    TextLines,
    cut,
    packed,
)
from foveal.core.view.text_facts import strip_line_number

_CODE_SHARE: Final = 0.4
"""Share of lines that look like code from which a text is code."""
_CODE_START: Final = re.compile(
    r"(?:def|class|import|return|elif|else|func|fn|function|const|let|var|public|private|static|export|raise"
    r"|try|except|package|use|struct|enum|#include)\b(?!:? +[A-Z][a-z]+ [a-z])|//|/\*|\*/|@\w|[\])}]|self\."
)
_CODE_END: Final = ("{", "}", ";", "(", "[", "):", "=>")
_DEFINITION: Final = re.compile(
    r"\s*(?:(?:export|public|private|protected|static|async|pub|default|abstract|final)\s+){0,4}"
    r"(?:def|class|function|func|fn|struct|enum|interface|trait|impl|type|module|package|CREATE TABLE)\s+\S"
)


def code_digest(text: TextLines) -> Iterable[str] | None:
    """Return the definitions of code; of code without any, its first lines."""
    sample = [strip_line_number(line) for line in text.lines[:MAX_SAMPLE_LINES]]
    if len(sample) < 3 or sum(map(_is_code, sample)) < _CODE_SHARE * len(sample):
        return None
    defined = filter(_DEFINITION.match, map(strip_line_number, text.lines))
    first = next(defined, None)
    lines = map(strip_line_number, text.lines) if first is None else chain([first], defined)
    return packed((cut(line, MAX_VALUE_CHARS) for line in lines), "; ")


def _is_code(line: str) -> bool:
    return line.endswith(_CODE_END) or _CODE_START.match(line) is not None
