"""References dangle exactly when something that they refer to has changed or left since they were made."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given

from foveal.core.log import Clipped, Event, Masked
from foveal.core.tokens import MessageTokens
from foveal.core.view import advance, effective_events
from foveal.core.view.fold import fold
from foveal.core.view.view import View
from support.histories import ESTIMATE
from support.line_logs import line_logs
from support.paths import TESTS
from support.rereading import rereading_log

WRITE_THE_LOG = (
    "import sys; from support.rereading import rereading_log; sys.stdout.buffer.write(rereading_log())"
)


def dangling(view: View, log: list[Event]) -> list[tuple[int, int]]:
    """Return the shown references of which a source has left, or was changed after they were made."""
    changes: dict[int, list[int]] = {}
    for event in effective_events(log):
        fact = event.fact
        if isinstance(fact, Clipped):
            changes.setdefault(fact.target, []).append(event.seq)
        elif isinstance(fact, Masked):
            for mask in fact.masks:
                changes.setdefault(mask.target, []).append(event.seq)
    found: list[tuple[int, int]] = []
    for step in view.steps:
        for shown in step.shown_messages():
            for part, overlay in (shown.overlays or {}).items():
                is_valid = all(
                    view.find(source) is not None
                    and not any(seq > overlay.owner for seq in changes.get(source, ()))
                    for source in overlay.sources
                )
                if not is_valid and not shown.is_masked:
                    found.append((shown.seq, part))
    return sorted(found)


@given(line_logs(60))
def test_a_reference_dangles_when_a_source_has_changed_or_left(log: list[Event]) -> None:
    view = View(MessageTokens(ESTIMATE))
    for at, event in enumerate(log):
        view = advance(view, event, log[: at + 1])
        assert list(view.references.dangling()) == dangling(view, log[: at + 1])
        assert bool(view.references) == bool(dangling(view, log[: at + 1]))


@given(line_logs(60))
def test_folding_a_log_again_finds_the_same_dangling_references(log: list[Event]) -> None:
    view = View(MessageTokens(ESTIMATE))
    for at, event in enumerate(log):
        view = advance(view, event, log[: at + 1])
    again = fold(log, MessageTokens(ESTIMATE))
    assert list(again.references.dangling()) == list(view.references.dangling())


@pytest.mark.long
def test_every_process_writes_the_same_log_whatever_its_hash_seed() -> None:
    other = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"  # than that of this process
    done = subprocess.run(
        [sys.executable, "-c", WRITE_THE_LOG],
        env=os.environ | {"PYTHONHASHSEED": other, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
        capture_output=True,
        check=True,
    )
    assert done.stdout == rereading_log()
    assert b" lines as above" in done.stdout
    assert b"foveal: record of" in done.stdout
