"""`Scripted`: a stand-in provider for tests of code that uses `foveal.agent`.

    provider = Scripted("Hello.", [("read", {"path": "a.py"})], "Done.")

Each argument is one answer: a text, a list of calls, a text with calls, or an exception to raise. `Scripted`
records the requests that it receives, and refuses a request that exceeds its window as a real provider does.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from foveal.core.log.events import Dialect
from foveal.core.models.model import Model, model
from foveal.core.tokens.counter import counter
from foveal.core.view.request import Fitted
from foveal.ports import Reply, ReplyPiece

Calls: TypeAlias = Sequence[tuple[str, Mapping[str, Any] | str]]
"""Tool calls of an answer: the name and the arguments of each."""
Answer: TypeAlias = str | Calls | tuple[str, Calls] | BaseException
"""One answer of `Scripted`: a text, calls, a text with calls, or an exception to raise."""


class PromptTooLong(Exception):
    """The error of `Scripted` for a request that does not fit.

    Examples:
        ```python
        from foveal.testing import PromptTooLong

        assert PromptTooLong.status_code == 400
        ```
    """

    status_code = 400
    """The HTTP status that providers send for it."""


class Scripted:
    """A `Provider` that returns prepared answers.

    Args:
        *answers: The answers, in order. After the last one, it says that it has nothing more to say.
        window: Tokens above which a request is refused. 0 means no limit.
        name: `provider/model`.
        delay: Seconds to pause before each line of an answer.

    Examples:
        ```python
        import foveal

        provider = foveal.testing.Scripted("Because of a bound.", [("read", {"path": "a.py"})])
        async with foveal.stores.MemoryStore() as store:
            session = await foveal.Session.open(store, "demo", model=provider.model)
            await session.append(foveal.UserSaid(content="Why is CI red?"))
            async for item in provider.send(await session.fit(), max_tokens=500):
                print(item)
        assert len(provider.requests) == 1
        ```
    """

    dialect: Dialect = "openai_chat"
    """The dialect of the answers."""

    def __init__(
        self, *answers: Answer, window: int = 0, name: str = "scripted/model", delay: float = 0.0
    ) -> None:
        self.name = name
        """`provider/model`."""
        self.model: Model = model(name, window=window or 128_000)
        """What is known of the model."""
        self.requests: list[Fitted] = []
        """The requests received so far, refused ones included."""
        self._answers = list(answers)
        self._window = window
        self._delay = delay

    async def send(self, request: Fitted, *, max_tokens: int) -> AsyncIterator[ReplyPiece | Reply]:
        self.requests.append(request)
        size = self._size(request)
        if self._window and size > self._window:
            raise PromptTooLong(
                f"This model's maximum context length is {self._window} tokens. However, your messages "
                f"resulted in {size} tokens. Please reduce the length of the messages."
            )
        answer = self._answers.pop(0) if self._answers else "I have nothing more to say."
        if isinstance(answer, BaseException):
            raise answer
        text, calls = _parts(answer)
        for line in text.splitlines(keepends=True):
            await asyncio.sleep(self._delay)
            yield ReplyPiece(text=line)
        yield Reply(
            message=_message(text, calls, len(self.requests)),
            usage={"prompt_tokens": size, "completion_tokens": len(text) // 4 + 1},
            stop="tool_calls" if calls else "stop",
        )

    async def close(self) -> None:
        pass

    def _size(self, request: Fitted) -> int:
        """Return the tokens as a provider would count them: the text, and 4 for each message."""
        texts = [text for message in request.to_openai() for text in _strings(message)]
        return sum(counter("auto").count_all([*texts, *_strings(request.tools)])) + 4 * len(request.facts)


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(item)


def _parts(answer: str | Calls | tuple[str, Calls]) -> tuple[str, Calls]:
    if isinstance(answer, str):
        return answer, ()
    if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], str):
        return answer[0], answer[1]
    return "", answer


def _message(text: str, calls: Calls, number: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {
                "id": f"call_{number}_{index}",
                "type": "function",
                "function": {
                    "name": name,
                    "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
                },
            }
            for index, (name, arguments) in enumerate(calls)
        ]
    return message
