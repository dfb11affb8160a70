"""What a caller reaches in its tenant: one decision for the API, the inspector and lists.

1. A token without a user reaches everything of its tenant.
2. A token that names a user reaches this user's memory, and the sessions whose only user this is. A session of no
   user is not among them: it is not known whose words it has.
3. What calls models counts for the user of the token, so it needs a session that was created for this user.
"""

from __future__ import annotations

from typing import NamedTuple

from foveal.ports import SessionInfo
from foveal.server.tenants import Tenant
from foveal.web.http_errors import HttpError


class UserAccess(NamedTuple):
    """What the caller of a request reaches."""

    tenant: Tenant
    user: str
    """The user whom the token names; "" if it may act for all users of its tenant."""

    async def reaches(self, session: str) -> bool:
        """Return whether the caller reaches a session, which need not exist."""
        users = self.tenant.runtime.inbox.users_of
        return not self.user or await users(self.tenant.name, session) == {self.user}

    async def check_session(self, session: str, *, spends: bool = False) -> None:
        """Raise `HttpError` if a session is of others, and `UnknownSession` if there is none. A request that
        `spends` needs a session that was created for the user."""
        if not self.user:
            return
        allowed = await self.reaches(session)
        if allowed and spends:
            setup = await self.tenant.runtime.inbox.session_setup(self.tenant.name, session)
            allowed = setup is not None and setup.user == self.user
        if not allowed:
            await self.tenant.session(session)  # raises if there is none
            raise self.refusal(f"session:{session}")

    def check_user(self, user: str) -> None:
        """Raise `HttpError` if the memory and the sessions of a user are of others."""
        if self.user not in ("", user):
            raise self.refusal(f"user:{user}")

    def check_unbound(self) -> None:
        """Raise `HttpError` for what belongs to the tenant as a whole, if the token names a user."""
        if self.user:
            raise self.refusal()

    def refusal(self, about: str = "") -> HttpError:
        """Return the error for what does not belong to the user of the token."""
        detail = f"this token belongs to the user {self.user!r} and reaches nothing of others"
        return HttpError(403, detail, code="other_user", about=about)

    async def sessions(self, *, limit: int, before: tuple[float, str] | None = None) -> list[SessionInfo]:
        """Return a page of the sessions that the caller reaches, the most recently active first; see
        `Store.sessions`."""
        return await self.tenant.sessions(limit=limit, before=before, user=self.user)
