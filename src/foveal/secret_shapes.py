"""What secrets look like: the shapes of keys, tokens, passwords and private keys that must not be stored.

`found(text)` tells where they stand. Three things keep it quick and free of surprises:

1. Each scan looks for one character or word that stands in every secret of its family (`_`, `-`, `.`, `:`, `=`),
   which a regular expression does at the speed of memory; the rest is asked only where there is something to ask.
2. Whatever can fail is bounded, and what is not bounded is possessive and is not read twice: the time is linear.
3. What has no unmistakable beginning must have a name (`api_key = …`) and look random, so that hashes, UUIDs and
   identifiers stay.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple


class Found(NamedTuple):
    """A secret in a text."""

    start: int
    end: int
    name: str
    """What it is, in words."""
    tail: bool = True
    """It is long enough to show its last four characters."""


EDGE: Final = (
    r"(?:(?<![A-Za-z0-9])|(?<=\\[nrtbf])|(?<=%[0-9A-Fa-f]{2})|(?<=\\u[0-9A-Fa-f]{4})"
    r"|(?<=\x1b\[[0-9]m)|(?<=\x1b\[[0-9]{2}m)|(?<=\x1b\[[0-9];[0-9]{2}m))"
)
"""Where a word begins, be it after an escape of JSON, of a URL or of a terminal."""
_EDGE: Final = re.compile(EDGE)
_LONG: Final = "[A-Za-z0-9_-]"

# ── does it look like one? ───────────────────────────────────────────────────────────────────────────────

_WORDLESS: Final = 3.2
"""Letters or digits in a row between changes of kind, on average: random text has fewer, names have more."""
_PIECE: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
_DIGIT: Final = re.compile("[0-9]")


def looks_random(value: str) -> bool:
    """Whether this is a key rather than a name or a number: letters with digits or both cases, and no words."""
    mixed = value.upper() != value.lower() and (
        _DIGIT.search(value) or not (value.islower() or value.isupper())
    )
    alphanumeric = sum(map(str.isalnum, value))
    return bool(mixed) and len(set(value)) >= 8 and alphanumeric <= len(_PIECE.findall(value)) * _WORDLESS


def numbered(value: str) -> bool:
    return _DIGIT.search(value) is not None


def _always(value: str) -> bool:
    return True


# ── secrets with a beginning of their own ────────────────────────────────────────────────────────────────


class _Prefixed(NamedTuple):
    name: str
    pattern: str
    proof: Callable[[str], bool] = _always


_PREFIXED: Final = (
    _Prefixed("Anthropic key", r"sk-ant-[A-Za-z0-9_-]{16,}+", numbered),
    _Prefixed("OpenRouter key", r"sk-or-[A-Za-z0-9_-]{24,}+", numbered),
    _Prefixed("OpenAI key", r"sk-(?:proj|svcacct|admin|None)-[A-Za-z0-9_-]{16,}+", numbered),
    _Prefixed("OpenAI key", r"sk-[A-Za-z0-9]{20,}+(?![A-Za-z0-9_-])"),
    _Prefixed("OpenAI key", r"sk-[A-Za-z0-9_-]{20,}+", looks_random),
    _Prefixed("GitHub token", r"gh[pousr]_[A-Za-z0-9]{30,}+(?:[_.-][A-Za-z0-9]+)*+"),
    _Prefixed("GitHub token", r"gh[pousr]_[A-Za-z0-9_-]{30,}+(?:\.[A-Za-z0-9_-]+)*+", looks_random),
    _Prefixed("GitHub token", r"github_pat_[A-Za-z0-9_]{22,}+", numbered),
    _Prefixed(
        "GitLab token",
        r"gl(?:pat|ptt|dt|rt|soat|ft|cbt|agent|oas|imt|ffct)-[A-Za-z0-9_-]{20,}+(?:\.[a-z0-9]+)*+",
        numbered,
    ),
    _Prefixed("Slack token", r"xox[a-z]-[A-Za-z0-9-]{18,}+", numbered),
    _Prefixed("Slack token", r"xapp-[0-9]-[A-Za-z0-9-]{16,}+"),
    _Prefixed("Stripe key", r"sk_(?:live|test)_[A-Za-z0-9]{16,}+"),
    _Prefixed("Stripe key", r"rk_(?:live|test)_[A-Za-z0-9]{16,}+"),
    _Prefixed("webhook secret", r"whsec_[A-Za-z0-9+/_-]{24,}+={0,2}", looks_random),
    _Prefixed("Hugging Face token", r"hf_[A-Za-z0-9]{30,}+"),
    _Prefixed("Groq key", r"gsk_[A-Za-z0-9]{32,}+"),
    _Prefixed("xAI key", r"xai-[A-Za-z0-9]{32,}+"),
    _Prefixed("npm token", r"npm_[A-Za-z0-9]{36,}+"),
    _Prefixed("PyPI token", r"pypi-[A-Za-z0-9_-]{50,}+", numbered),
    _Prefixed("Google secret", r"GOCSPX-[A-Za-z0-9_-]{20,}+"),
    _Prefixed("DigitalOcean token", r"do[opr]_v1_[a-f0-9]{64}"),
    _Prefixed("Docker token", r"dckr_[po]at_[A-Za-z0-9_-]{20,}+"),
    _Prefixed("Foveal token", r"fv_[A-Za-z0-9_-]{32,}+", looks_random),
)
_BEGINNING: Final = re.compile(
    rf"(?=[dfghnprswxG]){EDGE}(?:(?:[sr]k_(?:live|test)_|hf_|gsk_|xai-|npm_)(?=[A-Za-z0-9]{{16}})"
    r"|sk-|gh[pousr]_|github_pat_|gl[a-z]{2,5}-|xox[a-z]-|xapp-|whsec_|pypi-|GOCSPX-|do[opr]_v1_|dckr_|fv_)"
)
_WHOLE: Final = {
    start: [(shape, re.compile(shape.pattern)) for shape in _PREFIXED if shape.pattern.startswith(start)]
    for start in {shape.pattern[:2] for shape in _PREFIXED}
}
"""By their first two characters."""
_RUNS: Final = (re.compile(rf"_{_LONG}{{20,}}+"), re.compile(rf"-{_LONG}{{18,}}+"))
_BEFORE: Final = 7
"""Characters of the longest beginning before its first mark."""


def _prefixed(text: str) -> Iterator[Found]:
    for runs in _RUNS:
        for run in runs.finditer(text):
            at = max(0, run.start() - _BEFORE)
            while hit := _BEGINNING.search(text, at, run.end()):
                secret, at = _begun(text, hit)
                if secret:
                    yield secret


def _begun(text: str, beginning: re.Match[str]) -> tuple[Found | None, int]:
    """The secret that begins here, if it is one, and how far this has been read."""
    end = beginning.end()
    for shape, pattern in _WHOLE.get(beginning.group()[:2], ()):
        hit = pattern.match(text, beginning.start())
        if hit and shape.proof(hit.group()):
            return Found(*hit.span(), shape.name), hit.end()
        end = max(end, hit.end() if hit else 0)
    return None, end


_CAPITAL: Final = re.compile(
    rf"A(?:(?P<google>Iza{_LONG}{{35}}(?!{_LONG}))|(?:KIA|SIA|BIA|CCA)[A-Z2-7]{{16}}(?![A-Za-z0-9]))"
)


def _capital(text: str) -> Iterator[Found]:
    """Keys of Google and of Amazon, which have no mark in them."""
    for hit in _CAPITAL.finditer(text):
        if _EDGE.match(text, hit.start()):
            yield Found(*hit.span(), "Google key" if hit["google"] else "AWS key id")


# ── secrets in pieces with dots between them ─────────────────────────────────────────────────────────────

_DOTTED: Final = re.compile(
    rf"\.(?:(?P<discord>{_LONG}{{6}}\.{_LONG}{{27,}}+)|{_LONG}{{20,}}+(?:\.{_LONG}{{20,}}+)?+)"
)
_DISCORD: Final = re.compile(rf"{EDGE}[MNO]{_LONG}{{21,29}}\Z")
_DOTTED_NAMES: Final = {"SG": "SendGrid key", "hvs": "Vault token", "ya29": "Google token"}
_WORD: Final = re.compile(r"(?:SG|hvs|ya29)\Z")


def _dotted(text: str) -> Iterator[Found]:
    for hit in _DOTTED.finditer(text):
        start, end = hit.span()
        if hit["discord"]:
            head = _DISCORD.search(text, max(0, start - 30), start)
            if head and looks_random(text[head.start() : end]):
                yield Found(head.start(), end, "Discord token")
        elif (head := _WORD.search(text, max(0, start - 4), start)) and _EDGE.match(text, head.start()):
            yield Found(head.start(), end, _DOTTED_NAMES[head.group()])


_JWT: Final = re.compile(
    rf"J(?<=eyJ)(?P<head>{_LONG}{{8,}}+)"
    rf"(?P<rest>\.(?:eyJ{_LONG}{{4,}}+(?:\.{_LONG}*+)?|{_LONG}*+\.{_LONG}{{8,}}+(?:\.{_LONG}++)*+))?"
)
_JWT_FIELD: Final = re.compile(rb'"(?:alg|typ|kid|enc)"')


def _jwt(text: str) -> Iterator[Found]:
    for hit in _JWT.finditer(text):
        start = hit.start() - 2
        header = "eyJ" + hit["head"][:397]
        if hit["rest"] and _EDGE.match(text, start) and _JWT_FIELD.search(_decoded(header)):
            yield Found(start, hit.end(), "JWT")


def _decoded(encoded: str) -> bytes:
    return urlsafe_b64decode(encoded[: len(encoded) // 4 * 4])


SCANS: Final = (_prefixed, _capital, _dotted, _jwt)
"""Each finds the secrets of one family; those that it finds are in order."""
