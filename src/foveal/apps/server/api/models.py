"""Which models a client may choose. An address, or a path of this machine, is never a client's choice."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

from foveal.apps.server.refusals import Refusal
from foveal.errors import ProviderError
from foveal.models_io import choose, weights
from foveal.models_io.configured import FACTORY
from foveal.service.ground import Ground


def check_model(name: str, ground: Ground) -> None:
    """Raise `Refusal` unless clients may ask for this model; "" is the server's own."""
    allowed: list[str] = ground.config.get("server.models")
    if not name or any(fnmatchcase(name, pattern) for pattern in allowed):
        return
    if allowed or not _offered(name, ground):
        told = f"{name!r} is not among the models of this server; {offered(ground)}"
        raise Refusal(422, told, code="model_not_allowed")


def offered(ground: Ground) -> str:
    """What a client may ask for, in a sentence."""
    allowed: list[str] = ground.config.get("server.models")
    local = [f"{choose.LOCAL}/{known}" for known in weights.KNOWN]
    named = allowed or [f"{service}/MODEL" for service in choose.SERVICES if _chosen(service, ground)] + local
    return f"it has {', '.join(named)}, and its own when `model` is not given"


def _offered(name: str, ground: Ground) -> bool:
    """Its service is one that whoever runs the server has chosen. Otherwise a client could have whatever listens on
    this machine asked."""
    if FACTORY in ground.environment and name.partition("/")[0].lower() not in (
        *choose.SERVICES,
        choose.LOCAL,
    ):
        return True  # names that only the factory knows
    try:
        service, model = choose.split(name, _variables(ground))
    except ProviderError:
        return False
    return model in weights.KNOWN if service == choose.LOCAL else _chosen(service, ground)


def _chosen(service: str, ground: Ground) -> bool:
    """By a key, by an address, or for the server's own model."""
    try:
        own, _ = choose.split(ground.config.model or None, _variables(ground))
    except ProviderError:
        own = ""
    return service == own or choose.chosen(service, _variables(ground))


def _variables(ground: Ground) -> Mapping[str, str]:
    """The environment as providers see it: the configured address is as good as the variable."""
    address = ground.config.get("base_url")
    return {**ground.environment, "OPENAI_BASE_URL": address} if address else ground.environment
