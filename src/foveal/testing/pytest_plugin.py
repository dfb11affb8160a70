"""pytest plugin: fails tests in which the prompt prefix moves.

    @pytest.mark.stable_prefix                    checks the requests of one test
    @pytest.mark.stable_prefix(max_breaks=1)      allows one break; `min_lost_tokens` as in `CapturedRequests.check`
    pytest --stable-prefix                        checks every test that makes requests
    def test_agent(foveal_requests): …            the requests of the test, without a check

pytest loads this module in every run in which Foveal is installed (`-p no:foveal` prevents it), so it imports the
rest only when one of these is used.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from foveal.testing.stable_prefix import CapturedRequests

_MARKER = "stable_prefix"
_ARGUMENTS = ("max_breaks", "min_lost_tokens", "min_requests")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("foveal").addoption(
        "--stable-prefix",
        action="store_true",
        help="fail every test in which the beginning of an LLM request changes within a conversation",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{_MARKER}(max_breaks=0, min_lost_tokens=1): fail if the beginning of an LLM request changes",
    )


@pytest.fixture
def foveal_requests() -> Iterator[CapturedRequests]:
    """The LLM requests that the test sends."""
    from foveal.testing.stable_prefix import capture

    with capture() as requests:
        yield requests


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    marker = item.get_closest_marker(_MARKER)
    if marker is None and not item.config.getoption("--stable-prefix"):
        return (yield)
    from foveal.testing.stable_prefix import NothingCaptured, PrefixMoved, PrefixNotCached, capture

    if marker is not None:
        _check_mark(marker)
    with capture() as requests:
        result = yield
    problem = ""
    try:
        if marker is None:
            requests.check(min_requests=0)
        else:
            requests.check(**marker.kwargs)
    except (PrefixMoved, PrefixNotCached, NothingCaptured) as found:
        problem = str(found)
    if problem:  # outside the `except`, or pytest shows both errors
        pytest.fail(problem, pytrace=False)
    return result


def _check_mark(marker: pytest.Mark) -> None:
    """Fail the test if its mark has other arguments than whole numbers by name."""
    wrong = [repr(value) for value in marker.args]
    wrong += [
        f"{name}={value!r}"
        for name, value in marker.kwargs.items()
        if name not in _ARGUMENTS or type(value) is not int or value < 0
    ]
    if wrong:
        allowed = ", ".join(f"{name}=N" for name in _ARGUMENTS)
        pytest.fail(f"mark {_MARKER}: {', '.join(wrong)} is not allowed; it takes {allowed}", pytrace=False)
