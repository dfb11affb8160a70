"""Hooks of a botocore client for Bedrock: Converse requests are fitted before they are signed.

A request is signed with its body, so it has to be changed before: the hook gets the parameters of the call. Nothing
of botocore is imported; the client that the caller passes has all that is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from threading import local
from typing import Any, Final

import msgspec

from foveal.core.wire.bedrock import mark_bytes, restore_bytes
from foveal.errors import BadSetting
from foveal.transport.attempts import MAX_ATTEMPTS
from foveal.transport.client_request import ClientRequest
from foveal.transport.conversation_pool import SESSION_HEADER, ConversationPool
from foveal.transport.fitted_exchange import FittedExchange, begin_exchange

SERVICE: Final = "bedrock-runtime"
CONVERSE_METHODS: Final = {"Converse": "converse", "ConverseStream": "converse_stream"}
"""Operations that carry a conversation, and the methods that call them."""
_EXCHANGE_KEY: Final = "foveal_exchange"
"""Key in botocore's context of a call."""


class ConverseHooks:
    """The hooks of one client."""

    def __init__(self, client: Any, conversations: ConversationPool) -> None:
        service = getattr(getattr(client, "meta", None), "service_model", None)
        if getattr(service, "service_name", "") != SERVICE:
            raise BadSetting(
                "client", client, f"a `{SERVICE}` client of boto3; settings go to `ConversationPool`"
            )
        self.conversations = conversations
        self._client = client
        self._thread = local()

    def register(self) -> None:
        """Register the hooks; a second time replaces nothing and adds nothing."""
        events = self._client.meta.events
        for operation in CONVERSE_METHODS:
            for event, hook in (
                ("provide-client-params", self._fit),
                ("after-call", self._after_call),
                ("after-call-error", self._after_error),
            ):
                name = f"{event}.{SERVICE}.{operation}"
                events.register(name, hook, unique_id=f"foveal-{name}")

    def _fit(self, params: dict[str, Any], context: dict[str, Any], **_: Any) -> dict[str, Any] | None:
        """Return the parameters to send; None leaves them as they are. Raises `ConversationIdMissing`."""
        if getattr(self._thread, "is_sending_again", False):
            return None
        request = ClientRequest("bedrock", _json_body(params), self.conversations.request_cache)
        name, params = _without_name(params)
        exchange = begin_exchange(self.conversations, request, name=name)
        if exchange is None:
            return params
        context[_EXCHANGE_KEY] = exchange, params
        return _fitted_params(exchange, params)

    def _after_call(
        self, http_response: Any, parsed: dict[str, Any], model: Any, context: dict[str, Any], **_: Any
    ) -> None:
        exchange, params = context.pop(_EXCHANGE_KEY, (None, None))
        if exchange is None:
            return
        if http_response.status_code >= 300 and not self._send_smaller(
            exchange, params, CONVERSE_METHODS[model.name], http_response, parsed
        ):
            exchange.end()
        elif "stream" in parsed:
            parsed["stream"] = ObservedEvents(parsed["stream"], exchange)
        else:
            exchange.observe({**parsed.get("usage", {}), "stop_reason": parsed.get("stopReason", "")})
            exchange.end()

    def _after_error(self, context: dict[str, Any], **_: Any) -> None:
        exchange, _params = context.pop(_EXCHANGE_KEY, (None, None))
        if exchange is not None:
            exchange.end()

    def _send_smaller(
        self,
        exchange: FittedExchange,
        params: dict[str, Any],
        method: str,
        http_response: Any,
        parsed: dict[str, Any],
    ) -> bool:
        """Send smaller requests while Bedrock refuses them as too large. botocore then finds the last response in
        place of the first; return whether that is a success."""
        for _ in range(MAX_ATTEMPTS - 1):
            if not exchange.retry_smaller({"status_code": http_response.status_code, "body": parsed}):
                return False
            self._thread.is_sending_again = True
            try:
                reply = getattr(self._client, method)(**_fitted_params(exchange, params))
            except Exception as error:
                reply = getattr(error, "response", None)
                if not isinstance(reply, dict):  # the network failed, not the request
                    raise
            finally:
                self._thread.is_sending_again = False
            parsed.clear()
            parsed.update(reply)
            http_response.status_code = reply.get("ResponseMetadata", {}).get("HTTPStatusCode", 200)
            if http_response.status_code < 300:
                return True
        return False


class ObservedEvents:
    """The events of a reply; the usage is in the last one."""

    def __init__(self, events: Any, exchange: FittedExchange) -> None:
        self._events, self._exchange = events, exchange

    def __iter__(self) -> Iterator[dict[str, Any]]:
        stop = ""
        try:
            for event in self._events:
                stop = event.get("messageStop", {}).get("stopReason", stop)
                if "metadata" in event:
                    self._exchange.observe({**event["metadata"].get("usage", {}), "stop_reason": stop})
                yield event
        finally:
            self._exchange.end()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._events, name)

    def close(self) -> None:
        """Close the stream."""
        self._exchange.end()
        self._events.close()


def _without_name(params: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name of a call's conversation, and its parameters without it."""
    metadata = params.get("requestMetadata")
    if not isinstance(metadata, dict):
        return "", params
    names = [value for key, value in metadata.items() if str(key).lower() == SESSION_HEADER]
    rest = {key: value for key, value in metadata.items() if str(key).lower() != SESSION_HEADER}
    others = {key: value for key, value in params.items() if key != "requestMetadata"}
    return str(names[0]).strip() if names else "", {**others, "requestMetadata": rest} if rest else others


def _json_body(params: dict[str, Any]) -> bytes:
    """Return the parameters of a call as the body of a request that can be read."""
    fields = {
        "model": params.get("modelId"),
        "messages": params.get("messages"),
        "system": params.get("system"),
        "tools": (params.get("toolConfig") or {}).get("tools"),
        "maxTokens": (params.get("inferenceConfig") or {}).get("maxTokens"),
    }
    try:
        return msgspec.json.encode(mark_bytes(fields))
    except (TypeError, ValueError, RecursionError):  # botocore says what is wrong with them
        return b""


def _fitted_params(exchange: FittedExchange, params: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a call with the messages and the limit of the fitted request."""
    if exchange.body is exchange.request.body:
        return params
    fields = msgspec.json.decode(exchange.body)
    fitted = {**params, "messages": restore_bytes(fields["messages"])}
    if fields.get("maxTokens"):
        fitted["inferenceConfig"] = {**params["inferenceConfig"], "maxTokens": fields["maxTokens"]}
    return fitted
