"""Policy settings and presets.

`Policy` is one flat set of values that can be written as TOML; the docstring under each field says what it means. A
preset is a named `Policy`, and `policy` returns one from a name, a table or another policy. A class of your own
that derives from `Policy` has the same settings, and decides by itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, Unpack, cast, get_args

import msgspec
from msgspec.structs import replace

from foveal.core.log.events import Priority
from foveal.core.models.budget import Budget, SharesOf, check_share, check_whole_number
from foveal.core.reduction.truncation import TOKENS_8K, Limits
from foveal.errors import BadSetting

if TYPE_CHECKING:
    from foveal.core.policies.moment import Decision, Moment
    from foveal.core.policies.policy_view import PolicyView

Ladder = Literal["economy", "plain", "summary", "rolling", "recent", "off"]
Mode = Literal["auto", "confirm", "off"]
PresetName = Literal[
    "economy", "handoff", "sliding-summary", "recent-summary", "confirm", "plain", "rolling", "recent", "off"
]


class Policy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings that decide what is shown, and the decision.

    The defaults are the values of `economy`. A preset is this class with other values. A class of your own derives
    from it and overrides `decide`: its fields are settings, and those that it inherits hold for the engine around
    it, which takes over where the request would not fit.

    Shares are of the room for messages. In mode `confirm`, `warn` and `act` are shares of the window, because a
    user answers a question about the window.

    Raises:
        BadSetting: A value is out of range.

    Examples:
        ```python
        import foveal

        mine = foveal.policy("economy", keep_last=4)
        ctx = foveal.Context("gpt-4.1", policy=mine)
        ```
    """

    name: str = ""
    """The name in reports and in the log. Default: the name of the class, such as `by-topic` for `ByTopic`."""
    ladder: Ladder = "economy"
    """Which policy uses the values below. A user's own preset builds on one of these."""
    warn: float = 0.8
    """Above this share the report warns."""
    act: float = 1.0
    """Above this share the ladder is used, or the user is asked; at exactly this share not."""
    act_tokens: int = 0
    """The same as a number of tokens of the whole request; the smaller limit applies. 0 is no limit."""
    target: float = 0.45
    """The share of the room down to which a reduction goes once it has begun."""
    clip: Limits | None = None
    """The limits to which a result is clipped when it arrives."""
    clip_share: float = 0.35
    """The same as a share of the room, because a window may be smaller than the limit; the smaller limit
    applies."""
    clip_tools: dict[str, Limits] = {}
    """Limits of single tools, by name. They take precedence over `clip`."""
    refer: int = 40
    """Tokens that a reference must save: lines of a new result that are shown above already become a reference
    where it saves at least this many. 0 disables references."""
    max_history_tokens: int = 0
    """Tokens that messages other than instructions may take; 0 is no limit."""
    keep_first: int = 0
    """How many of the first results are never masked."""
    keep_last: int = 3
    """How many of the newest results are never masked."""
    mask: bool = True
    """Whether old results become placeholders."""
    mask_every: int = 1
    """How many results a batch of masks has at least."""
    exempt_tools: tuple[str, ...] = ()
    """Tools whose results are never masked."""
    tool_priorities: dict[str, Priority] = {}
    """When results of single tools are hidden, by name: `low` first, `high` last. `mark` says it of one event."""
    skeleton_share: float = 0.1
    """The share of a text that the skeleton of its placeholder may keep."""
    skeleton_tokens: int = 40
    """Tokens that a skeleton may take at most."""
    keep_task: bool = False
    """Whether the first user message is dropped last of all."""
    early_tokens: int = 28_000
    """Tokens of a request from which `economy` cuts before it must, if the cut is cheap."""
    early: bool = True
    """Whether `economy` cuts before it must."""
    mode: Mode = "auto"
    """When the policy reduces anything: by itself, after the user has agreed (before that, only what would not fit
    otherwise), or by itself but without summaries."""
    compact: bool = True
    """Whether old turns become a summary before any are dropped."""
    tail: float = 0.25
    """The share of the room that the newest steps keep verbatim when the others are summarised."""
    keep_messages: int = 0
    """How many messages stay verbatim at least; under all policies but `plain`, if they take no more than half of
    the room."""
    retain_user_share: float = 0.25
    """The share of the room up to which all user messages stay verbatim; beyond it long ones are clipped, and then
    the first and the newest stay. 0 keeps none but the latest."""
    retain_user_tokens: int = 20_000
    """The same in tokens; the smaller limit applies."""
    every_turns: int = 0
    """The number of new turns after which a summary is made, however small they are; 0 waits for the tokens."""
    overlap_turns: int = 0
    """How many turns of the previous summary are read again for the next one."""
    summary_tokens: int = 16_000
    """Tokens that a summary may take."""
    summary_share: float = 0.12
    """The same as a share of the room; the smaller limit applies."""
    summary_cost_share: float = 0.0
    """The share of what a cut removes that a model's summary of it may cost; a dearer one is written without a
    model. 0 has a model write each. Only `economy` uses it."""
    max_summaries: int = 3
    """How many summaries stay side by side; with this many, the next compaction merges them into one."""

    def __init_subclass__(cls, **config: Any) -> None:
        super().__init_subclass__(**config)
        for field in vars(cls).keys() & set(Policy.__struct_fields__):
            if not isinstance(vars(cls)[field], MemberDescriptorType):  # else it would hide the setting
                raise TypeError(f"{cls.__name__}.{field} needs a type: {field}: … = {vars(cls)[field]!r}")

    def __post_init__(self) -> None:
        if not self.name:
            words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", type(self).__name__)
            msgspec.structs.force_setattr(self, "name", words.lower())
        if self.ladder not in get_args(Ladder):
            raise BadSetting("ladder", self.ladder, f"one of {', '.join(get_args(Ladder))}")
        if self.mode not in get_args(Mode):
            raise BadSetting("mode", self.mode, f"one of {', '.join(get_args(Mode))}")
        for field in _SHARES:
            check_share(field, getattr(self, field))
        for field in _COUNTS:
            check_whole_number(field, getattr(self, field))
        for field in ("mask_every", "summary_tokens", "max_summaries"):
            check_whole_number(field, getattr(self, field), least=1)
        for field in ("every_turns", "overlap_turns"):
            if getattr(self, field) and not self.compact:
                names = ", ".join(name for name in _BY_TURNS if name != self.name)
                allowed = (
                    f"0 with {self.name}, which summarises only on request; choose another policy: {names}"
                )
                raise BadSetting(field, getattr(self, field), allowed)
        if self.warn > self.act:
            raise BadSetting("warn", self.warn, f"at most act = {self.act}")
        if self.target > self.act:
            raise BadSetting("target", self.target, f"at most act = {self.act}")

    @property
    def is_own(self) -> bool:
        """Whether a class of the application's own decides, not the settings."""
        return type(self).decide is not Policy.decide

    def decide(self, view: PolicyView, budget: Budget, moment: Moment) -> Decision:
        """Return the next reduction, or None if nothing is to be done.

        The engine records what is returned and asks again, until the answer is None. Override it for a policy of
        your own; `super().decide(view, budget, moment)` is what the settings alone would do.

        Args:
            view: The conversation as the next request would show it.
            budget: The sizes that count, in the units of the view: `warn`, `act` and `hard`.
            moment: What is known of the time of the request: prices, the state of the cache, calls so far.

        Returns:
            What a method of `view` returns, such as `hide`; an event that reduces; or None.

        Examples:
            ```python
            import foveal
            from foveal.policies import Budget, Decision, Moment, PolicyView

            class HideLogs(foveal.Policy, frozen=True):
                def decide(self, view: PolicyView, budget: Budget, moment: Moment) -> Decision:
                    if view.units <= budget.act:
                        return None
                    return view.hide(result for result in view.results if result.tool == "read_log")

            ctx = foveal.Context("gpt-4.1", policy=HideLogs())
            ```
        """
        return view.by_settings(self, budget, moment)

    @property
    def shares_of(self) -> SharesOf:
        """What `warn` and `act` are shares of."""
        return "window" if self.mode == "confirm" else "room"

    @property
    def asks(self) -> bool:
        """Whether the user is asked before a reduction; the policy `off` reduces nothing in any mode."""
        return self.mode == "confirm" and self.ladder != "off"

    def values(self) -> dict[str, Any]:
        """Return the settings as a TOML file contains them.

        Examples:
            ```python
            import foveal

            assert foveal.policy("rolling").values()["keep_first"] == 2
            ```
        """
        base = policy({"ladder": self.ladder, "mode": self.mode})
        # What another version of a preset may change is written too: all that differs from the bare values.
        bases = (_BARE, base)
        changed = {
            field: msgspec.to_builtins(getattr(self, field))
            for field in Policy.__struct_fields__
            if any(getattr(self, field) != getattr(other, field) for other in bases)
        }
        return {"name": self.name, "ladder": self.ladder} | changed


class PolicyChanges(TypedDict, total=False):
    """The keyword arguments of `policy`: the fields of `Policy`, each optional.

    Values may have the form of TOML: a table for limits, a list for names.

    Examples:
        ```python
        import foveal

        mine = foveal.policy("economy", clip={"strategy": "tail", "lines": 200}, exempt_tools=["todo"])
        ```
    """

    name: str
    ladder: Ladder
    warn: float
    act: float
    act_tokens: int
    cut_at: int
    """Another name of `act_tokens`."""
    target: float
    clip: Limits | Mapping[str, Any] | None
    clip_share: float
    clip_tools: Mapping[str, Limits | Mapping[str, Any]]
    refer: int
    max_history_tokens: int
    keep_first: int
    keep_last: int
    mask: bool
    mask_every: int
    exempt_tools: Sequence[str]
    tool_priorities: Mapping[str, Priority]
    skeleton_share: float
    skeleton_tokens: int
    keep_task: bool
    early_tokens: int
    early: bool
    mode: Mode
    compact: bool
    tail: float
    keep_messages: int
    retain_user_share: float
    retain_user_tokens: int
    every_turns: int
    overlap_turns: int
    summary_tokens: int
    summary_share: float
    summary_cost_share: float
    max_summaries: int


_SHARES: Final = (
    "warn", "act", "target", "clip_share", "skeleton_share", "tail", "summary_share",
    "retain_user_share", "summary_cost_share",
)  # fmt: skip
_COUNTS: Final = (
    "act_tokens", "max_history_tokens", "keep_first", "keep_last", "skeleton_tokens",
    "refer", "early_tokens",
    "keep_messages", "retain_user_tokens", "every_turns", "overlap_turns",
)  # fmt: skip

_BY_TURNS: Final[tuple[PresetName, ...]] = ("sliding-summary", "handoff", "recent-summary", "economy")
"""Presets that summarise after a number of turns, if they are told so."""
CONFIRM_SHARE: Final = 0.9
"""Share of the window above which mode `confirm` asks the user, unless `act` is set."""


def _confirming(base: Policy) -> Policy:
    """Return a preset in mode `confirm`: it asks at `CONFIRM_SHARE` of the window, and shows new results whole."""
    act = CONFIRM_SHARE
    return replace(
        base,
        mode="confirm",
        act=act,
        warn=min(base.warn, act),
        target=min(base.target, act),
        clip=None,
        refer=0,
    )


_BARE: Final = Policy(
    name="bare",
    ladder="recent",
    target=1.0,
    clip_share=1.0,
    refer=0,
    keep_last=0,
    mask=False,
    skeleton_share=0.15,
    skeleton_tokens=400,
    early_tokens=0,
    compact=False,
    retain_user_share=0.0,
    summary_tokens=3_000,
    summary_share=0.15,
)
"""The values of a policy that only does what must be done."""
_SUMMARY: Final = replace(
    _BARE,
    name="summary",
    ladder="summary",
    target=0.6,
    clip=Limits(strategy="smart", tokens=16_000),
    clip_share=0.35,
    mask=True,
    keep_last=3,
    retain_user_share=0.25,
    compact=True,
)
"""The values that the summarising presets share. They mask only when nothing else is left."""

PRESETS: Final[Mapping[PresetName, Policy]] = {
    "economy": Policy(name="economy"),
    "handoff": replace(_SUMMARY, name="handoff", warn=0.6, act=0.7, tail=0.0),
    "sliding-summary": replace(
        _SUMMARY, name="sliding-summary", warn=0.6, act=0.7, every_turns=5, overlap_turns=2
    ),
    "recent-summary": replace(_SUMMARY, name="recent-summary", warn=0.7, act=0.8, keep_messages=10),
    "confirm": _confirming(replace(_SUMMARY, name="confirm")),
    "plain": replace(
        _BARE,
        name="plain",
        ladder="plain",
        act_tokens=100_000,
        keep_messages=20,
        keep_task=True,
        compact=True,
        summary_tokens=16_000,
        summary_share=0.12,
    ),
    "rolling": replace(
        _BARE,
        name="rolling",
        ladder="rolling",
        clip=TOKENS_8K,
        max_history_tokens=20_000,
        keep_first=2,
        keep_last=5,
        mask=True,
        skeleton_tokens=60,
    ),
    "recent": replace(_BARE, name="recent"),
    "off": replace(_BARE, name="off", ladder="off"),
}
"""The presets by name; each is a `Policy`."""
PRESET_MEANINGS: Final[Mapping[PresetName, str]] = {
    "economy": "cuts where it pays",
    "handoff": "one summary, then the newest messages",
    "sliding-summary": "a summary every few turns",
    "recent-summary": "a summary and the newest messages",
    "confirm": "asks before it summarises",
    "plain": "above a number of tokens, a summary and the newest messages",
    "rolling": "masks old results",
    "recent": "the newest messages only",
    "off": "reduces nothing; too large a request is an error",
}
"""What each preset does, for a list of choices."""


def policy(
    name: PresetName | Mapping[str, Any] | Policy = "economy", /, **changes: Unpack[PolicyChanges]
) -> Policy:
    """Return a policy from a name, a table or another policy.

    Mode `confirm` has defaults of its own, which other changes replace.

    Args:
        name: The name of a preset, a table of values as in TOML (with `preset` or `ladder`), or a policy.
        **changes: Fields of `Policy` that get other values.

    Returns:
        The policy.

    Raises:
        BadSetting: The preset or a setting is unknown, or a value is out of range.

    Examples:
        ```python
        import foveal

        mine = foveal.policy("economy", target=0.3)
        same = foveal.policy({"preset": "economy", "target": 0.3})
        assert mine == same
        ```
    """
    given: dict[str, Any]
    if isinstance(name, Policy):
        base, given = name, {**changes}
    elif isinstance(name, str):
        base, given = _preset(name), {**changes}
    else:
        given = {**_table(name), **changes}
        base = _base(given)
        given.setdefault("name", base.name)
    if not given:
        return base
    if "cut_at" in given:
        if "act_tokens" in given:
            raise BadSetting(
                "cut_at", given["cut_at"], "not given beside act_tokens, which is the same setting"
            )
        given["act_tokens"] = check_whole_number("cut_at", given.pop("cut_at"))
    if given.get("mode") == "confirm" and base.mode != "confirm":
        base = _confirming(base)
    allowed = base.__struct_fields__
    for field in given:
        if field not in allowed:
            known = ", ".join(("cut_at", *allowed))
            raise BadSetting(field, given[field], f"no such setting; there are {known}")
    values = {field: getattr(base, field) for field in allowed} | {
        k: _convert_field(k, v) for k, v in given.items()
    }
    return type(base)(**values)


def _base(given: dict[str, Any]) -> Policy:
    """Return the preset that a table builds on: the one it names, or the plainest with its ladder."""
    if "preset" not in given and given.get("ladder") == _SUMMARY.ladder:
        return _SUMMARY
    return _preset(given.pop("preset", given.get("ladder", "economy")))


def _table(given: object) -> Mapping[str, Any]:
    if isinstance(given, type) and issubclass(given, Policy):
        raise BadSetting("policy", given, f"an instance: {given.__name__}()")
    if not isinstance(given, Mapping):
        raise BadSetting("policy", given, f"one of {', '.join(PRESETS)}, or a table of its values")
    return given


def _preset(name: object) -> Policy:
    if not isinstance(name, str) or name not in PRESETS:
        raise BadSetting("policy", name, f"one of {', '.join(PRESETS)}")
    return PRESETS[cast(PresetName, name)]


_TYPES: Final = {field.name: field.type for field in msgspec.structs.fields(Policy)}


_EXPECTED: Final = {
    "ladder": f"one of {', '.join(get_args(Ladder))}",
    "mode": f"one of {', '.join(get_args(Mode))}",
    "clip": "a `foveal.Limits`, a table of its fields, or None",
    "clip_tools": "a table of `foveal.Limits`, or of tables of its fields, by the name of the tool",
    "exempt_tools": "a list of names of tools",
    "tool_priorities": "a table of `low`, `normal` or `high`, by the name of the tool",
}
"""What these fields may be, in words; for the others, the type says it."""


def _convert_field(field: str, value: Any) -> Any:
    if field in ("clip", "clip_tools") and isinstance(value, Mapping):
        for limits in (value,) if field == "clip" else value.values():
            _check_limit_names(field, limits)
    if field not in _TYPES:  # of a class of the application's own
        return value
    try:
        return msgspec.convert(value, _TYPES[field])
    except msgspec.ValidationError as problem:
        expected = f"{_EXPECTED[field]}; {problem}" if field in _EXPECTED else str(problem)
        raise BadSetting(field, value, expected) from None


def _check_limit_names(field: str, limits: object) -> None:
    """Raise `BadSetting` for a table of limits with a misspelt name, which would limit nothing."""
    names = Limits.__struct_fields__
    unknown = (
        next((name for name in limits if name not in names), None) if isinstance(limits, Mapping) else None
    )
    if unknown is not None:
        raise BadSetting(field, limits, f"limits have no field {unknown!r}; there are {', '.join(names)}")
