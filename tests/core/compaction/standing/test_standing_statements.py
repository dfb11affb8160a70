"""Rules, corrections and facts are found in messages of the user, in eight languages."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal.core.compaction.standing import statements as standing_statements
from foveal.core.compaction.standing.rules import find_rules
from foveal.core.compaction.standing.statements import (
    MAX_STATEMENT_CHARS_READ,
    MAX_STATEMENTS_PER_TEXT,
    Sentence,
    find_sentences,
    reopens,
)

CORRECTIONS: Final = """
    You can push to main now.
    The deadline moved to 2 April 2027.
    The budget is 7,500 EUR now.
    Never mind.
    Scrap that.
    Actually, the host is db-9.
    On second thought, leave it.
    I meant the other branch.
    Correction: the port is 9090.
    Make it 12 lines.
    Forget what I said about the docs.
    You may delete branches again.
    The default branch is now develop.
    Du kannst jetzt nach main pushen.
    Die Frist wurde auf den 2. April verschoben.
    Eigentlich ist es der 3. Mai.
    Ich meinte den anderen Zweig.
    Vergiss das mit den Tabs.
    Tu peux maintenant pousser sur main.
    La réunion est reportée au 2 avril.
    En fait, c'est le 3 mai.
    Oublie ce que j'ai dit sur les tests.
    Ahora puedes subir a main.
    La reunión se movió al 2 de abril.
    En realidad es el 3 de mayo.
    Olvida lo que dije sobre las pruebas.
    Agora você pode subir para main.
    O prazo mudou para 2 de abril.
    Na verdade é 3 de maio.
    Esqueça o que eu disse sobre os testes.
    Теперь можно пушить в main.
    Срок перенесли на 2 апреля.
    На самом деле это 3 мая.
    Забудь про табы.
    现在可以推送到main了。
    截止日期改到4月2日。
    其实是5月3日。
    忘了我说的关于测试的话。
    締め切りは4月2日に変更になりました。
    やっぱりスペースにします。
    実は5月3日です。
    mainにpushしてもいいです。
"""

FACTS: Final = """
    We ship to Bolivia first.
    The budget is 12,450.50 EUR and the deadline is 14 March 2027 at 17:30 CET.
    My sister is called Ada.
    The staging host is db-7.example.com.
    Budget: 5,000 EUR.
    I live in Vienna and work for Acme.
    Max is a 5-year-old golden retriever.
    Let's go with option B.
    I prefer short answers.
    Answer in French.
    You may delete old branches.
    Could you make sure nobody's salary shows up in the output?
    It would be great if the answers were short.
    Das Budget beträgt 5.000 EUR.
    Meine Schwester heißt Ada.
    Der Termin ist am 14. März 2027.
    Wir liefern zuerst nach Bolivien.
    Könntest du darauf achten, dass Gehälter verborgen bleiben?
    Es wäre schön, wenn die Antworten kurz wären.
    Le budget est de 5 000 EUR.
    Ma sœur s'appelle Ada.
    Nous livrons d'abord la Bolivie.
    Pourrais-tu faire en sorte que les salaires restent cachés ?
    Ce serait bien si les réponses étaient courtes.
    El presupuesto es de 5.000 EUR.
    Mi hermana se llama Ada.
    La fecha límite es el 14 de marzo de 2027.
    ¿Podrías procurar que los sueldos queden ocultos?
    Sería genial que las respuestas fueran cortas.
    O orçamento é de 5.000 EUR.
    Minha irmã se chama Ada.
    O prazo é 14 de março de 2027.
    Você poderia garantir que os salários fiquem ocultos?
    Seria bom se as respostas fossem curtas.
    Бюджет — 5000 евро.
    Мою сестру зовут Ада.
    Срок — 14 марта 2027.
    Было бы хорошо, если бы ответы были короткими.
    Порт 8080.
    预算是5000欧元。
    我妹妹叫Ada。
    截止日期是2027年3月14日。
    希望回答简短一些。
    用法语回答。
    予算は5000ユーロです。
    妹の名前はAdaです。
    締め切りは2027年3月14日です。
    短く答えていただけると助かります。
    フランス語で答えてください。
"""

NOTHING: Final = """
    Hello!
    Thanks a lot, that was quick.
    run the tests
    fix line 12 of foo.py
    What is 2 + 2?
    When is the deadline?
    I get error 500 when I open the page.
    now run the tests
    Can you look at the parser?
    Looks good.
    Update the readme.
    Continue.
    How have the floods affected Venice in 2020?
    No problem!
    Hallo zusammen!
    Führe die Tests aus.
    Wann ist die Frist?
    Danke, das war schnell.
    Kannst du dir den Parser ansehen?
    Bonjour !
    Lance les tests.
    Merci beaucoup.
    Peux-tu regarder le parseur ?
    Hola, buenos días.
    Ejecuta las pruebas.
    Gracias por todo.
    ¿Cuándo es la entrega?
    Olá, bom dia.
    Execute os testes.
    Obrigado pela ajuda.
    Quando é o prazo?
    Привет!
    Запусти тесты.
    Спасибо большое.
    Когда срок?
    你好！
    运行测试。
    谢谢你。
    截止日期是什么时候？
    こんにちは。
    テストを実行してください。
    ありがとうございます。
    締め切りはいつですか？
"""


def lines_of(table: str) -> list[str]:
    return [line.strip() for line in table.strip().splitlines()]


def kinds_of(text: str, *, follows_question: bool = False) -> list[str]:
    return [sentence.kind for sentence in find_sentences(text, follows_question=follows_question)]


@pytest.mark.parametrize("text", lines_of(CORRECTIONS))
def test_a_correction_is_found(text: str) -> None:
    assert kinds_of(text)[:1] in (["correction"], ["rule"])


@pytest.mark.parametrize("text", lines_of(FACTS))
def test_a_fact_is_found(text: str) -> None:
    assert kinds_of(text)[:1] in (["fact"], ["rule"])


@pytest.mark.parametrize("text", lines_of(NOTHING))
def test_greetings_questions_and_single_orders_state_nothing(text: str) -> None:
    assert find_sentences(text) == ()


def test_sentences_are_returned_in_their_order_with_their_kinds() -> None:
    text = "Hi! The budget is 5,000 EUR. Never push to main. Thanks!\nActually, make it 7,500."
    found = [(text[sentence.start : sentence.end], sentence.kind) for sentence in find_sentences(text)]
    assert found == [
        ("The budget is 5,000 EUR.", "fact"),
        ("Never push to main.", "rule"),
        ("Actually, make it 7,500.", "correction"),
    ]


def test_a_full_stop_after_the_day_of_a_date_ends_no_sentence() -> None:
    text = "Der Termin ist am 14. März 2027. Danke!"
    assert find_sentences(text) == (Sentence(0, 32, "fact"),)


@pytest.mark.parametrize(
    "text", ["yes", "No.", "option 3", "the second one", "B", "ja", "oui", "да", "好的", "はい"]
)
def test_an_answer_is_a_correction_after_a_question_only(text: str) -> None:
    assert kinds_of(text, follows_question=True) == ["correction"]
    assert kinds_of(text) == []


@pytest.mark.parametrize("text", ["Thanks!", "hello", "/exit", "What do you mean?", "No problem!", "Danke!"])
def test_thanks_and_questions_answer_nothing(text: str) -> None:
    assert find_sentences(text, follows_question=True) == ()


@pytest.mark.parametrize(
    "text",
    [
        "```\nThe budget is 5,000 EUR.\n```",
        "<file_contents>\nThe budget is 5,000 EUR.\n</file_contents>",
        "2026-01-02 12:00:00 The budget is 5,000 EUR",
        "[read for 'a.py'] Result:\nThe budget is 5,000 EUR.",
    ],
)
def test_pasted_text_states_nothing(text: str) -> None:
    assert find_sentences(text) == ()


@pytest.mark.parametrize(
    "text",
    [
        "That still fails.",
        "It is broken again",
        "no, not yet",
        "It doesn’t work",
        "Same error.",
        "Das geht immer noch nicht.",
        "Ça ne marche pas.",
        "Todavía no funciona.",
        "Ainda não funciona.",
        "Всё ещё не работает.",
        "还是不行",
        "まだ動きません",
    ],
)
def test_a_message_that_reports_a_failure_reopens(text: str) -> None:
    assert reopens(text)


@pytest.mark.parametrize(
    "text", ["", "Thanks, that works.", "Now add a test.", "Danke!", "谢谢", "ありがとう"]
)
def test_other_messages_reopen_nothing(text: str) -> None:
    assert not reopens(text)


def test_a_long_text_is_read_at_its_ends_and_gives_a_limited_number() -> None:
    fact = "The budget is 5,000 EUR.\n"
    found = find_sentences(fact * 5_000)
    assert 0 < len(found) <= 2 * MAX_STATEMENTS_PER_TEXT
    filler = "So it goes on and on.\n" * MAX_STATEMENT_CHARS_READ
    ends = [sentence.start for sentence in find_sentences(fact + filler + fact)]
    assert ends == [0, len(fact + filler)]


def test_the_work_does_not_grow_with_a_long_text(monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0
    real = standing_statements._kind

    def counted(sentence: str, *, is_long: bool) -> object:
        nonlocal read
        read += len(sentence)
        return real(sentence, is_long=is_long)

    monkeypatch.setattr(standing_statements, "_kind", counted)
    for text in ("So it goes. " * 20_000, "word " * 50_000, "." * 100_000, "\n" * 100_000, "1. " * 50_000):
        read = 0
        find_sentences(text)
        assert read <= MAX_STATEMENT_CHARS_READ


SAID: Final = [
    *lines_of(CORRECTIONS),
    *lines_of(FACTS),
    *lines_of(NOTHING),
    "Never push to main.",
    "```",
    "\n",
    " ",
]


@given(
    st.one_of(st.text(), st.lists(st.one_of(st.sampled_from(SAID), st.text(max_size=9))).map(" ".join)),
    st.booleans(),
)
def test_spans_are_inside_the_text_ordered_and_apart(text: str, follows: bool) -> None:
    found = find_sentences(text, follows_question=follows)
    places = [place for sentence in found for place in (sentence.start, sentence.end)]
    assert places == sorted(places)
    assert all(0 <= sentence.start < sentence.end <= len(text) for sentence in found)
    assert all(text[sentence.start : sentence.end].strip() for sentence in found)
    rules = {end for _, end in find_rules(text)}
    assert rules == {sentence.end for sentence in found if sentence.kind == "rule"}
    reopens(text)
