"""The pytest plugin, in runs of pytest of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]

AGENT = """
import httpx2, pytest

def ask(system, *texts):
    messages = [{"role": "system", "content": system}, *({"role": "user", "content": text} for text in texts)]
    transport = httpx2.MockTransport(lambda request: httpx2.Response(200, json={}))
    with httpx2.Client(transport=transport) as client:
        client.post("https://example.com/v1/chat/completions", json={"model": "gpt-4.1", "messages": messages})

def good():
    ask("Be brief.", "one")
    ask("Be brief.", "one", "two")

def bad():
    ask("Be brief. It is 14:00:01.", "one")
    ask("Be brief. It is 14:00:02.", "one", "two")
"""


@pytest.fixture(autouse=True)
def no_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take seconds to load


@pytest.fixture
def agent_tests(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(
        test_agent=f"""{AGENT}
@pytest.mark.stable_prefix
def test_good(): good()

@pytest.mark.stable_prefix
def test_bad(): bad()

@pytest.mark.stable_prefix(max_breaks=1)
def test_allowed(): bad()

@pytest.mark.stable_prefix
def test_silent(): pass

def test_unmarked(): bad()

def test_no_requests(): pass

@pytest.mark.stable_prefix
def test_broken():
    bad()
    raise KeyError("own problem")

def test_fixture(foveal_requests):
    bad()
    assert len(foveal_requests) == 2
    foveal_requests.check(max_breaks=1)
    foveal_requests.check()
"""
    )
    return pytester


def test_the_marker_fails_a_test_whose_prefix_moves(agent_tests: pytest.Pytester) -> None:
    result = agent_tests.runpytest_inprocess("-p", "foveal", "--strict-markers")
    result.assert_outcomes(passed=4, failed=4)
    result.stdout.fnmatch_lines(
        [
            "*_ test_bad _*",
            "the prompt prefix moved in 1 of 2 requests without a recorded reduction",
            "",
            "request 2 differs from request 1 at messages[[]0[]] (system): a date or time changes in the text",
            "    - Be brief. It is 14:00:01.",
            "    + Be brief. It is 14:00:02.",
            "*_ test_silent _*",
            "0 LLM requests were captured*",
            "*_ test_broken _*",
            "E*KeyError: 'own problem'",
            "*_ test_fixture _*",
            ">*foveal_requests.check()",
            "E*PrefixMoved: the prompt prefix moved in 1 of 2*",
        ]
    )
    shown = result.stdout.str()
    assert "stable_prefix.py" not in shown
    assert shown.count("During handling") == 0


def test_the_option_checks_every_test_that_makes_requests(agent_tests: pytest.Pytester) -> None:
    result = agent_tests.runpytest_inprocess(
        "-p", "foveal", "--stable-prefix", "-k", "unmarked or no_requests or allowed"
    )
    result.assert_outcomes(passed=2, failed=1, deselected=5)


def test_without_a_marker_nothing_of_foveal_is_loaded(agent_tests: pytest.Pytester) -> None:
    code = "import pytest, sys; pytest.main(['-q', '-p', 'foveal', '-k', 'no_requests'])"
    ran = subprocess.run(
        [sys.executable, "-c", f"{code}; print([n for n in sys.modules if n.startswith('foveal')])"],
        cwd=agent_tests.path,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = ran.stdout.splitlines()[-1]
    assert loaded == "['foveal.old_paths', 'foveal', 'foveal.testing', 'foveal.testing.pytest_plugin']"


@pytest.mark.parametrize(
    ("mark", "told"),
    [
        ("max_brakes=2", "max_brakes=2"),
        ('max_breaks="two"', "max_breaks='two'"),
        ("1", "1"),
        ("max_breaks=-1", "max_breaks=-1"),
    ],
)
def test_a_wrong_mark_says_what_it_takes(pytester: pytest.Pytester, mark: str, told: str) -> None:
    pytester.makepyfile(f"import pytest\n@pytest.mark.stable_prefix({mark})\ndef test_it(): pass\n")
    run = pytester.runpytest("-p", "foveal")
    run.assert_outcomes(failed=1)
    run.stdout.fnmatch_lines(
        [
            f"mark stable_prefix: {told} is not allowed; it takes max_breaks=N, min_lost_tokens=N, min_requests=N"
        ]
    )
