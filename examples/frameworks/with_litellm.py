"""litellm inside the model's window: Foveal's functions in place of litellm's, and a callback."""

import litellm

from foveal.adapters.litellm import FovealCallback

fitted = FovealCallback()
litellm.callbacks = [fitted]  # for acompletion, the Router and the proxy


def ask(messages: list[dict[str, str]]) -> str:
    reply = fitted.completion("openai/gpt-4.1", messages, metadata={"session_id": "ci"})
    return str(reply.choices[0].message.content)


if __name__ == "__main__":
    print(ask([{"role": "user", "content": "Why is CI red?"}]))
