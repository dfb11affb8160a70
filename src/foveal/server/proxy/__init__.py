"""Proxied conversations: clients that resend their whole history on every request.

This package knows no HTTP. `foveal.interception` reads a request, `digest_index` recognises its history,
`proxied_conversation` appends what is new to the session, and `exchange` produces the body that goes upstream: the
client's own, with as little changed as the window allows.
"""
