"""A service whose configured model is a stand-in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from foveal.config import Config
from foveal.config.config import provider_from_config
from foveal.ports import Provider
from foveal.server.runtime import ProviderFactory


def provided(configured: Provider, others: Mapping[str, Provider] | None = None) -> ProviderFactory:
    """Return a factory of these providers, by name; a model that is not among them needs its key, as usual."""

    def make(
        config: Config,
        name: str | None,
        *,
        environment: Mapping[str, str],
        progress: Callable[[Any], None],
    ) -> Provider:
        if not name:
            return configured
        if others and name in others:
            return others[name]
        return provider_from_config(config, name, environment=environment, progress=progress)

    return make
