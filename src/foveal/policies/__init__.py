"""Types for a policy of your own, under their public names, and policies by name.

`foveal.Policy` is the class to derive from. Its method `decide` gets a `PolicyView`, a `Budget` and a `Moment`, and
returns a `Decision`. `find_policy` returns a preset, or the policy of an installed package.
"""

from foveal.core.compaction.plan import Plan
from foveal.core.models.budget import Budget
from foveal.core.policies.moment import Decision, Moment
from foveal.core.policies.policy_view import PolicyResult, PolicyStep, PolicyView
from foveal.policies.installed import find_policy, policy_names

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
