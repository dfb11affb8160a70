"""One profile for every property test (the same examples on every machine, no deadline on slow ones), and the
fixture that several files use."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import certifi
import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

if TYPE_CHECKING:
    from support.chat_project import ChatProject
    from support.chromium import Chromium

QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

settings.register_profile(
    "foveal", derandomize=True, deadline=None, database=None, suppress_health_check=QUIET, max_examples=6
)
settings.register_profile("soak", parent=settings.get_profile("foveal"), derandomize=False, max_examples=50)
settings.register_profile("quick", parent=settings.get_profile("foveal"), max_examples=3)
settings.load_profile("soak" if os.environ.get("FOVEAL_SOAK") else "foveal")


def pytest_configure(config: pytest.Config) -> None:
    """Set how many examples `--quick` has, and what the programs that tests start inherit: Ctrl-C, which a shell
    ignores for commands in the background, and a file with one certificate. A client of a provider takes 50 ms to
    load those of all authorities, which no test needs. Soak runs keep them: pip makes environments."""
    if config.getoption("--quick"):
        os.environ["FOVEAL_QUICK"] = "1"
        settings.load_profile("quick")
    if not os.environ.get("FOVEAL_SOAK"):
        authorities = str(Path(__file__).parent / "data" / "one_certificate.pem")
        os.environ["SSL_CERT_FILE"] = authorities
        certifi.where = lambda: authorities  # for clients that do not read the environment
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    help = "only quick files (support/chosen_files.py), without long tests and recordings, with few examples"
    parser.addoption("--quick", action="store_true", help=help)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `--quick`, and in `make soak`, leave out the other files before they import what they use."""
    is_quick_run, is_soak = config.getoption("--quick"), bool(os.environ.get("FOVEAL_SOAK"))
    if not (is_quick_run or is_soak) or not collection_path.match("test_*.py"):
        return None
    from support.chosen_files import does_more_in_soak, is_quick  # of no use to other runs

    return None if (is_quick if is_quick_run else does_more_in_soak)(collection_path) else True


gc.disable()  # until `pytest_collection_finish`: nearly all that the collection of the tests makes, stays


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    """Move the long tests to the front, so that none of them starts when all others have ended.

    A worker of xdist begins with a contiguous share of the tests, so each share gets long tests at its front."""
    left_out: set[pytest.Item] = set()
    marks = {item: {mark.name for mark in item.iter_markers()} for item in items}
    if config.getoption("--quick"):
        left_out = {item for item in items if marks[item] & {"data", "long", "soak"}}
    elif os.environ.get("FOVEAL_SOAK"):
        from support.chosen_files import asks_for_soak

        left_out = {
            item
            for item in items
            if not ("soak" in marks[item] or is_hypothesis_test(item.obj) or asks_for_soak(item.path))
        }
    else:
        for item in items:
            if "soak" in marks[item]:
                item.add_marker(pytest.mark.skip(reason="takes long: FOVEAL_SOAK=1 runs it"))
    if left_out:
        config.hook.pytest_deselected(items=[*left_out])
        items[:] = [item for item in items if item not in left_out]
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    long = [item for item in items if item.get_closest_marker("long")]
    others = iter([item for item in items if not item.get_closest_marker("long")])
    left = len(items)
    ordered: list[pytest.Item] = []
    for worker in range(workers):
        size = left // (workers - worker)  # as `--dist worksteal` divides them
        front = long[worker::workers]
        ordered += [*front, *islice(others, max(0, size - len(front)))]
        left -= size
    items[:] = [*ordered, *others]


def pytest_collection_finish() -> None:
    """Keep the collected tests and their modules out of every later garbage collection: they stay to the end."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.fixture
def project(tmp_path: Path) -> ChatProject:
    """A project folder with a chat in it."""
    from support.chat_project import ChatProject  # imports much that most tests do not need

    return ChatProject(tmp_path)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    """The browser, one for all tests of a process."""
    from support.chromium import Chromium  # most tests need no browser

    browser = Chromium()
    browser.start()
    yield browser
    browser.close()


@pytest.fixture
def postgres_url() -> Iterator[str]:
    """The URL of an empty database on a real PostgreSQL server."""
    from support import postgres_server  # psycopg is needed here only

    url = postgres_server.fresh_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def store_url() -> str:
    """The URL of a PostgreSQL database with the tables of a store, without rows."""
    from support.store_databases import emptied_database

    return emptied_database()


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path | str]:
    """Where a service's database is: a folder, then a PostgreSQL URL."""
    from support.service_databases import emptied_database_url

    if request.param == "sqlite":
        yield tmp_path
    else:
        with emptied_database_url() as url:
            yield url


@pytest.fixture
def service_url() -> Iterator[str]:
    """The URL of a PostgreSQL database with the tables of a service."""
    from support.service_databases import service_database_url

    with service_database_url() as url:
        yield url
