"""Types of a LangChain agent with the middleware."""

# LangChain's own functions have partially unknown types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false

from __future__ import annotations

from langchain.agents import create_agent
from langchain.agents.middleware import ModelRequest
from langchain_core.messages import BaseMessage

import foveal
from foveal.adapters.langchain import FovealMiddleware


def search(query: str) -> str:
    """Search the sources."""
    return f"{query}: no match"


def of_user(request: ModelRequest[None]) -> str:
    return str(len(request.messages))


middleware = FovealMiddleware(
    "gpt-4.1", window=16_000, summarise="own", recall_tools=True, store="contexts.db", conversation=of_user
)
agent = create_agent("openai:gpt-4.1", [search], middleware=[middleware])


def report(thread: str) -> str:
    context: foveal.Context = middleware.conversations.get(thread).context
    return str(context.report())


def fit(messages: list[BaseMessage], thread: str) -> list[BaseMessage]:
    return middleware.conversations.get(thread).fit(messages)
