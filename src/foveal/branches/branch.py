"""`Branch`: what the block of `with ctx.branch(task)` says about its result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import inf

from foveal.core.engine.branches import kept_in
from foveal.core.log.events import parse_handle
from foveal.errors import BadSetting


class Branch:
    """A part of the work, from the beginning of a `with` block to its end.

    `Context.branch` and `Session.branch` return it.

    Args:
        task: What the branch is to do.
        handle: The event with which it began.

    Examples:
        ```python
        import foveal

        ctx = foveal.Context("gpt-4.1")
        with ctx.branch("Find the failing test.") as branch:
            ctx.append({"role": "assistant", "content": "test_dates.py fails."})
            branch.result("test_dates.py fails")
        assert branch.fold == "e4"
        ```
    """

    def __init__(self, task: str, handle: str) -> None:
        self.task: str = task
        """What the branch is to do."""
        self.handle: str = handle
        """The event with which it began."""
        self.fold: str = ""
        """The event that folded it, for `undo` and `expand`; "" while it is open, if it was rewound, and if there
        was nothing to fold."""
        self._result: str | None = None
        self._keep: tuple[int, ...] = ()

    def __repr__(self) -> str:
        return f"<Branch {self.handle}: {'open' if not self.fold else f'folded by {self.fold}'}>"

    def result(self, text: str) -> None:
        """Set what came of the branch. Called again, the newest text counts.

        Args:
            text: What requests show instead of the branch. Without a result, they show the model's last text.

        Raises:
            BadSetting: It is not a text.
        """
        if not isinstance(text, str):
            raise BadSetting("text", text, "a text")
        self._result = text

    def keep(self, *names: str | int) -> None:
        """Keep single events in view when the branch is folded, each with its whole step.

        Args:
            *names: Handles or seqs of events inside the branch.

        Raises:
            UnknownHandle: A handle names no event after the beginning of the branch. For one that is not recorded
                when the block ends, the end of the block raises it, after the branch is folded.
        """
        self._keep += tuple(self._kept_in(names))

    def end(self, fold: str) -> None:
        """Note the event that folded it.

        Args:
            fold: The handle of the event.
        """
        self.fold = fold

    def kept_before(self, end: int) -> Sequence[int]:
        """Return the events to keep that are recorded.

        Args:
            end: The seq of the next event.
        """
        return [seq for seq in self._keep if seq < end]

    def check_kept(self, end: int) -> None:
        """Raise `UnknownHandle` if an event to keep is not recorded.

        Args:
            end: The seq of the next event when the branch ended.
        """
        list(self._kept_in(self._keep, end=end))

    def _kept_in(self, names: Iterable[str | int], *, end: float = inf) -> Iterator[int]:
        seq = parse_handle(self.handle)
        assert seq is not None
        return kept_in(seq, names, end=end)

    def result_after(self, error: BaseException | None) -> str | None:
        """Return what came of the block; None if nothing was said.

        Args:
            error: The error that ended the block, whose text the result begins with; None if none did.
        """
        if error is None:
            return self._result
        problem = f"{type(error).__name__}: {error}".rstrip(": ")
        return problem if self._result is None else f"{problem}\nUntil then: {self._result}"
