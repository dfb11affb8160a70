"""The window that an Ollama server gives a model: it cuts longer requests silently, so it is asked.

1. `/api/ps` says it of a model that is loaded. Of another one, `/api/show` has the `num_ctx` of its Modelfile, if
   any; otherwise the default of Ollama counts until the model is loaded.
2. A window that the caller or the environment sets counts more, and nothing is asked.
3. If the server does not answer, the window stays as it is, and the next caller asks again.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, Final
from urllib.request import Request, urlopen

from msgspec.structs import replace

from foveal.core.models.model import model
from foveal.ports import Provider
from foveal.providers.base import BaseProvider

OLLAMA_TITLE: Final = "Ollama"
"""The name of the service in its endpoint."""
ANSWER_TIMEOUT_S: Final = 2.0
MAX_ANSWER_BYTES: Final = 8_000_000
_NUM_CTX: Final = re.compile(r"^num_ctx\s+(\d+)\s*$", re.MULTILINE)


async def ensure_ollama_window(provider: Provider) -> None:
    """Ask the server for the window of a provider's model, if it is one of Ollama and no setting has the window."""
    if _is_to_ask(provider):
        await asyncio.to_thread(ask_ollama_window, provider)


def ask_ollama_window(provider: Provider) -> None:
    """Do the same and wait for it."""
    if not isinstance(provider, BaseProvider) or not _is_to_ask(provider):
        return
    url, name = provider.endpoint.url.rstrip("/").removesuffix("/v1"), provider.model_id
    key = provider.endpoint.key.reveal()
    loaded = _loaded_window(_answer(f"{url}/api/ps", key=key), name)
    window = loaded or _configured_window(_answer(f"{url}/api/show", {"model": name}, key=key))
    if window:
        known = model(provider.model.name, window=window)
        provider.model = replace(known, sources={**known.sources, "window": "asked"})


def _is_to_ask(provider: Provider) -> bool:
    is_ollama = isinstance(provider, BaseProvider) and provider.endpoint.provider == OLLAMA_TITLE
    return is_ollama and provider.model.sources["window"] == "server"


def _answer(url: str, body: dict[str, Any] | None = None, *, key: str) -> dict[str, Any]:
    """Return the server's answer; {} if it has none."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    data = None if body is None else json.dumps(body).encode()
    try:
        with urlopen(Request(url, data, headers), timeout=ANSWER_TIMEOUT_S) as response:
            found = json.loads(response.read(MAX_ANSWER_BYTES))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _loaded_window(running: dict[str, Any], name: str) -> int:
    """Return the window of a model that is loaded; 0 if it is not."""
    names = {name, f"{name}:latest"}
    models = running.get("models")
    for entry in models if isinstance(models, list) else []:
        if isinstance(entry, dict) and {entry.get("name"), entry.get("model")} & names:
            return _count(entry.get("context_length"))
    return 0


def _configured_window(shown: dict[str, Any]) -> int:
    """Return the `num_ctx` of a model, but no more than the model can read; 0 if it has none."""
    found = _NUM_CTX.search(str(shown.get("parameters") or ""))
    about = shown.get("model_info")
    fields = about.items() if isinstance(about, dict) else ()
    most = next((_count(value) for key, value in fields if str(key).endswith(".context_length")), 0)
    return min(int(found[1]), most or int(found[1])) if found else 0


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
