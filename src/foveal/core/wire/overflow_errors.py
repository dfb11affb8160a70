"""Recognises provider errors: a request that was too large, or state that the provider refuses.

The error may have any shape: an exception, the body of a reply, a dict or a string. The rules, in order:

1. A typed code, such as `context_length_exceeded`, decides by itself.
2. A status that is known must be 400, 413 or 422; the outermost one counts.
3. A mention of rates, quotas or throttling excludes an overflow, and so does `string_above_max_length`, which is
   about one string and not about the request.
4. A known wording decides and gives its numbers. A 413 without such a wording means that the request has too many
   bytes.

If an exception says nothing, the exception that it was raised from is examined. An implicit `__context__` counts
only if the exception has neither a status nor a cause; otherwise it is unrelated, often an overflow already
handled. Timeouts, lost connections and cancellations are never an overflow. Parts of the request that an error
quotes are not read. `foveal.core.engine.overflow` decides what follows from an overflow.

State that only the provider understands may be refused:

1. Thinking that is bound to another conversation (`bound_thinking`).
2. Encrypted content, of reasoning or of a compaction item, that the provider cannot decrypt: another account,
   organisation or model made it, or its key has expired.
3. The field `block_binding`, which a gateway may not know.

The first two can be left out, and the request is sent again (`Engine.refusal`).
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Final, Literal, cast

import msgspec

from foveal.core.wire.bound_thinking import BINDING_BETA
from foveal.core.wire.safe_print import one_line

OverflowKind = Literal["tokens", "bytes", "output"]

MAX_ERROR_LEVELS: Final = 8
"""Levels of nesting, and exceptions in a chain, that are examined."""
MAX_ERROR_NODES: Final = 2_000
"""Objects of an error that are visited; 50 characters of text count as one."""
MAX_ERROR_TEXT_CHARS: Final = 20_000
"""Characters of one string that are read, half of them from its end."""

_MAX_MESSAGE_CHARS: Final = 300

_CODE: Final = (
    "(context_length_exceeded|exceed_context_size_error|model_(?:context_window|max_prompt_tokens)_exceeded"
    "|request_too_large)"
)
_TYPED_CODE: Final = re.compile(rf"""^{_CODE}$|["']\s*:\s*\\*["']{_CODE}\\*["']""")
_EXCLUDED: Final = re.compile(
    r"rate[ _-]?limit|too many requests|throttl|quota|\b[tr]p[md]\b|per (?:min|minute|hour|day|month)\b"
    r"|(?:daily|weekly|monthly) |wait before trying again|resource_?exhausted|string_above_max_length"
)
_STATUS: Final = re.compile(
    r"""(?:^|(?:error|status|code|failed|http(?:/[\d.]+)?)\\*["']?\s*[:=]?\s*\\*["'(]?)"""
    r"""([45]\d\d)\b(?!\s*tokens|[.,]\d|-\w)"""
)
_COUNT_FIELDS: Final = {"n_ctx": "limit", "n_prompt_tokens": "needed"}
_REQUEST_ECHO: Final = re.compile(r"""["'](?:inputs?|messages|prompt|contents?)\\*["']\s*:""", re.IGNORECASE)
_ATTRIBUTES: Final = (
    "status_code", "status", "http_status", "code", "type", "message", "error", "errors", "detail", "details",
    "body", "response", "text", "args", "exceptions", "__cause__", "n_ctx", "n_prompt_tokens",
)  # fmt: skip

# In lower case with single blanks; <limit>, <needed>, <output>, <total> (needed and output) and <over> are numbers.
_WORDINGS: Final[dict[OverflowKind, tuple[str, ...]]] = {
    "tokens": (
        r"prompt is too long(?:: <needed>(?: tokens >|, model maximum context length:) <limit>)?",
        r"prompt is <needed> tokens; the model context is <limit>",
        r"prompt too long; exceeded (?:max )?context length(?: by <over>)?",
        r"prompt exceeds max length|context[ _](?:length|window)[ _]exceeded|token limit exceeded",
        r"prompt \(?length (?:of )?<needed>\)? is longer than the maximum model length of <limit>",
        r"(?:contains <needed> tokens.{0,40}?)?too large for model with <limit> maximum context length",
        r"maximum prompt length is <limit>(?: but the request contains <needed>)?",
        r"maximum context length is <limit>(?: tokens[.,]? (?:however,? |and )?your? (?:requested|request has|"
        r"messages resulted in)(?: about)? <total>(?: input)? tokens"
        r"(?:[^.]{0,120}?[ (]<output> (?:in|for) the (?:completion|output))?)?",
        r"maximum context length of <limit> tokens\. you requested .{0,30}: <needed> tokens .{0,30} and <output>",
        r"keep the first <needed> tokens when context the overflows.{0,60}context length of only <limit>",
        r"greater than the context length(?: \(n_keep: ?<needed> ?>= ?n_ctx: ?<limit>)?",
        r"(?:tokens \(<total>\) )?exceeds? (?:the |model )?context window(?: of <limit>)?|context window exceeds",
        r"(?:\(<needed> tokens\) (?:is )?)?(?:exceeds|longer than) the [\w'\\ ]{0,20}context (?:size|length)"
        r"(?: \(<limit>)?",
        r"\(<needed> tokens\) exceeds the maximum allowed length \(<limit> tokens",
        r"(?:prompt|input)(?: token count of <needed>|[\w ]{0,40}) exceeds the limit of <limit>(?(needed)| tokens)",
        r"input token count(?: \(<needed>\))? exceeds the maximum(?: number of tokens allowed \(<limit>\))?",
        r"input tokens exceed the configured limit(?: of <limit> tokens(?:\. your messages resulted in <total>)?)?",
        r"input (?:is too long for requested|tokens exceeds maximum)|too many (?:input )?tokens(?!: max )",
        r"range of input length should be \[\d+, ?<limit>\]",
        r"exceeded model token limit(?:: <limit>(?: \(requested: <total>\))?)?",
        r"tokens \+ `?max_new_tokens`? must be(?: <= <limit>(?:\. given: <needed> .{0,20} and <output>)?)?",
        r"inputs`? must have less than <limit> tokens(?:\. given: <needed>)?",
        r"reduce the length of (?:the messages|the prompt|the input|either one)|\b400 (?:status code )?\(no body\)",
        r"current length is <total> while limit is <limit>",
        r"size limit exceeded by <over> tokens(?:.{0,60}?limit for this model is <limit>)?",
        r"""n_prompt_tokens["']: <needed>, ["']n_ctx["']: <limit>""",
    ),
    "output": (
        r"input length and `?max_tokens`? exceed context limit(?:: <needed> \+ <output> > <limit>)?",
        r"is too large: <output>\. .{0,20}maximum context length is <limit> tokens and your request has <needed>",
        # vLLM stops counting at the first token over the limit, so its "at least" number is not used.
        r"maximum context length is <limit> tokens\. however, you requested <output> output tokens and your prompt",
    ),
    "bytes": (
        r"request payload size exceeds(?: the limit(?:: <limit> bytes)?)?",
        r"maximum request body size <limit> exceeded, actual body size <needed>",
        r"'body' failed to satisfy constraint: member must have length less than or equal to <limit>",
        r"too many total text bytes",
        r"request exceeds the maximum (?:size|allowed number)|(?:entity|body(?: is)?|payload|content) too large",
    ),
}
_PATTERNS: Final = [
    (kind, re.compile(re.sub(r"<(\w+)>", r"(?P<\1>\\d[\\d,]{0,14})", wording)))
    for kind, wordings in _WORDINGS.items()
    for wording in wordings
]


class ProviderOverflow(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider's error says about a request that was too large."""

    kind: OverflowKind
    """Too many tokens; too many bytes; or an input that fits alone but not with the requested output."""
    limit: int = 0
    """Tokens that the provider allows, or bytes for the kind `bytes`; 0 if unknown."""
    needed: int = 0
    """The input as the provider counted it, including the output if the error gives only the sum; 0 if unknown."""
    output: int = 0
    """The requested `max_tokens`; 0 if unknown."""
    over: int = 0
    """The excess, if the error states it; otherwise 0."""
    code: str = ""
    """The typed code, or the wording that decided, with N for its numbers."""
    message: str = ""
    """The provider's message on one line."""

    @property
    def excess(self) -> int:
        """By how much input and output together must shrink; 0 if unknown."""
        known = self.limit and self.needed
        return max(0, self.needed + self.output - self.limit) if known else self.over

    @property
    def states_window(self) -> bool:
        """Whether the error states how many tokens the model takes, and nothing in it contradicts that."""
        asked = self.needed + self.output
        return self.kind != "bytes" and self.limit > 0 and (not asked or asked > self.limit)


def recognise_overflow(error: object) -> ProviderOverflow | None:
    """Return the overflow that an exception, a reply's body, a dict or a string reports, or None; never raises."""
    nodes = MAX_ERROR_NODES
    for _ in range(MAX_ERROR_LEVELS):
        if issubclass(type(error), BaseException) and not issubclass(type(error), Exception):
            return None
        texts = _ErrorTexts(error, nodes=nodes)
        if overflow := _from_code(texts) or (None if texts.is_excluded else _from_wording(texts)):
            return msgspec.structs.replace(overflow, **texts.counted)
        if texts.status or texts.is_excluded:
            return None
        error, nodes = _implicit_cause(error), texts.nodes
    return None


def error_texts(error: object) -> list[str]:
    """Return the texts in an exception, a reply's body, a dict or a string, outermost first; never raises."""
    return list(_ErrorTexts(error, nodes=MAX_ERROR_NODES).lower_case)


def stop_reason(reply: object) -> str:
    """Return why a reply of any dialect, or the reply in a stream event, ended; "" if unknown."""
    for place in (reply, *(_get(reply, name) for name in ("response", "message", "delta", "messageStop"))):
        choice, details = _get(_get(place, "choices"), 0), _get(place, "incomplete_details")
        candidate = _get(_get(place, "candidates"), 0)
        named = (
            (place, "stop_reason"), (place, "stopReason"), (choice, "finish_reason"), (details, "reason"),
            (candidate, "finishReason"), (candidate, "finish_reason"), (place, "status"),
        )  # fmt: skip
        for thing, name in named:
            reason = _get(thing, name)
            # `isinstance` asks an object for its `__class__`, which may raise. An enum member becomes its value.
            if issubclass(type(reason), str) and (text := str.__str__(cast(str, reason))):
                return text
    return ""


def _get(thing: object, name: str | int) -> object:
    with suppress(Exception):
        if isinstance(thing, Mapping | list | tuple):
            return thing[name]  # type: ignore[index]
        return getattr(thing, str(name), None)
    return None


def _implicit_cause(error: object) -> object:
    """Return the exception that was being handled when this one was raised, if it can be the reason."""
    with suppress(Exception):
        if isinstance(error, Exception) and not isinstance(error, OSError) and not error.__suppress_context__:
            return error.__context__
    return None


class _ErrorTexts:
    """The texts, the status and the counts in an error and its nested objects, outermost first.

    `lower_case` maps each text to its lower-case form.
    """

    def __init__(self, error: object, *, nodes: int) -> None:
        self.nodes, self.status = nodes, 0
        self.counted: dict[str, int] = {}
        self.lower_case: dict[str, str] = {}
        self._seen: dict[int, object] = {}  # holds the objects too, so that no id is used again
        queue: deque[tuple[int, str, object]] = deque([(0, "", error)])
        while queue and self.nodes > 0:
            self.nodes -= 1
            level, name, node = queue.popleft()
            with suppress(Exception):
                inner = self._visit(level, name, node)
                room = max(0, self.nodes - len(queue)) if level < MAX_ERROR_LEVELS else 0
                queue.extend((level + 1, key, value) for key, value in islice(inner, room))
        written = filter(None, map(_STATUS.search, self.lower_case.values()))
        self.status = self.status or next((int(found[1]) for found in written), 0)
        self.is_excluded = self.status not in (0, 400, 413, 422) or any(
            map(_EXCLUDED.search, self.lower_case.values())
        )

    def _visit(self, level: int, name: str, node: object) -> Iterable[tuple[str, object]]:
        if isinstance(node, int):
            return self._number(name, int(node))
        if node is not None and id(node) not in self._seen and not callable(node):
            self._seen[id(node)] = node
            if isinstance(node, bytes):
                node = node[:MAX_ERROR_TEXT_CHARS].decode("utf-8", "replace")
            return self._read(level, name, node) if isinstance(node, str) else _children(node)
        return ()

    def _number(self, name: str, value: int) -> tuple[()]:
        if name in _COUNT_FIELDS and 0 < value < 10**12:
            self.counted.setdefault(_COUNT_FIELDS[name], value)
        elif name.lower().endswith(("status", "code")) and 400 <= value <= 599:
            self.status = self.status or value
        return ()

    def _read(self, level: int, name: str, text: str) -> Iterable[tuple[str, object]]:
        if len(text) > MAX_ERROR_TEXT_CHARS:
            text = f"{text[: MAX_ERROR_TEXT_CHARS // 2]} {text[-MAX_ERROR_TEXT_CHARS // 2 :]}"
        self.nodes -= len(text) // 50
        if text.isdecimal():
            return self._number(name, int(text[:13]))
        value, around = _json_in(text) if level < MAX_ERROR_LEVELS else (None, text)
        line = _REQUEST_ECHO.split(" ".join(around.split()), maxsplit=1)[0].strip()
        self.lower_case.update({line: line.lower()} if line else {})
        return () if value is None else [("", value)]


def _children(node: object) -> Iterator[tuple[str, object]]:
    if isinstance(node, Mapping):
        named = ((key, value) for key, value in node.items() if isinstance(key, str))
        yield from ((key[:40], value) for key, value in named if not _REQUEST_ECHO.match(f"'{key[:40]}':"))
    elif isinstance(node, list | tuple | set | frozenset):
        yield from (("", value) for value in node)
    else:
        for name in _ATTRIBUTES:
            with suppress(Exception):
                yield name, getattr(node, name)


def _json_in(text: str) -> tuple[object, str]:
    """Return the JSON inside a text and the text around it; a list without objects is not JSON here."""
    for found in islice(re.finditer(r"[{\[]", text), 4):
        with suppress(ValueError, RecursionError):
            value, end = json.JSONDecoder().raw_decode(text, found.start())
            if isinstance(value, dict) or (value and isinstance(value[0], dict)):
                return value, f"{text[: found.start()]} {text[end:]}"
    return None, text


def _from_code(texts: _ErrorTexts) -> ProviderOverflow | None:
    for found in filter(None, map(_TYPED_CODE.search, texts.lower_case.values())):
        code = found[1] or found[2]
        kind: OverflowKind = "bytes" if code == "request_too_large" else "tokens"
        overflow = _from_wording(texts)
        if overflow is None or overflow.message == code or (overflow.kind == "bytes") != (kind == "bytes"):
            prose = next((line for line in texts.lower_case if " " in line), code)
            overflow = ProviderOverflow(kind=kind, message=one_line(prose, width=_MAX_MESSAGE_CHARS))
        return msgspec.structs.replace(overflow, code=code)
    return None


def _from_wording(texts: _ErrorTexts) -> ProviderOverflow | None:
    """Return the wording with the most numbers; of equals, that of the shortest text."""
    found = [
        _from_match(kind, match, text)
        for text, lower in texts.lower_case.items()
        for kind, wording in _PATTERNS
        if (match := wording.search(lower))
    ]
    message = one_line(next(iter(texts.lower_case), ""), width=_MAX_MESSAGE_CHARS)
    bare = ProviderOverflow(kind="bytes", code="413", message=message) if texts.status == 413 else None
    return max(found, key=_specificity, default=bare)


def _from_match(kind: OverflowKind, match: re.Match[str], text: str) -> ProviderOverflow:
    number = {name: int(digits.replace(",", "")) for name, digits in match.groupdict("0").items()}
    limit, output, over = (number.get(name, 0) for name in ("limit", "output", "over"))
    total = max(0, number.get("total", 0) - output)
    needed = number.get("needed", 0) or total or (limit + over if limit and over else 0)
    if limit and needed and kind != "bytes":
        kind = "output" if needed < limit else "tokens"
    start = max(0, match.start() - 100) if match.end() > _MAX_MESSAGE_CHARS else 0
    line = one_line("…" * bool(start) + text[start:], width=_MAX_MESSAGE_CHARS)
    code = re.sub(r"(?!^)\b\d[\d,]*\b", "N", match.group())[:80]
    return ProviderOverflow(
        kind=kind, limit=limit, needed=needed, output=output, over=over, code=code, message=line
    )


def _specificity(overflow: ProviderOverflow) -> tuple[int, int]:
    return sum(map(bool, (overflow.limit, overflow.needed, overflow.output, overflow.over))), -len(
        overflow.message
    )


MAX_PROBLEM_CHARS: Final = 500
"""Characters of a provider's message that are recorded."""
_REFUSED_THINKING: Final = "bound to a different conversation"
_REFUSED_ENCRYPTION: Final = re.compile(
    r"\binvalid_encrypted_content\b|encrypted content\b.{0,200}(?:could not be|cannot be|did not match)"
)
_OUTPUT_FIELD: Final = r"`?max(?:_completion|_output|_new)?_tokens`?"
_REFUSED_OUTPUT: Final = [
    re.compile(wording.replace("<field>", _OUTPUT_FIELD).replace("<limit>", r"(?P<limit>\d[\d,]{0,11})"))
    for wording in (
        r"<field>: \d[\d,]* > <limit>, which is the maximum allowed number of output tokens",
        r"<field> is too large: \d+\. this model supports at most <limit> (?:completion|output) tokens",
        r"the valid range of <field> is \[\d+, ?<limit>\]",
        r"range of <field> should be \[\d+, ?<limit>\]",
        r"<field> must be (?:less than or equal to|<=|at most) `?<limit>`?",
        r"maximum (?:output )?tokens you requested exceeds the model limit of <limit>",
    )
]
"""Wordings of Anthropic, OpenAI, DeepSeek, Qwen, Groq and Bedrock."""
_CONTROL_FIELDS: Final = ("block_binding", "prefix_mismatch_behavior", BINDING_BETA)


def refused_output(error: object) -> int:
    """Return the most output tokens that a model allows, if a provider states it because a request asked for more;
    otherwise 0."""
    for text in error_texts(error):
        for wording in _REFUSED_OUTPUT:
            if found := wording.search(text.lower()):
                return int(found["limit"].replace(",", ""))
    return 0


def refused_thinking(error: object) -> str | None:
    """Return the provider's message if it refused thinking that is bound to another conversation, else None."""
    found = (text for text in error_texts(error) if _REFUSED_THINKING in text.lower())
    message = next(found, None)
    return None if message is None else message[:MAX_PROBLEM_CHARS]


def refused_encryption(error: object) -> str | None:
    """Return the provider's message if it cannot decrypt what was sent, else None."""
    texts = error_texts(error)
    found = [text for text in texts if _REFUSED_ENCRYPTION.search(text.lower())]
    if not found:
        return None
    # The code alone says less than the message beside it, which need not name it.
    prose = (text for text in (*found, *texts) if " " in text)
    return next(prose, found[0])[:MAX_PROBLEM_CHARS]


def refuses_controls(error: object) -> bool:
    """Return whether an upstream refused the field `block_binding` or its header, which a gateway may not know."""
    texts = [text.lower() for text in error_texts(error)]
    if any(_REFUSED_THINKING in text for text in texts):
        return False
    return any(field in text for text in texts for field in _CONTROL_FIELDS)
