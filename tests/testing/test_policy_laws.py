"""`check_policy`: a policy that breaks a law is reported with the law and a short history."""

from __future__ import annotations

import itertools
import os
from typing import Any, Final

import pytest

import foveal
from foveal import events
from foveal.policies import Budget, Decision, Moment, PolicyView
from foveal.testing import LAWS, HistoryStep, LawBroken, check_policy
from support.effort import rest_in_soak

HISTORIES: Final = 4 if os.environ.get("FOVEAL_SOAK") else 2


class Hides(foveal.Policy, frozen=True):
    def decide(self, view: PolicyView, budget: Budget, moment: Moment) -> Decision:
        return view.hide(view.results) if view.units > budget.act // 2 else None


class Summarises(foveal.Policy, frozen=True):
    def decide(self, view: PolicyView, budget: Budget, moment: Moment) -> Decision:
        if view.units <= budget.act // 2:
            return None
        return view.summarise(step for step in view.steps if "billing" in step.text)


class Drops(foveal.Policy, frozen=True):
    def decide(self, view: PolicyView, budget: Budget, moment: Moment) -> Decision:
        return view.drop([step for step in view.steps if step.kind == "model"][:2])


class DropsAll(foveal.Policy, frozen=True):
    def decide(self, view: PolicyView, budget: Budget, moment: Moment) -> Decision:
        return events.Dropped(ranges=((0, 9_999),), names_ranges=True)


class Raises(foveal.Policy, frozen=True):
    def decide(self, view: PolicyView, budget: Budget, moment: Moment) -> Decision:
        raise KeyError("no embedding")


_requests = itertools.count()


class Counts(foveal.Policy, frozen=True):
    """Decides by something that is not in the log."""

    def decide(self, view: PolicyView, budget: Budget, moment: Moment) -> Decision:
        return view.hide(view.results) if next(_requests) % 3 == 0 else None


class HidesTheUser(foveal.Policy, frozen=True):
    """Hides what the user said before what the tools returned."""

    retain_user_share: float = 0.0
    keep_task: bool = False

    def decide(self, view: PolicyView, budget: Budget, moment: Moment) -> Decision:
        said = [step for step in view.steps if step.kind == "user" and view.results and step.seq > 9]
        return view.drop(said)


class HidesCorrections(foveal.Policy, frozen=True):
    retain_user_share: float = 0.0

    def decide(self, view: PolicyView, budget: Budget, moment: Moment) -> Decision:
        return view.drop(step for step in view.steps if step.kind == "user" and "moved to" in step.text)


_remembered: list[str] = []


class Remembers(foveal.Policy, frozen=True):
    """Writes into a placeholder what it has seen in another conversation."""

    def decide(self, view: PolicyView, budget: Budget, moment: Moment) -> Decision:
        _remembered.extend(step.text[:20] for step in view.steps if step.kind == "user")
        large = [result for result in view.results if result.can_hide and result.units > 500]
        masks = tuple(
            events.Mask(target=one.seq, text=f"[{one.handle}: {' '.join(_remembered[:1])}]\nhidden")
            for one in large
        )
        return events.Masked(masks=masks) if masks else None


@pytest.mark.parametrize(
    "policy", rest_in_soak([Summarises(), Drops(), *foveal.PRESETS.values(), Hides()], kept=3)
)
def test_a_policy_that_keeps_the_laws_passes(policy: foveal.Policy) -> None:
    if policy.name == "off":  # which says that a request may not fit
        return
    played = check_policy(policy, histories=HISTORIES)
    assert played.requests > played.histories
    assert played.reductions


@pytest.mark.parametrize(
    ("policy", "law", "problem", "steps", "seed"),
    [
        (DropsAll(), "Allowed", "it drops e1, which is a step that must stay (instructed)", 1, 0),
        (Raises(), "Answers", "it raised KeyError: 'no embedding'", 1, 0),
        (Counts(), "Repeatable", "", 8, 4),
        (HidesTheUser(), "Trace", "a message of the user, is hidden, and the older e", 12, 2),
        (
            HidesCorrections(),
            "Later wins",
            "and “The deadline moved to 2 April 2027.” is not shown after it",
            8,
            4,
        ),
        (Remembers(), "Apart", "the request has words of another conversation", 4, 9),
        (foveal.policy("off"), "Fits", "context needs", 3, 0),
    ],
)
def test_a_broken_law_is_named_with_a_short_history(
    policy: foveal.Policy, law: str, problem: str, steps: int, seed: int
) -> None:
    """The seeds are those with which it soon finds the shortest history."""
    with pytest.raises(LawBroken) as caught:
        check_policy(policy, histories=6, seed=seed)
    error = caught.value
    assert (error.policy, error.law) in {(policy.name, law), (policy.name, "Idempotent")}
    assert problem in error.problem
    assert len(error.history) <= steps
    assert all(isinstance(step, HistoryStep) for step in error.history)
    assert LAWS[error.law] in str(error)


def test_a_preset_is_checked_by_its_name() -> None:
    assert check_policy("plain", histories=1) == check_policy(foveal.policy("plain"), histories=1)


@pytest.mark.parametrize(
    ("policy", "histories", "problem"),
    [
        ("thrifty", 1, "policy = 'thrifty' is not allowed: one of economy"),
        (5, 1, "policy = 5 is not allowed: one of economy"),
        (Hides, 1, r"is not allowed: an instance: Hides\(\)"),
        ("economy", 0, "histories = 0 is not allowed: a whole number from 1"),
    ],
)
def test_what_cannot_be_checked_is_refused(policy: Any, histories: int, problem: str) -> None:
    with pytest.raises(foveal.BadSetting, match=problem):
        check_policy(policy, histories=histories)


def test_a_seed_makes_other_conversations() -> None:
    first, again = (check_policy(Hides(), histories=1, seed=1) for _ in range(2))
    assert first == again != check_policy(Hides(), histories=1)
