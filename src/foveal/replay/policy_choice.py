"""The policies of a replay: presets by name, files of values, and sweeps over values."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from foveal.core.policies import PRESETS, Policy, policy
from foveal.errors import BadSetting

Given: TypeAlias = "str | Path | Mapping[str, Any] | Policy | PolicyChoice"
"""A preset's name, a TOML file, a table of values, or a policy."""


class PolicyChoice(NamedTuple):
    label: str
    policy: Policy


def policy_choices(given: Iterable[Given], *, sweeps: Sequence[str] = ()) -> list[PolicyChoice]:
    """What is to be compared: each policy, with each combination of the values that are swept over. Raises
    `BadSetting` for what is no policy, no setting or no value of it."""
    variants = [_sweep(sweep) for sweep in sweeps]
    found: dict[str, PolicyChoice] = {}
    for base in map(policy_choice, given):
        for chosen in product(*variants):
            one = _changed(base, chosen)
            found.setdefault(one.label, one)
    return list(found.values())


def policy_choice(given: Given) -> PolicyChoice:
    if isinstance(given, PolicyChoice):
        return given
    if isinstance(given, Path) or (isinstance(given, str) and given.endswith(".toml")):
        return _file(Path(given))
    if isinstance(given, str) and given not in PRESETS:
        raise BadSetting("policy", given, f"one of {', '.join(PRESETS)}, or a TOML file with its values")
    rules = policy(given)
    return PolicyChoice(rules.name, rules)


def _file(path: Path) -> PolicyChoice:
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except OSError as problem:
        raise BadSetting("policy", str(path), f"a file that can be read ({problem.strerror})") from None
    except ValueError as problem:
        raise BadSetting("policy", str(path), f"a TOML file ({problem})") from None
    table = values.get("policy", values)
    if isinstance(table, Mapping):
        table = {"name": path.stem, **table}
    rules = policy(table)
    return PolicyChoice(rules.name, rules)


def _sweep(given: str) -> list[tuple[str, Any]]:
    """`key=a,b,c` as pairs of the key and each value."""
    key, equals, values = given.partition("=")
    if not equals or not key.strip() or not values.strip():
        raise BadSetting("sweep", given, "key=a,b,c, such as target=0.2,0.3,0.4")
    field = key.strip().partition(".")[0]
    if field not in Policy.__struct_fields__:
        raise BadSetting("sweep", key.strip(), f"a setting: {', '.join(Policy.__struct_fields__)}")
    return [(key.strip(), _value(value.strip())) for value in values.split(",")]


def _value(text: str) -> Any:
    """A number, true, false or null as JSON has them; a text otherwise."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _changed(base: PolicyChoice, chosen: Iterable[tuple[str, Any]]) -> PolicyChoice:
    rules, label = base.policy, base.label
    for key, value in chosen:
        field, dot, inner = key.partition(".")
        held = rules.values().get(field)
        whole = {**(held if isinstance(held, dict) else {}), inner: value} if dot else value
        rules = policy(rules, **{field: whole})
        label = f"{label} {key}={json.dumps(value) if not isinstance(value, str) else value}"
    return PolicyChoice(label, rules)
