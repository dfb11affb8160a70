"""A context for the messages of a framework: its own objects in, its own objects out.

1. A `MessageFormat` writes a message of the framework as one or more messages of a dialect, and builds messages
   from them again.
2. A message that is shown whole is returned as the object that was given, so ids, metadata and signatures stay.
3. A reduced message is built from its original; a message that Foveal wrote is built from nothing.
4. The list and the objects that the framework keeps are never changed.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from foveal.context import Context
from foveal.core.engine.asked_cut import context_tools as context_schemas
from foveal.core.engine.origins import Origin
from foveal.core.log.events import Dialect, DialectName
from foveal.core.models.model import Model
from foveal.core.wire.openai_chat import THINKING_FIELD
from foveal.errors import BadSetting
from foveal.recall.schemas import tools as recall_schemas

NativeMessage = TypeVar("NativeMessage")
Reply = TypeVar("Reply")
WireMessage = dict[str, Any]
UNKNOWN_CONVERSATION: Final = "The conversation of this call is not known. Ask the user instead."
"""What a model reads that has called a recall or context tool."""


class Piece(NamedTuple):
    """A message of the dialect that a request shows.

    Examples:
        ```python
        from foveal.adapters import Piece

        piece = Piece({"role": "user", "content": "Hello."}, place=0, whole=True)
        ```
    """

    message: WireMessage
    """The message in the dialect."""
    place: int | None
    """Its place among the messages that its original was written as; None if it is not one of them."""
    whole: bool
    """Whether it shows that one unchanged."""


def offered_tools(dialect: DialectName, *, recall: bool = False, context: bool = False) -> list[Any]:
    """Return the schemas of the recall tools and of the context tools, as far as the model is to have them."""
    return [*(recall_schemas(dialect) if recall else ()), *(context_schemas(dialect) if context else ())]


def with_own_fields(shown: WireMessage, original: WireMessage) -> WireMessage:
    """Return a message of chat completions as it is shown, with the fields of its original that only its library
    knows. Thinking that is left out is not one of them."""
    own = {name: value for name, value in original.items() if name != THINKING_FIELD}
    return {**own, **shown}


class MessageFormat(Protocol[NativeMessage]):
    """Converts the messages of a framework.

    Examples:
        ```python
        from collections.abc import Sequence
        from typing import Any

        from foveal.adapters import MessageFormat, Piece
        from foveal.core.log.events import Dialect


        class ChatFormat:
            dialect: Dialect = "openai_chat"

            def write(self, message: dict[str, Any]) -> Sequence[dict[str, Any]]:
                return [message]

            def build(
                self, pieces: Sequence[Piece], original: dict[str, Any] | None
            ) -> Sequence[dict[str, Any]]:
                return [piece.message for piece in pieces]


        format: MessageFormat[dict[str, Any]] = ChatFormat()
        ```
    """

    dialect: Dialect
    """The dialect that `write` writes."""

    def write(self, message: NativeMessage) -> Sequence[WireMessage]:
        """Return a message of the framework as messages of the dialect.

        Args:
            message: The message of the framework.
        """
        ...

    def build(self, pieces: Sequence[Piece], original: NativeMessage | None) -> Sequence[NativeMessage]:
        """Return messages of the framework for what a request shows.

        Args:
            pieces: The messages of the dialect that are shown.
            original: The message that they come from; None if Foveal wrote them.
        """
        ...


class NativeContext(Generic[NativeMessage]):
    """The context of one conversation of a framework.

    `Conversations` creates it.

    Args:
        context: The context of the dialect's messages.
        format: Converts the messages of the framework.
        save: Stores the context; called for each request. None stores nothing.
        window: The window of the settings, which stays when the model changes. None takes that of each model.

    Examples:
        ```python
        from collections.abc import Sequence
        from typing import Any

        import foveal
        from foveal.adapters import NativeContext, Piece
        from foveal.core.log.events import Dialect


        class ChatFormat:
            dialect: Dialect = "openai_chat"

            def write(self, message: dict[str, Any]) -> Sequence[dict[str, Any]]:
                return [message]

            def build(
                self, pieces: Sequence[Piece], original: dict[str, Any] | None
            ) -> Sequence[dict[str, Any]]:
                return [piece.message for piece in pieces]


        native = NativeContext(foveal.Context("gpt-4.1"), ChatFormat())
        fitted = native.fit([{"role": "user", "content": "Why is CI red?"}])
        ```
    """

    def __init__(
        self,
        context: Context,
        format: MessageFormat[NativeMessage],
        *,
        save: Callable[[Context], None] | None = None,
        window: int | None = None,
    ) -> None:
        self.context = context
        """The context of the dialect's messages."""
        self._format = format
        self._save = save
        self._window = window
        self._model_name = ""
        """The name of the model as the framework told it last."""

    def fit(
        self, messages: Sequence[NativeMessage], *, tools: Sequence[Any] = (), system: Any = None
    ) -> list[NativeMessage]:
        """Return the messages of the next request.

        A message that is shown whole is the given object.

        Args:
            messages: The whole history of the framework.
            tools: The tools that the request offers; they are counted. By default there are none.
            system: System text that is sent beside the messages. None sends none.

        Raises:
            ContextOverflow: The request cannot be made to fit.
        """
        given = _Given(messages, self._format)
        fitted = self.context.fit_with_origins(given.written, tools=tools, system=system)
        if self._save is not None:
            self._save(self.context)
        return given.build(*fitted)

    async def afit(
        self, messages: Sequence[NativeMessage], *, tools: Sequence[Any] = (), system: Any = None
    ) -> list[NativeMessage]:
        """Do what `fit` does without blocking the event loop.

        Args:
            messages: The whole history of the framework.
            tools: The tools that the request offers; they are counted. By default there are none.
            system: System text that is sent beside the messages. None sends none.

        Raises:
            ContextOverflow: The request cannot be made to fit.
        """
        given = _Given(messages, self._format)
        fitted = await self.context.afit_with_origins(given.written, tools=tools, system=system)
        if self._save is not None:
            await asyncio.to_thread(self._save, self.context)
        return given.build(*fitted)

    def send(
        self,
        messages: Sequence[NativeMessage],
        call: Callable[[list[NativeMessage]], Reply],
        *,
        tools: Sequence[Any] = (),
        system: Any = None,
    ) -> Reply:
        """Call a model with the fitted messages, and after an overflow error with fewer.

        Args:
            messages: The whole history of the framework.
            call: Calls the model with the fitted messages.
            tools: The tools that the request offers; they are counted. By default there are none.
            system: System text that is sent beside the messages. None sends none.

        Raises:
            ContextOverflow: The request cannot be made to fit, or smaller requests were refused too.
        """
        while True:
            fitted = self.fit(messages, tools=tools, system=system)
            try:
                return call(fitted)
            except Exception as error:
                if not self.context.overflowed(error):
                    raise

    async def asend(
        self,
        messages: Sequence[NativeMessage],
        call: Callable[[list[NativeMessage]], Awaitable[Reply]],
        *,
        tools: Sequence[Any] = (),
        system: Any = None,
    ) -> Reply:
        """Do what `send` does without blocking the event loop.

        Args:
            messages: The whole history of the framework.
            call: Calls the model with the fitted messages.
            tools: The tools that the request offers; they are counted. By default there are none.
            system: System text that is sent beside the messages. None sends none.

        Raises:
            ContextOverflow: The request cannot be made to fit, or smaller requests were refused too.
        """
        while True:
            fitted = await self.afit(messages, tools=tools, system=system)
            try:
                return await call(fitted)
            except Exception as error:
                if not self.context.overflowed(error):
                    raise

    def use(self, model: str | Model) -> None:
        """Continue with another model, if it is another one.

        Args:
            model: The model of the next request.
        """
        name = model if isinstance(model, str) else model.name
        if name and name != self._model_name:
            if self._model_name:
                self.context.use(model, window=self._window)
            self._model_name = name

    def observe(self, usage: Any) -> None:
        """Learn from the usage that a framework reports.

        Usage that cannot be read is a warning, not an error.

        Args:
            usage: The usage, as an object or a dict.
        """
        try:
            self.context.observe(usage)
        except BadSetting as problem:
            warnings.warn(str(problem), stacklevel=2)

    def recall(self, name: str, arguments: str | Mapping[str, Any]) -> str:
        """Answer a model's call of a recall tool.

        Args:
            name: The name of the tool.
            arguments: The arguments as the model wrote them.
        """
        return self.context.recall(name, arguments)


class _Given(Generic[NativeMessage]):
    """Messages of a framework, and what each of them was written as."""

    def __init__(self, messages: Sequence[NativeMessage], format: MessageFormat[NativeMessage]) -> None:
        self._messages = messages
        self._format = format
        self.written: list[WireMessage] = []
        self._owners: list[tuple[int, int]] = []
        """For each written message, the index of its original and its place among what that was written as."""
        self._counts: list[int] = []
        for index, message in enumerate(messages):
            written = format.write(message)
            self.written.extend(written)
            self._owners.extend((index, place) for place in range(len(written)))
            self._counts.append(len(written))

    def build(self, fitted: Sequence[WireMessage], origins: Sequence[Origin]) -> list[NativeMessage]:
        built: list[NativeMessage] = []
        owned = map(self._piece, fitted, origins)
        for index, group in groupby(owned, key=lambda item: item[0]):
            pieces = [piece for _, piece in group]
            if index is None:
                built.extend(self._format.build(pieces, None))
            elif self._is_whole(index, pieces):
                built.append(self._messages[index])
            else:
                built.extend(self._format.build(pieces, self._messages[index]))
        return built

    def _piece(self, message: WireMessage, origin: Origin) -> tuple[int | None, Piece]:
        owners = {self._owners[index][0] for index in origin.inputs}
        if len(owners) != 1:  # Foveal wrote it, or a dialect joined several messages
            return None, Piece(message, None, whole=False)
        place = self._owners[origin.inputs[0]][1] if len(origin.inputs) == 1 else None
        return owners.pop(), Piece(message, place, origin.whole)

    def _is_whole(self, index: int, pieces: Sequence[Piece]) -> bool:
        places = [piece.place for piece in pieces if piece.whole]
        return len(places) == len(pieces) and places == list(range(self._counts[index]))
