"""Requests and replies of a client as bytes, for everything between it and a provider.

The drop-in server and the HTTP transports share this package; it knows no HTTP library and waits for nothing.

client_request        reads a client's request, and encodes it with other messages
digests               digest chain of a history, by which a conversation is recognised
recognised_messages   the digests of one conversation, and how a request continues it
marked_messages       cache marks of a reduced history
attempts              which requests are sent for one request of a client, and what is read of each response
upstream_reply        the reply in the bytes of a response
reply_copy            a copy of the bytes that pass, up to the end of the reply
"""
