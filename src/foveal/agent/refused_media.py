"""Images and files that a provider refuses: hidden, so that the conversation continues."""

from __future__ import annotations

from foveal.core.log.events import Event, Reverted
from foveal.errors import ProviderError
from foveal.sessions.session import Session


class RefusedMedia:
    """Hides the media of one request until the provider accepts it.

    Providers do not say reliably what they refuse, so this is a trial: what was hidden in vain is shown again.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._hidden: list[Event] = []

    async def hide(self, problem: ProviderError) -> bool:
        """Return whether media were hidden because of this error, and the request may be sent again."""
        hidden = await self._session.hide_refused_media() if problem.code == "refused" else None
        if hidden is not None:
            self._hidden.append(hidden)
            return True
        await self._session.append(*(Reverted(target=event.seq) for event in reversed(self._hidden)))
        return False
