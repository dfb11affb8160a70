"""Search over the log and over what requests showed of it."""

from __future__ import annotations

import time

import pytest

from foveal.core.log import (
    AnyFact,
    Call,
    Clipped,
    Compacted,
    Event,
    Instructed,
    Mask,
    Masked,
    ModelSaid,
    Noted,
    Pinned,
    ToolReturned,
    UserSaid,
)
from foveal.errors import BadSetting
from foveal.inspector.api import MAX_TEXT_HITS, TextHits, search_log


def events(*facts: AnyFact) -> list[Event]:
    return [Event(seq, fact) for seq, fact in enumerate(facts)]


LOG = events(
    Instructed(content="Careful with Kestrel."),
    UserSaid(content="Where is KESTREL-7?"),
    ModelSaid(content=(Call(id="c", name="bash", arguments='{"command": "grep \\"kestrel-7\\" .\\nls"}'),)),
    ToolReturned(call_id="c", content="one\nkestrel-7 is in hangar 4\nthree"),
    Clipped(target=3, pieces=((0, 3), "[… 2 lines …]")),
    Clipped(target=3, pieces=((4, 20), "[… 1 line …]")),
    Masked(
        masks=(Mask(target=3, text="[masked; names: kestrel-7]"), Mask(target=2, text="[masked]", part=0))
    ),
    Compacted(first=1, last=3, summary="The aircraft is in hangar 4."),
    Pinned(text="kestrel-7 stays on the ground"),
    Noted(text="kestrel-7 is a note"),
)


def test_every_version_that_contains_the_text_is_found_newest_first() -> None:
    assert search_log(LOG, "kestrel-7") == TextHits(
        q="kestrel-7", hits=(("e8", -1), ("e3", 6), ("e3", 5), ("e3", -1), ("e2", -1), ("e1", -1))
    )
    assert search_log(LOG, "Hangar 4").hits == (("e7", -1), ("e3", -1))


def test_the_placeholders_of_a_cut_are_versions_of_what_they_stand_for() -> None:
    cut = Compacted(first=3, last=3, summary="Kestrel.", masks=(Mask(target=3, text="[masked; kestrel-7]"),))
    assert search_log([*LOG[:4], Event(4, cut)], "kestrel-7]").hits == (("e3", 4),)
    assert search_log([*LOG[:4], Event(4, cut)], "kestrel").hits[:2] == (("e4", -1), ("e3", 4))


def test_arguments_are_searched_as_text_and_as_the_values_they_mean() -> None:
    assert search_log(LOG, 'grep "kestrel').hits == search_log(LOG, 'grep \\"kestrel').hits == (("e2", -1),)


def test_the_text_of_a_marker_belongs_to_the_clip_that_wrote_it() -> None:
    assert search_log(LOG, "2 lines").hits == (("e3", 4),)


def test_the_newest_hits_are_returned_if_there_are_too_many() -> None:
    found = search_log(events(*[UserSaid(content="the same")] * (MAX_TEXT_HITS + 1)), "same")
    assert (found.hits[0], found.hits[-1], len(found.hits), found.truncated) == (
        ("e500", -1), ("e1", -1), MAX_TEXT_HITS, True,
    )  # fmt: skip


@pytest.mark.parametrize("q", ["", "a", "x" * 1_001])
def test_a_text_that_is_too_short_or_too_long_is_refused(q: str) -> None:
    with pytest.raises(BadSetting):
        search_log(LOG, q)


def test_a_log_of_50_megabytes_is_searched_within_a_second_of_cpu_time() -> None:
    text = "a line of output with a number 12345 and a path src/module.py\n" * 800
    log = (Event(seq, ToolReturned(call_id="c", content=text)) for seq in range(1_000))
    started = time.process_time()
    assert search_log(log, "not in it").hits == ()
    assert time.process_time() - started < 2  # about 0.1 s on an idle machine
