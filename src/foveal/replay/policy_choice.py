"""The policies of a replay: presets, TOML files and sweeps over settings."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from foveal.core.policies import PRESETS, Policy, policy
from foveal.errors import BadSetting

PolicySpec: TypeAlias = "str | Path | Mapping[str, Any] | Policy | PolicyChoice"
"""A preset's name, a TOML file, a table of settings, or a policy."""


class PolicyChoice(NamedTuple):
    """A policy and its label in the results."""

    label: str
    policy: Policy


def policy_choices(given: Iterable[PolicySpec], *, sweeps: Sequence[str] = ()) -> list[PolicyChoice]:
    """Return each policy with each combination of the swept values.

    Raises `BadSetting` for an unknown policy or setting, or an invalid value.
    """
    variants = [_parse_sweep(sweep) for sweep in sweeps]
    found: dict[str, PolicyChoice] = {}
    for base in map(policy_choice, given):
        for values in product(*variants):
            choice = _with_values(base, values)
            found.setdefault(choice.label, choice)
    return list(found.values())


def policy_choice(given: PolicySpec) -> PolicyChoice:
    """Return a policy in any form as a choice; raises `BadSetting`."""
    if isinstance(given, PolicyChoice):
        return given
    if isinstance(given, Path) or (isinstance(given, str) and given.endswith(".toml")):
        return _from_file(Path(given))
    if isinstance(given, str) and given not in PRESETS:
        raise BadSetting("policy", given, f"one of {', '.join(PRESETS)}, or a TOML file with its values")
    rules = policy(given)
    return PolicyChoice(rules.name, rules)


def _from_file(path: Path) -> PolicyChoice:
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


def _parse_sweep(given: str) -> list[tuple[str, Any]]:
    """Return `key=a,b,c` as pairs of the key and each value."""
    key, equals, values = given.partition("=")
    if not equals or not key.strip() or not values.strip():
        raise BadSetting("sweep", given, "key=a,b,c, such as target=0.2,0.3,0.4")
    field = key.strip().partition(".")[0]
    if field not in Policy.__struct_fields__:
        raise BadSetting("sweep", key.strip(), f"a setting: {', '.join(Policy.__struct_fields__)}")
    return [(key.strip(), _parse_value(value.strip())) for value in values.split(",")]


def _parse_value(text: str) -> Any:
    """Return a JSON number, true, false or null as its value, other text unchanged."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _with_values(base: PolicyChoice, values: Iterable[tuple[str, Any]]) -> PolicyChoice:
    rules, label = base.policy, base.label
    for key, value in values:
        field, dot, inner = key.partition(".")
        old = rules.values().get(field)
        new = {**(old if isinstance(old, dict) else {}), inner: value} if dot else value
        rules = policy(rules, **{field: new})
        label = f"{label} {key}={json.dumps(value) if not isinstance(value, str) else value}"
    return PolicyChoice(label, rules)
