"""Why the beginning of a request differs from the request before, and what that costs.

A provider reads a request from its cache up to the first piece that differs. `explain` finds that piece, names the
most likely cause and says what to do about it. Texts are shortened to the part that differs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import takewhile
from operator import eq
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from foveal.core.models.model import MILLION, Model, model
from foveal.core.tokens.counter import counter
from foveal.core.wire import exact_line
from foveal.core.wire.request_text import RequestReader, common_prefix_chars
from foveal.errors import FovealError
from foveal.testing.captured_request import CHANGING_TEXT, CapturedRequest, PromptPiece, tool_list

# ── The request that is continued ────────────────────────────────────────────────────────────────────────
# Several conversations can be in one test: sub-agents, requests for a title or a summary. A request
#
# 1. repeats an earlier one if all pieces are equal: a client that tries again;
# 2. extends an earlier one if that one is its beginning;
# 3. otherwise continues the newest request of the conversation with which it has most messages in common, if
#    their setups are alike (the system text, or the tools). This is where the prefix has moved;
# 4. otherwise begins a conversation.
#
# An answer that was generated again, a rewind to an earlier message and the user's last message in other words
# begin a branch: no piece after the difference was sent before, so nothing is read again.

MIN_ALIKE_CHARS: Final = 60
"""Characters with which two system texts begin alike, to be versions of one text."""
MIN_ALIKE_RATIO: Final = 0.6
"""Share of equal characters of two system texts that are versions of one text."""
MAX_COMPARED_SYSTEM_CHARS: Final = 2_000
"""Characters of a system text that are compared for this."""


class Link(NamedTuple):
    """The place of a request in a conversation."""

    conversation: int
    """Number of the conversation, from 1."""
    previous: CapturedRequest | None
    """The request that it continues; None if it begins a conversation or has a history at the provider."""
    is_moved: bool = False
    """Whether the previous request is not its beginning."""


class RequestChains:
    """The conversations of a capture."""

    def __init__(self) -> None:
        self._heads: list[CapturedRequest] = []
        """The newest request of each conversation."""
        self._complete: dict[bytes, tuple[CapturedRequest, int]] = {}
        """Each request by the digest of all its pieces, with the number of its conversation."""

    def add(self, request: CapturedRequest) -> Link:
        """Return the place of a request, and remember the request."""
        link = self._link(request)
        self._complete.setdefault(request.chain[-1], (request, link.conversation))
        if link.conversation > len(self._heads):
            self._heads.append(request)
        elif link.previous is None or link.previous.keys != request.keys:
            self._heads[link.conversation - 1] = request
        return link

    def _link(self, request: CapturedRequest) -> Link:
        new = len(self._heads) + 1
        extended, conversation = self._extended(request)
        if extended is not None and len(extended.keys) == len(request.keys):
            return Link(conversation, extended)
        head, at = self._most_alike(request, extended)
        if head is not None and not _is_branch(head, request):
            return Link(at, head, is_moved=not request.has_stored_history)
        if extended is None:
            return Link(new, None)
        is_head = self._heads[conversation - 1] is extended
        return Link(conversation if is_head else new, extended)

    def _extended(self, request: CapturedRequest) -> tuple[CapturedRequest | None, int]:
        """Return the longest earlier request that is the beginning of this one, and its conversation."""
        found = (self._complete[digest] for digest in reversed(request.chain) if digest in self._complete)
        return next(found, (None, 0))

    def _most_alike(
        self, request: CapturedRequest, extended: CapturedRequest | None
    ) -> tuple[CapturedRequest | None, int]:
        """Return the head with most messages in common, newest first, and the number of its conversation; none if
        the request that this one extends has as many."""
        best = len(extended.said) if extended is not None else 0
        result: tuple[CapturedRequest | None, int] = (None, 0)
        for at, head in sorted(enumerate(self._heads, 1), key=lambda one: -one[1].number):
            common = _common_messages(head, request)
            # Scripted models answer several conversations alike; the first message tells them apart.
            is_other = bool(extended and extended.said) and _first(head) != _first(request)
            if common > best and not is_other and _are_setups_alike(head, request):
                best, result = common, (head, at)
        return result


def _first(request: CapturedRequest) -> str:
    return request.said[0].loose if request.said else ""


def _common_messages(head: CapturedRequest, request: CapturedRequest) -> int:
    """Return how many messages both requests have. Messages that differ in times and ids count only if the request
    has grown: a new conversation about another date begins with one message."""
    common = Counter(piece.key for piece in head.said) & Counter(piece.key for piece in request.said)
    if common or len(request.said) <= len(head.said):
        return common.total()
    loose = Counter(piece.loose for piece in head.said) & Counter(piece.loose for piece in request.said)
    return loose.total()


def _are_setups_alike(head: CapturedRequest, request: CapturedRequest) -> bool:
    if head.dialect != request.dialect or bool(head.tools) != bool(request.tools):
        return False
    has_same_tools = bool(head.tools) and sorted(head.tool_names) == sorted(request.tool_names)
    return has_same_tools or _are_texts_alike(head.system_text, request.system_text)


def _are_texts_alike(one: str, other: str) -> bool:
    one, other = one[:MAX_COMPARED_SYSTEM_CHARS], other[:MAX_COMPARED_SYSTEM_CHARS]
    shared = sum(1 for _ in takewhile(bool, map(eq, one, other)))
    if one == other or shared >= MIN_ALIKE_CHARS:
        return True
    matcher = SequenceMatcher(None, one, other, autojunk=False)
    return matcher.quick_ratio() >= MIN_ALIKE_RATIO and matcher.ratio() >= MIN_ALIKE_RATIO


def _is_branch(head: CapturedRequest, request: CapturedRequest) -> bool:
    """Return whether a request that differs from `head` sends nothing again after the difference."""
    at = first_difference(head, request)
    if at == len(request.pieces):  # the history ends earlier
        return True
    is_last_message = at == len(request.pieces) - 1 and at < len(head.pieces)
    old, new = head.pieces[min(at, len(head.pieces) - 1)], request.pieces[at]
    return is_last_message and new.role == "user" and new.loose != old.loose and not _has_results(new.value)


def _has_results(message: object) -> bool:
    """Return whether a user message holds tool results, as those of Anthropic do."""
    content = message.get("content", message.get("parts")) if isinstance(message, dict) else None
    kinds = ("tool_result", "toolResult", "functionResponse")
    return isinstance(content, list) and any(
        isinstance(part, dict) and (part.get("type") in kinds or not part.keys().isdisjoint(kinds))
        for part in content
    )


def first_difference(one: CapturedRequest, other: CapturedRequest) -> int:
    """Return the number of pieces with which both requests begin."""
    return sum(1 for _ in takewhile(bool, map(eq, one.keys, other.keys)))


# ── What has moved ───────────────────────────────────────────────────────────────────────────────────────

MAX_DIFFERENCE_CHARS: Final = 100
"""Characters of each version that are shown."""
CHARS_BEFORE_DIFFERENCE: Final = 40
"""Characters before the difference that are shown."""
_HIDDEN_FIELDS: Final = frozenset(
    {"role", "type", "id", "status", "tool_call_id", "tool_use_id", "toolUseId", "call_id", "signature"}
)
"""Fields of a message that are not shown where the text differs."""
MAX_NAMES: Final = 6
"""Names of tools that are shown."""

Code: TypeAlias = Literal[
    "model_changed",
    "tools_changed",
    "tools_reordered",
    "key_order",
    "changing_text",
    "system_changed",
    "message_removed",
    "message_inserted",
    "message_moved",
    "message_shortened",
    "message_edited",
]

_REMEDY: Final[dict[Code, str]] = {
    "model_changed": "each model has a cache of its own: stay with one model in a conversation",
    "tools_changed": "send the same tools in every request of a conversation",
    "tools_reordered": "send the tools in a fixed order, for example sorted by name; a set has none",
    "key_order": "write JSON in a fixed order, for example with sort_keys=True",
    "changing_text": "put text that changes into the newest message, or leave it out",
    "system_changed": "keep the instructions unchanged and put what is new into the newest message",
    "message_removed": "remove many messages at once and rarely; each removal moves the prefix",
    "message_inserted": "add new messages at the end",
    "message_moved": "keep the order of the messages",
    "message_shortened": "shorten a result before it is first sent, or many at once and rarely",
    "message_edited": "do not change a message that was sent",
}


class MovedPrefix(msgspec.Struct, frozen=True, kw_only=True):
    """A request that does not begin like the request before it.

    Examples:
        ```python
        from foveal.testing import CapturedRequests

        requests = CapturedRequests()
        for time in ("09:00", "09:01"):
            system = {"role": "system", "content": f"It is {time}."}
            requests.record({"model": "gpt-4.1", "messages": [system, {"role": "user", "content": "Hello."}]})
        (moved,) = requests.breaks()
        print(moved.remedy)
        ```
    """

    request: int
    """Number of the request among the captured ones, from 1."""
    previous: int
    """Number of the request that it continues."""
    place: str
    """The first piece that differs: "model", "tools", "system" or "messages[3]"."""
    role: str = ""
    """The role of that message in the previous request."""
    code: Code
    """The cause, for programs."""
    cause: str
    """The cause in words."""
    before: str
    """The part that differs, as it was."""
    after: str
    """The same part, as it is now."""
    kept_tokens: int
    """Tokens before that place."""
    lost_tokens: int
    """Tokens from that place on that were sent before and are read again, and those of the edited piece."""
    lost_dollars: float | None = None
    """What reading them again costs more than the cache; None if a price is unknown."""
    event: str = ""
    """The reduction that Foveal recorded for it, such as "e57 compacted"; "" if there is none."""

    @property
    def remedy(self) -> str:
        """What to do about the cause."""
        return _REMEDY[self.code]

    def __str__(self) -> str:
        at = f"{self.place} ({self.role})" if self.role else self.place
        dollars = "" if self.lost_dollars is None else f", {format_dollars(self.lost_dollars)} more"
        shown = [f"    {sign} {text}" for sign, text in (("-", self.before), ("+", self.after)) if text]
        lines = (
            f"request {self.request} differs from request {self.previous} at {at}: {self.cause}",
            *shown,
            f"    {self.kept_tokens:,} tokens before it are the same, {self.lost_tokens:,} are read again{dollars}",
            f"    recorded by Foveal: {self.event}" if self.event else f"    remedy: {self.remedy}",
        )
        return "\n".join(lines)


class Cause(NamedTuple):
    code: Code
    text: str
    before: str = ""
    after: str = ""


def explain(old: CapturedRequest, new: CapturedRequest, tokens: PieceTokens, event: str = "") -> MovedPrefix:
    """Return where and why `new` does not begin like `old`."""
    at = min(first_difference(old, new), len(old.pieces) - 1)
    piece = old.pieces[at]
    cause = _setup_cause(old, new, at) if at < 3 else _message_cause(old, new, at)
    lost = tokens.total(_read_again(old, new, at), new.dialect)
    return MovedPrefix(
        request=new.number,
        previous=old.number,
        place=piece.place,
        role=piece.role,
        code=cause.code,
        cause=cause.text,
        before=cause.before,
        after=cause.after,
        kept_tokens=tokens.total(old.pieces[:at], old.dialect),
        lost_tokens=lost,
        lost_dollars=lost_dollars(lost, new.model),
        event=event,
    )


def _read_again(old: CapturedRequest, new: CapturedRequest, at: int) -> list[PromptPiece]:
    """Return the pieces from a difference on that were sent before, and the piece that replaces an old one. A last
    message that is not sent again (a reminder, say) costs nothing: what follows it is new."""
    known = set(old.keys[at:])
    return [
        piece
        for place, piece in enumerate(new.pieces[at:], at)
        if piece.key in known or (place == at and piece.role == old.pieces[at].role)
    ]


# ── Causes ───────────────────────────────────────────────────────────────────────────────────────────────


def _setup_cause(old: CapturedRequest, new: CapturedRequest, at: int) -> Cause:
    before, after = old.pieces[at], new.pieces[at]
    if before.place == "model":
        return Cause("model_changed", f"the model changes from {_line(old.model)} to {_line(new.model)}")
    if before.place == "tools":
        return _tools_cause(old, new, before, after)
    return _text_cause(before, after) or Cause(
        "system_changed", "the system text changes", *_differing(before, after)
    )


def _tools_cause(
    old: CapturedRequest, new: CapturedRequest, before: PromptPiece, after: PromptPiece
) -> Cause:
    names = old.tool_names, new.tool_names
    if names[0] != names[1] and sorted(names[0]) == sorted(names[1]):
        return Cause("tools_reordered", "the tools come in another order", *map(_names, names))
    added, removed = (Counter(names[1]) - Counter(names[0]), Counter(names[0]) - Counter(names[1]))
    if added or removed:
        changes = (("added", added), ("removed", removed))
        told = " and ".join(f"{len(which)} {what}" for what, which in changes if which)
        return Cause("tools_changed", told, _names(sorted(removed)), _names(sorted(added)))
    found = _text_cause(before, after)
    if found:
        return found
    changed = [
        name
        for name, one, other in zip(names[0], tool_list(old.tools), tool_list(new.tools), strict=False)
        if one != other
    ]
    told = f"the description of {_names(changed)} changes" if changed else "the tools change"
    return Cause("tools_changed", told, *_differing(before, after))


def _message_cause(old: CapturedRequest, new: CapturedRequest, at: int) -> Cause:
    if at >= len(new.pieces):
        count = len(old.pieces) - at
        return Cause("message_removed", f"the last {_count(count)} removed", _shown(old.pieces[at]))
    before, after = old.pieces[at], new.pieces[at]
    moved = _moved_cause(old, new, at)
    if moved:
        return moved
    found = _text_cause(before, after)
    if found:
        return found
    if before.is_instruction and after.is_instruction:
        return Cause("system_changed", "an instruction changes", *_differing(before, after))
    if before.role != after.role:
        return Cause("message_removed", "the message is not sent again", _shown(before), _shown(after))
    sizes = len(_text(before)), len(_text(after))
    shown = _differing(before, after)
    if sizes[1] < sizes[0] // 2:
        told = f"the message is shortened from {sizes[0]:,} to {sizes[1]:,} characters"
        return Cause("message_shortened", told, *shown)
    return Cause("message_edited", "the message is edited", *shown)


def _moved_cause(old: CapturedRequest, new: CapturedRequest, at: int) -> Cause | None:
    """Return the cause if a whole message was removed, inserted or moved."""
    before, after = old.pieces[at], new.pieces[at]
    later_in_new = _index(new.keys, before.key, at + 1)
    later_in_old = _index(old.keys, after.key, at + 1)
    if later_in_new and later_in_old:
        return Cause("message_moved", "messages come in another order", _shown(before), _shown(after))
    if later_in_new:
        return Cause("message_inserted", f"{_count(later_in_new - at)} inserted before it", "", _shown(after))
    if later_in_old:
        return Cause("message_removed", f"{_count(later_in_old - at)} removed", _shown(before))
    # A summary in place of many messages: what follows it was further behind before.
    for step, key in enumerate(new.keys[at + 1 : at + 3], 1):
        place = _index(old.keys, key, at + 1)
        if place and place > at + step:
            told = f"{place - at} messages are replaced by {step}"
            return Cause("message_removed", told, _shown(before), _shown(after))
    return None


def _text_cause(before: PromptPiece, after: PromptPiece) -> Cause | None:
    """Return the cause if only the order of fields differs, or a time, an id or a number in the text."""
    if before.value == after.value or _sorted(before) == _sorted(after):
        return Cause("key_order", "the fields of JSON come in another order", *_differing(before, after))
    one, other = before.key.decode("utf-8", "replace"), after.key.decode("utf-8", "replace")
    for name, pattern in CHANGING_TEXT:
        one, other = pattern.sub("", one), pattern.sub("", other)
        if one == other:
            shown = _differing(before, after)
            return Cause("changing_text", f"{name} changes in the text", *shown)
    return None


def _sorted(piece: PromptPiece) -> bytes:
    """Return a piece as JSON with sorted fields; JSON inside strings, such as arguments of calls, is sorted too."""
    return msgspec.json.encode(_decoded(piece.value), order="sorted")


def _decoded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _decoded(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_decoded(inner) for inner in value]
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return ["json", msgspec.json.decode(value)]
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return value
    return value


def _index(keys: tuple[bytes, ...], key: bytes, start: int) -> int:
    try:
        return keys.index(key, start)
    except ValueError:
        return 0


# ── Texts ────────────────────────────────────────────────────────────────────────────────────────────────


def _differing(before: PromptPiece, after: PromptPiece) -> tuple[str, str]:
    """Return the parts of the texts of two pieces around their first difference; parts of their JSON if the texts
    are equal."""
    one, other = _text(before), _text(after)
    return excerpts(one, other) if one != other else excerpts(_json(before), _json(after))


def excerpts(before: str, after: str) -> tuple[str, str]:
    """Return the parts of two texts around their first difference, each on one line."""
    start = common_prefix_chars(before, after)
    return _excerpt(before, start), _excerpt(after, start)


def _excerpt(text: str, at: int) -> str:
    start = max(0, at - CHARS_BEFORE_DIFFERENCE)
    start += text[start : start + 1] == " " and start > 0
    end = start + MAX_DIFFERENCE_CHARS
    is_cut = end < len(text)
    part = text[start:end].rstrip(" ") if is_cut else text[start:]
    return f"{'…' if start else ''}{exact_line(part)}{'…' if is_cut else ''}"


def _shown(piece: PromptPiece) -> str:
    return f"{_line(piece.role)}: {_excerpt(_text(piece), 0)}"


def _text(piece: PromptPiece) -> str:
    """Return the text that a reader of the piece looks for, without ids and types."""
    return "\n".join(_visible_strings(piece.value))


def _visible_strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from () if name in _HIDDEN_FIELDS else _visible_strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _visible_strings(inner)
    elif value is not None:
        yield str(value)


def _json(piece: PromptPiece) -> str:
    return piece.key.decode("utf-8", "replace")


def _line(text: str) -> str:
    return exact_line(text[:MAX_DIFFERENCE_CHARS])


def _names(names: list[str]) -> str:
    more = len(names) - MAX_NAMES
    return ", ".join(map(_line, names[:MAX_NAMES])) + (f" and {more} more" if more > 0 else "")


def _count(messages: int) -> str:
    return "1 message is" if messages == 1 else f"{messages} messages are"


# ── Tokens and cost ──────────────────────────────────────────────────────────────────────────────────────


class PieceTokens:
    """Counts the tokens of pieces, each once."""

    def __init__(self) -> None:
        self._readers: dict[str, RequestReader] = {}
        self._known: dict[tuple[str, bytes], int] = {}

    def total(self, pieces: list[PromptPiece], dialect: Any) -> int:
        """Return the tokens of pieces; the name of the model takes none."""
        return sum(self._count(piece, dialect) for piece in pieces if piece.place != "model")

    def _count(self, piece: PromptPiece, dialect: Any) -> int:
        if not piece.value:
            return 0
        name = (dialect, piece.key)
        if name not in self._known:
            self._known[name] = self._read(piece, dialect)
        return self._known[name]

    def _read(self, piece: PromptPiece, dialect: Any) -> int:
        if not piece.place.startswith("messages"):
            return counter().count(_json(piece) if piece.place == "tools" else _text(piece))
        try:
            if dialect not in self._readers:
                self._readers[dialect] = RequestReader(dialect, counter())
            return self._readers[dialect].message(piece.value).tokens
        except FovealError:  # a message that Foveal cannot read, or a dialect without a reader
            return counter().count(_json(piece))


def lost_dollars(tokens: int, name: str, *, is_written: bool = True) -> float | None:
    """Return what tokens cost more without the cache; None if the model or a price is unknown. `is_written`: they
    are written to the cache, for which some providers ask more."""
    if not name:
        return None
    known: Model = model(name)
    if known.input_price is None:
        return None
    paid = known.write_ratio if is_written else 1.0
    return tokens * known.input_price * max(0.0, paid - known.read_ratio) / MILLION


def format_dollars(dollars: float) -> str:
    """Return an amount with two digits that count."""
    if 0 < dollars < 0.0001:
        return "<$0.0001"
    return f"${dollars:,.2f}" if dollars >= 0.1 or not dollars else f"${dollars:.4f}"
