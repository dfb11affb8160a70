"""Who is on the other side: a person at a terminal, a pipe, or a program that reads JSON; one door for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from foveal.apps.cli.chat.rows import Row
from foveal.happenings import Happening
from foveal.report import Report

Answer = Literal["y", "n", "a"]


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """Something that only the user can decide."""

    text: str
    details: tuple[Row, ...] = ()
    """What is shown with it."""
    always: str = ""
    """What `a` would allow from now on; "" when there is no such answer."""
    stays: bool = True
    """It waits for its answer; otherwise any other line is a no."""
    alone: Answer = "n"
    """The answer where nobody can be asked …"""
    advice: str = ""
    """… and what to do about it."""


class Front(Protocol):
    @property
    def asks(self) -> bool:
        """Somebody is there to be asked."""
        ...

    def show(self, rows: Sequence[Row]) -> None:
        """What a command was asked for."""
        ...

    def tell(self, rows: Sequence[Row]) -> None:
        """What should be known beside the answer."""
        ...

    def failed(self, problem: str, *, sort: str = "") -> None:
        """One clear message; what was said and stored is intact."""
        ...

    def began(self, text: str) -> None:
        """A message is being worked on."""
        ...

    def happened(self, happening: Happening) -> None: ...

    def ended(self) -> None:
        """Whatever was being worked on is done, in one way or another."""
        ...

    def status(self, report: Report) -> None: ...

    def progress(self, stage: str, detail: str = "") -> None:
        """What is being waited for, and how far it is; "" when nothing is."""
        ...

    @property
    def colours(self) -> bool: ...

    @property
    def width(self) -> int:
        """Columns."""
        ...

    async def ask(self, question: Question) -> Answer: ...
