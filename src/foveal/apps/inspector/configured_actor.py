"""Actions of `foveal inspect`: summaries are written by the configured model, if there is one."""

from __future__ import annotations

import os
from contextlib import suppress

from foveal.core.engine.settings import SettingArguments
from foveal.errors import FovealError
from foveal.inspection.session_actions import StoreActor, store_refusal
from foveal.inspection.session_source import ActionResult, SessionAction
from foveal.ports import Provider
from foveal.recall.archive import ArchiveSource


class ConfiguredActor:
    """A `SessionActor` with the user's configuration, which is read when something is summarised."""

    def __init__(self, *, window: int | None = None) -> None:
        self._settings = SettingArguments() if window is None else SettingArguments(window=window)

    def refusal(self, source: ArchiveSource) -> str:
        return store_refusal(source)

    async def act(self, source: ArchiveSource, session: str, action: SessionAction) -> ActionResult:
        provider = _summary_provider() if action.action == "compact" else None
        if provider is None:
            return await StoreActor(**self._settings).act(source, session, action)
        from foveal.agent.agent import summariser_for

        try:
            actor = StoreActor(summarise=summariser_for(provider), **self._settings)
            return await actor.act(source, session, action)
        finally:
            await provider.close()


def _summary_provider() -> Provider | None:
    """Return the provider that writes summaries; None if none is configured, or its model must be downloaded."""
    from foveal.config import load  # these take as long to load as the whole inspector
    from foveal.providers.selection import provider_from_config

    with suppress(FovealError):
        config = load(project=False)  # a project's file must not choose where a session's text is sent
        name = config.summariser or None
        found = provider_from_config(config, name, environment=os.environ, progress=lambda _: None)
        if getattr(found, "is_downloaded", True):
            return found
    return None
