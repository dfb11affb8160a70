"""Actions of `foveal inspect`: the configured model or the ledger writes summaries.

1. Without a choice, the configured model writes. A model on this machine can take minutes, so then the ledger does.
2. A provider is closed after each use, also when the action is cancelled, so no process of a local model remains.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from foveal.errors import BadSetting, FovealError
from foveal.inspector.sessions.source import ActionResult, OfferedWriter, SessionAction, store_refusal
from foveal.ports import Provider
from foveal.recall.archive import ArchiveSource

if TYPE_CHECKING:
    from foveal.core.engine.settings import SettingArguments

LEDGER_WRITER: Final = OfferedWriter(name="ledger", title="from the log, without a model (at once)")
MODEL_WRITER_NAME: Final = "model"
_NO_MODEL: Final = (
    "no model is configured that could write the summary: set `model` or a provider's key, or let it be written "
    "from the log"
)


class ConfiguredActor:
    """A `SessionActor` with the user's configuration, which is read when something is summarised."""

    def __init__(self, *, window: int | None = None) -> None:
        self._settings: SettingArguments = {} if window is None else {"window": window}

    def refusal(self, source: ArchiveSource) -> str:
        return store_refusal(source)

    async def writers(self) -> tuple[OfferedWriter, ...]:
        provider = await asyncio.to_thread(_summary_provider)
        if provider is None:
            return (LEDGER_WRITER,)
        await provider.close()
        speed = ", on this machine (can take minutes)" if _is_local(provider) else ""
        writer = OfferedWriter(name=MODEL_WRITER_NAME, title=f"{provider.name}{speed}", calls_model=True)
        return (LEDGER_WRITER, writer) if _is_local(provider) else (writer, LEDGER_WRITER)

    async def act(self, source: ArchiveSource, session: str, action: SessionAction) -> ActionResult:
        from foveal.inspector.sessions.actions import StoreActor  # loads the engine

        provider = await _chosen_provider(action.writer) if action.operation == "compact" else None
        if provider is None:
            return await StoreActor(**self._settings).act(source, session, action)
        from foveal.providers.summariser import summariser_for

        try:
            actor = StoreActor(summarise=summariser_for(provider), **self._settings)
            return await actor.act(source, session, action)
        finally:
            await provider.close()


async def _chosen_provider(writer: str) -> Provider | None:
    """Return the provider of a writer, of the default one for ""; None for the ledger."""
    if writer not in ("", LEDGER_WRITER.name, MODEL_WRITER_NAME):
        raise BadSetting("writer", writer, f"{LEDGER_WRITER.name} or {MODEL_WRITER_NAME}")
    if writer == LEDGER_WRITER.name:
        return None
    provider = await asyncio.to_thread(_summary_provider)
    if provider is None and writer == MODEL_WRITER_NAME:
        raise FovealError(_NO_MODEL)
    if provider is not None and not writer and _is_local(provider):
        await provider.close()
        return None
    return provider


def _is_local(provider: Provider) -> bool:
    from foveal.providers import LOCAL_SERVICE

    return provider.name.startswith(f"{LOCAL_SERVICE}/")


def _summary_provider() -> Provider | None:
    """Return the provider that writes summaries; None if none is configured, or its model must be downloaded."""
    from foveal.config import load  # these take as long to load as the whole inspector
    from foveal.config.load import provider_from_config

    with suppress(FovealError):
        config = load(project=False)  # a project's file must not choose where a session's text is sent
        name = config.summariser or None
        found = provider_from_config(config, name, environment=os.environ, progress=lambda _: None)
        if getattr(found, "is_downloaded", True):
            return found
    return None
