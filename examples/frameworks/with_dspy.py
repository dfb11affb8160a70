"""DSPy inside the model's window: litellm, which it calls, sends through Foveal's transport."""

from typing import Any

import dspy
import litellm

import foveal

conversations = foveal.transport.ConversationPool(window=16_000, reserve=1_000)

litellm.client_session = foveal.transport.httpx(conversations)
litellm.aclient_session = foveal.transport.httpx_async(conversations)


def make_lm(**options: Any) -> dspy.LM:
    """Return a model for modules whose history is a list of messages. `dspy.ReAct` has its history in one message,
    which cannot be reduced; `dspy.ReActV2` can be."""
    return dspy.LM("openai/gpt-4.1", engine="litellm", max_tokens=1_000, cache=False, **options)


def search(query: str) -> str:
    """Search the sources."""
    return f"{query}: no match"


def main() -> None:
    lm = make_lm(extra_headers={"X-Foveal-Session": "ci"})
    agent = dspy.ReActV2("question -> answer", tools=[search])
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter(use_native_function_calling=True)):
        answer = agent(question="Why is CI red?", history=dspy.History(messages=[]))
        answer = agent(question="And yesterday?", history=answer.history)
    print(answer.answer)
    context = conversations.context("ci")
    assert context is not None
    print(context.report())
    print(context.why("e1"))


if __name__ == "__main__":
    main()
