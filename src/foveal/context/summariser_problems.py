"""Tells once that a summariser has raised an error."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from foveal.core.wire.safe_print import one_line
from foveal.errors import SummariserFailed


class SummariserProblems:
    """The errors of the summarisers of one context."""

    def __init__(self) -> None:
        self._is_told = False

    def add(self, errors: Sequence[Exception]) -> None:
        """Warn of the first error."""
        if errors and not self._is_told:
            self._is_told = True
            warnings.warn(
                SummariserFailed(one_line(f"{type(errors[0]).__name__}: {errors[0]}")), stacklevel=2
            )
