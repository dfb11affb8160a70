"""Drop-in endpoints: `/v1` of OpenAI and Anthropic in front of any upstream.

Their clients resend the whole history on every request. Without HTTP:

conversations        which conversation a request belongs to (digest_index: by the digests of its history)
conversation         appends what is new to the session
exchange             the body that goes upstream: the client's own, with as little changed as the window allows

With HTTP:

endpoints            fits a request, sends it, and sends a smaller one if it was too large
response_stream      the response on its way back to the client, and its recording
stream_relay         chunks of a stream, forwarded without waking a task
other_paths          the other paths of the two APIs, forwarded unchanged
upstreams            where a request goes, and with which key
forwarded_headers    which headers are forwarded
"""
