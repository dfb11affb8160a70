"""A policy's values: one flat, TOML-able set for each preset. What they mean is written beside each field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

import msgspec
from msgspec.structs import replace

from foveal.core.models.budget import share, whole
from foveal.core.reduction.truncation import TOKENS_8K, Limits
from foveal.errors import BadSetting

Ladder = Literal["economy", "summary", "rolling", "recent", "off"]
Mode = Literal["auto", "confirm", "off"]


class Policy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that decides what is shown. Shares are of the room for messages."""

    name: str
    ladder: Ladder
    """Which decision the values below are for; presets of a user's own build on one of these."""
    warn: float = 0.8
    act: float = 1.0
    """Above this share of the room the ladder is used; at the share itself it is not."""
    act_tokens: int = 0
    """The same as a number of tokens of the whole request, whichever is less; 0 is none."""
    target: float = 1.0
    """How far a reduction goes once it has begun."""
    clip: Limits | None = None
    """The most that is shown of a result when it arrives."""
    clip_share: float = 1.0
    """The same as a share of the room, whichever is less: a window may be smaller than the limit."""
    clip_tools: dict[str, Limits] = {}
    """Limits of single tools, by name; they go before `clip`."""
    refer: int = 0
    """Lines of a new result that stand above already are shown as a reference where that saves so many tokens;
    0 shows them again."""
    max_history_tokens: int = 0
    """A cap on messages other than instructions; 0 is none."""
    keep_first: int = 0
    """So many of the first results are never masked …"""
    keep_last: int = 0
    """… nor so many of the newest."""
    mask: bool = False
    mask_every: int = 1
    """Results are masked in batches of at least so many."""
    mask_arguments: int = 0
    """Arguments of old calls above so many tokens are masked too; 0 leaves all of them."""
    exempt_tools: tuple[str, ...] = ()
    """Results of these tools are never masked."""
    skeleton_share: float = 0.15
    """What a placeholder may keep, as a share of the text it stands for …"""
    skeleton_tokens: int = 400
    """… and at the most."""
    keep_task: bool = False
    """The first user message is dropped last of all."""
    early: float = 1.0
    """Above this share of the room a reduction is made before it must be, if it pays for itself."""
    patience: float = 1.0
    """How many more calls to expect, as a multiple of those that have read a text in vain, when asking whether
    masking it will pay."""
    mode: Mode = "auto"
    """Whether old turns become summaries: by themselves, when somebody agrees, or only by hand."""
    compact: bool = False
    """Old turns become a summary before any are dropped."""
    tail: float = 0.25
    """What the newest steps keep verbatim when the others are summarised …"""
    keep_messages: int = 0
    """… and how many messages at least, if they take no more than half of the room."""
    retain_user_tokens: int = 0
    """Requests of the user that stay verbatim beside the summary, newest first."""
    every_turns: int = 0
    """A summary after so many new turns, however small they are; 0 waits for the tokens."""
    overlap_turns: int = 0
    """So many turns that the summary before stands for are read again for the next one."""
    summary_tokens: int = 3_000
    """What a summary may take …"""
    summary_share: float = 0.15
    """… and as a share of the room."""
    max_summaries: int = 3
    """So many live side by side; one more, and all of them become one."""

    def __post_init__(self) -> None:
        if self.ladder not in get_args(Ladder):
            raise BadSetting("ladder", self.ladder, f"one of {', '.join(get_args(Ladder))}")
        if self.mode not in get_args(Mode):
            raise BadSetting("mode", self.mode, f"one of {', '.join(get_args(Mode))}")
        for field in _SHARES:
            share(field, getattr(self, field))
        share("patience", self.patience, most=1_000)
        for field in _COUNTS:
            whole(field, getattr(self, field))
        for field in ("mask_every", "summary_tokens", "max_summaries"):
            whole(field, getattr(self, field), least=1)
        if self.warn > self.act:
            raise BadSetting("warn", self.warn, f"at most act = {self.act}")
        if self.target > self.act:
            raise BadSetting("target", self.target, f"at most act = {self.act}")

    def values(self) -> dict[str, Any]:
        """The settings as they would stand in a TOML file."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        base = _base({"ladder": self.ladder})
        unlike = (field for field in self.__struct_fields__ if getattr(self, field) != getattr(base, field))
        return plain | {field: msgspec.to_builtins(getattr(self, field)) for field in unlike}


_SHARES: Final = ("warn", "act", "target", "clip_share", "skeleton_share", "early", "tail", "summary_share")
_COUNTS: Final = (
    "act_tokens", "max_history_tokens", "keep_first", "keep_last", "mask_arguments", "skeleton_tokens",
    "refer",
    "keep_messages", "retain_user_tokens", "every_turns", "overlap_turns",
)  # fmt: skip

_SUMMARY: Final = Policy(
    name="summary",
    ladder="summary",
    target=0.6,
    clip=Limits(strategy="smart", tokens=16_000),
    clip_share=0.35,
    mask=True,
    keep_last=3,
    keep_task=True,
    compact=True,
)
"""What the presets that summarise have in common; masks are for the moment when nothing else is left."""

PRESETS: Final[Mapping[str, Policy]] = {
    "economy": Policy(
        name="economy",
        ladder="economy",
        warn=0.8,
        act=1.0,
        target=0.3,
        clip=Limits(strategy="smart", tokens=16_000),
        clip_share=0.35,
        refer=40,
        mask=True,
        keep_last=3,
        mask_arguments=80,
        keep_task=True,
        early=0.1,
        patience=2.0,
        compact=True,
    ),
    "handoff": replace(
        _SUMMARY, name="handoff", warn=0.6, act=0.7, tail=0.0, keep_task=False, retain_user_tokens=20_000
    ),
    "sliding-summary": replace(
        _SUMMARY, name="sliding-summary", warn=0.6, act=0.7, every_turns=5, overlap_turns=2
    ),
    "recent-summary": replace(_SUMMARY, name="recent-summary", warn=0.7, act=0.8, keep_messages=10),
    "confirm": replace(_SUMMARY, name="confirm", warn=0.9, act=0.9, mode="confirm"),
    "rolling": Policy(
        name="rolling",
        ladder="rolling",
        clip=TOKENS_8K,
        max_history_tokens=20_000,
        keep_first=2,
        keep_last=5,
        mask=True,
        skeleton_tokens=60,
    ),
    "recent": Policy(name="recent", ladder="recent"),
    "off": Policy(name="off", ladder="off"),
}


def policy(name: str | Mapping[str, Any] | Policy = "economy", /, **changes: Any) -> Policy:
    """A preset by name, a table of values as TOML has them (with `preset` or `ladder`), or a policy itself;
    `changes` are values to set in it."""
    if isinstance(name, Policy):
        base, given = name, dict(changes)
    elif isinstance(name, str):
        base, given = _preset(name), dict(changes)
    else:
        given = {**_table(name), **changes}
        base = _base(given)
        given.setdefault("name", base.name)
    if not given:
        return base
    allowed = Policy.__struct_fields__
    for field in given:
        if field not in allowed:
            raise BadSetting(field, given[field], f"no such setting; there are {', '.join(allowed)}")
    values = {field: getattr(base, field) for field in allowed} | {k: _typed(k, v) for k, v in given.items()}
    return Policy(**values)


def _base(given: dict[str, Any]) -> Policy:
    """The preset that a table builds on: the one it names, or the plainest with its ladder."""
    if "preset" not in given and given.get("ladder") == _SUMMARY.ladder:
        return _SUMMARY
    return _preset(given.pop("preset", given.get("ladder", "economy")))


def _table(given: object) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise BadSetting("policy", given, f"one of {', '.join(PRESETS)}, or a table of its values")
    return given


def _preset(name: object) -> Policy:
    if not isinstance(name, str) or name not in PRESETS:
        raise BadSetting("policy", name, f"one of {', '.join(PRESETS)}")
    return PRESETS[name]


_TYPES: Final = {field.name: field.type for field in msgspec.structs.fields(Policy)}


def _typed(field: str, value: Any) -> Any:
    try:
        return msgspec.convert(value, _TYPES[field])
    except msgspec.ValidationError as problem:
        raise BadSetting(field, value, str(problem)) from None
