"""Query strings of the inspector's API as structs."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

MAX_KEY_CHARS: Final = 8_192
"""Longest key of a session: it may contain the path of a file."""
MAX_PARAMETER_CHARS: Final = 1_000
MAX_TEXT_CHARS: Final = 1_000_000
"""Characters of a message that one response has."""
DEFAULT_TEXT_CHARS: Final = 200_000
MAX_SESSION_ROWS: Final = 200

_Key = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_KEY_CHARS)]
_Seq = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Words = Annotated[str, msgspec.Meta(max_length=MAX_PARAMETER_CHARS)]
_Chars = Annotated[int, msgspec.Meta(ge=1, le=MAX_TEXT_CHARS)]


class InspectQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The session that a request is about."""

    id: _Key


class InspectSessionsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    after: Annotated[str, msgspec.Meta(max_length=MAX_KEY_CHARS)] = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_SESSION_ROWS)] = 50
    q: _Words = ""


class InspectTimelineQuery(InspectQuery, frozen=True, kw_only=True):
    first: _Seq = 0
    outline: bool = False
    """Whether an outline of all events will do; the answer may be the whole timeline."""


class InspectTextQuery(InspectQuery, frozen=True, kw_only=True):
    event: _Seq
    start: _Seq = msgspec.field(default=0, name="from")
    chars: _Chars = DEFAULT_TEXT_CHARS


class InspectShownQuery(InspectQuery, frozen=True, kw_only=True):
    key: Annotated[str, msgspec.Meta(max_length=MAX_PARAMETER_CHARS)]
    at: _Seq
    start: _Seq = msgspec.field(default=0, name="from")
    chars: _Chars = DEFAULT_TEXT_CHARS


class InspectRequestQuery(InspectQuery, frozen=True, kw_only=True):
    at: _Seq
    dialect: _Words = ""


class InspectDiffQuery(InspectQuery, frozen=True, kw_only=True):
    a: _Seq
    b: _Seq
    dialect: _Words = ""


class InspectLostQuery(InspectQuery, frozen=True, kw_only=True):
    event: _Seq
    """The compaction."""


class InspectRoomQuery(InspectQuery, frozen=True, kw_only=True):
    event: _Seq
    """The message or reduction that would be shown again."""
    pins: bool = False


class InspectStatementsQuery(InspectQuery, frozen=True, kw_only=True):
    at: _Seq


class InspectSearchQuery(InspectQuery, frozen=True, kw_only=True):
    q: _Words


class InspectWhatIfQuery(InspectQuery, frozen=True, kw_only=True):
    policy: _Words = ""
    window: Annotated[str, msgspec.Meta(pattern=r"^\d{0,20}$")] = ""
    """Tokens; "" for the recorded one. A window that no model has gets as far as the replay, which says why."""
    model: _Words = ""


class InspectLiveQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: Annotated[str, msgspec.Meta(max_length=MAX_KEY_CHARS)] = ""
    """"" for the list of sessions."""
    after: Annotated[int, msgspec.Meta(ge=-1, le=2**53)] = -1
    """The newest event that the page has."""
    generation: _Seq | None = None
    """`Timeline.generation` of what the page has."""
