"""Settings of transports that are refused before the first request."""

from __future__ import annotations

from typing import Any

import pytest

import foveal.transport
from foveal.errors import BadSetting
from foveal.transport import ConversationPool


@pytest.mark.parametrize(
    "wrong",
    [
        {"windw": 16_000},
        {"window": "16k"},
        {"model": 5},
        {"summarise": "own"},
        {"policy": "x"},
        {"limit": 0},
        {"strict_ids": "yes"},
        {"progress": "yes"},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_wrong_setting_is_refused_before_the_first_request(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadSetting) as refused:
        ConversationPool(**wrong)
    assert {refused.value.field: refused.value.value} == wrong


@pytest.mark.parametrize("make", ["httpx", "httpx_async", "httpx2", "httpx2_async"])
def test_settings_of_a_pool_that_a_client_gets_are_refused_with_a_hint(make: str) -> None:
    client: Any = getattr(foveal.transport, make)
    for given, settings in ((("gpt-4.1",), {}), ((), {"window": 16_000}), ((), {"model": "gpt-4.1"})):
        with pytest.raises(BadSetting, match=r"ConversationPool\("):
            client(*given, **settings)


def test_only_a_pool_holds_the_conversations_of_a_wrapped_transport() -> None:
    import httpx2

    transport: Any = httpx2.HTTPTransport()
    with pytest.raises(BadSetting, match=r"ConversationPool\("):
        foveal.transport.wrap(transport, "gpt-4.1")  # type: ignore[arg-type]
    transport.close()
