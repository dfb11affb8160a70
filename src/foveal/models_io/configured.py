"""The provider that a configuration means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

from foveal.config import Config
from foveal.errors import BadSetting
from foveal.ports import Provider

FACTORY: Final = "FOVEAL_PROVIDER"
"""`module:function`: makes the provider in place of `foveal.models_io.choose.provider`, and is called like it."""


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
        from foveal.models_io import choose

        return choose.provider
    module, _, name = given.partition(":")
    try:
        made = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as problem:
        allowed = f"module:function, of a module that can be imported ({problem})"
        raise BadSetting(FACTORY, given, allowed) from None
    if not callable(made):
        raise BadSetting(FACTORY, given, "module:function")
    return made  # type: ignore[no-any-return]
