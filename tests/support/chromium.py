"""Chromium for tests of pages: one browser for all tests of a process, and pages that record what they do.

Playwright's synchronous API keeps an event loop running in its thread, in which `asyncio.run` then fails. So the
browser has a thread of its own, and `tests/inspector/browser/conftest.py` runs its tests there.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar
from urllib.parse import urlsplit

import pytest

from support.waiting import DEADLINE_S

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Playwright, Request

T = TypeVar("T")
Theme = Literal["light", "dark"]
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
        self._idle: Page | None = None

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
    def page(
        self, *, size: tuple[int, int] = DESKTOP, color_scheme: Theme = "light", **settings: Any
    ) -> Iterator[WatchedPage]:
        """Open a page without cookies and storage; call it in the browser's thread.

        A page without further settings is used again, empty, by the next test: one of a new process takes twice as
        long to show something."""
        page = None if settings else self._take()
        if page is None:
            page = self._new_page(settings)
        page.set_viewport_size({"width": size[0], "height": size[1]})
        page.emulate_media(color_scheme=color_scheme)
        is_reusable = False
        with WatchedPage(page) as watched:
            try:
                yield watched
                is_reusable = not settings
            finally:
                if not is_reusable or self._idle is not None:
                    page.context.close()
        if is_reusable and not page.is_closed():
            self._idle = emptied(page, watched.origins())

    def _take(self) -> Page | None:
        """Return the page that a test has left, if no other one uses it."""
        page, self._idle = self._idle, None
        return page

    def _new_page(self, settings: dict[str, Any]) -> Page:
        assert self._browser is not None
        context = self._browser.new_context(timezone_id="UTC", locale="en-GB", **settings)
        context.set_default_timeout(WAIT_MS)
        return context.new_page()


def emptied(page: Page, origins: set[str]) -> Page:
    """Return a page as it was before a test used it: no document, routes, cookies, storage and other tabs."""
    for other in page.context.pages:
        if other is not page:
            other.close()
    page.unroute_all()
    page.evaluate("location.replace('about:blank')")  # in the same process, which `goto` would change
    page.wait_for_url("about:blank")
    page.evaluate("() => { try { sessionStorage.clear(); } catch { /* A file has none. */ } }")
    session = page.context.new_cdp_session(page)
    for origin in origins:
        session.send("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": "all"})
    session.detach()
    page.context.clear_cookies()
    page.mouse.move(0, 0)
    return page


class WatchedPage:
    """A page with what it asked for, what it said on the console, and the dialogs that it opened."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.urls: list[str] = []
        self.complaints: list[str] = []
        """Errors and warnings of the console, errors of scripts, and dialogs of the browser."""
        self._watches: dict[Any, Any] = {
            "request": self._on_request,
            "console": self._on_console,
            "pageerror": self._on_error,
            "dialog": self._on_dialog,
        }

    def __enter__(self) -> Self:
        for event, watch in self._watches.items():
            self.page.on(event, watch)
        return self

    def __exit__(self, *_: object) -> None:
        for event, watch in self._watches.items():
            self.page.remove_listener(event, watch)

    def origins(self) -> set[str]:
        """Return the origins that the page asked for something, which may have stored something."""
        found = map(urlsplit, self.urls)
        return {f"{url.scheme}://{url.netloc}" for url in found if url.scheme in ("http", "https", "file")}

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

    def _on_error(self, error: object) -> None:
        self.complaints.append(f"error: {error}")

    def _on_dialog(self, dialog: Dialog) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()
