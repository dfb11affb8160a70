"""Clients that compact their own history: Foveal steps back for them.

1. A client compacts with a request whose newest message asks for a summary. The answer stands in the history that
   the client sends from then on.
2. A conversation that begins with such an answer is reduced only if it would not fit otherwise: the client counts
   what it has and will compact again, and two that cut the same history cost more than one.
3. A person who asks for a summary of the conversation changes nothing: no history begins with the answer.

The answers are kept in memory: a compaction that a restart or another machine separates from its request is not
noticed. What was noticed is in the index.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from foveal.core.log.events import AnyFact, Instructed, ModelSaid, UserSaid, text_of
from foveal.core.policies.presets import Policy
from foveal.core.wire import MessageChunk
from foveal.transport.client_request import ClientRequest

_PROMPT: Final = re.compile(
    r"\b(?:create|write|provide|generate|produce|update|prepare|make|summari[sz]e|compact|distill?)\b"
    r"[^.]{0,160}\b(?:summar|snapshot|conversation|hand-?off|context|session|history)",
    re.IGNORECASE,
)
_PROMPT_CHARS: Final = 4_000
"""Characters at each end of a message in which a request for a summary is looked for."""
_MAX_SUMMARIES: Final = 64
_LINES: Final = 4
"""Longest lines of a summary by which it is recognised: clients change its headings."""
_MIN_LINE_CHARS: Final = 24
_MAX_CHUNKS: Final = 64
"""Messages at the beginning of a history in which a summary is looked for."""


def asks_for_summary(request: ClientRequest) -> bool:
    """Return whether the newest message of a request asks for a summary, as clients do that compact."""
    if not request.digests:
        return False
    facts = [fact for chunk in request.chunks(len(request.digests) - 1) for fact in chunk.facts]
    text = _said(facts[-1]) if facts and isinstance(facts[-1], UserSaid | Instructed) else ""
    return any(_PROMPT.search(end) for end in (text[:_PROMPT_CHARS], text[-_PROMPT_CHARS:]))


def only_when_forced(policy: Policy) -> Policy:
    """Return a policy that reduces a request only if it would not fit otherwise."""
    return replace(policy, early=False, act=1.0, act_tokens=0, every_turns=0)


class ClientSummaries:
    """The newest summaries that clients of a tenant have got."""

    def __init__(self) -> None:
        self._known: deque[tuple[str, ...]] = deque(maxlen=_MAX_SUMMARIES)

    def add(self, text: str) -> None:
        """Add the answer to a request for a summary."""
        lines = {line.strip() for line in text.splitlines()}
        longest = sorted((line for line in lines if len(line) >= _MIN_LINE_CHARS), key=len, reverse=True)
        if longest:
            self._known.append(tuple(longest[:_LINES]))

    def begin(self, chunks: Iterable[MessageChunk]) -> bool:
        """Return whether one of the summaries stands in these messages."""
        if not self._known:
            return False
        facts = [fact for chunk in list(chunks)[:_MAX_CHUNKS] for fact in chunk.facts]
        text = "\n".join(map(_said, facts))
        return any(all(line in text for line in lines) for lines in self._known)


def _said(fact: AnyFact) -> str:
    return text_of(fact.content) if isinstance(fact, UserSaid | Instructed | ModelSaid) else ""
