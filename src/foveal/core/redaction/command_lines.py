"""Scan for secrets in command lines and addresses: `curl -u`, `mysql -p`, `--token`, `https://user:password@`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from foveal.core.redaction.assignments import find_cookies
from foveal.core.redaction.passwords import password_at
from foveal.core.redaction.secret_values import (
    Secret,
    has_scattered_digits,
    is_placeholder,
    looks_like_spoken_password,
    looks_random,
)

MAX_COMMAND_LINE_CHARS: Final = 400
"""Characters before an option in which its command is searched."""
CURL_FLAGS: Final = "[sSkLfviIgGNOJRqZ46#]"
"""A pattern of the options without a value that can stand before `u` in one word: `curl -su ada:…`."""
_LISTED: Final = r"\\{0,7}[\"'],\s{0,40}(?=\\{0,7}[\"'])"
"""What stands between an option and its value in a list of arguments: `["--password", "…"]`."""
_LISTED_VALUE: Final = re.compile(_LISTED)
_SHORT_OPTIONS: Final = "pPa"
_LONG_SECRETS: Final = (
    r"(?:(?P<password>(?<=pass)|(?<=password)|(?<=passwd)|(?<=passphrase)|(?<=pwd))"
    r"|(?P<key>(?<=key)|(?<=token)|(?<=secret)))"
)
_COOKIE_START: Final = r"[\s\x1c-\x1f\"'`\\]{0,4}[A-Za-z0-9_.%!#$&*+^|~-]{1,64}="


def _option_pattern(letters: str) -> re.Pattern[bytes]:
    """Return a pattern of the options whose value may be secret, with these short ones for passwords.

    The first alternative that matches is final: an option is of one kind, whatever its value is. Of a value, the
    pattern asks what the checks ask first, since most options have no such value."""
    short = rf"|(?P<short>[{letters}])(?=[^\s-]| ['\"]?[^\s'\"-])" if letters else ""
    value = rf"(?: {{1,2}}[\"']?|=[\"']?|{_LISTED}\\{{0,7}}[\"'])"
    near_value = rf"(?:[ =]{{0,2}}+[\"']?|{_LISTED}\\{{0,7}}[\"'])"
    pattern = (
        rf"-(?<![A-Za-z0-9_-]-)(?=[uUb{letters}-]|{CURL_FLAGS}++[uU])"
        rf"(?>(?P<login>[uU]|-user|-proxy-user|{CURL_FLAGS}{{1,8}}[uU])(?=[ ='\"\\]|[a-z])"
        rf"{short}|(?P<cookie>b|-cookie)(?=[ ='\"\\])"
        rf"|-[a-z-]{{3,32}}+(?<=[densty])(?=[ =\"'\\]){_LONG_SECRETS}(?=[ =]|{_LISTED}))"
        rf"(?(login)(?={near_value}[^\s:\"'/=$@]{{1,64}}:))"
        rf"(?(cookie)(?={near_value}{_COOKIE_START}))"
        rf"(?(key)(?={value}[A-Za-z0-9_+/.~-]{{16}}))"
    )
    return re.compile(pattern.encode())


_OPTION: Final = _option_pattern(_SHORT_OPTIONS)
_LONG_OPTION: Final = _option_pattern("")
_SHORT_OPTION_COMMANDS: Final = ("mysql", "mariadb", "mycli", "sshpass", "login", "mongo", "redis-cli")
"""Words of which each command with a short option for a password has one."""
_MAX_SHORT_OPTIONS: Final = 50
"""With more short options than these, the whole text is searched for their commands."""
_START: Final = re.compile(rf"(?:{_LISTED}|[ =]{{0,2}}(?:\$(?='))?)(?P<quote>\\{{0,7}}[\"'])?")
_WORD_START: Final = r"(?<![^\s;|&$(\"'`/?])"
"""The beginning of a command; `?` stands for a letter that is not ASCII."""
_HTTP_COMMAND: Final = re.compile(_WORD_START + r"(?:curl|wget|https?(?= )|xh|aria2c)\b")
_HTTP_COMMANDS: Final = ("curl", "wget", "http", "xh", "aria2c")
_LOGIN: Final = re.compile(r"(?P<user>[^\s:\"'/=$@]{1,64}):")
_ATTACHED_PASSWORD: Final = re.compile(
    _WORD_START + r"(?:mysql(?:dump|admin|show|import|check)?|mariadb|mycli)\b"
)
_SEPARATE_PASSWORD: Final = re.compile(
    _WORD_START + r"(?:(?:docker|podman)[\s\"',\\]{1,6}login|mongo(?:sh|dump|restore)?)\b"
)
_SSHPASS: Final = re.compile(
    _WORD_START + r"sshpass(?:[\s\"',\\]{1,8}-(?:v|P[ ]?[^\s]{1,40})){0,3}[\s\"',\\]{1,8}\Z"
)
"""This command has its options before the command that it runs, which can have a `-p` too."""
_REDIS: Final = re.compile(_WORD_START + r"redis-cli\b")
COMMAND_NAMES: Final = (
    r"curl|wget|https?(?= )|xh|aria2c|my(?:sql\w*|cli)|mariadb|sshpass|docker|podman|mongo\w*|redis-cli"
)
"""A pattern that matches the name of a command whose options can be secret, or the first word of it."""
_OPTION_VALUE: Final = re.compile(
    rf"(?:{_LISTED}\\{{0,7}}|[ ]{{1,2}}|=)[\"']?(?P<value>[A-Za-z0-9_+/.~-]{{16,}}+={{0,2}})"
)


def find_options(text: str, ascii_text: bytes) -> Iterator[Secret]:
    for hit in _option_hits(ascii_text):
        kind = hit.lastgroup
        if kind == "key":
            yield from _key_option(text, hit.end())
        elif kind == "password":
            yield from _password_option(text, hit.end())
        elif kind == "short":
            yield from _short_option(text, hit)
        elif kind and _is_http_command(_command_before(text, hit.start())):
            yield from _login_option(text, hit.end()) if kind == "login" else _cookie_option(text, hit.end())


def _option_hits(ascii_text: bytes) -> Iterator[re.Match[bytes]]:
    """Yield the options; many short ones only in a text with a command that has them."""
    first = ascii_text.find(b"-")
    short = 0
    for hit in _OPTION.finditer(ascii_text, first) if first >= 0 else ():
        yield hit
        short += hit.lastgroup == "short"
        if short > _MAX_SHORT_OPTIONS:
            if not any(command.encode() in ascii_text for command in _SHORT_OPTION_COMMANDS):
                yield from _LONG_OPTION.finditer(ascii_text, hit.end())
                return
            short = -len(ascii_text)  # do not search again


def _command_before(text: str, at: int) -> str:
    """Return the part of the command line before a position; a backslash continues a line."""
    first = max(0, at - MAX_COMMAND_LINE_CHARS)
    end = text.rfind("\n", first, at)
    while end > first and text[end - 1] == "\\":
        end = text.rfind("\n", first, end)
    return text[first if end < 0 else end + 1 : at]


def _is_http_command(command: str) -> bool:
    return any(map(command.__contains__, _HTTP_COMMANDS)) and _HTTP_COMMAND.search(command) is not None


def _key_option(text: str, at: int) -> Iterator[Secret]:
    hit = _OPTION_VALUE.match(text, at)
    if hit and (
        looks_random(hit["value"]) or (has_scattered_digits(hit["value"]) and hit["value"].isalnum())
    ):
        yield Secret(*hit.span("value"), "secret key")


def _password_option(text: str, at: int) -> Iterator[Secret]:
    """Find `--password …`; a plain word counts after `=` or before another option, since sentences name options.
    In a list, a plain word or a text can describe the option, so the value must look like a password."""
    for secret in _password(text, at):
        value = text[secret.start : secret.end]
        if _is_listed(text, at):
            proven = " " not in value and looks_like_spoken_password(value)
        else:
            proven = not (value.isalpha() and text.startswith(" ", at)) or text.startswith(" -", secret.end)
        if proven:
            yield secret


def _is_listed(text: str, at: int) -> bool:
    """Return whether an option that ends here is an item of a list."""
    return text.startswith(('"', "'", "\\"), at) and _LISTED_VALUE.match(text, at) is not None


def _short_option(text: str, hit: re.Match[bytes]) -> Iterator[Secret]:
    command = _command_before(text, hit.start())
    if not any(map(command.__contains__, _SHORT_OPTION_COMMANDS)):
        return
    attached = not text.startswith(" ", hit.end()) and not _is_listed(text, hit.end())
    letter = text[hit.end() - 1]
    if (
        (letter == "p" and attached and _ATTACHED_PASSWORD.search(command))
        or (letter == "p" and _SSHPASS.search(command))
        or (letter in "pP" and not attached and _SEPARATE_PASSWORD.search(command))
        or (letter == "a" and not attached and _REDIS.search(command))
    ):
        yield from _password(text, hit.end())


def _password(text: str, at: int) -> Iterator[Secret]:
    start = _START.match(text, at)
    span = password_at(text, start.end(), quote=start["quote"] or "") if start else None
    if span and not is_placeholder(text[slice(*span)]) and not text.startswith("-", span[0]):
        yield Secret(*span, "password", tail=False)


def _login_option(text: str, at: int) -> Iterator[Secret]:
    start = _START.match(text, at)
    user = _LOGIN.match(text, start.end()) if start else None
    span = password_at(text, user.end(), quote=(start["quote"] or "") if start else "") if user else None
    if span and user and not is_placeholder(text[slice(*span)]) and text[slice(*span)] != user["user"]:
        yield Secret(*span, "password", tail=False)


def _cookie_option(text: str, at: int) -> Iterator[Secret]:
    start = _START.match(text, at)
    if start:
        yield from find_cookies(text, start.end())


# ── Addresses ──────────────────────────────────────────────────────────────────────────────────────────

MAX_LOGIN_CHARS: Final = 512
"""Characters between `//` and `@` of an address."""
MAX_SIGNS_TRIED: Final = 2_000
"""`@` and `%` signs that are tried one by one; in a text with more of them, `re` is faster than `bytes.find`."""
_BEFORE_NO_LOGIN: Final = b" \t\n\r@/("
"""Characters before an `@` that ends no login, such as that of a decorator in code."""
_TWO_SLASHES: Final = re.compile(r"/\\{0,7}\Z")
"""What stands before the second slash of an address; JSON may escape both."""
_ADDRESS_LOGIN: Final = re.compile(r"/(?P<user>[^\s/?#@:,\"'`<>\\]*+):(?P<password>[^\s/?,\"'`<>\\]*)")
_ENCODED_LOGIN: Final = re.compile(
    r"%2[Ff]%2[Ff](?P<user>(?:[A-Za-z0-9_.~+-]|%(?!3[Aa]|40|2[Ff]))*+)%3[Aa]"
    r"(?P<password>(?:[A-Za-z0-9_.~+-]|%(?!40|2[Ff]))++)"
)
_ENCODED_SLASHES: Final = re.compile(rb"%(?=2[Ff]%2[Ff])")
_ADDRESS_WITH_LOGIN: Final = re.compile(
    rb"/(?<=[/\\]/)[^\s/?#@:,\"'`<>\\]*+:[^\s/?,\"'`<>\\]*@(?=[A-Za-z0-9\[$_{<%])"
)
_SAMPLE_LOGINS: Final = frozenset(
    {("scott", "tiger"), ("user", "pass"), ("username", "passwd"), ("foo", "bar")}
)
"""Logins of documentation."""


def find_logins(text: str, ascii_text: bytes) -> Iterator[Secret]:
    """Find passwords in addresses such as `postgres://user:password@host`."""
    at, tried = ascii_text.find(b"@"), 0
    while at >= 0 and tried < MAX_SIGNS_TRIED:
        if ascii_text[at - 1] not in _BEFORE_NO_LOGIN:
            yield from _address_login(text, at)
        at, tried = ascii_text.find(b"@", at + 1), tried + 1
    if at >= 0:
        for address in _ADDRESS_WITH_LOGIN.finditer(ascii_text, max(0, at - MAX_LOGIN_CHARS)):
            yield from _address_login(text, address.end() - 1)
    if _has_encoded_slashes(ascii_text):
        yield from _encoded_logins(text, ascii_text)


def _address_login(text: str, at: int) -> Iterator[Secret]:
    """Find the password before the `@` of an address."""
    slash = text.rfind("/", max(0, at - MAX_LOGIN_CHARS), at)
    is_second = slash > 0 and text[slash - 1] in "/\\"
    hit = _ADDRESS_LOGIN.fullmatch(text, slash, at) if is_second else None
    if hit and _TWO_SLASHES.search(text, max(0, slash - 8), slash):
        yield from _password_of(hit)


def _has_encoded_slashes(ascii_text: bytes) -> bool:
    at = ascii_text.find(b"%")
    for _ in range(MAX_SIGNS_TRIED):
        if at < 0 or _ENCODED_SLASHES.match(ascii_text, at):
            return at >= 0
        at = ascii_text.find(b"%", at + 1)
    return at >= 0 and _ENCODED_SLASHES.search(ascii_text, at) is not None


def _encoded_logins(text: str, ascii_text: bytes) -> Iterator[Secret]:
    at = ascii_text.find(b"%40")
    while at >= 0:
        begin = max(text.rfind(start, max(0, at - MAX_LOGIN_CHARS), at) for start in ("%2F%2F", "%2f%2f"))
        hit = _ENCODED_LOGIN.fullmatch(text, begin, at) if begin >= 0 else None
        if hit:
            yield from _password_of(hit)
        at = ascii_text.find(b"%40", at + 1)


def _password_of(login: re.Match[str]) -> Iterator[Secret]:
    user, password = login["user"], login["password"]
    if password != user and not is_placeholder(password) and (user, password) not in _SAMPLE_LOGINS:
        yield Secret(*login.span("password"), "password", tail=False)
