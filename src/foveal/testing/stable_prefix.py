"""Captured requests of a test, and checks of their prompt prefix and their form.

    with capture() as requests:
        run_the_agent()
    requests.check()
    print(requests.table())

1. `check` raises `PrefixMoved` if a request does not begin like the request that it continues. A break for which
   Foveal recorded a reduction is allowed. One that the caller caused (other instructions, tools, messages) is not.
2. It raises `PrefixNotCached` if a request begins like that one, and missing or misplaced cache marks keep the
   provider from reading it from its cache (`provider_cache`).
3. Repeated requests, branches and separate conversations are not breaks (`moved_prefix`).
4. All errors are `AssertionError`s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, Final, NamedTuple, overload

from foveal.core.engine.prefix import PrefixBreak
from foveal.core.engine.sent_requests import SentRequests
from foveal.core.log.events import Text, parts
from foveal.core.wire.legality import request_faults
from foveal.errors import FovealError, PicklableError
from foveal.testing import captured_request
from foveal.testing.captured_request import CapturedRequest, KnownPieces, read_request, strings
from foveal.testing.moved_prefix import (
    Link,
    MovedPrefix,
    PieceTokens,
    RequestChains,
    explain,
    first_difference,
    format_dollars,
)
from foveal.testing.provider_cache import CacheRead, ProviderCache, UncachedPrefix

MAX_SHOWN_BREAKS: Final = 5
"""Breaks that an error shows in full, each with another cause."""
MAX_LISTED_REQUESTS: Final = 12
"""Requests with the same cause whose numbers an error shows."""
MAX_SHOWN_FAULTS: Final = 10
"""Faults of illegal requests that an error shows."""
_CALLER_CAUSES: Final = frozenset({"", "instructed", "equipped", "opened", "rewound"})
"""Kinds of events that record a change made by the caller, which is no reduction."""


class PrefixMoved(PicklableError, AssertionError):
    """The beginning of a request changed without a recorded reduction.

    Examples:
        ```python
        from foveal.testing import PrefixMoved, assert_stable_prefix

        user = {"role": "user", "content": "Hello."}
        systems = ({"role": "system", "content": f"It is {time}."} for time in ("09:00", "09:01"))
        try:
            assert_stable_prefix([{"model": "gpt-4.1", "messages": [system, user]} for system in systems])
        except PrefixMoved as error:
            assert error.breaks[0].code == "changing_text"
        ```
    """

    def __init__(self, message: str, breaks: Sequence[MovedPrefix]) -> None:
        super().__init__(message)
        self.breaks: tuple[MovedPrefix, ...] = tuple(breaks)
        """The requests whose beginning changed."""


class PrefixNotCached(PicklableError, AssertionError):
    """The unchanged beginning of a request is not read from the cache.

    Examples:
        ```python
        from foveal.testing import PrefixNotCached, assert_stable_prefix

        manual = {"role": "user", "content": "Read this. " * 2_000}
        bodies = [{"model": "claude-sonnet-4-5", "system": "Be brief.", "messages": [manual]}] * 2
        try:
            assert_stable_prefix(bodies)
        except PrefixNotCached as error:
            assert error.faults[0].code == "no_marks"
        ```
    """

    def __init__(self, message: str, faults: Sequence[UncachedPrefix]) -> None:
        super().__init__(message)
        self.faults: tuple[UncachedPrefix, ...] = tuple(faults)
        """The requests that could have read more from the cache."""


class IllegalRequest(AssertionError):
    """A provider would refuse the form of a request.

    Examples:
        ```python
        from foveal.testing import CapturedRequests, IllegalRequest

        requests = CapturedRequests()
        result = {"role": "tool", "tool_call_id": "call_1", "content": "2 failed"}
        requests.record({"model": "gpt-4.1", "messages": [result]})
        try:
            requests.check_legal()
        except IllegalRequest as error:
            print(error)
        ```
    """


class NothingCaptured(AssertionError):
    """No request was captured, so there is nothing to check.

    Examples:
        ```python
        from foveal.testing import NothingCaptured, capture

        with capture() as requests:
            pass
        try:
            requests.check()
        except NothingCaptured as error:
            print(error)
        ```
    """


class ConversationCost(NamedTuple):
    """What the requests of a conversation cost, with the part that moved and uncached prefixes cost."""

    conversation: int
    requests: int
    tokens: int
    cached_tokens: int
    """Tokens that the provider reads from its cache: by itself, or up to cache marks where it needs them."""
    moved: int
    lost_tokens: int
    lost_dollars: float | None


class _Compared(NamedTuple):
    """A request beside the one that it continues."""

    request: CapturedRequest
    link: Link
    moved: MovedPrefix | None
    read: CacheRead


class _RecordedBreak(NamedTuple):
    sender: SentRequests
    event: str
    texts: tuple[str, ...]
    """Texts of the newest step, by which its request is recognised."""
    after: int
    """Number of requests that were captured before."""


class CapturedRequests(Sequence[CapturedRequest]):
    """The LLM requests of a test, in the order in which they were sent.

    It is a sequence of `CapturedRequest`.

    Examples:
        ```python
        from foveal.testing import CapturedRequests

        requests = CapturedRequests()
        requests.record({"model": "gpt-4.1", "messages": [{"role": "user", "content": "Why is CI red?"}]})
        requests.check()
        ```
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._requests: list[CapturedRequest] = []
        self._known: KnownPieces = {}
        self._recorded: list[_RecordedBreak] = []

    def __len__(self) -> int:
        return len(self._requests)

    @overload
    def __getitem__(self, at: int) -> CapturedRequest: ...
    @overload
    def __getitem__(self, at: slice) -> list[CapturedRequest]: ...
    def __getitem__(self, at: int | slice) -> CapturedRequest | list[CapturedRequest]:
        return self._requests[at]

    def __repr__(self) -> str:
        return f"<CapturedRequests: {len(self)}>"

    # ── Recording ────────────────────────────────────────────────────────────────────────────────────

    def record(self, body: Mapping[str, Any] | bytes | str, *, url: str = "") -> bool:
        """Add the body of a request that another HTTP client sends.

        Args:
            body: The body: a mapping, or JSON.
            url: The URL, whose path names the dialect and, for Gemini and Bedrock, the model. `""` recognises
                the dialect by the body.

        Returns:
            Whether it is a request to a model.
        """
        with self._lock:
            request = read_request(len(self._requests) + 1, url, body, self._known)
            if request is not None:
                self._requests.append(request)
            return request is not None

    def request_sent(self, url: str, body: bytes | str) -> None:
        """Add a request that an HTTP client of this process sends.

        Args:
            url: The URL.
            body: The body.
        """
        self.record(body, url=url)

    def prefix_break(self, sender: SentRequests, found: PrefixBreak, steps: list[Any]) -> None:
        """Add a break of the prefix that Foveal recorded.

        Args:
            sender: The requests of one context or session.
            found: The break.
            steps: The steps of the request, as they were sent.
        """
        if found.why not in _CALLER_CAUSES:
            texts = tuple(_step_texts(steps[-1])) if steps else ()
            event = f"{found.cause} {found.why}"
            with self._lock:
                self._recorded.append(_RecordedBreak(sender, event, texts, len(self._requests)))

    # ── Checks ───────────────────────────────────────────────────────────────────────────────────────

    def check(self, *, max_breaks: int = 0, min_lost_tokens: int = 1, min_requests: int = 1) -> None:
        """Raise `PrefixMoved` if requests do not begin like those that they continue.

        Raise `PrefixNotCached` if they do, and the provider still does not read their beginning from its cache.

        Args:
            max_breaks: Requests that may break the prefix, and requests that may miss the cache.
            min_lost_tokens: A break that makes the provider read fewer tokens again does not count.
            min_requests: Requests that are expected at least.

        Raises:
            PrefixMoved: More than `max_breaks` requests break the prefix.
            PrefixNotCached: More than `max_breaks` requests miss the cache because of their cache marks.
            NothingCaptured: There are fewer than `min_requests` requests.
        """
        __tracebackhide__ = True
        if len(self) < min_requests:
            raise NothingCaptured(
                f"{len(self)} LLM requests were captured, {min_requests} are expected at least. The capture sees "
                "httpx and httpx2, and requests and botocore if they are imported before it begins. Pass the "
                "bodies of other clients to record()."
            )
        found = [one for one in self.breaks() if not one.event and one.lost_tokens >= min_lost_tokens]
        if len(found) > max_breaks:
            raise PrefixMoved(self._breaks_text(found, max_breaks), found)
        faults = [one for one in self.uncached() if one.lost_tokens >= min_lost_tokens]
        if len(faults) > max_breaks:
            raise PrefixNotCached(self._faults_text(faults, max_breaks), faults)

    def check_legal(self) -> None:
        """Raise `IllegalRequest` if a provider would refuse the form of a request.

        Roles, pairs of calls and results, empty content and cache marks are checked.

        Raises:
            IllegalRequest: The message lists the faults.
        """
        __tracebackhide__ = True
        faults = [f"request {request.number}: {fault}" for request in self for fault in _faults(request)]
        if faults:
            more = len(faults) - MAX_SHOWN_FAULTS
            shown = faults[:MAX_SHOWN_FAULTS] + ([f"and {more} more"] if more > 0 else [])
            raise IllegalRequest("a provider would refuse these requests\n" + "\n".join(shown))

    def breaks(self) -> list[MovedPrefix]:
        """Return every request that does not begin like the one that it continues.

        Recorded reductions are included.
        """
        return [one.moved for one in self._compared(PieceTokens()) if one.moved is not None]

    def uncached(self) -> list[UncachedPrefix]:
        """Return every request that could read more of its beginning from the cache.

        Claude, and Nova on Bedrock, cache only up to cache marks: a missing mark, one at the wrong place, another
        ttl, too few tokens before a mark or too many blocks between two marks make them read everything again.
        """
        return [one.read.fault for one in self._compared(PieceTokens()) if one.read.fault is not None]

    def costs(self) -> list[ConversationCost]:
        """Return what each conversation sent, and what its moved and uncached prefixes cost."""
        tokens, costs = PieceTokens(), dict[int, ConversationCost]()
        for request, link, moved, read in self._compared(tokens):
            old = costs.get(link.conversation, ConversationCost(link.conversation, 0, 0, 0, 0, 0, 0.0))
            missed = moved or read.fault
            lost = missed.lost_dollars if missed else 0.0
            costs[link.conversation] = ConversationCost(
                old.conversation,
                old.requests + 1,
                old.tokens + tokens.total(request.pieces, request.dialect),
                old.cached_tokens + read.tokens,
                old.moved + (moved is not None),
                old.lost_tokens + (missed.lost_tokens if missed else 0),
                None if old.lost_dollars is None or lost is None else old.lost_dollars + lost,
            )
        return list(costs.values())

    def table(self) -> str:
        """Return `costs` as a table."""
        heads = (
            "conversation",
            "requests",
            "tokens sent",
            "from cache",
            "moved",
            "read again",
            "extra cost",
        )
        rows = [
            (*(f"{value:,}" for value in cost[:6]), _dollars_or_unknown(cost.lost_dollars))
            for cost in self.costs()
        ]
        widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
        lines = ("  ".join(map(str.rjust, row, widths)) for row in (heads, *rows))
        return "\n".join(lines)

    # ── Comparison ───────────────────────────────────────────────────────────────────────────────────

    def _compared(self, tokens: PieceTokens) -> Iterator[_Compared]:
        with self._lock:
            requests, recorded = list(self._requests), list(self._recorded)
        chains, cache = RequestChains(), ProviderCache(tokens)
        for request in requests:
            link = chains.add(request)
            moved = None
            if link.is_moved and link.previous is not None:
                event = _recorded_event(link.previous, request, recorded)
                moved = explain(link.previous, request, tokens, event)
            yield _Compared(request, link, moved, cache.send(request, link))

    def _breaks_text(self, found: list[MovedPrefix], allowed: int) -> str:
        limit = f" ({allowed} allowed)" if allowed else ""
        count = f"{len(found)} of {len(self)} requests"
        head = f"the prompt prefix moved in {count} without a recorded reduction{limit}"
        return "\n\n".join((head, *_grouped(found), self.table()))

    def _faults_text(self, faults: list[UncachedPrefix], allowed: int) -> str:
        limit = f" ({allowed} allowed)" if allowed else ""
        count = f"{len(faults)} of {len(self)} requests"
        head = f"the prompt prefix does not move, but the cache is not used for it in {count}{limit}"
        return "\n\n".join((head, *_grouped(faults), self.table()))


def _grouped(found: Sequence[MovedPrefix | UncachedPrefix]) -> Iterator[str]:
    """Yield the first break of each cause in full, with the numbers of the requests in which it happens again."""
    groups: dict[tuple[str, str], list[MovedPrefix | UncachedPrefix]] = {}
    for one in found:
        place = (one.role or one.place) if isinstance(one, MovedPrefix) else ""
        groups.setdefault((one.code, place), []).append(one)
    for first, *later in list(groups.values())[:MAX_SHOWN_BREAKS]:
        numbers = ", ".join(str(one.request) for one in later[:MAX_LISTED_REQUESTS])
        more = ", …" if len(later) > MAX_LISTED_REQUESTS else ""
        yield f"{first}\n    again in: {numbers}{more}" if later else str(first)
    if len(groups) > MAX_SHOWN_BREAKS:
        yield f"and {len(groups) - MAX_SHOWN_BREAKS} other causes"


def _recorded_event(
    previous: CapturedRequest, request: CapturedRequest, recorded: list[_RecordedBreak]
) -> str:
    """Return the reduction that Foveal recorded between two requests; "" if there is none or the difference is not
    in a message: a reduction changes neither the model nor the tools nor instructions."""
    at = first_difference(previous, request)
    if at < 3 or (at < len(previous.pieces) and previous.pieces[at].is_instruction):
        return ""
    between = [one for one in recorded if previous.number <= one.after < request.number]
    of_request = [one for one in between if one.texts and request.texts.issuperset(one.texts)]
    # An adapter may write the texts in another form. That is no matter if there is one conversation with Foveal.
    is_only = len({id(one.sender) for one in recorded}) == 1
    found = of_request or (between if is_only else [])
    return found[-1].event if found else ""


def _step_texts(step: Iterable[Any]) -> Iterator[str]:
    """Yield the texts of a step, which consists of messages or of facts."""
    for one in step:
        if isinstance(one, Mapping):
            yield from strings(one.get("content"))
        else:
            yield from (part.text for part in parts(getattr(one, "content", "")) if isinstance(part, Text))


def _faults(request: CapturedRequest) -> list[str]:
    try:
        return request_faults(request.dialect, request.messages, system=request.system, tools=request.tools)
    except (KeyError, FovealError):  # a dialect without checks
        return []


def _dollars_or_unknown(dollars: float | None) -> str:
    return "unknown" if dollars is None else format_dollars(dollars)


# ── Entry points ─────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def capture() -> Iterator[CapturedRequests]:
    """Record the LLM requests that are sent inside the `with` block.

    Requests of any thread or task of this process are recorded.

    Yields:
        The requests.

    Examples:
        ```python
        import foveal

        with foveal.testing.capture() as requests:
            client.chat.completions.create(
                model="gpt-4.1", messages=[{"role": "user", "content": "Why is CI red?"}]
            )
        requests.check()
        ```
    """
    requests = CapturedRequests()
    captured_request.start(requests)
    try:
        yield requests
    finally:
        captured_request.stop(requests)


def assert_stable_prefix(
    requests: CapturedRequests | Iterable[Mapping[str, Any] | bytes | str],
    *,
    max_breaks: int = 0,
    min_lost_tokens: int = 1,
) -> None:
    """Raise `PrefixMoved` if the beginning of a request changes.

    Raise `PrefixNotCached` if it does not change, and the provider still does not read it from its cache.

    Args:
        requests: Captured requests, or request bodies in the order in which they were sent.
        max_breaks: Requests that may break the prefix.
        min_lost_tokens: A break that makes the provider read fewer tokens again does not count.

    Raises:
        PrefixMoved: More than `max_breaks` requests break the prefix.
        PrefixNotCached: More than `max_breaks` requests miss the cache because of their cache marks.
        NothingCaptured: There is no request.

    Examples:
        ```python
        from foveal.testing import assert_stable_prefix

        first = {"role": "user", "content": "Why is CI red?"}
        second = {"role": "assistant", "content": "Because of a bound."}
        assert_stable_prefix([{"messages": [first]}, {"messages": [first, second]}])
        ```
    """
    __tracebackhide__ = True
    if not isinstance(requests, CapturedRequests):
        bodies, requests = requests, CapturedRequests()
        for body in bodies:
            requests.record(body)
    requests.check(max_breaks=max_breaks, min_lost_tokens=min_lost_tokens)
