"""Conversations of clients that resend their whole history: recognised by content, kept as sessions, and fitted.

Nothing here knows HTTP. A request is read (`requests`), its messages are told from others by a chain of digests
(`chain`, `heads`), what is new is appended to the session that it continues (`conversation`, `desk`), and the body
that goes upstream is the client's own with as little changed as the window allows (`exchange`).
"""

from foveal.server.proxy.client_request import ClientRequest
from foveal.server.proxy.new_messages import ClientHistory, RequestCache

__all__ = ["ClientHistory", "ClientRequest", "RequestCache"]
