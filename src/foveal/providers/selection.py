"""Which model answers: the one that is named, else the first that there is a key for, else the local one.

    anthropic/claude-sonnet-4-6         ANTHROPIC_API_KEY
    openai/gpt-5.1                      OPENAI_API_KEY; OPENAI_BASE_URL for anything that speaks like it
    responses/gpt-5.1                   the same, by OpenAI's Responses API
    gemini/gemini-2.5-pro               GEMINI_API_KEY or GOOGLE_API_KEY
    openrouter/deepseek/deepseek-chat   OPENROUTER_API_KEY
    ollama/qwen3                        no key; OLLAMA_HOST if it is not on this machine, OLLAMA_CONTEXT_LENGTH
    vllm/NAME, llamacpp/NAME            no key; VLLM_BASE_URL, LLAMACPP_BASE_URL
    local/qwen2.5-coder-0.5b, -1.5b     nothing at all: fetched once, and run here
    local//path/to/model.gguf           a file of yours

Any but the last two can be followed by `@ADDRESS`: `vllm/Qwen3-8B@http://10.0.0.7:8000/v1`. Without a name, the
order is that of `DEFAULTS`, OPENAI_BASE_URL being as good as a key when OPENAI_MODEL says which model; FOVEAL_GGUF
names the file for the local model. The window of a model is what is known of it, but Ollama cuts what is longer
than its own default without a word: so that default is taken, unless somebody says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

from foveal.config import Config
from foveal.core.models import model as models
from foveal.errors import BadSetting, ProviderError
from foveal.ports import Provider
from foveal.providers.base import need
from foveal.providers.endpoint import Endpoint
from foveal.providers.local import download
from foveal.providers.local.download import Tell

LOCAL: Final = "local"
OLLAMA_WINDOW: Final = 4_096


class ProviderService(NamedTuple):
    """How a provider is found in the environment."""

    title: str
    url: str
    keys: tuple[str, ...] = ()
    """Variables that may hold the key, the first one first; none where no key is needed."""
    url_from: tuple[str, ...] = ()
    """Variables that may hold another address."""
    optional_keys: tuple[str, ...] = ()
    options: Mapping[str, Any] = {}
    """Further fields of every request."""


SERVICES: Final[dict[str, ProviderService]] = {
    "anthropic": ProviderService(
        "Anthropic",
        "https://api.anthropic.com",
        keys=("ANTHROPIC_API_KEY",),
        url_from=("ANTHROPIC_BASE_URL",),
    ),
    "openai": ProviderService(
        "OpenAI", "https://api.openai.com/v1", keys=("OPENAI_API_KEY",), url_from=("OPENAI_BASE_URL",)
    ),
    "responses": ProviderService(
        "OpenAI", "https://api.openai.com/v1", keys=("OPENAI_API_KEY",), url_from=("OPENAI_BASE_URL",)
    ),
    "gemini": ProviderService(
        "Gemini",
        "https://generativelanguage.googleapis.com/v1beta/openai/",
        keys=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        url_from=("GEMINI_BASE_URL",),
    ),
    "openrouter": ProviderService(
        "OpenRouter",
        "https://openrouter.ai/api/v1",
        keys=("OPENROUTER_API_KEY",),
        url_from=("OPENROUTER_BASE_URL",),
        # Or it would cut the middle of a request without a word.
        options={"extra_body": {"plugins": [{"id": "context-compression", "enabled": False}]}},
    ),
    "ollama": ProviderService(
        "Ollama",
        "http://127.0.0.1:11434/v1",
        url_from=("OLLAMA_BASE_URL", "OLLAMA_HOST"),
        optional_keys=("OLLAMA_API_KEY",),
    ),
    "vllm": ProviderService(
        "vLLM", "http://127.0.0.1:8000/v1", url_from=("VLLM_BASE_URL",), optional_keys=("VLLM_API_KEY",)
    ),
    "llamacpp": ProviderService(
        "llama.cpp",
        "http://127.0.0.1:8080/v1",
        url_from=("LLAMACPP_BASE_URL",),
        optional_keys=("LLAMACPP_API_KEY",),
    ),
}
SAME: Final = {
    "google": "gemini",
    "openai-responses": "responses",
    "hosted_vllm": "vllm",
    "llama.cpp": "llamacpp",
}

DEFAULTS: Final = (
    ("anthropic", "claude-sonnet-4-6"),
    ("openai", "gpt-5.1"),
    ("gemini", "gemini-2.5-pro"),
    ("openrouter", "anthropic/claude-sonnet-4.6"),
)
"""Without a name: the first of these whose key is there."""
FAMILIES: Final = (
    (re.compile(r"claude"), "anthropic"),
    (re.compile(r"gpt-|chatgpt|o\d(-|$)|codex"), "openai"),
    (re.compile(r"gemini|gemma-"), "gemini"),
)
"""Whose a model is that is named without its provider."""


def provider(
    name: str | None,
    *,
    environment: Mapping[str, str],
    window: int | None = None,
    progress: Tell = lambda _: None,
) -> Provider:
    """The provider of a model; nothing is asked, fetched or started yet. Raises `ProviderError`."""
    service, model = split(name, environment)
    if service == LOCAL:
        return _local(model, environment, window, progress)
    model, _, address = model.partition("@")
    if not model:
        raise ProviderError(f"{name!r} names no model; {possible()}", code="refused")
    place = _place(service, address, environment)
    if service == "ollama" and window is None:
        given = environment.get("OLLAMA_CONTEXT_LENGTH", "")
        window = int(given) if given.isdecimal() and int(given) else OLLAMA_WINDOW
    return _remote(service, model, place, window)


def possible() -> str:
    """What can be asked for, in a sentence."""
    named = ", ".join(f"{service}/MODEL" for service in SERVICES)
    known = ", ".join(f"{LOCAL}/{known}" for known in download.KNOWN)
    return f"possible are {named}, {known} and {LOCAL}//path/to/model.gguf"


def chosen(service: str, environment: Mapping[str, str]) -> bool:
    """Whether somebody has set a key or an address of a service, so that it is meant to be asked."""
    known = SERVICES.get(service)
    names = (*known.keys, *known.optional_keys, *known.url_from) if known else ()
    return any(environment.get(name, "").strip() for name in names)


def split(name: str | None, environment: Mapping[str, str]) -> tuple[str, str]:
    """The service, and the model as that calls it; raises `ProviderError`."""
    if name is None or not name.strip():
        return _default(environment)
    before, slash, after = name.strip().partition("/")
    service = SAME.get(before.lower(), before.lower())
    if service == LOCAL:
        return service, after
    if slash and service in SERVICES:
        return service, after
    for pattern, owner in FAMILIES:
        if not slash and pattern.match(name.strip().lower()):
            return owner, name.strip()
    if environment.get("OPENAI_BASE_URL"):
        return "openai", name.strip()
    raise ProviderError(f"no provider is known for {name!r}; {possible()}", code="refused")


def _default(environment: Mapping[str, str]) -> tuple[str, str]:
    own = environment.get("OPENAI_MODEL", "").strip()
    for service, model in DEFAULTS:
        if service == "openai" and environment.get("OPENAI_BASE_URL"):
            if not own and not environment.get("OPENAI_API_KEY", "").strip():
                raise ProviderError(
                    "OPENAI_BASE_URL is set, but no model is named: name one, or set OPENAI_MODEL",
                    code="refused",
                )
            return service, own or model
        if any(environment.get(variable, "").strip() for variable in SERVICES[service].keys):
            return service, model
    return LOCAL, ""


def _place(service: str, address: str, environment: Mapping[str, str]) -> Endpoint:
    known = SERVICES[service]
    given = next((environment[name] for name in known.url_from if environment.get(name)), "")
    variables = known.keys or known.optional_keys
    variable = next((name for name in variables if environment.get(name, "").strip()), "")
    elsewhere = bool(address or given) and service in ("openai", "responses")
    if known.keys and not variable and not elsewhere:
        wanted = " or ".join(known.keys)
        raise ProviderError(
            f"{known.title} needs a key: set {wanted}, or use another model; {possible()}", code="key"
        )
    url = address or given or known.url
    if "://" not in url:
        url = f"http://{url}"
    if service == "ollama" and not url.rstrip("/").endswith("/v1"):
        url = f"{url.rstrip('/')}/v1"
    return Endpoint(
        known.title, url=url, key=environment.get(variable, ""), variable=variable or "".join(variables[:1])
    )


def _remote(service: str, model: str, place: Endpoint, window: int | None) -> Provider:
    name = f"{service}/{model}"
    facts = models.model(f"openai/{model}" if service == "responses" else name, window=window)
    options = SERVICES[service].options
    if service == "openrouter" and "claude" in model:
        extra = {
            **options["extra_body"],
            "cache_control": {"type": "ephemeral"},
        }  # it places the marks itself
        options = {**options, "extra_body": extra}
    if service == "anthropic":
        need("anthropic")
        from foveal.providers.anthropic import Anthropic

        return Anthropic(place, facts, name=name, served=model, options=options)
    need("openai")
    if service == "responses":
        from foveal.providers.openai_responses import OpenAIResponses

        return OpenAIResponses(place, facts, name=name, served=model, options=options)
    from foveal.providers.openai_chat import OpenAIChat

    return OpenAIChat(place, facts, name=name, served=model, options=options)


def _local(model: str, environment: Mapping[str, str], window: int | None, progress: Tell) -> Provider:
    need("openai")
    from foveal.providers.local.local_model import LocalModel

    cache = download.folder(environment)
    given = model or environment.get("FOVEAL_GGUF", "")
    if not given:
        return LocalModel(download.QWEN_05B, cache=cache, window=window, progress=progress)
    if given in download.KNOWN:
        return LocalModel(download.KNOWN[given], cache=cache, window=window, progress=progress)
    if not given.lower().endswith(".gguf") and "/" not in given:
        raise ProviderError(f"there is no local model {given!r}; {possible()}", code="refused")
    return LocalModel(_gguf(given), cache=cache, window=window, progress=progress)


def _gguf(given: str) -> Path:
    """A user's own file."""
    path = Path(given).expanduser().absolute()
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as problem:
        raise ProviderError(
            f"the model {path} cannot be read ({problem.strerror}): check its path", code="refused"
        ) from None
    if magic != b"GGUF":
        raise ProviderError(f"{path} is not a GGUF file", code="refused")
    return path


# ── configured ────────────────────────────────────────────────────────────────────────────────────
# The provider that a configuration means.

FACTORY: Final = "FOVEAL_PROVIDER"
"""`module:function`: makes the provider in place of `foveal.providers.selection.provider`, and is called like it."""


def configured(
    config: Config, name: str | None, *, environment: Mapping[str, str], progress: Callable[[Any], None]
) -> Provider:
    """The provider of a model, the chosen one if none is named; nothing is asked, fetched or started yet."""
    variables = dict(environment)
    if address := config.get("base_url"):
        variables["OPENAI_BASE_URL"] = address
    made: Provider = _factory(variables)(
        name or config.model or None,
        environment=variables,
        window=config.get("window") if not name else None,
        progress=progress,
    )
    return made


def _factory(environment: Mapping[str, str]) -> Callable[..., Any]:
    given = environment.get(FACTORY, "")
    if not given:
        return provider
    module, _, name = given.partition(":")
    try:
        made = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as problem:
        allowed = f"module:function, of a module that can be imported ({problem})"
        raise BadSetting(FACTORY, given, allowed) from None
    if not callable(made):
        raise BadSetting(FACTORY, given, "module:function")
    return made  # type: ignore[no-any-return]
