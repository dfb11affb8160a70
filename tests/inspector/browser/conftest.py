"""Runs the tests of this folder in the thread of the browser, and gives them a page that has logged in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from shutil import copyfile

import pytest

from support.chromium import Chromium
from support.coding_agent import AGENT_WINDOW, recorded_shop
from support.inspected_pages import InspectedPage
from support.inspected_server import InspectedServer

Opener = Callable[..., InspectedPage]


@pytest.fixture(scope="session")
def shop_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the sessions of a coding agent; tests that change them copy it."""
    path = tmp_path_factory.mktemp("shop") / "sessions.db"
    copyfile(recorded_shop(tmp_path_factory), path)
    return path


@pytest.fixture(scope="session")
def shop(shop_file: Path) -> Iterator[InspectedServer]:
    """The inspector with the sessions of a coding agent."""
    with InspectedServer(shop_file, window=AGENT_WINDOW) as server:
        yield server


@pytest.fixture
def serve() -> Iterator[Callable[..., InspectedServer]]:
    """A function that starts an inspector for these places, which ends after the pages of the test."""
    with ExitStack() as stack:
        yield lambda *places, **settings: stack.enter_context(InspectedServer(*places, **settings))


@pytest.fixture
def opener(chromium: Chromium, serve: object) -> Iterator[Opener]:
    """A function that opens a page of a server; the page must not complain until the test ends."""
    stack = ExitStack()
    opened: list[InspectedPage] = []

    def open_page(
        server: InspectedServer, session: str = "", fragment: str = "", **settings: object
    ) -> InspectedPage:
        watched = stack.enter_context(chromium.page(**settings))
        page = InspectedPage(watched, server)
        opened.append(page)
        page.open(session, fragment)
        return page

    yield open_page
    chromium.run(stack.close)
    for page in opened:
        page.watched.check(page.host)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool:
    """Run a test in the thread of the browser."""
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    browser: Chromium = pyfuncitem._request.getfixturevalue("chromium")
    browser.run(lambda: pyfuncitem.obj(**arguments))
    return True
