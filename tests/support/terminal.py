"""A terminal for tests: a process behind a pseudo-terminal, and the screen as text."""

from __future__ import annotations

import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pyte

from support import warm_start
from support.waiting import DEADLINE_S

LASTING_KEYS: Final = ("s", "p")
SECOND_KEY: Final = re.compile(r" *y (confirms|allows) ")
"""The row of a question, or of switches, that takes the second key."""
CTRL_C, CTRL_D, ENTER, ESCAPE, TAB = "\x03", "\x04", "\r", "\x1b", "\t"


class ScrollingScreen(pyte.Screen):
    """A screen that keeps the text of the lines that have scrolled off it.

    `pyte.HistoryScreen` does so too, but wraps each access to an attribute, and `pyte.Screen.display` draws all
    lines again: with both, reading the screen takes longer than the chat that is tested."""

    def __init__(self, columns: int, rows: int) -> None:
        self.above: list[str] = []
        """The lines that have scrolled off the top."""
        super().__init__(columns, rows)

    @property
    def texts(self) -> list[str]:
        """The lines on the screen, without spaces at their ends."""
        return list(map(self._text_of, range(self.lines)))

    def index(self) -> None:
        top, bottom = self.margins or (0, self.lines - 1)
        if self.cursor.y == bottom:
            self.above.append(self._text_of(top))
        super().index()

    def _text_of(self, y: int) -> str:
        line = self.buffer[y]
        written = min(self.columns, max(line, default=-1) + 1)
        return "".join([line[x].data for x in range(written)]).rstrip()


class Terminal:
    """Runs `foveal …` in a terminal with this many columns and rows.

    `support.warm_start` starts Python programs; with `is_cold`, a new interpreter does, for tests of the start.
    """

    def __init__(
        self,
        *args: object,
        env: Mapping[str, str],
        cwd: Path,
        columns: int = 80,
        rows: int = 24,
        command: Sequence[str] = (sys.executable, "-m", "foveal.cli"),
        is_cold: bool = False,
    ) -> None:
        self.screen = ScrollingScreen(columns, rows)
        self.raw = b""
        """Everything that was written to the terminal."""
        self._stream = pyte.ByteStream(self.screen)
        self._file, inner = os.openpty()
        self.resize(columns, rows)
        try:
            start = _start_cold if is_cold or command[0] != sys.executable else _start_warm
            self._process = start([*command, *args], env, cwd, inner)
        finally:
            os.close(inner)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if problem is not None:
            sys.stderr.write(self.text[-3000:])  # the end of the screen
        self.close()

    @property
    def pid(self) -> int:
        """The process of the program."""
        return self._process.pid

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._file)

    # ── input ───────────────────────────────────────────────────────────────────────────────────────

    def type(self, text: str) -> None:
        data = memoryview(text.encode())
        while data:
            _, writable, _ = select.select([], [self._file], [], 0.01)
            if writable:
                data = data[os.write(self._file, data[:4096]) :]
            self._read(0)

    def enter(self, text: str) -> None:
        self.type(text + ENTER)

    def answer(self, key: str) -> None:
        """Press a key once the open question takes keys, and the second one if the answer lasts."""
        self.see(lambda t: any(line.endswith("(or Enter, Esc)") for line in t.lines))
        self.type(key)
        if key in LASTING_KEYS:
            self.confirm()

    def confirm(self) -> None:
        """Press the second key of an answer that lasts, once it counts."""
        self.see(lambda t: any(SECOND_KEY.match(line) for line in t.lines))
        self.type("y")

    def paste(self, text: str) -> None:
        self.type(f"\x1b[200~{text}\x1b[201~")

    def resize(self, columns: int, rows: int) -> None:
        self.screen.resize(rows, columns)
        fcntl.ioctl(self._file, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    # ── output ──────────────────────────────────────────────────────────────────────────────────────

    @property
    def lines(self) -> list[str]:
        """The lines on the screen."""
        return self.screen.texts

    @property
    def text(self) -> str:
        """The screen and everything that has scrolled off it."""
        return "\n".join([*self.screen.above, *self.lines])

    @property
    def bottom(self) -> str:
        """The last line that is not empty."""
        return next((line for line in reversed(self.lines) if line), "")

    def see(self, wanted: str | Callable[[Terminal], bool], *, seconds: float = DEADLINE_S) -> str:
        """Wait until a text is on the screen, or a condition is true, and return `text`."""
        until = time.monotonic() + seconds
        while not (wanted in self.text if isinstance(wanted, str) else wanted(self)):
            left = until - time.monotonic()
            if left < 0 or not self._read(min(left, 0.1)):
                raise AssertionError(f"never seen: {wanted!r}\n{self.text[-3000:]}")
        return self.text

    def read_for(self, seconds: float) -> None:
        """Read what the program writes for this long."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._read(left)

    def ended(self, *, seconds: float = DEADLINE_S) -> int:
        """Wait for the program to end and return its exit code."""
        until = time.monotonic() + seconds
        while self._read(0.05) and time.monotonic() < until:
            pass
        try:
            return self._process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end\n{self.text[-3000:]}") from None

    def _read(self, seconds: float) -> bool:
        """Read what the program writes; return False when it has ended."""
        ready, _, _ = select.select([self._file], [], [], seconds)
        if ready:
            try:
                data = os.read(self._file, 65536)
            except OSError:
                return False
            if not data:
                return False
            self.raw += data
            self._stream.feed(data)
        return True


def _start_warm(
    command: Sequence[object], env: Mapping[str, str], cwd: Path, inner: int
) -> warm_start.WarmProcess:
    return warm_start.start(
        command[1:], env=env, cwd=cwd, stdin=inner, stdout=inner, stderr=inner, is_terminal=True
    )


def _start_cold(
    command: Sequence[object], env: Mapping[str, str], cwd: Path, inner: int
) -> subprocess.Popen[bytes]:
    def take_terminal() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    return subprocess.Popen(
        list(map(str, command)), env=dict(env), cwd=cwd, stdin=inner, stdout=inner, stderr=inner,
        start_new_session=True, preexec_fn=take_terminal,
    )  # fmt: skip
