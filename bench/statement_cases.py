"""Scripted conversations in which the user states something, and corrects it later.

A case is a conversation of many turns with an earlier statement, a later one about the same thing, or a statement
that nothing corrects. `faults` says what a request gets wrong: the later statement is missing or stands before the
earlier one, or a statement is gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from typing import Final, NamedTuple

from bench.survival_cases import Json, answer, chat_turns, prose, tool_turns, user

TURNS: Final = 60


class Pair(NamedTuple):
    """What the user says, and what they say about it later."""

    language: str
    earlier: str
    later: str


PAIRS: Final = tuple(
    Pair(language, earlier, later)
    for language, pairs in {
        "en": [
            ("Never push to main.", "You can push to main now."),
            ("The deadline is 14 March 2027.", "The deadline moved to 2 April 2027."),
            ("Always answer in English.", "From now on, answer in German instead."),
            ("Translate everything into Spanish.", "Actually, translate into Portuguese."),
            ("The budget is 5,000 EUR.", "We have 7,500 EUR now."),
            ("Use tabs for indentation.", "Scrap that, use four spaces."),
        ],
        "de": [
            ("Pushe niemals nach main.", "Du darfst jetzt nach main pushen."),
            ("Die Frist ist der 14. März 2027.", "Die Frist wurde auf den 2. April 2027 verschoben."),
            ("Das Budget beträgt 5.000 EUR.", "Wir haben jetzt doch 7.500 EUR."),
        ],
        "fr": [
            ("Ne pousse jamais sur main.", "Tu peux maintenant pousser sur main."),
            ("La date limite est le 14 mars 2027.", "La date limite est reportée au 2 avril 2027."),
            ("Le budget est de 5 000 EUR.", "Finalement, le budget est de 7 500 EUR."),
        ],
        "es": [
            ("Nunca hagas push a main.", "Ahora ya puedes hacer push a main."),
            ("La fecha límite es el 14 de marzo de 2027.", "La fecha límite pasa al 2 de abril de 2027."),
            ("El presupuesto es de 5.000 EUR.", "En realidad el presupuesto es de 7.500 EUR."),
        ],
        "pt": [
            ("Nunca faça push para main.", "Agora já pode fazer push para main."),
            ("O prazo é 14 de março de 2027.", "O prazo mudou para 2 de abril de 2027."),
            ("O orçamento é de 5.000 EUR.", "Na verdade o orçamento é de 7.500 EUR."),
        ],
        "ru": [
            ("Никогда не пушь в main.", "Теперь можно пушить в main."),
            ("Срок — 14 марта 2027 года.", "Срок перенесён на 2 апреля 2027 года."),
            ("Бюджет 5 000 евро.", "На самом деле бюджет 7 500 евро."),
        ],
        "zh": [
            ("不要推送到 main 分支。", "现在可以推送到 main 分支了。"),
            ("截止日期是2027年3月14日。", "截止日期改为2027年4月2日。"),
            ("预算是5000欧元。", "预算改成7500欧元。"),
        ],
        "ja": [
            ("mainには絶対にプッシュしないでください。", "もうmainにプッシュしても大丈夫です。"),
            ("締め切りは2027年3月14日です。", "締め切りは2027年4月2日に変更になりました。"),
            ("予算は5000ユーロです。", "やはり予算は7500ユーロにします。"),
        ],
    }.items()
    for earlier, later in pairs
)

FACTS: Final = (
    "We ship to Bolivia first.",
    "The budget is 12,450.50 EUR and the deadline is 14 March 2027 at 17:30 CET.",
    "Could you make sure nobody's salary shows up in the output?",
    "My sister Ada Byron handles the invoices.",
    "We decided to go with PostgreSQL 16.",
    "Wir liefern zuerst nach Bolivien.",
    "Könntest du darauf achten, dass keine Gehälter in der Ausgabe stehen?",
    "Nous livrons d'abord en Bolivie, à partir du 3 mai.",
    "Pourrais-tu veiller à ce qu'aucun salaire n'apparaisse dans le résultat ?",
    "Enviamos primero a Bolivia, desde el 3 de mayo.",
    "¿Podrías asegurarte de que no aparezca ningún salario en la salida?",
    "Enviamos primeiro para a Bolívia, a partir de 3 de maio.",
    "Você poderia garantir que nenhum salário apareça na saída?",
    "Сначала мы отправляем в Боливию, с 3 мая.",
    "Не мог бы ты проследить, чтобы в выводе не было зарплат?",
    "我们5月3日开始先发货到玻利维亚。",
    "能不能确保输出里不出现任何人的工资？",
    "5月3日からまずボリビアに出荷します。",
    "出力に誰の給与も表示されないようにしていただけますか？",
)


def _wordy_tool_turns(turns: int) -> list[list[Json]]:
    made = tool_turns(turns)
    return [[user(f"{turn[0]['content']} {prose(70, n)}"), *turn[1:]] for n, turn in enumerate(made)]


def _wordy_chat_turns(turns: int) -> list[list[Json]]:
    return chat_turns(turns, words=70)


SHAPES_OF_TURNS: Final = {"tools": _wordy_tool_turns, "chat": _wordy_chat_turns}
"""Turns in which the messages of the user exceed their share of a small window."""


class StatementCase(NamedTuple):
    name: str
    turns: list[list[Json]]
    statements: tuple[tuple[int, str], ...]
    """The turn of each statement, and its text; a later one counts."""


def pair_cases(
    pairs: Sequence[Pair] = PAIRS, places: Sequence[tuple[int, int]] = ()
) -> Iterator[StatementCase]:
    """Yield conversations with a statement and its correction, at these turns."""
    for shape, pair, (first, second) in product(
        SHAPES_OF_TURNS, pairs, places or ((0, 8), (0, 30), (3, 8), (3, 30), (30, 55))
    ):
        statements = ((first, pair.earlier), (second, pair.later))
        yield _case(f"{pair.language} {pair.later[:30]!r} {first}→{second} {shape}", shape, statements)


def fact_cases(facts: Sequence[str] = FACTS, places: Sequence[int] = (0, 3, 30)) -> Iterator[StatementCase]:
    """Yield conversations with a statement that stays as it is."""
    for shape, fact, place in product(SHAPES_OF_TURNS, facts, places):
        yield _case(f"{fact[:30]!r} at {place} {shape}", shape, ((place, fact),))


def _case(name: str, shape: str, statements: tuple[tuple[int, str], ...]) -> StatementCase:
    turns = [*_turns(shape)]
    for place, text in sorted(statements, reverse=True):
        turns.insert(place, [user(text), answer("Understood.")])
    return StatementCase(name, turns, statements)


@cache
def _turns(shape: str) -> list[list[Json]]:
    """The turns that all cases of a shape have in common; making them takes longer than all else."""
    return SHAPES_OF_TURNS[shape](TURNS)


def faults(request: str, statements: Sequence[tuple[int, str]]) -> Iterator[str]:
    """Yield what a request gets wrong about the statements made so far, in their order."""
    places = [request.rfind(text) for _, text in statements]
    if places[-1] < 0:
        yield f"missing: {statements[-1][1]}"
    elif any(place > places[-1] for place in places):
        yield f"after its correction: {statements[0][1]}"
