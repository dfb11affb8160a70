"""Drop-in endpoints: `/v1` of OpenAI and Anthropic in front of any upstream.

Their clients resend the whole history on every request. Without HTTP:

find_conversation    which conversation a request continues (digest_index: by the digests of its history)
conversation         one open conversation: appends what is new to the session
upstream_summariser  summaries by the client's own model and key
client_compaction    clients that compact their own history
exchange             the body that goes upstream: the client's own, with as little changed as the window allows

With HTTP:

endpoints            fits a request, sends it, and sends a smaller one if it was too large
response_stream      the response on its way back to the client, and its recording
routes               all routes; the other paths of the two APIs are forwarded unchanged
upstreams            where a request goes, and with which key, and the limits that they state
headers              which headers are forwarded, and the X-Foveal-… headers of responses
"""
