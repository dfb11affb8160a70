"""Multi-tenant service without HTTP: tenants, live sessions, turns, inbox, locks.

    async with Service.open(config) as service:
        session = await service.tenant("default").ensure("demo")
        turn = await session.submit("Hello")          # stored: from here on it is not lost
        print((await turn.outcome()).text)

`http`, `api`, `proxy` and `gateways` are built on this package.
"""

from foveal.errors import Busy
from foveal.server.auth_tokens import AuthTokens, TokenCaller
from foveal.server.chat_records import ChatMessage, ChatPlace, Chats, chat_session_id, find_place
from foveal.server.databases import Database
from foveal.server.databases.sqlite_database import SqliteDatabase
from foveal.server.inbox import Inbox
from foveal.server.live_session import LiveSession
from foveal.server.pairing import CODE_ALPHABET, MAX_WRONG_CODES, PairedUser, Pairing
from foveal.server.rate_limit import RateLimiter
from foveal.server.runtime import (
    EventsStored,
    InboxCounted,
    ProxyRequestEnded,
    ServiceEvent,
    TurnBegan,
    TurnEnded,
)
from foveal.server.service import Service
from foveal.server.storage import DataFolder, FolderStorage, Storage
from foveal.server.tenants import PROXY_ORIGIN, Tenant
from foveal.server.turns import Turn, TurnOutcome
from foveal.stores.session_locks import SessionLocks

__all__ = [
    "CODE_ALPHABET",
    "MAX_WRONG_CODES",
    "PROXY_ORIGIN",
    "AuthTokens",
    "Busy",
    "ChatMessage",
    "ChatPlace",
    "Chats",
    "DataFolder",
    "Database",
    "EventsStored",
    "FolderStorage",
    "Inbox",
    "InboxCounted",
    "LiveSession",
    "PairedUser",
    "Pairing",
    "ProxyRequestEnded",
    "RateLimiter",
    "Service",
    "ServiceEvent",
    "SessionLocks",
    "SqliteDatabase",
    "Storage",
    "Tenant",
    "TokenCaller",
    "Turn",
    "TurnBegan",
    "TurnEnded",
    "TurnOutcome",
    "chat_session_id",
    "find_place",
]
