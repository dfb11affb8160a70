"""HTTP clients that keep each request inside the model's context window.

    client = openai.OpenAI(http_client=foveal.transport.httpx2())

1. A request to chat completions, Responses, Anthropic messages, Gemini or Bedrock Converse is recognised as the
   continuation of a conversation, reduced if it has to be, and sent on. The response passes unchanged; its usage is
   read on the way.
2. A request that the provider refuses as too large is sent again, smaller.
3. Every other request, and one that cannot be read, passes untouched.

`httpx`, `httpx2` and `botocore` are imported only by the functions of the same name.

The drop-in server shares the modules that know no HTTP library:

client_request        reads a client's request, and encodes it with other messages and their cache marks
digests               digest chain of a history, by which a conversation is recognised
recognised_messages   the digests of one conversation, and how a request continues it
attempts              which requests are sent for one request of a client, and what is read of each response
upstream_reply        the reply in the bytes of a response, and a copy of those that pass
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

from foveal.transport.botocore_hooks import ConverseHooks
from foveal.transport.conversation_pool import ConversationPool, checked_pool
from foveal.transport.http_relay import make_async_client, make_client, wrap_transport

if TYPE_CHECKING:
    import httpx as _httpx
    import httpx2 as _httpx2

__all__ = ["ConversationPool", "botocore", "httpx", "httpx2", "httpx2_async", "httpx_async", "wrap"]

TransportT = TypeVar("TransportT")
ClientT = TypeVar("ClientT")


def httpx(conversations: ConversationPool | None = None, **options: Any) -> _httpx.Client:
    """Return an `httpx.Client` that fits requests.

    Args:
        conversations: The pool of conversations, with the settings. None creates one with the defaults.
        **options: The options of `httpx.Client`.

    Raises:
        BadSetting: An option belongs to the pool, or `conversations` is not a pool.

    Examples:
        ```python
        import foveal

        with foveal.transport.httpx(foveal.transport.ConversationPool(window=32_000), timeout=60) as http:
            assert http.timeout.read == 60
        ```
    """
    return cast("_httpx.Client", make_client("httpx", conversations, options))


def httpx_async(conversations: ConversationPool | None = None, **options: Any) -> _httpx.AsyncClient:
    """Return an `httpx.AsyncClient` that fits requests.

    Args:
        conversations: The pool of conversations, with the settings. None creates one with the defaults.
        **options: The options of `httpx.AsyncClient`.

    Raises:
        BadSetting: An option belongs to the pool, or `conversations` is not a pool.

    Examples:
        ```python
        import foveal

        async with foveal.transport.httpx_async() as http:
            assert not http.is_closed
        ```
    """
    return cast("_httpx.AsyncClient", make_async_client("httpx", conversations, options))


def httpx2(conversations: ConversationPool | None = None, **options: Any) -> _httpx2.Client:
    """Return an `httpx2.Client` that fits requests.

    Args:
        conversations: The pool of conversations, with the settings. None creates one with the defaults.
        **options: The options of `httpx2.Client`.

    Raises:
        BadSetting: An option belongs to the pool, or `conversations` is not a pool.

    Examples:
        ```python
        import foveal
        import openai

        fitted = openai.OpenAI(http_client=foveal.transport.httpx2())
        ```
    """
    return cast("_httpx2.Client", make_client("httpx2", conversations, options))


def httpx2_async(conversations: ConversationPool | None = None, **options: Any) -> _httpx2.AsyncClient:
    """Return an `httpx2.AsyncClient` that fits requests.

    Args:
        conversations: The pool of conversations, with the settings. None creates one with the defaults.
        **options: The options of `httpx2.AsyncClient`.

    Raises:
        BadSetting: An option belongs to the pool, or `conversations` is not a pool.

    Examples:
        ```python
        import foveal
        import openai

        fitted = openai.AsyncOpenAI(http_client=foveal.transport.httpx2_async())
        ```
    """
    return cast("_httpx2.AsyncClient", make_async_client("httpx2", conversations, options))


def wrap(transport: TransportT, conversations: ConversationPool | None = None) -> TransportT:
    """Return a transport that fits requests and sends them through another one.

    Closing it closes the other one.

    Args:
        transport: A transport of httpx or httpx2, sync or async.
        conversations: The pool of conversations, with the settings. None creates one with the defaults.

    Raises:
        BadSetting: `transport` is not a transport of either library, or `conversations` is not a pool.

    Examples:
        ```python
        import foveal
        import httpx

        transport = foveal.transport.wrap(httpx.HTTPTransport(retries=2))
        with httpx.Client(transport=transport) as http:
            assert not http.is_closed
        ```
    """
    return cast(TransportT, wrap_transport(transport, conversations))


def botocore(client: ClientT, conversations: ConversationPool | None = None) -> ClientT:
    """Let a `bedrock-runtime` client fit the requests of `converse` and `converse_stream`.

    Args:
        client: A client of boto3.
        conversations: The pool of conversations, with the settings. None creates one with the defaults.

    Returns:
        The same client.

    Raises:
        BadSetting: `client` is not a `bedrock-runtime` client, or `conversations` is not a pool.

    Examples:
        ```py
        import boto3

        import foveal

        bedrock = foveal.transport.botocore(boto3.client("bedrock-runtime", region_name="eu-west-1"))
        ```
    """
    ConverseHooks(client, checked_pool(conversations)).register()
    return client
