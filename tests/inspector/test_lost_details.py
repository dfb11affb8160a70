"""What a compaction lost: rules, requests, errors, names and paths."""

from __future__ import annotations

import time

import pytest

from foveal.core.log.events import (
    AnyFact,
    Call,
    Compacted,
    Dropped,
    Event,
    Instructed,
    Mask,
    ModelSaid,
    ToolReturned,
    UserSaid,
)
from foveal.errors import UnknownHandle
from foveal.inspector.timeline.lost_details import MAX_LOST_DETAILS, LostDetail, LostDetails, lost_details
from foveal.inspector.timeline.message_text import LogViews

TASK = (
    "Add VAT for Switzerland to the cart. Never touch migrations/0007_prices.py. "
    "The staging database is db-zh-7.internal."
)
FAILED = "..F\nFAILED tests/test_tax.py::test_rounding - AssertionError: 10.805 != 10.81\n1 failed, 2 passed"


def begin() -> list[AnyFact]:
    return [
        UserSaid(content=TASK),
        ModelSaid(content=(Call(id="c1", name="read", arguments='{"path": "shop/cart/total.py"}'),)),
        ToolReturned(call_id="c1", content="def add_tax(price): ...\nimport round_half_up", name="read"),
        ModelSaid(content=(Call(id="c2", name="bash", arguments='{"command": "pytest tests/test_tax.py"}'),)),
        ToolReturned(call_id="c2", content=FAILED, name="bash"),
    ]


def lost(*facts: AnyFact, at: int | None = None) -> LostDetails:
    log = [Event(seq, fact) for seq, fact in enumerate(facts)]
    found = [event.seq for event in log if isinstance(event.fact, Compacted | Dropped)]
    return lost_details(log, found[-1] if at is None else at, views=LogViews())


def summary(text: str, last: int = 4) -> Compacted:
    return Compacted(first=0, last=last, summary=text, reason="recorded")


def test_rules_come_first_and_then_requests_errors_names_used_again_and_other_paths() -> None:
    later = (
        ModelSaid(content="I call round_half_up in shop/cart/item.py now."),
        ModelSaid(content="And round_half_up again."),
    )
    assert lost(*begin(), summary("The user wants VAT for Switzerland in the cart."), *later) == LostDetails(
        event=5,
        at=5,
        details=(
            LostDetail(kind="rule", text="Never touch migrations/0007_prices.py.", key="e0"),
            LostDetail(kind="request", text="The staging database is db-zh-7.internal.", key="e0"),
            LostDetail(
                kind="error",
                text="FAILED tests/test_tax.py::test_rounding - AssertionError: 10.805 != 10.81",
                key="e4",
            ),
            LostDetail(kind="name", text="round_half_up", key="e2", again=6),
            LostDetail(kind="path", text="tests/test_tax.py", key="e3"),
            LostDetail(kind="path", text="shop/cart/total.py", key="e1"),
            LostDetail(kind="path", text="migrations/0007_prices.py", key="e0"),
        ),
    )


def test_what_the_summary_says_in_similar_words_is_not_lost() -> None:
    text = """- task: VAT for Switzerland in the cart
- must not touch 0007_prices.py in migrations/0007_prices.py
- staging database: db-zh-7.internal
- tests/test_tax.py::test_rounding fails with AssertionError 10.805 != 10.81
- read cart/total.py"""
    assert lost(*begin(), summary(text)).details == ()


def test_what_the_rest_of_the_request_shows_is_not_lost() -> None:
    system = Instructed(content="Never touch migrations/0007_prices.py. Files: cart/total.py, test_tax.py")
    found = lost(system, *begin(), Compacted(first=1, last=5, summary="VAT.", keep=(1,)))
    assert [(detail.kind, detail.key) for detail in found.details] == [("error", "e5")]


def test_messages_that_another_program_records_behind_its_summary_count_as_kept() -> None:
    found = lost(*begin(), summary("VAT."), UserSaid(content=TASK), ModelSaid(content="Go on."))
    assert found.at == 6
    assert [detail.kind for detail in found.details] == ["error", "path", "path"]


def test_a_rule_that_an_earlier_summary_kept_is_lost_by_the_later_one() -> None:
    first = summary("VAT for Switzerland. Never touch migrations/0007_prices.py.")
    second = summary("VAT for Switzerland is done.", last=6)
    found = lost(*begin(), first, UserSaid(content="Go on."), second)
    assert [(detail.kind, detail.text, detail.key) for detail in found.details] == [
        ("rule", "Never touch migrations/0007_prices.py.", "e0"),
        ("path", "migrations/0007_prices.py", "e5"),
    ]
    again = lost(*begin(), summary("VAT for Switzerland."), UserSaid(content="Go on."), second)
    assert again.details == ()


def test_dropped_messages_are_compared_in_the_same_way() -> None:
    found = lost(*begin(), UserSaid(content="Go on."), Dropped(ranges=((0, 4),), reason="recorded"))
    assert [detail.kind for detail in found.details] == ["rule", "request", "error", "path", "path", "path"]


def test_pasted_text_and_short_answers_are_not_missed() -> None:
    pasted = "```\nthe log says that nothing was found here\n```"
    facts = UserSaid(content="yes"), UserSaid(content=pasted), ModelSaid(content="ok")
    assert lost(*facts, summary("Nothing.", last=2)).details == ()


def test_only_compactions_and_drops_have_lost_details() -> None:
    with pytest.raises(UnknownHandle, match="no compaction has the handle 'e3'"):
        lost(*begin(), summary("x"), at=3)
    with pytest.raises(UnknownHandle):
        lost(*begin(), summary("x"), at=99)


def test_five_megabytes_are_compared_within_a_second_of_cpu_time() -> None:
    text = "\n".join(f"{n}\tsrc/mod_{n}/file_{n}.py: value_{n} = compute({n})" for n in range(1_000))
    facts: list[AnyFact] = []
    for n in range(100):
        call = Call(
            id=f"c{n}", name="bash", arguments=f'{{"command": "cat src/mod_{n}/file_{n}.py value_{n}"}}'
        )
        facts += [
            UserSaid(content=f"Always check number {n} of the large list of modules."),
            ModelSaid(content=(call,)),
            ToolReturned(call_id=f"c{n}", content=text, name="bash"),
        ]
    last = len(facts) - 1
    later = [ModelSaid(content=f"value_{n} is in src/mod_{n}/file_{n}.py") for n in range(500)]
    started = time.process_time()
    found = lost(*facts, summary("Nothing.", last=last), *later)
    assert time.process_time() - started < 3  # about 0.3 s on an idle machine
    assert len(found.details) == MAX_LOST_DETAILS
    assert {detail.kind for detail in found.details} >= {"rule", "name", "path"}
    assert found.left_out > 0


def test_a_cut_loses_what_the_placeholders_do_not_say() -> None:
    masks = (
        Mask(target=2, text="[foveal: read; whole text: e2]"),
        Mask(target=4, text="[foveal: bash; 1 failed]"),
    )
    cut = Compacted(first=2, last=4, keep=(3,), summary="The cart was read.", by="ledger", masks=masks)
    assert lost(*begin(), cut, ModelSaid(content="I call round_half_up now.")).details == (
        LostDetail(
            kind="error",
            text="FAILED tests/test_tax.py::test_rounding - AssertionError: 10.805 != 10.81",
            key="e4",
        ),
        LostDetail(kind="name", text="round_half_up", key="e2", again=6),
    )
