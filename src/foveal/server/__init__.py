"""Sessions behind a server, without HTTP: tenants, rooms, turns, and what they need to survive each other.

    async with Service.open(config) as service:
        room = await service.tenant("default").ensure("demo")
        turn = await room.say("Hello")          # stored: from here on it is not lost
        print((await turn.outcome()).text)

`apps/server` and `apps/gateways` are faces of this.
"""

from foveal.errors import Busy
from foveal.server.auth_tokens import AuthTokens, RateLimiter, TokenCaller
from foveal.server.chats import ChatMessage, Chats, chat_of, session_of
from foveal.server.data_folder import DataFolder
from foveal.server.database import Database
from foveal.server.inbox import Inbox
from foveal.server.live_session import Compaction, LiveSession
from foveal.server.locks import SessionLocks
from foveal.server.pairing import ALPHABET, GUESSES, Paired, Pairing
from foveal.server.runtime import EventsStored, Exchanged, LockWaited, ServiceEvent, TurnBegan, TurnEnded
from foveal.server.service import Service
from foveal.server.tenants import DROP_IN, Tenant
from foveal.server.turns import Turn, TurnOutcome

__all__ = [
    "ALPHABET",
    "DROP_IN",
    "GUESSES",
    "AuthTokens",
    "Busy",
    "ChatMessage",
    "Chats",
    "Compaction",
    "DataFolder",
    "Database",
    "EventsStored",
    "Exchanged",
    "Inbox",
    "LiveSession",
    "LockWaited",
    "Paired",
    "Pairing",
    "RateLimiter",
    "Service",
    "ServiceEvent",
    "SessionLocks",
    "Tenant",
    "TokenCaller",
    "Turn",
    "TurnBegan",
    "TurnEnded",
    "TurnOutcome",
    "chat_of",
    "session_of",
]
