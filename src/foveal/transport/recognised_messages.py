"""The messages of one conversation by digest, and how a request continues it.

A request whose history begins like the conversation continues it in one of three ways:

    append      the history begins with all messages of the conversation: the rest is new
    rewind      it has all but the model's last answer, which is requested again or came back in another form
    fork        it differs in anything else: it may be that of another user who has begun in the same way
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Literal, NamedTuple

from foveal.transport.client_request import ClientRequest
from foveal.transport.digests import begins_turn, count_up_to, digest_of, is_from_model

Continuation = Literal["append", "rewind", "fork"]

SYSTEM_KEY: Final = "system"
TOOLS_KEY: Final = "tools"
MAX_LOG_RATIO: Final = 8
"""Events per message above which a conversation is forked instead of rewound."""


class IndexedMessage(NamedTuple):
    """A message of a conversation, as the index knows it."""

    digest: bytes
    """Of the history up to the message."""
    seq: int
    """The last event of the message."""
    turn: int
    """Number of user messages up to it."""
    text_digest: bytes | None = None
    """For an instruction: the digest of its text; b"" if unknown."""


class RecognisedMessages:
    def __init__(self) -> None:
        self.messages: list[IndexedMessage] = []
        """The messages so far."""
        self.side_state: dict[str, bytes] = {}
        """Digests of the system text and the tools by name, and what a subclass adds."""
        self._positions: dict[bytes, int] = {}

    @property
    def last_message(self) -> IndexedMessage | None:
        return self.messages[-1] if self.messages else None

    def set_messages(self, messages: Iterable[IndexedMessage], side_state: dict[str, bytes]) -> None:
        """Replace all that is known."""
        self.messages, self.side_state = list(messages), dict(side_state)
        self._positions = {message.digest: position for position, message in enumerate(self.messages)}

    def add_message(
        self, digest: bytes, *, seq: int = 0, begins_turn: bool, text_digest: bytes | None = None
    ) -> IndexedMessage:
        """Add a message that ends with event `seq`; one of the user begins a turn."""
        turn = (self.messages[-1].turn if self.messages else 0) + begins_turn
        message = IndexedMessage(digest, seq, turn, text_digest)
        self._positions[digest] = len(self.messages)
        self.messages.append(message)
        return message

    def set_text_digest(self, digest: bytes, text_digest: bytes) -> IndexedMessage:
        """Set the digest of the newest text of an instruction."""
        position = self._positions[digest]
        message = self.messages[position] = self.messages[position]._replace(text_digest=text_digest)
        return message

    def truncate(self, count: int) -> None:
        """Forget the messages after the first `count`."""
        for message in self.messages[count:]:
            del self._positions[message.digest]
        del self.messages[count:]

    # ── Comparing a request with the conversation ────────────────────────────────────────────────────

    def count_known(self, digests: list[bytes]) -> int:
        """Return how many messages of a history belong to this conversation."""
        last = next((digest for digest in reversed(digests) if digest in self._positions), None)
        return 0 if last is None else count_up_to(digests, last)

    def find(self, digest: bytes) -> IndexedMessage:
        return self.messages[self._positions[digest]]

    def has(self, digest: bytes) -> bool:
        """Return whether the history with this digest is a part of the conversation."""
        return digest in self._positions

    def count_up_to(self, digest: bytes) -> int:
        """Return how many messages of this conversation make up the history with this digest."""
        return self._positions[digest] + 1

    def continuation_after(
        self, request: ClientRequest, digest: bytes, *, has_more: bool = False
    ) -> Continuation:
        """Return how a request continues the conversation after the history with this digest. `has_more` says that
        the conversation has further messages that are not known here."""
        position = self._positions.get(digest)
        if position is None:
            return "fork"
        if position == len(self.messages) - 1 and not has_more:
            return "append"
        later = self.messages[position + 1 :]
        has_one_more = len(later) + has_more == 1 and all(
            message.turn == self.messages[position].turn for message in later
        )
        replaces_answer = has_one_more and _awaits_answer(request, count_up_to(request.digests, digest) - 1)
        return "rewind" if replaces_answer and self._has_same_instructions(request) else "fork"

    def _has_same_instructions(self, request: ClientRequest) -> bool:
        """Return False if the instructions differ: then the histories only begin alike by chance."""
        if self.side_state.get(SYSTEM_KEY, b"") != digest_of(request.system):
            return False
        return next(self.edited_instructions(request, self.count_known(request.digests)), None) is None

    def edited_instructions(self, request: ClientRequest, known: int) -> Iterator[int]:
        """Yield the positions of instructions among the known messages whose text has changed."""
        for at, text_digest in request.instructions.items():
            position = self._positions.get(request.digests[at]) if at < known else None
            if position is not None and self.messages[position].text_digest != text_digest:
                yield at

    def has_changed(self, name: str, value: bytes) -> bool:
        """Return whether a field beside the messages differs from the last request's, and store its digest."""
        known, now = self.side_state.get(name), digest_of(value)
        self.side_state[name] = now
        return known != now and bool(value or known is not None)


def _awaits_answer(request: ClientRequest, at: int) -> bool:
    """Return whether a model answers the message at a place of a request: what a conversation has there is its
    answer, and no words of a user or result of a tool."""
    following = request.messages[at + 1] if at + 1 < len(request.messages) else None
    is_result = following is not None and not (is_from_model(following) or begins_turn(following))
    return not is_from_model(request.messages[at]) and not is_result
