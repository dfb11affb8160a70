"""Proxied conversations: clients that resend their whole history on every request.

This package knows no HTTP. `client_request` reads a request, `digests` and `digest_index` recognise its history,
`proxied_conversation` appends what is new to the session, and `exchange` produces the body that goes upstream: the
client's own, with as little changed as the window allows.
"""

from foveal.server.proxy.client_request import ClientHistory, ClientRequest, RequestCache

__all__ = ["ClientHistory", "ClientRequest", "RequestCache"]
