"""Scripted conversations in which something important was lost before: a rule, a summary, older turns.

`tests/test_survival.py` runs them as single cases, `bench.bench_survival` with every preset.
"""

from __future__ import annotations

import json
from typing import Any, Final

from foveal.core.tokens import Estimate

Json = dict[str, Any]
RULE: Final = "Never push to main."
ERROR_LINE: Final = "ERROR: handler {0} raised ValueError: bad value {0}"
_ESTIMATE: Final = Estimate()


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def answer(text: str) -> Json:
    return {"role": "assistant", "content": text}


def calls(*pairs: tuple[str, str]) -> Json:
    """Return a message with one call of `bash` for each id and command."""
    made = [
        {
            "id": id,
            "type": "function",
            "function": {"name": "bash", "arguments": json.dumps({"command": command})},
        }
        for id, command in pairs
    ]
    return {"role": "assistant", "content": None, "tool_calls": made}


def result(id: str, text: str) -> Json:
    return {"role": "tool", "tool_call_id": id, "content": text}


def prose(words: int, number: int) -> str:
    return " ".join(f"part {number} has point {n} about the parser" for n in range(words // 7))


def listing(chars: int, number: int) -> str:
    """Return a tool result of many lines, with an error line in its middle."""
    lines = [
        f"src/part_{number}/module_{n}.py:{n}: def handler_{number}_{n}(value)" for n in range(chars // 50)
    ]
    lines[len(lines) // 2] = ERROR_LINE.format(number)
    return "\n".join(lines)


def chat_turns(turns: int, *, words: int = 0) -> list[list[Json]]:
    """Return turns of a question, with `words` more words, and a long answer."""
    asked = [f"Question {n}: what about part {n}? {prose(words, n)}".strip() for n in range(turns)]
    return [[user(question), answer(prose(600, n))] for n, question in enumerate(asked)]


def tool_turns(turns: int) -> list[list[Json]]:
    """Return turns with one call each, whose result has 3,000 to 10,000 characters."""
    return [
        [
            user(f"Question {n}: what about part {n}?"),
            calls((f"c{n}", f"grep -rn handler_{n} src")),
            result(f"c{n}", listing(3_000 + 7_000 * (n % 5) // 4, n)),
            answer(f"Part {n} is fine."),
        ]
        for n in range(turns)
    ]


SHAPES: Final = {"chat": chat_turns, "tools": tool_turns}


def with_rule(turns: list[list[Json]]) -> list[list[Json]]:
    """Return the turns with the rule as the second message of the user."""
    return [turns[0], [user(RULE), answer("Understood.")], *turns[1:]]


def one_long_request(tokens: int, chars: int, steps: int = 60) -> list[Json]:
    """Return one request, and a loop of calls with results of about `chars` characters."""
    words = "Port the parser to the new interface, and keep every test. "
    messages = [user(words * (tokens // _ESTIMATE.count(words)))]
    for n in range(steps):
        messages += [
            calls((f"c{n}", f"sed -n {n},{n + 40}p src/parser.py")),
            result(f"c{n}", listing(chars, n)),
        ]
    return messages


def short_turns(turns: int) -> list[Json]:
    return [message for n in range(turns) for message in (user(f"Look at part {n}."), answer(prose(250, n)))]


def parallel_step(results: int, tokens: int) -> list[Json]:
    """Return one message with several calls, and their results of about `tokens` tokens each."""
    chars = int(tokens * 5_000 / _ESTIMATE.count(listing(5_000, 1)))
    ids = [f"p{n}" for n in range(results)]
    texts = [listing(chars, 900 + n) for n in range(results)]
    return [calls(*((id, f"cat part_{id}.log") for id in ids)), *map(result, ids, texts)]
