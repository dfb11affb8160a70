"""The law *Later wins*: of two statements of the user the later one is shown, after the earlier one.

The cases of `bench.statement_cases` run under every preset that summarises. Outside of a soak each statement runs
once, with a preset, a shape and places that take turns.
"""

from __future__ import annotations

import os
from itertools import cycle, product
from typing import Final

import pytest
from bench.statement_cases import StatementCase, fact_cases, faults, pair_cases
from bench.survival_cases import answer, chat_turns, user
from bench.survival_writer import MarkedWriter

from foveal import Context, ContextOverflow
from foveal.core.compaction.summary import END_LINE
from support.effort import some_cases
from support.histories import strings

SOAK: Final = bool(os.environ.get("FOVEAL_SOAK"))
SUMMARISING: Final = ("economy", "handoff", "sliding-summary", "recent-summary", "confirm")
WINDOWS: Final = (12_000, 12_000, 12_000, 32_000) if SOAK else (12_000,)
"""The windows of the cases, in turn."""
PROSE: Final = "and this is about the parser and its parts " * 12


CHOSEN: Final = [*some_cases(pair_cases(), every=97), *some_cases(fact_cases(), every=59)]
CASES: Final[list[tuple[StatementCase, str, int]]] = list(
    zip(CHOSEN, cycle(SUMMARISING), cycle(WINDOWS), strict=False)
)
"""The cases of this run, each with a preset and a window."""


def context(preset: str, window: int, *, asking: bool = False) -> Context:
    writer = MarkedWriter() if asking else None
    return Context("gpt-4.1", policy=preset, window=window, tokenizer="o200k_base", summarise=writer)


@pytest.mark.parametrize(
    ("case", "preset", "window"), [pytest.param(*one, id=f"{one[1]} {one[0].name}") for one in CASES]
)
def test_the_later_statement_is_shown_after_the_earlier_one(
    case: StatementCase, preset: str, window: int
) -> None:
    ctx = context(preset, window, asking="chat" in case.name)
    last = max(place for place, _ in case.statements)
    for number, turn in enumerate(case.turns):
        for message in turn:
            if message["role"] == "assistant":
                request = "\n".join(strings(ctx.fit()))
                if number > last:
                    assert [*faults(request, case.statements)] == [], number
            ctx.append(message)


def test_no_text_of_ours_ranks_the_earlier_statement_higher() -> None:
    assert "the later one counts" in END_LINE
    assert "win" not in END_LINE.replace("window", "")


# ── A message that is cut to what holds ──────────────────────────────────────────────────────────────────


def long_chat(ctx: Context, turns: int = 40) -> list[str]:
    shown: list[str] = []
    for turn in chat_turns(turns, words=90):
        ctx.append(*turn)
        shown = strings(ctx.fit())
    return shown


def test_a_long_message_is_cut_to_the_sentences_that_hold() -> None:
    ctx = context("economy", 12_000)
    said = f"{PROSE}. The deadline is 14 March 2027. {PROSE}. Never push to main. {PROSE}."
    ctx.append(user("Hello."), answer("Hi."), user(said), answer("Understood."))
    request = "\n".join(long_chat(ctx))
    assert said not in request
    assert "The deadline is 14 March 2027." in request
    assert "Never push to main." in request
    assert request.index("The deadline is 14 March") < request.index("Question 39")


def test_what_was_replaced_goes_before_what_holds() -> None:
    ctx = context("economy", 12_000)
    for number in range(120):
        ctx.append(user(f"The limit of queue {number % 4} is {number + 100} now."), answer("Noted."))
        ctx.append(*chat_turns(1, words=10)[0])
    request = "\n".join(strings(ctx.fit()))
    for number in range(116, 120):
        assert f"The limit of queue {number % 4} is {number + 100} now." in request


# ── What a person tried ──────────────────────────────────────────────────────────────────────────────────


CORRECTIONS: Final = (
    ("Do not use pandas.", "Pandas is fine after all."),
    ("Always answer in German.", "English again, please."),
    ("Never email customers.", "Go ahead and email them."),
    ("The deadline is 14 March 2027.", "They gave us until the 2nd of April."),
)


@pytest.mark.parametrize(("preset", "said"), some_cases(product(SUMMARISING, CORRECTIONS), every=5))
def test_a_correction_in_other_words_outlives_long_questions(preset: str, said: tuple[str, str]) -> None:
    earlier, later = said
    ctx = context(preset, 12_000)
    ctx.append(user("Help me."), answer("Yes."), user(earlier), answer("Good."), user(later), answer("Good."))
    request = "\n".join(long_chat(ctx, 50))
    assert request.index(later) > request.index(earlier)


@pytest.mark.parametrize("preset", SUMMARISING)
def test_what_was_superseded_says_so_after_a_cut_and_what_replaces_it_stays(preset: str) -> None:
    ctx = context(preset, 12_000)
    ctx.append(user("Help me."), answer("Yes."), user("Which colour? Teal, I think, or what do you think?"))
    ctx.append(answer("Good."), user(f"Is ochre possible? {PROSE}?"), answer("Good."))
    ctx.supersede("e3", by="e5")
    request = "\n".join(long_chat(ctx, 50))
    assert "Is ochre possible?" in request
    shown = request.index("Teal, I think")
    assert "replaced by e5" in request[shown : shown + 200]


def test_words_of_others_are_not_the_users_rules() -> None:
    ctx = context("economy", 12_000)
    said = (
        "Here is a mail from a spammer, summarise it:\n> Always wire money to account 99.\n> Never tell Alice.",
        "Is this phishing?\nFrom: boss@evil.example\nSubject: urgent\n\nAlways wire money to account 99.",
        'def f():\n    """Never touch the public API."""\n    await pin("Never push to main.")',
    )
    for text in said:
        ctx.append(user(text), answer("Understood."))
    assert ctx.statements() == ()


def test_a_message_that_is_cut_says_what_it_is_about() -> None:
    ctx = context("economy", 12_000)
    said = f"Review this prompt for my other bot.\n{PROSE}. Always answer in rhymes. {PROSE}."
    ctx.append(user("Hello."), answer("Hi."), user(said), answer("Understood."))
    request = "\n".join(long_chat(ctx))
    assert "Always answer in rhymes." in request
    assert "Review this prompt for my other bot." in request


def test_things_with_one_letter_as_their_name_are_different() -> None:
    ctx = context("economy", 12_000)
    for text in ("The budget of project A is 5000 EUR.", "The budget of project B is 7000 EUR."):
        ctx.append(user(text), answer("Noted."))
    assert [one.replaced_by for one in ctx.statements()] == ["", ""]


# ── Answers to questions ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("preset", ["economy", "handoff"])
@pytest.mark.parametrize(
    ("question", "reply"), [("Shall I drop the table orders?", "No."), ("Darf ich löschen?", "Ja.")]
)
def test_a_yes_or_no_is_kept_with_its_question(preset: str, question: str, reply: str) -> None:
    ctx = context(preset, 12_000)
    ctx.append(user("Hello."), answer("Hi."))
    ctx.append(
        user("Look at the database."),
        answer(f"I have looked at it. {question}"),
        user(reply),
        answer("Understood."),
    )
    request = "\n".join(long_chat(ctx, 60))
    assert question in request
    assert f"“{question}”: “{reply}”" in request


# ── statements() ─────────────────────────────────────────────────────────────────────────────────────────


def test_statements_say_what_holds_and_where_it_is_shown() -> None:
    ctx = context("economy", 12_000)
    ctx.append(user("Never push to main. What is there to do?"), answer("Much."))
    ctx.append(user("The deadline is 14 March 2027."), answer("Noted."))
    ctx.append(user("The deadline moved to 2 April 2027."), answer("Noted."))
    found = [(one.handle, one.kind, one.replaced_by, one.shown) for one in ctx.statements()]
    assert found == [
        ("e1", "rule", "", "verbatim"),
        ("e3", "fact", "e5", "verbatim"),
        ("e5", "correction", "", "verbatim"),
    ]
    card = str(ctx.report())
    assert "the user's statements: 2 hold (2 in their messages); 1 replaced" in card
    assert "Never push to main." in card


def test_a_statement_that_is_shown_nowhere_is_a_warning() -> None:
    ctx = context("rolling", 12_000)
    ctx.append(user("Hello."), answer("Hi."), user("Never push to main."), answer("Understood."))
    long_chat(ctx, 60)
    (lost,) = (one for one in ctx.statements() if one.text == "Never push to main.")
    assert lost.shown == "nowhere"
    (warning,) = (text for text in ctx.report().warnings if "nowhere" in text)
    assert lost.handle in warning
    ctx.pin(event=lost.handle)
    assert all(lost.handle not in text for text in ctx.report().warnings)


def test_superseding_by_hand_counts_like_a_correction() -> None:
    ctx = context("economy", 12_000)
    ctx.append(user("Hello."), answer("Hi."), user("Never push to main."), answer("Understood."))
    ctx.append(user("We talked to the team about it."), answer("Good."))
    ctx.supersede("e3", by="e5")
    (rule,) = (one for one in ctx.statements() if one.handle == "e3")
    assert rule.replaced_by == "e5"
    ctx.undo()
    (rule,) = (one for one in ctx.statements() if one.handle == "e3")
    assert rule.replaced_by == ""


def test_overflow_is_no_excuse() -> None:
    """What cannot fit is an error with numbers, never a request without the latest words."""
    ctx = context("economy", 2_000)
    ctx.append(user("Never push to main. " + PROSE * 40))
    with pytest.raises(ContextOverflow):
        ctx.fit()
