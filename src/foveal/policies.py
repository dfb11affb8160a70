"""Types for a policy of your own, under their public names, and policies by name.

`foveal.Policy` is the class to derive from. Its method `decide` gets a `PolicyView`, a `Budget` and a `Moment`, and
returns a `Decision`. `find_policy` returns a preset, or the policy of an installed package.

A package offers a policy as an entry point of the group `foveal.policies`: a class that derives from
`foveal.Policy`, an instance of one, or a function without arguments that returns one.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any, Final, TypeAlias, cast

from msgspec.structs import replace

from foveal.core.compaction.plan import Plan
from foveal.core.models.budget import Budget
from foveal.core.policies.moment import Decision, Moment
from foveal.core.policies.policy_view import PolicyResult, PolicyStep, PolicyView
from foveal.core.policies.presets import PRESETS, Policy, PresetName, policy
from foveal.errors import BadSetting

__all__ = [
    "Budget",
    "Decision",
    "Moment",
    "Plan",
    "PolicyResult",
    "PolicyStep",
    "PolicyView",
    "find_policy",
    "policy_names",
]


GROUP: Final = "foveal.policies"
"""The group of entry points."""
PolicyTables: TypeAlias = Mapping[str, Mapping[str, Any]]
"""The tables `[policies.NAME]` of a configuration, by name."""
NO_TABLES: Final[PolicyTables] = MappingProxyType({})


def policy_names(tables: PolicyTables = NO_TABLES) -> list[str]:
    """Return the names of all policies: the presets, then the others.

    Args:
        tables: The tables `[policies.NAME]` of a configuration, by name.

    Examples:
        ```python
        from foveal.policies import policy_names

        assert "economy" in policy_names()
        ```
    """
    return list(dict.fromkeys([*PRESETS, *tables, *sorted(entry_points(group=GROUP).names)]))


def find_policy(name: str, tables: PolicyTables = NO_TABLES) -> Policy:
    """Return the policy with a name.

    It is a preset, a table, or a policy of an installed package.

    Args:
        name: The name.
        tables: The tables `[policies.NAME]` of a configuration, by name. `preset` names the preset or the
            installed policy that a table changes.

    Raises:
        BadSetting: There is no such policy, a table has a wrong value, or an installed one is no policy.

    Examples:
        ```python
        from foveal.policies import find_policy

        mine = find_policy("mine", {"mine": {"preset": "plain", "cut_at": 60_000}})
        assert (mine.name, mine.act_tokens) == ("mine", 60_000)
        ```
    """
    if name in PRESETS:
        return PRESETS[cast(PresetName, name)]
    if name in tables:
        return _from_table(name, tables[name])
    for found in entry_points(group=GROUP, name=name):
        return _load(found)
    raise BadSetting("policy", name, f"one of {', '.join(policy_names(tables))}")


def _from_table(name: str, table: Mapping[str, Any]) -> Policy:
    given = {"name": name, **table}
    base = given.get("preset")
    if not isinstance(base, str) or base in PRESETS:
        return policy(given)
    del given["preset"]
    return policy(find_policy(base), **cast(Any, given))


def _load(found: EntryPoint) -> Policy:
    """Return the policy of an entry point, under the name of the entry point."""
    about = f"an entry point of the group {GROUP} that gives a foveal.Policy"
    try:
        loaded = found.load()
        made = loaded() if callable(loaded) else loaded
    except Exception as problem:  # code of another package
        raise BadSetting(
            "policy", found.name, f"{about}; {found.value} raised {type(problem).__name__}: {problem}"
        ) from problem
    if not isinstance(made, Policy):
        raise BadSetting("policy", found.name, f"{about}; {found.value} gives a {type(made).__name__}")
    return made if made.name == found.name else replace(made, name=found.name)
