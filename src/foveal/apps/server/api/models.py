"""Which models a client may choose. An address, or a path of this machine, is never a client's choice."""

from __future__ import annotations

from fnmatch import fnmatchcase

from foveal.apps.server.refusals import Refusal
from foveal.config import Config
from foveal.models_io import weights


def check_model(name: str, config: Config) -> None:
    """Raise `Refusal` unless clients may ask for this model; "" is the server's own."""
    allowed: list[str] = config.get("server.models")
    if not name or any(fnmatchcase(name, pattern) for pattern in allowed):
        return
    service, _, model = name.partition("/")
    if allowed or (service.lower() == "local" and model not in weights.KNOWN):
        raise Refusal(422, f"{name!r} is not among the models of this server", code="model_not_allowed")
