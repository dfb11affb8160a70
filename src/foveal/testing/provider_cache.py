"""What a provider reads of captured requests from its prompt cache, and why not more.

1. OpenAI, Gemini and most others cache by themselves: a request reads what it shares with the one before it.
2. Claude (and Nova on Bedrock) cache only up to marks, `cache_control` or `cachePoint`. A request writes an entry
   at each of its marks, and reads the longest entry at one of its marks or a few blocks before it
   (`LOOK_BACK_BLOCKS`). The ttl of the mark must be that of the entry.
3. No provider caches a prefix of fewer tokens than the model's minimum.

Requests of a test follow each other at once, so no entry expires.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from foveal.core.models.model import model
from foveal.core.wire.cache_marks import CACHE_MARK, CACHE_POINT, is_cache_point, strip_cache_marks
from foveal.testing.captured_request import CapturedRequest, PromptPiece, next_digest, tool_list
from foveal.testing.moved_prefix import Link, PieceTokens, first_difference, format_dollars, lost_dollars

LOOK_BACK_BLOCKS: Final = 20
"""Blocks at which the provider looks for an entry, from a mark back, that of the mark included."""
_DEFAULT_TTL: Final = "5m"

UncachedCode: TypeAlias = Literal["no_marks", "mark_moved", "ttl_changed", "too_short", "look_back"]

_REMEDY: Final[dict[UncachedCode, str]] = {
    "no_marks": 'put "cache_control": {"type": "ephemeral"} on the last block of every request, or beside '
    '"messages" (Bedrock: a cachePoint block)',
    "mark_moved": "mark the newest block of every request, and no block that changes",
    "ttl_changed": "use the same ttl in all requests of a conversation",
    "too_short": "mark a later block, up to which the prompt has enough tokens",
    "look_back": "also mark the block that was the newest one in the request before",
}


class UncachedPrefix(msgspec.Struct, frozen=True, kw_only=True):
    """A request whose unchanged beginning is not read from the cache.

    Examples:
        ```python
        from foveal.testing import CapturedRequests

        requests = CapturedRequests()
        said: list[object] = [{"role": "user", "content": "Read this. " * 2_000}]
        for question in ("Who wrote it?", "When?"):
            said = [*said, {"role": "user", "content": question}]
            requests.record({"model": "claude-sonnet-4-5", "messages": said}, url="/v1/messages")
        (fault,) = requests.uncached()
        assert fault.code == "no_marks"
        ```
    """

    request: int
    """Number of the request among the captured ones, from 1."""
    previous: int
    """Number of the request that it continues."""
    code: UncachedCode
    """The cause, for programs."""
    cause: str
    """The cause in words."""
    lost_tokens: int
    """Tokens that the request could have read from the cache."""
    lost_dollars: float | None = None
    """What they cost more than from the cache; None if a price is unknown."""

    @property
    def remedy(self) -> str:
        """What to do about the cause."""
        return _REMEDY[self.code]

    def __str__(self) -> str:
        dollars = "" if self.lost_dollars is None else f", {format_dollars(self.lost_dollars)} more"
        return (
            f"request {self.request} begins like request {self.previous} and does not read it from the cache: "
            f"{self.cause}\n"
            f"    {self.lost_tokens:,} tokens are read again{dollars}\n"
            f"    remedy: {self.remedy}"
        )


class CacheRead(NamedTuple):
    """What one request reads from the cache."""

    tokens: int
    fault: UncachedPrefix | None = None


class _PromptBlock(NamedTuple):
    """The end of a block of a prompt, which can have a mark."""

    digest: bytes
    """Of all blocks up to this one."""
    tokens: int
    """Of all blocks up to this one."""
    ttl: str
    """That of its mark; "" without one."""
    place: str


class _Fault(NamedTuple):
    code: UncachedCode
    cause: str
    tokens: int


class ProviderCache:
    """The prompt cache of a provider during a capture."""

    def __init__(self, tokens: PieceTokens) -> None:
        self._tokens = tokens
        self._written: dict[bytes, set[str]] = {}
        """The ttl values with which each prefix was written."""
        self._blocks: dict[int, list[_PromptBlock]] = {}
        """Those of each request that needs marks, by its number."""

    def send(self, request: CapturedRequest, link: Link) -> CacheRead:
        """Return what a request reads, and write what it caches."""
        minimum = model(request.model).cache_minimum if request.model else 0
        if not _needs_marks(request):
            shared = first_difference(link.previous, request) if link.previous else 0
            tokens = self._tokens.total(request.pieces[:shared], request.dialect)
            return CacheRead(tokens if tokens >= minimum else 0)
        blocks = self._blocks[request.number] = list(_blocks(request, self._tokens))
        read = self._longest_read(blocks)
        found = None
        if link.previous is not None and not link.is_moved and not request.has_stored_history:
            found = self._fault(request, link.previous, read, minimum)
        for block in blocks:
            if block.ttl and block.tokens >= minimum:
                self._written.setdefault(block.digest, set()).add(block.ttl)
        fault = None if found is None else _uncached(request, link.previous, found)
        return CacheRead(blocks[read].tokens if read >= 0 else 0, fault)

    def _longest_read(self, blocks: list[_PromptBlock]) -> int:
        """Return the place of the last block of the longest entry that is read; -1 if none is."""
        places = (
            at
            for mark, marked in enumerate(blocks)
            if marked.ttl
            for at in range(mark, max(-1, mark - LOOK_BACK_BLOCKS), -1)
            if marked.ttl in self._written.get(blocks[at].digest, ())
        )
        return max(places, default=-1)

    def _fault(
        self, request: CapturedRequest, previous: CapturedRequest, read: int, minimum: int
    ) -> _Fault | None:
        blocks, before = self._blocks[request.number], self._blocks.get(previous.number, [])
        shared = sum(one.digest == other.digest for one, other in zip(before, blocks, strict=False))
        if not shared or blocks[shared - 1].tokens < max(minimum, 1):
            return None  # nothing of it could be cached
        tokens = blocks[shared - 1].tokens
        for number, sent in ((previous.number, before), (request.number, blocks)):
            if not any(block.ttl for block in sent):
                return _Fault("no_marks", f"request {number} has no cache mark", tokens)
        written = max((at for at, block in enumerate(blocks) if block.digest in self._written), default=-1)
        if written < 0:
            return _nothing_written(previous, before[:shared], tokens, minimum)
        if read >= written:
            return None
        lost = blocks[written].tokens - (blocks[read].tokens if read >= 0 else 0)
        return _unread(blocks, written, self._written[blocks[written].digest], lost)


def _nothing_written(
    previous: CapturedRequest, shared: list[_PromptBlock], tokens: int, minimum: int
) -> _Fault:
    """Return why the request before has cached nothing of what both begin with."""
    marks = [block for block in shared if block.ttl]
    if not marks:
        return _Fault(
            "mark_moved", f"the marks of request {previous.number} are on blocks that changed", tokens
        )
    told = (
        f"request {previous.number} marks {marks[-1].tokens:,} tokens, and {previous.model} caches none below"
    )
    return _Fault("too_short", f"{told} {minimum:,}", tokens)


def _unread(blocks: list[_PromptBlock], written: int, ttls: set[str], lost: int) -> _Fault:
    """Return why an entry at block `written` is not read."""
    later = [at for at, block in enumerate(blocks) if block.ttl and at >= written]
    place = blocks[written].place
    if not later:
        last = next(block for block in reversed(blocks) if block.ttl)
        told = f"its last mark, at {last.place}, is before the end of the cached part, at {place}"
        return _Fault("mark_moved", told, lost)
    if later[0] - written >= LOOK_BACK_BLOCKS:
        told = f"its mark is {later[0] - written} blocks after the cached part, and the provider looks back"
        return _Fault("look_back", f"{told} {LOOK_BACK_BLOCKS - 1}", lost)
    told = f"its mark has ttl {blocks[later[0]].ttl}, and {place} was cached with {', '.join(sorted(ttls))}"
    return _Fault("ttl_changed", told, lost)


def _uncached(request: CapturedRequest, previous: CapturedRequest | None, found: _Fault) -> UncachedPrefix:
    assert previous is not None
    return UncachedPrefix(
        request=request.number,
        previous=previous.number,
        code=found.code,
        cause=found.cause,
        lost_tokens=found.tokens,
        lost_dollars=lost_dollars(found.tokens, request.model, is_written=found.code != "no_marks"),
    )


# ── Blocks ───────────────────────────────────────────────────────────────────────────────────────────────


def _needs_marks(request: CapturedRequest) -> bool:
    """Return whether the provider caches nothing without marks. Other models behind an API of this form cache by
    themselves, or not at all."""
    name = request.model.lower()
    if request.dialect == "bedrock":
        return "claude" in name or "nova" in name
    return request.dialect == "anthropic" and "claude" in name


def _blocks(request: CapturedRequest, tokens: PieceTokens) -> Iterator[_PromptBlock]:
    """Yield the blocks of a request in the order in which the provider reads them. A mark of the whole request is
    on its last block."""
    digest, total = next_digest(request.dialect.encode(), request.pieces[0].key), 0
    found: _PromptBlock | None = None
    for piece in request.pieces[1:]:
        parts = list(_marked_parts(piece))
        sizes = [len(part) for part, _ in parts]
        all_tokens, first, done = tokens.total([piece], request.dialect), total, 0
        for (part, ttl), size in zip(parts, sizes, strict=True):
            if found is not None:
                yield found
            done += size
            total = first + all_tokens * done // max(1, sum(sizes))  # parts of a piece by their lengths
            digest = next_digest(digest, part)
            found = _PromptBlock(digest, total, ttl, piece.place)
    if found is not None:
        yield found if found.ttl else found._replace(ttl=_ttl(request.cache_mark))


def _marked_parts(piece: PromptPiece) -> Iterator[tuple[bytes, str]]:
    """Yield the blocks of a piece as they are compared, each with the ttl of its mark."""
    listed = _content(piece)
    for at, block in enumerate(listed):
        if is_cache_point(block):
            continue  # it marks the block before
        after: Any = listed[at + 1] if at + 1 < len(listed) else {}
        ttl = _ttl(after[CACHE_POINT] if is_cache_point(after) else _mark_of(block))
        plain = {"type": "text", "text": block} if isinstance(block, str) else block
        value = (piece.role, strip_cache_marks(plain, drop_nulls=True))
        yield msgspec.json.encode(value, order="sorted"), ttl


def _content(piece: PromptPiece) -> list[Any]:
    if piece.place == "tools":
        return tool_list(piece.given)
    content = piece.given.get("content") if isinstance(piece.given, Mapping) else piece.given
    if isinstance(content, list):
        return content
    return [] if content is None else [content]


def _mark_of(block: object) -> object:
    """Return the mark of a block, or of the last part inside a tool result that has one."""
    if not isinstance(block, Mapping):
        return None
    inner = block.get("content")
    marks = [_mark_of(part) for part in inner] if isinstance(inner, list) else []
    return block.get(CACHE_MARK) or next((mark for mark in reversed(marks) if mark), None)


def _ttl(mark: object) -> str:
    return str(mark.get("ttl") or _DEFAULT_TTL) if isinstance(mark, Mapping) else ""
