"""Which models a client may choose. An address, or a path of this machine, is never a client's choice."""

from __future__ import annotations

from fnmatch import fnmatchcase

from foveal.apps.server.refusals import Refusal
from foveal.models_io import choose, weights
from foveal.models_io.configured import FACTORY
from foveal.service.ground import Ground


def check_model(name: str, ground: Ground) -> None:
    """Raise `Refusal` unless clients may ask for this model; "" is the server's own."""
    allowed: list[str] = ground.config.get("server.models")
    if not name or any(fnmatchcase(name, pattern) for pattern in allowed):
        return
    if allowed or not _offered(name, ground):
        raise Refusal(422, f"{name!r} is not among the models of this server", code="model_not_allowed")


def _offered(name: str, ground: Ground) -> bool:
    """Its service is one that whoever runs the server has chosen: by a key, by an address, or for his own model.
    Otherwise a client could have whatever listens on this machine asked."""
    if FACTORY in ground.environment and name.partition("/")[0].lower() not in (*choose.SERVICES, choose.LOCAL):
        return True  # names that only the factory knows
    service, model = choose.split(name, ground.environment)
    if service == choose.LOCAL:
        return model in weights.KNOWN
    own, _ = choose.split(ground.config.model or None, ground.environment)
    return service == own or choose.chosen(service, ground.environment)
