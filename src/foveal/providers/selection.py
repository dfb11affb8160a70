"""Selection of a provider by model name, environment keys or configuration.

    anthropic/claude-sonnet-4-6         ANTHROPIC_API_KEY
    openai/gpt-5.1                      OPENAI_API_KEY; OPENAI_BASE_URL for a compatible server
    responses/gpt-5.1                   the same, by OpenAI's Responses API
    gemini/gemini-2.5-pro               GEMINI_API_KEY or GOOGLE_API_KEY
    openrouter/deepseek/deepseek-chat   OPENROUTER_API_KEY
    ollama/qwen3                        no key; OLLAMA_HOST if it is on another machine, OLLAMA_CONTEXT_LENGTH
    vllm/NAME, llamacpp/NAME            no key; VLLM_BASE_URL, LLAMACPP_BASE_URL
    local/qwen2.5-coder-0.5b, -1.5b     no key: downloaded once, runs on this machine
    local//path/to/model.gguf           your own file

1. All but the last two can be followed by `@ADDRESS`: `vllm/Qwen3-8B@http://10.0.0.7:8000/v1`.
2. Without a name, the first of `DEFAULT_MODELS` whose key is set is used; OPENAI_BASE_URL counts as a key if
   OPENAI_MODEL names the model. Without any key, the local model is used; FOVEAL_GGUF names its file.
3. The window is the one that the catalogue knows. Ollama is the exception: it cuts longer requests to its own
   default silently, so that default is used unless OLLAMA_CONTEXT_LENGTH or the caller gives another, or
   `ollama_window` has asked the server.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

from foveal.core.models.model import model
from foveal.errors import BadSetting, ProviderError
from foveal.ports import Provider
from foveal.providers import LOCAL_SERVICE
from foveal.providers.base import require_library
from foveal.providers.endpoint import ProviderEndpoint
from foveal.providers.local.download import KNOWN_WEIGHTS, QWEN_05B, OnProgress, weights_folder
from foveal.providers.ollama_window import OLLAMA_TITLE

LOCAL_ENGINE: Final = "dasllama"
"""The package with the server of local models."""
FACTORY_VARIABLE: Final = "FOVEAL_PROVIDER"
"""Variable with `module:function`, a function that is called in place of `provider`, with the same arguments."""


class ProviderService(NamedTuple):
    """A service, and the environment variables that configure it."""

    title: str
    url: str
    key_variables: tuple[str, ...] = ()
    """Variables for the key, in order of preference; empty if no key is needed."""
    url_variables: tuple[str, ...] = ()
    """Variables for another URL, in order of preference."""
    optional_key_variables: tuple[str, ...] = ()
    options: Mapping[str, Any] = {}
    """Further fields of every request."""


SERVICES: Final[dict[str, ProviderService]] = {
    "anthropic": ProviderService(
        "Anthropic",
        "https://api.anthropic.com",
        key_variables=("ANTHROPIC_API_KEY",),
        url_variables=("ANTHROPIC_BASE_URL",),
    ),
    "openai": ProviderService(
        "OpenAI",
        "https://api.openai.com/v1",
        key_variables=("OPENAI_API_KEY",),
        url_variables=("OPENAI_BASE_URL",),
    ),
    "responses": ProviderService(
        "OpenAI",
        "https://api.openai.com/v1",
        key_variables=("OPENAI_API_KEY",),
        url_variables=("OPENAI_BASE_URL",),
    ),
    "gemini": ProviderService(
        "Gemini",
        "https://generativelanguage.googleapis.com/v1beta/openai/",
        key_variables=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        url_variables=("GEMINI_BASE_URL",),
    ),
    "openrouter": ProviderService(
        "OpenRouter",
        "https://openrouter.ai/api/v1",
        key_variables=("OPENROUTER_API_KEY",),
        url_variables=("OPENROUTER_BASE_URL",),
        # Otherwise OpenRouter removes the middle of a long request silently.
        options={"extra_body": {"plugins": [{"id": "context-compression", "enabled": False}]}},
    ),
    "ollama": ProviderService(
        OLLAMA_TITLE,
        "http://127.0.0.1:11434/v1",
        url_variables=("OLLAMA_BASE_URL", "OLLAMA_HOST"),
        optional_key_variables=("OLLAMA_API_KEY",),
    ),
    "vllm": ProviderService(
        "vLLM",
        "http://127.0.0.1:8000/v1",
        url_variables=("VLLM_BASE_URL",),
        optional_key_variables=("VLLM_API_KEY",),
    ),
    "llamacpp": ProviderService(
        "llama.cpp",
        "http://127.0.0.1:8080/v1",
        url_variables=("LLAMACPP_BASE_URL",),
        optional_key_variables=("LLAMACPP_API_KEY",),
    ),
}
SERVICE_ALIASES: Final = {
    "google": "gemini",
    "openai-responses": "responses",
    "hosted_vllm": "vllm",
    "llama.cpp": "llamacpp",
}
DEFAULT_MODELS: Final = (
    ("anthropic", "claude-sonnet-4-6"),
    ("openai", "gpt-5.1"),
    ("gemini", "gemini-2.5-pro"),
    ("openrouter", "anthropic/claude-sonnet-4.6"),
)
"""Without a name, the first of these whose key is set is used."""
MODEL_NAME_PATTERNS: Final = (
    (re.compile(r"claude"), "anthropic"),
    (re.compile(r"gpt-|chatgpt|o\d(-|$)|codex"), "openai"),
    (re.compile(r"gemini|gemma-"), "gemini"),
)
"""Services of models that are named without a service."""
MIN_TYPO_SIMILARITY: Final = 0.8
"""A name that is so similar to that of a service is a typing error, and not a part of a model's name."""


def provider(
    name: str | None,
    *,
    environment: Mapping[str, str],
    window: int | None = None,
    progress: OnProgress = lambda _: None,
) -> Provider:
    """Return the provider of a model, without a request, download or process; raises `ProviderError`."""
    service, model_id = split_model_name(name, environment)
    if service == LOCAL_SERVICE:
        require_local_engine()
        return _local_provider(model_id, environment, window, progress)
    model_id, _, address = model_id.partition("@")
    if not model_id:
        raise ProviderError(f"{name!r} names no model; {describe_choices()}", code="refused")
    endpoint = _endpoint(service, address, environment)
    if service == "ollama" and window is None:
        given = environment.get("OLLAMA_CONTEXT_LENGTH", "")
        window = int(given) if given.isdecimal() and int(given) else None
    return _remote_provider(service, model_id, endpoint, window)


def require_local_engine() -> None:
    """Raise `ProviderError` if the engine of local models is not installed; it does not exist for macOS."""
    if find_spec(LOCAL_ENGINE) is not None:
        return
    if sys.platform == "darwin":
        reason = "the bundled model does not run on macOS"
    else:
        reason = "the engine of the bundled model is not installed (pip install 'foveal[local]')"
    raise ProviderError(
        f"{reason}: set ANTHROPIC_API_KEY, OPENAI_API_KEY or GEMINI_API_KEY, or install Ollama (ollama.com) and "
        "use --model ollama/NAME",
        code="refused",
    )


def describe_choices() -> str:
    """Return the possible model names as part of a sentence."""
    remote = ", ".join(f"{service}/MODEL" for service in SERVICES)
    local = ", ".join(f"{LOCAL_SERVICE}/{name}" for name in KNOWN_WEIGHTS)
    return f"possible are {remote}, {local} and {LOCAL_SERVICE}//path/to/model.gguf"


def is_configured(service: str, environment: Mapping[str, str]) -> bool:
    """Return whether the environment sets a key or a URL of a service."""
    known = SERVICES.get(service)
    names = (*known.key_variables, *known.optional_key_variables, *known.url_variables) if known else ()
    return any(environment.get(name, "").strip() for name in names)


def split_model_name(name: str | None, environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the service and its name of the model; raises `ProviderError`."""
    if name is None or not name.strip():
        return _default_model(environment)
    before, slash, after = name.strip().partition("/")
    service = SERVICE_ALIASES.get(before.lower(), before.lower())
    if service == LOCAL_SERVICE:
        return service, after
    if slash and service in SERVICES:
        return service, after
    for pattern, owner in MODEL_NAME_PATTERNS:
        if not slash and pattern.match(name.strip().lower()):
            return owner, name.strip()
    known = (*SERVICES, *SERVICE_ALIASES, LOCAL_SERVICE)
    if slash and (near := get_close_matches(service, known, n=1, cutoff=MIN_TYPO_SIMILARITY)):
        raise ProviderError(
            f"there is no provider {before!r}: did you mean {near[0]}/{after}? For a model of this name at "
            f"OPENAI_BASE_URL, use openai/{name.strip()}",
            code="refused",
        )
    if environment.get("OPENAI_BASE_URL"):
        return "openai", name.strip()
    raise ProviderError(f"no provider is known for {name!r}; {describe_choices()}", code="refused")


def _default_model(environment: Mapping[str, str]) -> tuple[str, str]:
    named = environment.get("OPENAI_MODEL", "").strip()
    for service, model_id in DEFAULT_MODELS:
        if service == "openai" and environment.get("OPENAI_BASE_URL"):
            if not named and not environment.get("OPENAI_API_KEY", "").strip():
                raise ProviderError(
                    "OPENAI_BASE_URL is set, but no model is named: name one, or set OPENAI_MODEL",
                    code="refused",
                )
            return service, named or model_id
        if any(environment.get(variable, "").strip() for variable in SERVICES[service].key_variables):
            return service, model_id
    return LOCAL_SERVICE, ""


def _endpoint(service: str, address: str, environment: Mapping[str, str]) -> ProviderEndpoint:
    known = SERVICES[service]
    given = next((environment[name] for name in known.url_variables if environment.get(name)), "")
    variables = known.key_variables or known.optional_key_variables
    variable = next((name for name in variables if environment.get(name, "").strip()), "")
    # A compatible server at another URL may need no key.
    is_other_server = bool(address or given) and service in ("openai", "responses")
    if known.key_variables and not variable and not is_other_server:
        names = " or ".join(known.key_variables)
        raise ProviderError(
            f"{known.title} needs a key: set {names}, or use another model; {describe_choices()}", code="key"
        )
    url = address or given or known.url
    if "://" not in url:
        url = f"http://{url}"
    if service == "ollama" and not url.rstrip("/").endswith("/v1"):
        url = f"{url.rstrip('/')}/v1"
    return ProviderEndpoint(
        known.title,
        url=url,
        key=environment.get(variable, ""),
        key_variable=variable or "".join(variables[:1]),
    )


def _remote_provider(service: str, model_id: str, endpoint: ProviderEndpoint, window: int | None) -> Provider:
    name = f"{service}/{model_id}"
    known = model(f"openai/{model_id}" if service == "responses" else name, window=window)
    options = SERVICES[service].options
    if service == "openrouter" and "claude" in model_id:
        # OpenRouter then places the cache breakpoints itself.
        options = {"extra_body": {**options["extra_body"], "cache_control": {"type": "ephemeral"}}}
    if service == "anthropic":
        require_library("anthropic")
        from foveal.providers.anthropic import Anthropic

        return Anthropic(endpoint, known, name=name, model_id=model_id, options=options)
    require_library("openai")
    if service == "responses":
        from foveal.providers.openai_responses import OpenAIResponses

        return OpenAIResponses(endpoint, known, name=name, model_id=model_id, options=options)
    from foveal.providers.openai_chat import OpenAIChat

    return OpenAIChat(endpoint, known, name=name, model_id=model_id, options=options)


def _local_provider(
    name: str, environment: Mapping[str, str], window: int | None, progress: OnProgress
) -> Provider:
    require_library("openai")
    from foveal.providers.local.model import LocalModel

    cache = weights_folder(environment)
    given = name or environment.get("FOVEAL_GGUF", "")
    if not given:
        return LocalModel(QWEN_05B, cache=cache, window=window, progress=progress)
    if given in KNOWN_WEIGHTS:
        return LocalModel(KNOWN_WEIGHTS[given], cache=cache, window=window, progress=progress)
    if not given.lower().endswith(".gguf") and "/" not in given:
        raise ProviderError(f"there is no local model {given!r}; {describe_choices()}", code="refused")
    return LocalModel(_checked_gguf(given), cache=cache, window=window, progress=progress)


def _checked_gguf(given: str) -> Path:
    """Return the path of the user's own file; raises `ProviderError` if it is not a GGUF file."""
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


def provider_factory(environment: Mapping[str, str]) -> Callable[..., Any]:
    """Return the function that makes providers: the one that the environment names, else `provider`."""
    given = environment.get(FACTORY_VARIABLE, "")
    if not given:
        return provider
    module, _, name = given.partition(":")
    try:
        factory = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as problem:
        allowed = f"module:function, of a module that can be imported ({problem})"
        raise BadSetting(FACTORY_VARIABLE, given, allowed) from None
    if not callable(factory):
        raise BadSetting(FACTORY_VARIABLE, given, "module:function")
    return factory  # type: ignore[no-any-return]
