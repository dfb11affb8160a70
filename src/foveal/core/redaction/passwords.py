"""Scan for passwords: after their name (`DB_PASSWORD=…`, "my password is …") and in files that have none.

1. `assignments` finds the names; `judge_password` reads what stands before and after one.
2. A value counts if it looks like a password, or if the form leaves no doubt: a variable in capitals, one of
   several pairs of a connection, a line of `.netrc`, a statement of SQL.
3. `find_stored` and `judge_manifest` read forms that name no password: `.pgpass`, `IDENTIFIED BY`, Kubernetes
   secrets. Each has a text that only it contains. In a Kubernetes secret every value of `data` and `stringData`
   counts, except short ones such as a port.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from foveal.core.redaction.secret_values import (
    Secret,
    is_code,
    is_hexadecimal,
    is_placeholder,
    looks_like_password,
    looks_like_spoken_password,
    looks_random,
)

MAX_NAME_CHARS: Final = 48
"""Characters of a name before its value that are read."""
_NAME_BACKWARDS: Final = re.compile(r"[A-Za-z0-9_.-]*+")
VALUE_BELOW: Final = (
    r"[\"'\\]{0,8}+(?:,\s{0,40}+|\s{1,40}+)[\"'\\]{0,8}+(?=[TPOVtpov])"
    r"(?:[Tt]ype[\"'\\]{0,8}+:\s?[\"'\\]{0,8}\w{1,20}[\"'\\]{0,8},\s{0,40}+[\"'\\]{0,8}+)?"
    r"(?:[Pp]arameter|[Oo]ption)?[Vv]alue[\"'\\]{0,8}\s?[:=]"
)
"""A pattern of what stands between a name and its value in two fields, as variables of containers have them."""
STRING_IN_BRACES: Final = r"\{(?=\\{0,7}[\"'][^\"'\n\\{}]{4,128}+\\{0,7}[\"'](?:![rsa])?\})"
"""A pattern of the brace before a string that an f-string or a set contains: `f"password={'…'}"`."""
VALUE_LEAD: Final = (
    r"(?:\s{0,3}+(?:\*{1,2}(?=\s)|__(?=\s)|</\w{1,8}>(?=\s)|&(?<=\s&)[A-Za-z0-9_-]{1,16} |!(?<=\s!)!\w{1,16} "
    r"|[|>](?<=\s[|>])[0-9+-]{0,2}[ \t]{0,8}\n[ \t]{1,32}"
    rf"|{STRING_IN_BRACES}"
    r"|[BbRrUu]{1,2}(?=\\{0,7}[\"'])|[ENLenl@](?=\\{0,7}[\"'])|[Uu]&(?=\\{0,7}[\"'])|\$(?='))){0,3}+\s{0,3}+"
)
"""A pattern of what may precede a value: the end of bold text, an anchor, a tag or a block of YAML, a brace of an
f-string, and the letter of a string in code, SQL or a shell (`b"…"`, `N'…'`, `$'…'`)."""
_SIGN: Final = re.compile(
    rf"[0-9]?[\"'`\\\])*]{{0,9}}(?P<sign>{VALUE_BELOW}|\s{{0,2}}(?::=|=>|[:=]|%3[AaDd])|>|[ ]{{1,40}}\|(?=\s)"
    rf"|(?P<spoken>\s(?:ist?|lautet)(?:\s?[:=]|(?=\s))))(?P<lead>{VALUE_LEAD})(?P<quote>\\{{0,7}}[\"'`])?"
)
_QUOTED: Final = {
    quote: re.compile(
        rf"(?:[^{quote}\n\\]|(?<=[^{quote}]){quote}{quote}(?=\w)){{4,128}}+(?=\\{{0,7}}{quote})"
    )
    for quote in "\"'`"
}
_ESCAPED: Final = {
    quote: re.compile(rf"(?:[^{quote}\n\\]|\\[\\{quote}]){{4,128}}+(?={quote})") for quote in "\"'`"
}
"""The same with the quote or a backslash after a backslash, in a string that is not inside another."""
_UNQUOTED: Final = re.compile(
    r"(?:[^\s\"'`\\<>&;,)\]}%]"
    r"|[&;,](?=[^\s\"'`\\<>&;,)\]}])(?!(?:amp;)?[A-Za-z_][\w.-]{0,40}\s?[=:])"
    r"|[)\]}](?=[A-Za-z0-9])|[<>](?![/A-Za-z])(?=[A-Za-z0-9!])|%(?!26|3[Bb]|2[027]|0[AaDd]|3[EeCc]|40)){4,128}+"
)
_LAST_SIGNS: Final = ".:"
_PAIR_BEFORE: Final = re.compile(r"(?:;\s?|[A-Za-z]=[^\s,;()]{1,64} )\Z")
_PAIR_AFTER: Final = re.compile(r";\s?[A-Za-z][\w. ]{1,40}=|\s[A-Za-z_]{2,20}=[^\s,]")
_SETTING_NAME: Final = re.compile(r"(?i)(?:\A|_)psk\Z|wpa_passphrase|ansible_\w+_pass(?:word)?\Z")
"""Names that only files of settings have: every value counts."""
_LINE_BEFORE: Final = re.compile(r"(?:\A|[\n\r])\s{0,16}(?:export |set |ENV )?\Z")
_LINE_AFTER: Final = re.compile(r"\s*(?:[\n\r]|\Z)")


def judge_password(text: str, hit: re.Match[bytes]) -> Iterator[Secret]:
    """Find the password after a name, which ends at the last group; `psk` ends at the `k` of the search."""
    end = hit.start() + 1 if hit.lastgroup == "psk" else hit.end(hit.lastgroup or "")
    start = name_start(text, end)
    sign = _SIGN.match(text, end)
    span = _after_sign(text, start, end, sign) if sign else _after_blank(text, start, end)
    if span:
        yield Secret(*span, "password", tail=False)


def password_at(text: str, at: int, *, quote: str = "") -> tuple[int, int] | None:
    """Return where the password that begins here starts and ends: up to its quote, or as far as a word goes."""
    hit = _QUOTED[quote[-1]].match(text, at) if quote else None
    if hit is None and len(quote) == 1:
        hit = _ESCAPED[quote].match(text, at)
    if hit is None:
        hit = _UNQUOTED.match(text, at)
    if hit is None:
        return None
    end = hit.end() - (len(hit.group()) - len(hit.group().rstrip(_LAST_SIGNS)))
    return (at, end) if end - at >= 4 else None


def name_start(text: str, end: int) -> int:
    """Return where the name begins that ends here."""
    backwards = _NAME_BACKWARDS.match(text[max(0, end - MAX_NAME_CHARS) : end][::-1])
    return end - backwards.end() if backwards else end


# ── After a sign ───────────────────────────────────────────────────────────────────────────────────────


def _after_sign(text: str, start: int, end: int, sign: re.Match[str]) -> tuple[int, int] | None:
    """Return the password after `=`, `:` or "is", if it is one; the name is from `start` to `end`."""
    span = password_at(text, sign.end(), quote=sign["quote"] or "")
    if span is None:
        return None
    name, password = text[start:end], text[slice(*span)]
    if is_placeholder(password) or (is_code(password) and not sign["quote"]) or _is_verdict(name, sign):
        return None
    proven = (
        looks_like_password(password)
        or _is_said(sign, password)
        or _is_setting(text, start, span[1], name=name, sign=sign)
    )
    return span if proven else None


def _is_verdict(name: str, sign: re.Match[str]) -> bool:
    """Return whether the line is the result of a test, such as `PASS: TestLogin`."""
    return name in ("PASS", "Pass") and not sign["quote"] and sign["sign"].endswith(":")


def _is_said(sign: re.Match[str], password: str) -> bool:
    """Return whether the value stands in quotes, after "is", or after a colon and a blank, and may be one."""
    is_after_blank = sign["sign"].endswith(":") and " " in sign["lead"] and sign["lead"][0] not in "\r\n"
    clear = sign["quote"] or sign["spoken"] or is_after_blank or _is_below(sign)
    return bool(clear) and looks_like_spoken_password(password)


def _is_below(sign: re.Match[str]) -> bool:
    return "alue" in sign["sign"]


def _is_setting(text: str, start: int, end: int, *, name: str, sign: re.Match[str]) -> bool:
    """Return whether the form alone shows that a value is a password, however simple it is."""
    attached = sign["sign"].strip() in ("=", ":") and not sign.group()[-1:].isspace()
    if _SETTING_NAME.search(name) and attached:
        return True
    if name.isupper() and ((sign["sign"] == "=" and attached) or _is_below(sign)):
        return True
    if name == "PASSWORD" and sign["quote"] and _is_statement(text, start):
        return True
    if not sign["sign"].endswith((":", ">")) and _in_connection(text, start, end):
        return True
    if name == "pass" and _OPENSSL.search(text, max(0, start - 12), start):
        return True
    return (
        attached
        and not sign["quote"]
        and _is_line(text, start, end)
        and looks_like_spoken_password(text[sign.end() : end])
    )


_OPENSSL: Final = re.compile(r"-(?:pass(?:in|out)?)\s{1,2}\Z")


def _in_connection(text: str, start: int, end: int) -> bool:
    """Return whether the pair is one of several `name=value` pairs, separated by semicolons or blanks."""
    return bool(_PAIR_BEFORE.search(text, max(0, start - 70), start) or _PAIR_AFTER.match(text, end))


def _is_line(text: str, start: int, end: int) -> bool:
    """Return whether the pair stands alone on its line, as in a file of settings."""
    return bool(_LINE_BEFORE.search(text, max(0, start - 24), start) and _LINE_AFTER.match(text, end))


# ── After a blank ──────────────────────────────────────────────────────────────────────────────────────

_NETRC: Final = re.compile(
    r"(?P<machine>machine\s{1,8}(?P<host>[^\s]{1,128})\s{1,8}|default\s{1,8})?"
    r"(?:login|account)\s{1,8}[^\s]{1,64}\s{1,8}\Z"
)
_NETRC_GOES_ON: Final = re.compile(r"[ \t]*(?:[\n\r\"'`\\]|\Z|\s(?:machine|account|default|macdef)\s)")
MAX_NETRC_CHARS: Final = 260
"""Characters of an entry of `.netrc` before its password."""
_QUOTE: Final = re.compile(r"(?:\s{1,4}|\()(?:[ENen]|[Uu]&)?(?P<quote>['\"])")
_STATEMENT: Final = re.compile(
    r"(?:WITH|ENCRYPTED|SET|(?:USER|ROLE|LOGIN|FOR)\s[^\s]{1,64}(?:\s=)?)\s{1,4}\Z"
)
MAX_STATEMENT_CHARS: Final = 80
"""Characters of a statement of SQL before `PASSWORD` that are read."""
_BLANKS: Final = re.compile(r"\s{1,8}")
_DOCKERFILE: Final = re.compile(r"(?:\A|\n)[ \t]{0,8}ENV \Z")


def _after_blank(text: str, start: int, end: int) -> tuple[int, int] | None:
    """Return the password after a blank: in `.netrc`, in SQL, in a Dockerfile."""
    name = text[start:end]
    quote = _QUOTE.match(text, end)
    if quote:
        span = password_at(text, quote.end(), quote=quote["quote"])
        clear = span and _is_quoted_password(text, start, name, text[slice(*span)])
    else:
        blanks = _BLANKS.match(text, end)
        span = password_at(text, blanks.end()) if blanks else None
        is_netrc = name == "password" and span is not None and _is_netrc(text, start, span)
        clear = is_netrc or _is_dockerfile(text, start, name)
    return span if clear and span and not is_placeholder(text[slice(*span)]) else None


def _is_quoted_password(text: str, start: int, name: str, value: str) -> bool:
    """Return whether a string after the name is a password; with blanks it may be a message to the user."""
    if " " in value:
        return looks_random(value) or (name == "PASSWORD" and _is_statement(text, start))
    return name == "PASSWORD" or looks_like_password(value)


def _is_statement(text: str, start: int) -> bool:
    """Return whether words of SQL stand before `PASSWORD`."""
    return _STATEMENT.search(text, max(0, start - MAX_STATEMENT_CHARS), start) is not None


def _is_netrc(text: str, start: int, span: tuple[int, int]) -> bool:
    """Return whether an entry of `.netrc` stands before the password. Prose can have its words, so a simple
    password needs a host with a dot, or ends the entry."""
    entry = _NETRC.search(text, max(0, start - MAX_NETRC_CHARS), start)
    if entry is None:
        return False
    if looks_like_spoken_password(text[slice(*span)]):
        return True
    has_dot = "." in (entry["host"] or "")
    return bool(entry["machine"]) and (has_dot or _NETRC_GOES_ON.match(text, span[1]) is not None)


def _is_dockerfile(text: str, start: int, name: str) -> bool:
    return name.isupper() and _DOCKERFILE.search(text, max(0, start - 16), start) is not None


# ── Without a name ─────────────────────────────────────────────────────────────────────────────────────

MAX_MANIFEST_CHARS: Final = 4_000
"""Characters of a Kubernetes secret around its `kind` that are read."""
_PGPASS: Final = re.compile(
    r":[0-9*]{1,5}(?::(?:[^:\s\\]|\\[:\\]){1,64}+){2}"
    r":(?P<password>(?:[^\s:\"'`<>()\\]|\\[:\\]|[\"'`<>()](?=\w)){4,128}+)(?=[\s\"'`\\]|\Z)"
)
"""A line of `.pgpass` after its host: port, database, user and password."""
_HOST: Final = re.compile(
    r"(?:\A|[\s\"'`])(?P<host>\[[0-9A-Fa-f:.]{2,45}\]|(?:[A-Za-z0-9_.*/-]|\\[:\\]){1,64}+)\Z"
)
_PORT: Final = re.compile(rb":(?:[1-9][0-9]{3,4}|\*):")
_LOGIN_FIELDS: Final = re.compile(r":[0-9]{4,5}(?::(?:\*|[A-Za-z_][A-Za-z0-9_.@-]{0,63})){2}:")
"""The port, the database and the user, which begin with a letter or are a star."""
_SOURCE_FILE: Final = re.compile(
    r"/|^[0-9]+\Z|\.(?:[chmrs]|cc|cs|ex|go|hs|js|kt|md|ml|pl|py|rb|rs|sh|ts|[jt]sx|[ch]pp|cfg|css|csv|html?|ini|java"
    r"|json|log|lua|php|rst|sql|scala|swift|toml|txt|vue|xml|ya?ml)\Z"
)
"""Hosts that are a place in a file, as compilers write it, or the hour of a time."""
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
    first = folded.find(b":")
    for port in _PORT.finditer(folded, first) if first >= 0 else ():
        yield from _pgpass(text, port.start())


def _pgpass(text: str, at: int) -> Iterator[Secret]:
    """Find the password of a line of `.pgpass` whose port begins here. Compilers and logs write other numbers
    between colons, so that a port that is not the usual one needs the fields of a login."""
    line = _PGPASS.match(text, at)
    host = _HOST.search(text, max(0, at - 65), at) if line else None
    if line is None or host is None or is_placeholder(line["password"]):
        return
    is_usual = text.startswith((":5432:", ":*:"), at)
    if is_usual or (_LOGIN_FIELDS.match(text, at) and _is_other_host(host["host"], line["password"])):
        yield Secret(*line.span("password"), "password", tail=False)


def _is_other_host(host: str, password: str) -> bool:
    return _SOURCE_FILE.search(host) is None and looks_like_spoken_password(password)


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
