"""The provider of the configured model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from foveal.config.config import Config
from foveal.ports import Provider
from foveal.providers.selection import provider_factory


def provider_from_config(
    config: Config, name: str | None, *, environment: Mapping[str, str], progress: Callable[[Any], None]
) -> Provider:
    """Return the provider of a model, by default of the configured model, as `provider` does."""
    variables = dict(environment)
    if base_url := config.get("base_url"):
        variables["OPENAI_BASE_URL"] = base_url
    found: Provider = provider_factory(variables)(
        name or config.model or None,
        environment=variables,
        # A configured window belongs to the configured model only.
        window=config.get("window") if not name else None,
        progress=progress,
    )
    return found
