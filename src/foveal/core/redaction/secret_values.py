"""Tests of single values: whether a value looks like a key, a password or a placeholder."""

from __future__ import annotations

import re
from typing import Final, NamedTuple


class Secret(NamedTuple):
    """A secret in a text."""

    start: int
    end: int
    name: str
    """The kind of secret, for the placeholder."""
    tail: bool = True
    """Whether the placeholder may show the last four characters."""


MIN_RANDOM_CHARS: Final = 8
"""Different characters of a value that looks random."""
_MAX_MEAN_RUN: Final = 3.5
"""Mean run of letters or digits between changes of class: random text has shorter runs than names."""
_PIECE: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
_DIGIT: Final = re.compile("[0-9]")
_DIGIT_OR_CAPITAL: Final = re.compile("[0-9A-Z]")
_DIGITS: Final = re.compile("[0-9]+")
_LETTER: Final = re.compile("[A-Za-z]")
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_PLACEHOLDER_SIGNS: Final = tuple("$<{[*%(")
_PLACEHOLDER: Final = re.compile(
    r"(?i)(.)\1*|\W*|none|null|true|false|changeme|change[_-]me|example|undefined|redacted\w*|x{3,}.*"
    r"|nil|nullptr|nullopt|string|number|boolean|integer|object|unknown|never"
    r"|!(?:ref|getatt|sub|join|select|importvalue|findinmap|if|env\w*|secret|vault|include)"
    r"|(?:my|your|the|some|db|user|test)?[_-]?(?:pass|passwd|password|passphrase|pwd|pw|secret|token)|testing|hashed\w*"
    r"|.*(?:example|placeholder).*|anonymous\W*|user@\w+|&(?:lt|#x?3c|#60);.*"
)
_CODE: Final = re.compile(r"[(\[{]|::|=|^/|^https?:")
_DOTTED: Final = re.compile(r"\.\w+\.")
_SIGNS: Final = re.compile(r"[^A-Za-z0-9_./-]")
_STRONG_SIGNS: Final = re.compile(r"[!@#$^&*+?~]")


def looks_random(value: str) -> bool:
    """Return whether a value looks like a key: letters with digits or both cases, and no words."""
    mixed = value.upper() != value.lower() and (
        _DIGIT.search(value) or not (value.islower() or value.isupper())
    )
    alphanumeric = sum(map(str.isalnum, value))
    return (
        bool(mixed)
        and len(set(value)) >= MIN_RANDOM_CHARS
        and alphanumeric <= len(_PIECE.findall(value)) * _MAX_MEAN_RUN
    )


def is_random_token(value: str) -> bool:
    """Return whether a token looks random, and is no name whose words underscores join."""
    return looks_random(value) and value.count("_") * 10 < len(value)


def is_hexadecimal(value: str) -> bool:
    """Return whether a value is a hexadecimal number with letters, or several joined by hyphens."""
    return not value.strip("0123456789abcdefABCDEF-") and value.upper() != value.lower() and has_digit(value)


def is_lower_key(value: str) -> bool:
    """Return whether a value has small letters and scattered digits, and no sign that joins words."""
    return len(value) >= 20 and value.isalnum() and value.islower() and has_scattered_digits(value)


def has_scattered_digits(value: str) -> bool:
    """Return whether digits stand at two or more places of a value, between letters."""
    return len(_DIGITS.findall(value)) >= 2 and _LETTER.search(value) is not None


def has_digit(value: str) -> bool:
    return _DIGIT.search(value) is not None


def has_digit_or_capital(value: str) -> bool:
    return _DIGIT_OR_CAPITAL.search(value) is not None


def is_uuid(value: str) -> bool:
    return _UUID.fullmatch(value) is not None


def is_placeholder(value: str) -> bool:
    """Return whether a value stands for a secret, such as `$TOKEN`, `<token>` or `changeme`."""
    if value[:1] in _PLACEHOLDER_SIGNS and "\n" not in value:
        return True
    return _PLACEHOLDER.fullmatch(value) is not None


def is_code(value: str) -> bool:
    """Return whether a value is an expression, a path or an address."""
    if _CODE.search(value):
        return True
    return _DOTTED.search(value) is not None and not (has_digit(value) and looks_random(value))


def looks_like_password(value: str) -> bool:
    """Return whether a value looks like a password: letters, digits, and a special character or both cases."""
    plain = value.islower() or value.isupper() or value.upper() == value.lower()
    if len(value) >= 12 and looks_random(value):
        return True
    return len(value) >= 8 and has_digit(value) and (not plain or _SIGNS.search(value) is not None)


def looks_like_spoken_password(value: str) -> bool:
    """Return whether a word of a sentence looks like a password: letters with a digit or a special character."""
    unusual = has_digit(value) or _STRONG_SIGNS.search(value)
    return len(value) >= 6 and bool(unusual) and _LETTER.search(value) is not None
