"""`make test-quick` runs what is quick, `make soak` what is longer in it; each package is on one side."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path

import pytest

from support.chosen_files import INSIDE, OUTSIDE, TESTS, does_more_in_soak, is_quick, packages


@cache
def files() -> tuple[Path, ...]:
    return tuple(sorted(TESTS.rglob("test_*.py")))


def test_each_package_is_inside_or_outside() -> None:
    used = frozenset().union(*map(packages, files()))
    assert used - sys.stdlib_module_names - INSIDE - OUTSIDE == frozenset()
    assert INSIDE.isdisjoint(OUTSIDE)
    assert (INSIDE | OUTSIDE) - used == frozenset()


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("inspector/browser/test_layout_and_keys.py", "playwright"),  # by the fixtures of its folder
        ("stores/postgres/test_leases.py", "psycopg"),  # by a shared fixture
        ("adapters/test_langchain.py", "langchain_core"),
        ("cli/test_serve.py", "multiprocessing"),  # by modules of `support`
    ],
)
def test_a_file_that_uses_other_programs_is_not_quick(file: str, reason: str) -> None:
    assert reason in packages(TESTS / file)
    assert not is_quick(TESTS / file)


def test_the_core_the_laws_and_the_rules_of_the_code_are_quick() -> None:
    names = {str(file.relative_to(TESTS)) for file in files() if is_quick(file)}
    assert {"test_laws.py", "test_context.py", "test_architecture.py", "core/view/test_fold.py"} <= names


@pytest.mark.parametrize(
    ("file", "is_longer"),
    [
        ("core/view/test_fold.py", True),  # examples
        ("adapters/test_langchain.py", True),  # turns of a module of `support`
        ("server/gateways/test_gateway_soak.py", True),
        ("test_architecture.py", False),
        ("docs/test_pages.py", False),
        ("sessions/test_session.py", True),  # a fixture of its folder has marked cases
    ],
)
def test_soak_runs_what_is_longer_in_it(file: str, is_longer: bool) -> None:
    assert does_more_in_soak(TESTS / file) is is_longer


def test_nothing_but_the_quick_command_leaves_tests_out() -> None:
    runs = re.findall(r"^\t@.*-m pytest (.*)$", (TESTS.parent / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert [run for run in runs if "--quick" not in run] == [
        "-n 3 --dist worksteal",
        "-n 2 --dist worksteal -o faulthandler_timeout=7200",
    ]
    assert [run for run in runs if "--quick" in run] == ["--quick -n 2 --dist worksteal"]
