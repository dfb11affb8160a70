"""Standing rules are recognised in several languages, and long texts are read in part."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal.core.compaction.standing.rules import MAX_RULE_CHARS_READ, find_rules


@pytest.mark.parametrize(
    "text",
    [
        "Never push to main.",
        "always run the linter first",
        "You must not delete files.",
        "Please don’t touch the docs",
        "Use uv instead of pip.",
        "From now on, answer in short sentences.",
        "Remember: the port is 8080.",
        "Only edit files in src.",
        "at most three files per commit",
        "I want you to avoid globals.",
        "I don't want any emoji.",
        "Bitte niemals nach main pushen.",
        "Antworte ab jetzt auf Deutsch.",
        "N'utilise pas sudo.",
        "Il faut toujours lancer les tests.",
        "No borres los ficheros.",
        "Responde siempre en español.",
        "Não apague nada.",
        "Non toccare il ramo main.",
        "Никогда не пушь в main.",
        "不要推送到主分支",
        "請勿刪除檔案",
        "mainにpushしないでください",
        "main에 푸시하지 마세요",
        "日本語で答えて。 Never use sudo.",
        "Could you always run the tests first?",
        "Is it done? Never push to main.",
        "- Do not edit `setup.cfg` (or any tests).",
        "## Never push to main",
        "See below.\n```\nx = 1\n```\nOnly edit src.",
        "[read for 'a.py'] Result:\nx\n<feedback>\nNever push to main.\n</feedback>",
        "Make sure my tests pass.",
        "use tabs, not spaces",
        "No emojis, please.",
        "Keep functions below 40 lines.",
        "Whatever you do, leave config.toml alone.",
        "I want you to ask me before deleting anything.",
        "We don't use semicolons here.",
        "Every function should have a type.",
        "If the tests fail, stop and tell me.",
        "My name is Zed.",
    ],
)
def test_a_rule_is_recognised(text: str) -> None:
    assert [*find_rules(text)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Fix the parser.",
        "What is this?",
        "No, the other one.",
        "No problem, go on.",
        "I have no idea. No errors so far.",
        "Done, not sure if it works.",
        "Keep going.",
        "Should every test be run?",
        "I don't know why it fails.",
        "I can't remember the name.",
        "It always fails here.",
        "I spent at least an hour on it.",
        "Bonjour, corrige le test.",
        "How can I show them without making it look cluttered?",
        "Can you update it to make sure that it matches the buttons above?",
        "I want to make sure I'm on track to finish it this year.",
        "Write a plan for a tool to ensure safe research.",
        "See:\n```\n# never change this\nx = 1\n```",
        "E           AttributeError: <module 'a'> does not have the attribute 'b'",
        "31 |   - Solution non configurable",
        "| 14 | must be checked | pending |",
        "[rules]\n# This only applies in the root folder.\nindent = 4",
        "+ 8 - **Colour**: text\n newline and only the first line.",
        "<system-reminder>You must use the list.</system-reminder>",
        "[search for 'a'] Result:\nThe bug must be fixed first.",
        'if not only: raise ValueError("must not be empty");',
    ],
)
def test_a_plain_request_is_no_rule(text: str) -> None:
    assert not [*find_rules(text)]


def test_a_rule_is_its_sentence() -> None:
    text = "Fix the parser. Never push to main! Then stop.\nUse tabs only"
    assert [text[start:end] for start, end in find_rules(text)] == ["Never push to main!", "Use tabs only"]


def test_a_rule_in_text_without_punctuation_begins_a_few_words_before_its_word() -> None:
    text = "word " * 200 + "so never push to main. " + "word " * 200
    (rule,) = [text[start:end] for start, end in find_rules(text)]
    assert rule.endswith("word so never push to main.")
    assert rule.startswith("word ")
    assert len(rule) < 100


def test_a_long_text_is_read_at_its_two_ends() -> None:
    filler = "word " * MAX_RULE_CHARS_READ
    assert [*find_rules("Never push." + filler)]
    assert [*find_rules(filler + "Never push.")]
    assert not [*find_rules(filler + "Never push." + filler)]


@given(
    st.lists(
        st.sampled_from(
            ("never", "do not", "don't", "no toques", "n'est", "non-stop", "_only", "x,", "I", "\n")
        )
    )
)
def test_rules_in_ascii_text_are_those_in_other_text(words: list[str]) -> None:
    text = " ".join(words)
    other = f"{text}\né"  # one character that is not ASCII
    assert [start for start, _ in find_rules(text)] == [start for start, _ in find_rules(other)]


@pytest.mark.parametrize("before", [1_980, 1_990, 1_995, 2_000, 12_000])
def test_a_rule_is_found_anywhere_in_a_long_text(before: int) -> None:
    text = "word " * (before // 5) + "\nfrom now on, answer in German.\n" + "word " * 400
    assert [text[start:end].strip() for start, end in find_rules(text)] == ["from now on, answer in German."]
