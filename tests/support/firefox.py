"""Firefox for tests of pages, driven over WebDriver BiDi, which Firefox speaks itself.

Playwright drives only a Firefox of its own, so this is a small client for the installed one: a page is opened, and
expressions are evaluated in it. A headless Firefox gives a page no focus, so keys are tested in Chromium.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from support.waiting import DEADLINE_S

FIREFOX_NAMES: Final = ("firefox-esr", "firefox")
_ADDRESS: Final = re.compile(rb"WebDriver BiDi listening on (ws://[^\s]+)")
_POLL_S: Final = 0.05
_SETTINGS: Final = """\
user_pref("browser.shell.checkDefaultBrowser", false);
user_pref("browser.startup.page", 0);
user_pref("datareporting.policy.dataSubmissionEnabled", false);
user_pref("network.captive-portal-service.enabled", false);
user_pref("network.connectivity-service.enabled", false);
user_pref("app.normandy.enabled", false);
user_pref("services.settings.server", "data:,");
user_pref("toolkit.telemetry.enabled", false);
"""
"""No page of the browser itself, and no requests to its maker."""


class FirefoxPage:
    """One tab. `complaints` has the errors and warnings of its console."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._last = 0
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._reading = asyncio.ensure_future(self._read())
        self._context = ""
        self.complaints: list[str] = []

    async def start(self) -> None:
        """Begin a session, and take the first tab."""
        await self._send("session.new", capabilities={})
        await self._send("session.subscribe", events=["log.entryAdded"])
        tree = await self._send("browsingContext.getTree")
        self._context = tree["contexts"][0]["context"]

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.wait({self._reading})

    async def size(self, width: int, height: int) -> None:
        """Set the size of the page in CSS pixels."""
        viewport = {"width": width, "height": height}
        await self._send("browsingContext.setViewport", context=self._context, viewport=viewport)

    async def goto(self, url: str) -> None:
        """Load a page, and wait until its scripts have run. Firefox complains of the live stream of the
        page that it leaves."""
        known = len(self.complaints)
        await self._send("browsingContext.navigate", context=self._context, url=url, wait="complete")
        self.complaints[known:] = [text for text in self.complaints[known:] if "/api/live" not in text]

    async def evaluate(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript; it must be JSON."""
        found = await self._send(
            "script.evaluate",
            expression=f"JSON.stringify({expression})",
            target={"context": self._context},
            awaitPromise=True,
        )
        assert found["type"] == "success", found["exceptionDetails"]["text"]
        return json.loads(found["result"].get("value", "null"))

    async def until(self, expression: str) -> None:
        """Wait until an expression is true."""
        async with asyncio.timeout(DEADLINE_S):
            while not await self.evaluate(f"Boolean({expression})"):
                await asyncio.sleep(_POLL_S)

    async def _send(self, method: str, **params: Any) -> Any:
        self._last += 1
        answer = self._answers[self._last] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._last, "method": method, "params": params})
        async with asyncio.timeout(DEADLINE_S):
            return await answer

    async def _read(self) -> None:
        async for message in self._socket:
            said = json.loads(message.data)
            if said["type"] == "event":
                entry = said["params"]
                if entry["level"] in ("error", "warn"):
                    self.complaints.append(f"{entry['level']}: {entry['text']}")
            elif said["type"] == "error":
                problem = AssertionError(f"{said['error']}: {said['message']}")
                self._answers.pop(said["id"]).set_exception(problem)
            else:
                self._answers.pop(said["id"]).set_result(said["result"])


@asynccontextmanager
async def firefox_page(profile: Path) -> AsyncIterator[FirefoxPage]:
    """Start Firefox with a new profile in a folder, and yield its tab; skips the test where there is none."""
    program = next(filter(None, map(shutil.which, FIREFOX_NAMES)), None)
    if program is None:
        pytest.skip("Firefox is not installed: apt-get install firefox-esr")
    (profile / "user.js").write_text(_SETTINGS, "utf-8")
    arguments = ("--headless", "--no-remote", "--profile", str(profile), "--remote-debugging-port", "0")
    process = await asyncio.create_subprocess_exec(
        program, *arguments, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    try:
        address = await _address(process)
        async with (
            aiohttp.ClientSession() as client,
            client.ws_connect(f"{address}/session", max_msg_size=0) as socket,
        ):
            page = FirefoxPage(socket)
            await page.start()
            try:
                yield page
            finally:
                await page.close()
    finally:
        process.terminate()
        await process.wait()


async def _address(process: asyncio.subprocess.Process) -> str:
    """Return where Firefox listens, which it prints when it is ready."""
    assert process.stderr is not None
    async with asyncio.timeout(DEADLINE_S):
        while line := await process.stderr.readline():
            if found := _ADDRESS.search(line):
                return found[1].decode()
    raise AssertionError("Firefox ended before it listened")
