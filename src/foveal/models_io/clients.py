"""The official client libraries, loaded when they are needed, with bounded patience.

A library retries by itself what may pass: a connection that fails, 408, 409, 429 and 5xx. It would also wait as
long as the provider asks, which may be an hour; beyond `PATIENCE` seconds we would rather say so.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any, Final

from foveal.errors import ProviderError
from foveal.models_io.faults import PATIENCE, TRIES, wait_of
from foveal.models_io.place import Place

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from openai import AsyncOpenAI

CONNECT: Final = 10.0
"""Seconds for a connection."""
SILENCE: Final = 300.0
"""Seconds without a single byte until an answer is given up."""
NO_KEY: Final = "none"
"""What is sent where no key is needed, because the libraries insist on one."""


def openai_client(place: Place, *, silence: float = SILENCE) -> AsyncOpenAI:
    need("openai")
    import openai

    return openai.AsyncOpenAI(
        api_key=place.key.reveal() or NO_KEY,
        base_url=place.url,
        max_retries=TRIES,
        http_client=_http(openai, place, silence),
    )


def anthropic_client(place: Place, *, silence: float = SILENCE) -> AsyncAnthropic:
    need("anthropic")
    import anthropic

    return anthropic.AsyncAnthropic(
        api_key=place.key.reveal() or NO_KEY,
        base_url=place.url,
        max_retries=TRIES,
        http_client=_http(anthropic, place, silence),
    )


def need(library: str) -> None:
    """Raises when a library is not installed."""
    if importlib.util.find_spec(library) is None:
        raise ProviderError(
            f"the library `{library}` is not installed: pip install 'foveal[chat]'", sort="refused"
        )


def _http(library: Any, place: Place, silence: float) -> Any:
    """An HTTP client for one place; one on this machine is never asked through a proxy."""
    return library.DefaultAsyncHttpxClient(
        timeout=library.Timeout(silence, connect=CONNECT),
        event_hooks={"response": [_impatient]},
        trust_env=not place.here,
    )


async def _impatient(response: Any) -> None:
    """Let the library not retry when it would have to wait for longer than a person does."""
    wait = wait_of(response.headers)
    if response.status_code >= 400 and wait is not None and wait > PATIENCE:
        response.headers["x-should-retry"] = "false"
