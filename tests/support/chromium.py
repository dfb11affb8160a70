"""Chromium for tests of pages: one browser for all tests of a process, and pages that record what they do.

Playwright's synchronous API keeps an event loop running in its thread, in which `asyncio.run` then fails. So the
browser has a thread of its own, and `tests/inspector/browser/conftest.py` runs its tests there.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

import pytest

from support.waiting import DEADLINE_S

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Playwright, Request

T = TypeVar("T")
CHROMIUM_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ATTACKER: Final = "attacker.example"
"""A name that the browser resolves to 127.0.0.1, as an attacker lets it."""
_DISABLED_FEATURES: Final = (
    # Each window of a test would load two hidden pages of the address bar, which takes a second of CPU time.
    "WebUIOmniboxPopup",
    "WebUIOmniboxAimPopup",
    # What Playwright disables on Linux: Chromium takes the last list only.
    "AimEnabled",
    "AvoidCorsURLLoaderRestartOnRedirect",
    "AvoidUnnecessaryBeforeUnloadCheckSync",
    "DestroyProfileOnBrowserClose",
    "HttpsFirstBalancedModeAutoEnable",
    "HttpsUpgrades",
    "LensOverlay",
    "MediaRouter",
    "NetworkTimeServiceQuerying",
    "OptimizationHints",
    "PaintHolding",
    "PreconnectToSearch",
    "ThirdPartyStoragePartitioning",
)
CHROMIUM_ARGUMENTS: Final = (
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    f"--host-resolver-rules=MAP {ATTACKER} 127.0.0.1",
    f"--disable-features={','.join(_DISABLED_FEATURES)}",
)
WAIT_MS: Final = 1_000 * DEADLINE_S
"""Milliseconds that an element may take, on a busy machine."""
DESKTOP: Final = (1280, 900)
_OWN_SCHEMES: Final = ("file", "data", "blob", "about")


class Chromium:
    """The browser and its thread."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="chromium")
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None

    def start(self) -> None:
        """Start the browser; skips the test where there is none."""
        try:
            from playwright.sync_api import sync_playwright
        except ImportError:
            pytest.skip("playwright is not installed: pip install 'foveal[test]'")
        program = next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)
        if program is None:
            pytest.skip("Chromium is not installed: apt-get install chromium")

        def launch() -> None:
            self._playwright = sync_playwright().start()
            arguments = list(CHROMIUM_ARGUMENTS)
            self._browser = self._playwright.chromium.launch(executable_path=program, args=arguments)

        self.run(launch)

    def run(self, act: Callable[[], T]) -> T:
        """Run a function in the browser's thread, and return its result."""
        return self._thread.submit(act).result()

    def close(self) -> None:
        self.run(self._close)
        self._thread.shutdown()

    def _close(self) -> None:
        if self._browser is not None:
            self._browser.close()
        if self._playwright is not None:
            self._playwright.stop()

    @contextmanager
    def page(self, *, size: tuple[int, int] = DESKTOP, **settings: Any) -> Iterator[WatchedPage]:
        """Open a page with cookies and storage of its own; call it in the browser's thread."""
        assert self._browser is not None
        view: Any = {"width": size[0], "height": size[1]}
        context = self._browser.new_context(viewport=view, timezone_id="UTC", locale="en-GB", **settings)
        context.set_default_timeout(WAIT_MS)
        try:
            yield WatchedPage(context.new_page())
        finally:
            context.close()


class WatchedPage:
    """A page with what it asked for, what it said on the console, and the dialogs that it opened."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.urls: list[str] = []
        self.complaints: list[str] = []
        """Errors and warnings of the console, errors of scripts, and dialogs of the browser."""
        page.on("request", self._on_request)
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("dialog", self._on_dialog)

    def hosts(self) -> set[str]:
        """Return the hosts that the page asked for something."""
        found = map(urlsplit, self.urls)
        return {url.netloc for url in found if url.scheme not in _OWN_SCHEMES}

    def check(self, *hosts: str) -> None:
        """Raise `AssertionError` if the page complained, or asked another host."""
        assert self.complaints == [], self.complaints
        assert self.hosts() <= set(hosts), self.hosts()

    def _on_request(self, request: Request) -> None:
        self.urls.append(request.url)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def _on_dialog(self, dialog: Dialog) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()
