"""Requests as texts with token counts.

The same message always becomes the same `MessageText` object. Requests are therefore compared piece by piece by
identity, and no message is counted or read twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from foveal.core.log.events import AnyFact, AnyPart, Call, Dialect, Media, Opaque, Text, Thinking, parts, raw
from foveal.core.tokens.counter import Counter
from foveal.core.tokens.message_tokens import PER_MESSAGE, MessageTokens
from foveal.core.wire import tools_text, wire_for


class MessageText:
    """A message, the tools or the system text of a request.

    Args:
        tokens: Its tokens.
        text: All text of it; the arguments of calls are decoded.
        facts: The facts of a message; tools and system text have none.

    Examples:
        ```python
        from foveal.replay import MessageText

        piece = MessageText(12, "Why is CI red?")
        ```
    """

    __slots__ = ("facts", "text", "tokens")

    def __init__(self, tokens: int, text: str, facts: tuple[AnyFact, ...] = ()) -> None:
        self.tokens: int = tokens
        """Its tokens."""
        self.text: str = text
        """All text of it; the arguments of calls are decoded."""
        self.facts: tuple[AnyFact, ...] = facts
        """The facts of a message; tools and system text have none."""


class RequestText(NamedTuple):
    """A whole request."""

    pieces: tuple[MessageText, ...]
    tokens: int


def make_request(pieces: Sequence[MessageText]) -> RequestText:
    """Return a request of these pieces.

    Args:
        pieces: The pieces in the order in which the provider reads them.

    Examples:
        ```python
        from foveal.replay import MessageText, make_request

        assert make_request([MessageText(12, "Why is CI red?")]).tokens == 12
        ```
    """
    return RequestText(tuple(pieces), sum(piece.tokens for piece in pieces))


class RequestReader:
    """Turns the messages of a conversation into texts, each message once.

    Args:
        dialect: The dialect of the messages.
        counter: Counts the tokens.

    Examples:
        ```python
        from foveal.core.tokens.counter import counter
        from foveal.replay import RequestReader

        reader = RequestReader("openai_chat", counter("estimate"))
        request = reader.request([{"role": "user", "content": "Hello."}], system=None, tools=[])
        assert len(request.pieces) == 1
        ```
    """

    def __init__(self, dialect: Dialect, counter: Counter) -> None:
        self._wire = wire_for(dialect)
        self._message_tokens = MessageTokens(counter)
        self._fact_count = 0
        self._known: dict[bytes, MessageText] = {}
        self._previous: list[tuple[Any, MessageText]] = []
        """The messages of the previous request, with their texts."""

    def request(self, messages: Sequence[Any], *, system: str | None, tools: Sequence[Any]) -> RequestText:
        """Return the request in the order in which providers read it.

        Tools come first, then the system text, then the messages.

        Args:
            messages: The messages of the request.
            system: The system text beside them; None if there is none.
            tools: The tools that are offered.
        """
        # Most requests begin with the previous one, and comparing a message is much faster than encoding it.
        same = 0
        for (old, _), new in zip(self._previous, messages, strict=False):
            if old != new:
                break
            same += 1
        del self._previous[same:]
        self._previous += ((message, self.message(message)) for message in messages[same:])
        return make_request([*self.prefix(system=system, tools=tools), *(text for _, text in self._previous)])

    def prefix(self, *, system: str | None, tools: Sequence[Any]) -> list[MessageText]:
        """Return what precedes all messages: tools and system text.

        Args:
            system: The system text; None if there is none.
            tools: The tools that are offered.
        """
        return [self._plain_text(text) for text in (tools_text(tools), system or "") if text]

    def message(self, message: Any) -> MessageText:
        """Return the text of a message in the conversation's dialect.

        Args:
            message: The message.
        """
        key = bytes(raw(message))
        known = self._known.get(key)
        if known is None:
            facts = tuple(fact for chunk in self._wire.read((message,)) for fact in chunk.facts)
            tokens = sum(map(self._tokens, facts))
            known = self._known[key] = MessageText(tokens, "\n".join(map(fact_text, facts)), facts)
        return known

    def messages_of(self, fact: AnyFact) -> list[MessageText]:
        """Return the messages that a fact is written as.

        Args:
            fact: The fact.
        """
        return [self.message(message) for message in self._wire.write(fact)]

    def count(self, text: str) -> int:
        """Return the tokens of a text.

        Args:
            text: The text.
        """
        return self._message_tokens.counter.count(text)

    def _plain_text(self, text: str) -> MessageText:
        key = text.encode("utf-8", "surrogatepass")
        if key not in self._known:
            self._known[key] = MessageText(PER_MESSAGE + self.count(text), text)
        return self._known[key]

    def _tokens(self, fact: Any) -> int:
        self._fact_count += 1
        return self._message_tokens.message(self._fact_count, fact)


def fact_text(fact: AnyFact) -> str:
    """Return all text of a message, unchanged."""
    content = getattr(fact, "content", "")
    if isinstance(content, str):
        return content
    return "\n".join(text for part in parts(content) for text in part_texts(part))


def part_texts(part: AnyPart) -> Iterator[str]:
    """Yield the texts of a part of a message; the arguments of a call are decoded."""
    match part:
        case Text() | Thinking():
            yield part.text
        case Call():
            yield part.name
            yield from argument_texts(part)
        case Opaque():
            yield bytes(part.native).decode("utf-8", "replace")
        case Media():
            pass


def argument_texts(call: Call) -> Iterator[str]:
    """Yield the texts in the arguments of a call, decoded.

    Arguments that are not JSON are yielded unchanged.

    Args:
        call: The call.

    Examples:
        ```python
        import foveal
        from foveal.replay import argument_texts

        call = foveal.events.Call(id="c1", name="look", arguments='{"part": "part_0_7"}')
        assert list(argument_texts(call)) == ["part_0_7"]
        ```
    """
    try:
        yield from _json_texts(json.loads(call.arguments))
    except (ValueError, RecursionError):
        yield call.arguments


def _json_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _json_texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _json_texts(inner)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)


def common_prefix_chars(one: str, other: str) -> int:
    """Return the length of the common prefix of two texts.

    Args:
        one: A text.
        other: Another text.

    Examples:
        ```python
        from foveal.replay import common_prefix_chars

        assert common_prefix_chars("drawer 7", "drawer 8") == 7
        ```
    """
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
