"""Results of tools that are not about code: figures, mail, web pages, JSON, rows of SQL, weather and chat.

Each result is made from its kind and its number alone, has 0.3 to 3 kB, and holds one value that occurs nowhere
else and that a question can ask for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final, NamedTuple

from foveal.core.log import Dialect

WORDS: Final = (
    "harbour", "report", "invoice", "delivery", "window", "garden", "meeting", "contract", "season", "quarter",
    "supplier", "river", "station", "library", "budget", "morning", "engine", "market", "student", "travel",
    "bridge", "kitchen", "winter", "letter", "signal", "museum", "village", "forest", "ticket",
)  # fmt: skip
NAMES: Final = ("Ann Lee", "Bob Ray", "Cem Kaya", "Dora Novak", "Eva Lind", "Finn Berg", "Gita Rao")
CITIES: Final = ("Oslo", "Lyon", "Porto", "Gdansk", "Turin", "Cork", "Malmö")


class ForeignResult(NamedTuple):
    """A call, its result, and a question whose answer is in the result."""

    tool: str
    arguments: dict[str, Any]
    text: str
    question: str
    answer: str
    """A value that only this result has; the question does not contain it."""


def foreign_result(kind: str, number: int) -> ForeignResult:
    return KINDS[kind](Random(f"{kind} {number}"), number)


def _amount(rng: Random, number: int) -> str:
    """Return an amount that no other result of its kind has."""
    return f"{number + 100},{rng.randrange(1000):03}.{rng.randrange(100):02}"


def _sentence(rng: Random) -> str:
    words = rng.choices(WORDS, k=rng.randint(6, 12))
    return f"The {' '.join(words)}."


def _sentences(rng: Random, least: int, most: int) -> str:
    return " ".join(_sentence(rng) for _ in range(rng.randint(least, most)))


def _figures(rng: Random, number: int) -> ForeignResult:
    answer = _amount(rng, number)
    rows = [
        f"{word} revenue: {rng.randint(10, 99_999):,} EUR"
        for word in rng.choices(WORDS, k=rng.randint(10, 70))
    ]
    rows.insert(len(rows) // 2, f"Operating profit: {answer} EUR")
    head = f"Figures of company C-{number:04}, fiscal year 2024"
    return ForeignResult(
        "company_figures",
        {"company": f"C-{number:04}"},
        "\n".join([head, *rows]),
        f"operating profit of company C-{number:04}",
        answer,
    )


def _mail(rng: Random, number: int) -> ForeignResult:
    answer = _amount(rng, number)
    mails = [
        f"From: {rng.choice(NAMES)}\nTo: {rng.choice(NAMES)}\nDate: {rng.randint(1, 28)} May 2024\n"
        f"Subject: Contract K-{number:04}, part {part}\n\n{_sentences(rng, 4, 8)}\n"
        + (f"The agreed price is {answer} EUR.\n" if not part else "")
        for part in range(rng.randint(1, 4))
    ]
    return ForeignResult(
        "read_mail",
        {"thread": f"K-{number:04}"},
        "\n---\n".join(mails),
        f"agreed price of contract K-{number:04}",
        answer,
    )


def _web_page(rng: Random, number: int) -> ForeignResult:
    answer = _amount(rng, number)
    sections = "".join(
        f"<h2>{rng.choice(WORDS).title()} {part}</h2><p>{_sentences(rng, 2, 6)}</p>"
        for part in range(rng.randint(1, 4))
    )
    text = (
        f"<!doctype html><html><head><title>Museum M-{number:04}</title></head><body>"
        f"<nav><a href='/'>Home</a></nav><h1>Museum M-{number:04} in {rng.choice(CITIES)}</h1>"
        f"<p>The museum had {answer} visitors.</p>{sections}</body></html>"
    )
    address = f"https://museums.example/M-{number:04}"
    return ForeignResult("fetch", {"url": address}, text, f"visitors of museum M-{number:04}", answer)


def _json(rng: Random, number: int) -> ForeignResult:
    answer = _amount(rng, number)
    items = [
        {
            "sku": f"{rng.choice(WORDS)}-{rng.randrange(1000)}",
            "qty": rng.randint(1, 9),
            "price": rng.randint(1, 400),
        }
        for _ in range(rng.randint(5, 40))
    ]
    order = {"id": f"ORD-{number:04}", "customer": rng.choice(NAMES), "items": items, "total": answer}
    return ForeignResult(
        "get_order",
        {"id": f"ORD-{number:04}"},
        json.dumps(order, indent=rng.choice((None, 1))),
        f"total of order ORD-{number:04}",
        answer,
    )


def _sql_rows(rng: Random, number: int) -> ForeignResult:
    answer = _amount(rng, number)
    rows = [
        f" {row:3} | {rng.choice(NAMES):10} | {rng.choice(CITIES):6} | {rng.randint(1, 9_999):8}"
        for row in range(rng.randint(8, 60))
    ]
    rows.append(f" {len(rows):3} | depot D-{number:04} | {rng.choice(CITIES):6} | {answer}")
    head = [" id  | name       | city   | balance", "-----+------------+--------+---------"]
    query = f"SELECT * FROM accounts WHERE depot = 'D-{number:04}'"
    return ForeignResult(
        "run_sql",
        {"query": query},
        "\n".join([*head, *rows, f"({len(rows)} rows)"]),
        f"balance of depot D-{number:04}",
        answer,
    )


def _weather(rng: Random, number: int) -> ForeignResult:
    answer = _amount(rng, number)
    hours = [
        f"{hour % 24:02}:00  {rng.randint(-9, 30):3} °C  {rng.randint(0, 20):2} m/s  {rng.choice(WORDS)} sky"
        for hour in range(rng.randint(9, 70))
    ]
    head = f"Station W-{number:04}, {rng.choice(CITIES)}\nPressure: {answer} Pa\n"
    return ForeignResult(
        "weather",
        {"station": f"W-{number:04}"},
        "\n".join([head, *hours]),
        f"pressure at station W-{number:04}",
        answer,
    )


def _chat(rng: Random, number: int) -> ForeignResult:
    answer = _amount(rng, number)
    said = [_sentence(rng) for _ in range(rng.randint(4, 28))]
    said.append(f"Ticket T-{number:04} was settled for {answer} EUR.")
    lines = [f"[{9 + at // 60:02}:{at % 60:02}] {rng.choice(NAMES)}: {line}" for at, line in enumerate(said)]
    return ForeignResult(
        "channel_history",
        {"channel": f"#t-{number:04}"},
        "\n".join(lines),
        f"for how much was ticket T-{number:04} settled",
        answer,
    )


KINDS: Final[dict[str, Callable[[Random, int], ForeignResult]]] = {
    "figures": _figures,
    "mail": _mail,
    "web pages": _web_page,
    "JSON": _json,
    "SQL rows": _sql_rows,
    "weather": _weather,
    "chat": _chat,
}


def call_id(number: int) -> str:
    return f"call_{number:04}"


def foreign_step(result: ForeignResult, number: int, dialect: Dialect) -> Iterator[dict[str, Any]]:
    """Yield the call and its result as messages of a dialect."""
    if dialect == "anthropic":
        call = {"type": "tool_use", "id": call_id(number), "name": result.tool, "input": result.arguments}
        yield {"role": "assistant", "content": [call]}
        returned = {"type": "tool_result", "tool_use_id": call_id(number), "content": result.text}
        yield {"role": "user", "content": [returned]}
    else:
        function = {"name": result.tool, "arguments": json.dumps(result.arguments)}
        call = {"id": call_id(number), "type": "function", "function": function}
        yield {"role": "assistant", "content": None, "tool_calls": [call]}
        yield {"role": "tool", "tool_call_id": call_id(number), "content": result.text}
