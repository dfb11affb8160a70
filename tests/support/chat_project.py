"""A project folder with a chat in it: in a terminal, in a pipe, or in this process."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from foveal.agent.terminal.chat_loop import ChatLoop
from foveal.agent.terminal.chat_state import ChatState
from foveal.agent.terminal.options import ChatOptions
from foveal.agent.terminal.user_interface import PlainOutput
from foveal.core.log import Event, UserSaid, text_of
from foveal.core.tokens import MessageTokens
from foveal.core.tokens.counter import counter
from foveal.core.view.fold import fold
from foveal.core.view.request import Fitted
from foveal.stores import open_store
from support import warm_start
from support.commands_here import run_here
from support.legality import check_chat
from support.terminal import Terminal

PROVIDER: Final = """
import asyncio, time
from pathlib import Path
from foveal.errors import ProviderError
from foveal.testing import Scripted

class Held(Scripted):
    pieces_until_held = {held_after}

    async def send(self, request, *, max_tokens):
        async for piece in super().send(request, max_tokens=max_tokens):
            while self.pieces_until_held == 0 and not Path({gate!r}).exists():
                await asyncio.sleep(0.01)
            self.pieces_until_held -= 1
            yield piece

def make(name, *, environment, window, progress):
    if name == "broken/model":
        raise ProviderError("no provider is known for 'broken/model'; possible are …", code="refused")
    return Held({answers}, window={window} or window or 0, name=name or "scripted/model", delay={delay})
"""


class ChatProject:
    """A project folder, a store, and a provider that answers from a script."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "project"
        self.store = folder / "chats.db"
        self.home = folder
        self._gate = folder / "released"
        self.folder.mkdir()
        (self.folder / "a.txt").write_text("one\ntwo\n")
        self.script("Hello **you**.")

    def script(
        self, *answers: Any, delay: float = 0.0, window: int = 0, code: str = "", held_after: int = -1
    ) -> None:
        """Set the answers of the model. It waits for `release` after `held_after` pieces, if that is not negative:
        each line of an answer is a piece, and so is its end."""
        listed = ", ".join(map(repr, answers)) or code
        self._gate.unlink(missing_ok=True)
        (self.home / "script.py").write_text(
            PROVIDER.format(
                answers=listed, delay=delay, window=window, held_after=held_after, gate=str(self._gate)
            )
        )

    def release(self) -> None:
        """Let a model that is held go on."""
        self._gate.touch()

    @property
    def env(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FOVEAL_", "XDG_"))}
        kept.pop("NO_COLOR", None)
        return {
            **kept,
            "FOVEAL_PROVIDER": "script:make",
            "FOVEAL_STORE": str(self.store),
            "FOVEAL_TOOLS_SANDBOX": "off",  # the same on machines with and without one; tests of it pass "auto"
            "PYTHONPATH": str(self.home),
            "PYTHONUTF8": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "TERM": "xterm-256color",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # a `foveal` that is this one
            "HOME": str(self.home),
        }

    def terminal(
        self,
        *args: object,
        env: Mapping[str, str] | None = None,
        is_cold: bool = False,
        has_quick_questions: bool = True,
        **how: Any,
    ) -> Terminal:
        """Open a chat in a terminal. Its questions take keys after a tenth of the usual time, unless the test is
        about that, or the chat is a new interpreter."""
        if has_quick_questions and not is_cold:
            how = {"command": (sys.executable, "-m", "support.quick_questions"), **how}
        env = {**self.env, **(env or {})}
        return Terminal("chat", *args, env=env, cwd=self.folder, is_cold=is_cold, **how)

    def run_piped(
        self,
        *args: object,
        input: str = "",
        env: Mapping[str, str] | None = None,
        has_process: bool = False,
        is_cold: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, without a terminal. `has_process` starts a process for it, and `is_cold` a new
        interpreter."""
        env = {**self.env, **(env or {})}
        if not (has_process or is_cold):
            done = run_here(args, input=input.encode(), env=env, cwd=self.folder)
            return subprocess.CompletedProcess(
                done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
            )
        command = ["-m", "foveal.cli", *map(str, args)]
        if not is_cold:
            return warm_start.run(command, input=input, env=env, cwd=self.folder, encoding="utf-8")
        return subprocess.run(
            [sys.executable, *command],
            input=input, env=env, cwd=self.folder, capture_output=True, encoding="utf-8", timeout=240, check=False,
        )  # fmt: skip

    def events(self, session: str = "s") -> list[Event]:
        async def read() -> list[Event]:
            async with open_store(self.store) as store:
                return await store.read(session)

        return asyncio.run(read())

    def request(self, session: str = "s") -> list[dict[str, Any]]:
        """Return the next request, after checking that it is legal."""
        messages = Fitted.of(fold(self.events(session), MessageTokens(counter("estimate")))).to_openai()
        check_chat(messages)
        return messages

    def user_messages(self, session: str = "s") -> list[str]:
        return [
            text_of(event.fact.content) for event in self.events(session) if isinstance(event.fact, UserSaid)
        ]


class InProcessChat:
    """A chat without a process; `send` returns what a line prints."""

    def __init__(self, loop: ChatLoop, out: io.StringIO, err: io.StringIO) -> None:
        self.loop, self.out, self.err = loop, out, err

    async def send(self, text: str) -> str:
        """Return what a line prints; errors begin with ✗."""
        self.out.seek(0), self.out.truncate()
        self.err.seek(0), self.err.truncate()
        before = self.loop.failures
        await self.loop.handle(text)
        if self.loop.failures > before:
            return "✗ " + self.err.getvalue().removeprefix("foveal: ")
        return self.out.getvalue()

    @property
    def state(self) -> ChatState:
        return self.loop.state


def run_chat(
    project: ChatProject,
    monkeypatch: pytest.MonkeyPatch,
    steps: Callable[[InProcessChat], Any],
    *,
    sandbox: str = "off",
    **options: Any,
) -> None:
    """Open a chat in this process and run steps on it."""
    for name in [name for name in os.environ if name.startswith("FOVEAL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("FOVEAL_PROVIDER", "script:make")
    monkeypatch.setenv("FOVEAL_TOOLS_SANDBOX", sandbox)
    monkeypatch.setenv("HOME", str(project.home))
    monkeypatch.syspath_prepend(str(project.home))
    monkeypatch.delitem(sys.modules, "script", raising=False)

    async def run() -> None:
        out, err = io.StringIO(), io.StringIO()
        ui = PlainOutput(out=out, err=err)
        given = ChatOptions(store=project.store, folder=project.folder, **{"session": "s", **options})
        async with AsyncExitStack() as stack:
            state = await ChatState.open(given, ui, stack)
            await steps(InProcessChat(ChatLoop(state, ui), out, err))

    asyncio.run(run())
