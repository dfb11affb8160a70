"""Measures the inspector in a real Chromium, on a session with 10,000 messages and 50 MB of log.

The timeline and the exported file are measured without a browser, in CPU time as a multiple of one fold of the log,
which depends little on the machine: once with the counts that the session's checkpoint has, and once without. The
commands are measured whole, in CPU seconds from their start.

Times are wall times in the browser, so other work on the machine shows in them. A step of the scrubber is the time
from the input event to the end of the frame that shows it.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeVar

from bench.measure import Row, progress
from bench.processes import cpu_seconds
from bench.work import coding_session
from foveal.core.engine.state import stored_counts
from foveal.core.log import Event
from foveal.core.tokens.counter import counter
from foveal.core.tokens.message_tokens import CountedFact, MessageCounts, MessageTokens
from foveal.core.view.fold import fold
from foveal.core.wire import wire_for
from foveal.inspector.export_data import export_html
from foveal.inspector.sessions.source import SessionAbout
from foveal.inspector.timeline.builder import InspectedSettings, TimelineBuilder
from foveal.inspector.timeline.timeline import Timeline
from foveal.sessions import Session
from foveal.sessions.log_reader import read_slices
from foveal.stores import open_store

T = TypeVar("T")
MESSAGES: Final = 10_000
LOG_BYTES: Final = 50_000_000
MESSAGES_PER_FIT: Final = 40
WINDOW: Final = 200_000
MAX_PAINT_S: Final = 1.0
MAX_LEVELS_S: Final = 2.0
MAX_STEP_S: Final = 0.050
MAX_PAGE_MB: Final = 300
MAX_TIMELINE_FOLDS: Final = 6.0
MAX_COUNTED_TIMELINE_FOLDS: Final = 4.0
MAX_EXPORT_S: Final = 4.0
MAX_OPEN_S: Final = 5.0
MAX_EXPORT_FOLDS: Final = 3.0
STEPS: Final = 200
SCROLL_PX: Final = 1_500
"""Pixels by which a frame scrolls on: a fast flick."""
CHROMIUM_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PANELS: Final = 7
WAIT_MS: Final = 120_000
WATCH: Final = """
new MutationObserver((_, observer) => {
  if (!document.querySelector(".log-body .log-row .level-name")) return;
  observer.disconnect();
  requestAnimationFrame(() => { window.rowsShownAt = performance.now(); });
}).observe(document, { childList: true, subtree: true });
new MutationObserver((_, observer) => {
  if (!document.querySelector(".event-slider:enabled")) return;
  observer.disconnect();
  requestAnimationFrame(() => { window.historyShownAt = performance.now(); });
}).observe(document, { childList: true, subtree: true, attributes: true });
"""
"""Notes when the rows with their levels are there, and when sizes and earlier views are."""
SCRUB: Final = """
async (steps) => {
  const slider = document.querySelector(".event-slider");
  const { port1, port2 } = new MessageChannel();
  const afterFrame = () => new Promise((resolve) => {
    port1.onmessage = resolve;
    requestAnimationFrame(() => port2.postMessage(0));
  });
  const times = [];
  for (let step = 0; step < steps; step += 1) {
    slider.value = String(Math.floor((Number(slider.max) * ((step * 61) % steps)) / steps));
    const start = performance.now();
    slider.dispatchEvent(new Event("input", { bubbles: true }));
    await afterFrame();
    times.push(performance.now() - start);
  }
  return times;
}
"""
SCROLL: Final = """
async (pixels) => {
  const list = document.querySelector(".log-body [role=grid]");
  const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
  list.scrollTop = 0;
  let before = await frame();
  const times = [];
  while (list.scrollTop + list.clientHeight < list.scrollHeight - 1) {
    list.scrollTop += pixels;
    const now = await frame();
    times.push(now - before);
    before = now;
  }
  return times;
}
"""


def rows() -> Iterator[Row]:
    program = next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)
    with tempfile.TemporaryDirectory(prefix="foveal-bench-") as folder:
        path = Path(folder) / "large.db"
        size = asyncio.run(_build(path))
        yield from _cpu_rows(path)
        yield from _command_rows(path)
        if program is None:
            yield Row("first paint of a session", None, limit=MAX_PAINT_S, note="Chromium is not installed")
            return
        with _inspector(path) as (url, seconds, pid):
            about = f"{size.messages:,} messages, {size.bytes / 1e6:,.0f} MB in {size.events:,} events"
            yield Row("foveal inspect: until it answers", seconds, note=f"{about}")
            yield from _page_rows(program, url, pid)


# ── Timeline and export ─────────────────────────────────────────────────────────────────────────────────


def _cpu_rows(path: Path) -> Iterator[Row]:
    """Yield what a timeline and an exported file take, without a browser and without loading the vocabulary."""
    events, counts = asyncio.run(_log(path))
    counter("auto").count(" ")
    progress("inspector: timeline and export …")
    folded, _ = _cpu(lambda: _counted_fold(events))
    settings = InspectedSettings(id="large", window=WINDOW)
    for stored, limit in ((None, MAX_TIMELINE_FOLDS), (counts, MAX_COUNTED_TIMELINE_FOLDS)):
        built, timeline = _cpu(partial(_timeline, events, settings, stored))
        how = "with the counts of the checkpoint" if stored else "counted again"
        note = f"{built:.1f} s of CPU; the fold takes {folded:.1f} s"
        yield Row(f"timeline, {how}: CPU of one fold", built / folded, "×", limit=limit, note=note)
    about = SessionAbout(key="large", id="large", settings={"window": WINDOW})
    exported, page = _cpu(lambda: export_html(about, events, timeline=timeline))
    note = f"{exported:.1f} s of CPU for {len(page) / 1e6:,.0f} MB, beside the timeline"
    yield Row(
        "exported file: CPU of one fold with all counts",
        exported / folded,
        "×",
        limit=MAX_EXPORT_FOLDS,
        note=note,
    )


def _command_rows(path: Path) -> Iterator[Row]:
    """Yield what `foveal inspect --export` takes from its start."""
    progress("inspector: foveal inspect --export …")
    page = path.with_suffix(".html")
    command = [sys.executable, "-m", "foveal.cli", "inspect", str(path), "--window", str(WINDOW)]
    before = _children_s()
    subprocess.run([*command, "--export", str(page)], check=True, stdout=subprocess.DEVNULL)
    note = f"{page.stat().st_size / 1e6:,.0f} MB"
    yield Row("foveal inspect --export: CPU", _children_s() - before, limit=MAX_EXPORT_S, note=note)


def _children_s() -> float:
    """Return the CPU time of the processes that this one has started, and that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def _counted_fold(events: list[Event]) -> None:
    """Fold a log and count all of its messages, as a timeline must."""
    meter = MessageTokens(counter("auto"))
    fold(events, meter)
    for event in events:
        if isinstance(event.fact, CountedFact):
            meter.message(event.seq, event.fact)


def _timeline(
    events: list[Event], settings: InspectedSettings, counts: MessageCounts | None = None
) -> Timeline:
    builder = TimelineBuilder(settings, counts=counts)
    builder.add(events)
    return builder.document()


def _cpu(work: Callable[[], T]) -> tuple[float, T]:
    start = time.process_time()
    made = work()
    return time.process_time() - start, made


async def _log(path: Path) -> tuple[list[Event], MessageCounts | None]:
    """Return the events, and the counts that are stored with them."""
    async with open_store(path) as store:
        end, checkpoint = (await store.info("large")).events, await store.checkpoint("large")
        events = [event async for part in read_slices(store, "large", end=end) for event in part]
        return events, stored_counts(checkpoint.state) if checkpoint is not None else None


# ── The session ──────────────────────────────────────────────────────────────────────────────────────────


class LogSize:
    """How much the log has."""

    def __init__(self) -> None:
        self.messages = self.bytes = self.events = 0


async def _build(path: Path) -> LogSize:
    """Write a session that was reduced while it grew."""
    size, reader = LogSize(), wire_for("openai_chat")
    source = coding_session(seed=7)
    async with open_store(path, durability="normal") as store:
        session = await Session.open(store, "large", model="gpt-4.1", window=WINDOW)
        await session.rename("A session with 10,000 messages")
        while size.messages < MESSAGES:
            progress(f"inspector: message {size.messages:,} of {MESSAGES:,} …")
            batch = [_enlarged(message, size) for message in islice(source, MESSAGES_PER_FIT)]
            await session.append(*(fact for chunk in reader.read(tuple(batch)) for fact in chunk.facts))
            request = await session.fit()
            cached = {"cached_tokens": request.tokens * 9 // 10}
            usage = {
                "prompt_tokens": request.tokens,
                "completion_tokens": 40,
                "prompt_tokens_details": cached,
            }
            await session.observe(usage)
        size.events = session.last + 1
        await session.close()
    return size


def _enlarged(message: dict[str, Any], size: LogSize) -> dict[str, Any]:
    """Return a message with so much text that the log reaches its size, and count it."""
    content = message.get("content")
    if message["role"] == "tool" and isinstance(content, str):
        missing = LOG_BYTES * size.messages // MESSAGES - size.bytes
        message = {**message, "content": content + "\n" + content[: max(0, missing)]}
    size.messages += 1
    size.bytes += len(str(message))
    return message


# ── The server and the browser ───────────────────────────────────────────────────────────────────────────


@contextmanager
def _inspector(path: Path) -> Iterator[tuple[str, float, int]]:
    """Start `foveal inspect`; yields the address, the seconds until it was printed, and the process."""
    command = [sys.executable, "-m", "foveal.cli", "inspect", str(path), "--window", str(WINDOW)]
    start = time.perf_counter()
    process = subprocess.Popen([*command, "--no-open", "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        yield found[0], time.perf_counter() - start, process.pid
    finally:
        process.terminate()
        process.wait()


def _page_rows(program: str, url: str, server: int) -> Iterator[Row]:
    from playwright.sync_api import sync_playwright

    arguments = ["--no-sandbox", "--disable-dev-shm-usage", "--enable-precise-memory-info"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.set_default_timeout(WAIT_MS)
        page.add_init_script(WATCH)
        for when in ("first", "second"):
            yield from _load_rows(page, url, server, when)
        yield from _motion_rows(page)
        yield _memory_row(page, browser)
        browser.close()


def _load_rows(page: Any, url: str, server: int, when: str) -> Iterator[Row]:
    progress(f"inspector: {when} load …")
    before = cpu_seconds(server)
    page.goto(url)
    page.locator(".event-slider:enabled").wait_for()
    page.wait_for_timeout(500)
    painted = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
    paint, levels, history = page.evaluate(f"[{painted}, window.rowsShownAt, window.historyShownAt]")
    yield Row(
        f"{when} load: first paint", paint / 1000, limit=MAX_PAINT_S, note="the newest events as plain rows"
    )
    yield Row(f"{when} load: until all rows have their levels", levels / 1000, limit=MAX_LEVELS_S)
    yield Row(f"{when} load: until sizes and earlier views are there", history / 1000)
    cpu = cpu_seconds(server) - (0.0 if when == "first" else before)  # the first load includes the start
    yield Row(f"{when} load: CPU of the server", cpu, limit=MAX_OPEN_S)


def _motion_rows(page: Any) -> Iterator[Row]:
    progress("inspector: scrubbing …")
    page.evaluate(SCRUB, 20)  # compiles what the steps run
    meter = _meter(page)  # one for both: durations count from where it begins
    before = _busy_s(meter)
    times = [each / 1000 for each in page.evaluate(SCRUB, STEPS)]
    note = (
        f"to any other event; {(_busy_s(meter) - before) / STEPS * 1000:.0f} ms of CPU of the page's thread"
    )
    yield Row(f"step of the scrubber: median of {STEPS}", median(times), limit=MAX_STEP_S, note=note)
    yield Row(f"step of the scrubber: longest of {STEPS}", max(times), limit=MAX_STEP_S)
    progress("inspector: scrolling …")
    before = _busy_s(meter)
    frames = page.evaluate(SCROLL, SCROLL_PX)
    cpu_ms = (_busy_s(meter) - before) / len(frames) * 1000
    slow = sum(each > MAX_STEP_S * 1000 for each in frames)
    note = f"of {len(frames):,} with {SCROLL_PX:,} px; longest {max(frames):.0f} ms, CPU {cpu_ms:.0f} ms each"
    yield Row("scrolling through all rows: frames over 50 ms", slow, "frames", limit=0, note=note)


def _memory_row(page: Any, browser: Any) -> Row:
    """Walk through all panels and several messages, and measure what the page keeps."""
    progress("inspector: walking through the panels …")
    for panel in range(1, PANELS + 1):
        page.keyboard.press(str(panel))
        page.wait_for_timeout(700)
    page.keyboard.press("1")
    for _ in range(30):
        page.keyboard.press("k")
        page.keyboard.press("Enter")
        page.wait_for_timeout(150)
    metrics = _metrics(_meter(page))
    processes = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    private = max(_private_mb(each["id"]) for each in processes if each["type"] == "renderer")
    note = f"script heap {metrics['JSHeapUsedSize'] / 1e6:,.0f} MB, {metrics['Nodes']:,.0f} nodes"
    return Row("memory of the page after a walk through it", private, "MB", MAX_PAGE_MB, note)


def _meter(page: Any) -> Any:
    """Return a connection that measures a page; durations are CPU time, which other processes do not change."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    return session


def _metrics(meter: Any) -> dict[str, float]:
    """Return what the browser knows of a page."""
    found = meter.send("Performance.getMetrics")["metrics"]
    return {each["name"]: each["value"] for each in found}


def _busy_s(meter: Any) -> float:
    """Return the CPU time that the thread of the page has used for tasks."""
    return _metrics(meter)["TaskDuration"]


def _private_mb(pid: int) -> float:
    """Return the memory that only this process uses."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return (
        sum(int(kilobytes) for kilobytes in re.findall(r"^Private_\w+:\s+(\d+) kB", text, re.MULTILINE)) / 1e3
    )
