"""A chat for many users in one web application: FastAPI, one store, one session for each chat of a user.

    pip install fastapi uvicorn openai
    uvicorn app:app

`OPENAI_API_KEY` is the provider's key; `CHATS` is the file, or the address of a PostgreSQL database.
"""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated
from weakref import WeakValueDictionary

import openai
from fastapi import Depends, FastAPI, Header, Path, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel

import foveal
from foveal import Memory, ModelSaid, Session, UserSaid
from foveal.errors import SessionExists
from foveal.ports import Store

MODEL = os.environ.get("MODEL", "gpt-4.1")
ID = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"


class Chats:
    """The chats of all users."""

    def __init__(self, store: Store, provider: openai.AsyncOpenAI) -> None:
        self.store = store
        self.provider = provider
        self.turns: set[asyncio.Task[None]] = set()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def lock(self, id: str) -> asyncio.Lock:
        """Return the lock of a session: its messages are answered one after the other."""
        return self._locks.setdefault(id, asyncio.Lock())

    async def open(self, user: str, chat: str) -> Session:
        memory = Memory(user, store=self.store)
        return await Session.open(self.store, f"{user}/{chat}", model=MODEL, memory=memory)

    def begin_turn(
        self, user: str, chat: str, text: str, pieces: asyncio.Queue[str | None]
    ) -> asyncio.Task[None]:
        """Start a turn. It goes on when its client leaves, so that the answer is stored in any case."""
        turn = asyncio.create_task(self.answer(user, chat, text, pieces))
        self.turns.add(turn)
        turn.add_done_callback(self.turns.discard)
        turn.add_done_callback(lambda _: pieces.put_nowait(None))
        return turn

    async def answer(self, user: str, chat: str, text: str, pieces: asyncio.Queue[str | None]) -> None:
        """Store a message, ask the model, and store its answer."""
        async with self.lock(f"{user}/{chat}"):
            session = await self.open(user, chat)
            await session.append(UserSaid(content=text))
            request = await session.fit()
            stream = await self.provider.chat.completions.create(
                model=MODEL,
                messages=request.to_openai(),
                stream=True,
                stream_options={"include_usage": True},
            )
            answer = ""
            async for chunk in stream:
                for choice in chunk.choices:
                    piece = choice.delta.content or ""
                    answer += piece
                    pieces.put_nowait(piece)
                if chunk.usage is not None:
                    await session.observe(chunk.usage)
            await session.append(ModelSaid(content=answer))

    async def ids(self, user: str) -> list[str]:
        """Return the ids of a user's sessions, the most recently active first."""
        listed = await self.store.sessions(with_erased=False)
        return [info.id for info in listed if info.id.startswith(f"{user}/")]

    async def erase(self, user: str) -> int:
        """Erase all chats of a user, and what is remembered of the user; return the number of chats."""
        ids = await self.ids(user)
        for id in ids:
            async with self.lock(id):
                session = await Session.open(self.store, id, model=MODEL)
                await session.delete()
        await Memory(user, store=self.store).erase()
        return len(ids)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    """Open the store at the start; at the end, let the turns finish that still run."""
    async with (
        foveal.open_store(os.environ.get("CHATS", "chats.db")) as store,
        openai.AsyncOpenAI() as provider,
    ):
        app.state.chats = Chats(store, provider)
        yield
        await asyncio.gather(*app.state.chats.turns, return_exceptions=True)


app = FastAPI(lifespan=lifespan)


def all_chats(request: Request) -> Chats:
    chats: Chats = request.app.state.chats
    return chats


def signed_in(x_user: Annotated[str, Header(pattern=ID)]) -> str:
    """Return the id of the user who asks. Put your login here: a client can set any header."""
    return x_user


class Message(BaseModel):
    text: str


TheUser = Annotated[str, Depends(signed_in)]
TheChat = Annotated[str, Path(pattern=ID)]
AllChats = Annotated[Chats, Depends(all_chats)]


@app.post("/chats/{chat}")
async def send(message: Message, user: TheUser, chat: TheChat, chats: AllChats) -> StreamingResponse:
    """Send a message, and stream the answer."""
    pieces: asyncio.Queue[str | None] = asyncio.Queue()
    turn = chats.begin_turn(user, chat, message.text, pieces)
    piece = await pieces.get()
    if piece is None:
        await turn  # raises what went wrong before the first word

    async def body() -> AsyncGenerator[str]:
        nonlocal piece
        while piece is not None:
            yield piece
            piece = await pieces.get()
        await turn

    return StreamingResponse(body(), media_type="text/plain")


@app.get("/chats")
async def list_chats(user: TheUser, chats: AllChats) -> list[str]:
    return [id.partition("/")[2] for id in await chats.ids(user)]


@app.get("/chats/{chat}")
async def read(user: TheUser, chat: TheChat, chats: AllChats) -> list[tuple[str, object]]:
    """Return who said what, from the log: all of it, whatever the model still sees."""
    facts = [event.fact for event in await chats.store.read(f"{user}/{chat}")]
    said = [fact for fact in facts if isinstance(fact, UserSaid | ModelSaid)]
    return [("user" if isinstance(fact, UserSaid) else "model", fact.content) for fact in said]


@app.delete("/me")
async def erase_me(user: TheUser, chats: AllChats) -> dict[str, int]:
    return {"erased": await chats.erase(user)}


STATUS = {
    foveal.ContextOverflow: 413,  # the message alone is too large for the model
    foveal.BudgetExceeded: 429,
    SessionExists: 410,  # this chat was erased
    foveal.UnknownSession: 404,
    openai.OpenAIError: 502,
}


async def explain(request: Request, problem: Exception) -> JSONResponse:
    status = next(code for kind, code in STATUS.items() if isinstance(problem, kind))
    return JSONResponse({"detail": str(problem)}, status)


for kind in STATUS:
    app.add_exception_handler(kind, explain)
