"""Overflow errors in the wording of real providers, and silent overflows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NoReturn

import anthropic
import openai
import pytest
from anthropic.types import Message
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from foveal.core.engine.overflow import silent_overflow_reason
from foveal.core.wire.overflow_errors import ProviderOverflow, recognise_overflow, stop_reason
from support.effort import bounded
from support.provider_stand_in import StandIn

try:
    import httpx2 as httpx  # what newer versions of the client libraries are built on
except ImportError:
    import httpx

Json = dict[str, Any]
ANTHROPIC = "prompt is too long: 208310 tokens > 200000 maximum"
OPENAI = (
    "This model's maximum context length is 8192 tokens. However, your messages resulted in 8202 tokens. "
    "Please reduce the length of the messages."
)


def facts(refusal: ProviderOverflow | None) -> tuple[str, int, int, int, int] | None:
    return refusal and (refusal.kind, refusal.limit, refusal.needed, refusal.output, refusal.excess)


def transport(status: int, body: Any) -> Any:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    kind = "text/event-stream" if content.startswith(b"data:") else "application/json"
    return httpx.MockTransport(
        lambda _: httpx.Response(status, content=content, headers={"content-type": kind})
    )


def from_openai(status: int, body: Any, *, stream: bool = False) -> openai.APIError:
    """Return the error that the library raises for this response."""
    web = httpx.Client(transport=transport(status, body))
    client = openai.OpenAI(api_key="none", base_url="http://here", max_retries=0, http_client=web)
    ask: Any = client.chat.completions.create
    with client, pytest.raises(openai.APIError) as caught:
        list(ask(model="gpt-4.1", messages=[{"role": "user", "content": "Hi."}], stream=stream))
    return caught.value


def from_anthropic(status: int, body: Any) -> anthropic.APIError:
    web = httpx.Client(transport=transport(status, body))
    client = anthropic.Anthropic(api_key="none", base_url="http://here", max_retries=0, http_client=web)
    with client, pytest.raises(anthropic.APIError) as caught:
        client.messages.create(model="claude", max_tokens=9, messages=[{"role": "user", "content": "Hi."}])
    return caught.value


# ── Wordings of providers ───────────────────────────────────────────────────────────────────────────────────

WORDINGS = {
    "Anthropic": (ANTHROPIC, ("tokens", 200_000, 208_310, 0, 8_310)),
    "Anthropic, with the output": (
        "input length and `max_tokens` exceed context limit: 199759 + 8192 > 200000, decrease input length or "
        "`max_tokens` and try again",
        ("output", 200_000, 199_759, 8_192, 7_951),
    ),
    "Anthropic, with a newer limit and no backticks": (
        "input length and max_tokens exceed context limit: 200043 + 32000 > 204658, decrease input length",
        ("output", 204_658, 200_043, 32_000, 27_385),
    ),
    "Anthropic, no numbers": (
        "input length and `max_tokens` exceed context limit",
        ("output", 0, 0, 0, 0),
    ),
    "Anthropic, as 413": ("Request size exceeds model context window", ("tokens", 0, 0, 0, 0)),
    "Anthropic, bytes": ("Request exceeds the maximum size", ("bytes", 0, 0, 0, 0)),
    "OpenAI": (OPENAI, ("tokens", 8_192, 8_202, 0, 10)),
    "OpenAI, with functions": (
        "This model's maximum context length is 4097 tokens. However, your messages resulted in 4113 tokens (4000 "
        "in the messages, 113 in the functions). Please reduce the length of the messages or functions.",
        ("tokens", 4_097, 4_113, 0, 16),
    ),
    "OpenAI, the oldest": (
        "This model's maximum context length is 4097 tokens, however you requested 4322 tokens (4066 in your "
        "prompt; 256 for the completion). Please reduce your prompt; or completion length.",
        ("output", 4_097, 4_066, 256, 225),
    ),
    "OpenAI, a configured limit": (
        "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 428548 tokens.",
        ("tokens", 272_000, 428_548, 0, 156_548),
    ),
    "OpenAI Responses": (
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
        ("tokens", 0, 0, 0, 0),
    ),
    "vLLM": (
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4500 in the "
        "messages, 500 in the completion)",
        ("tokens", 4_096, 4_500, 500, 904),
    ),
    "vLLM, only with the output": (
        "This model's maximum context length is 16384 tokens. However, you requested 19591 tokens (9591 in the "
        "messages, 10000 in the completion). Please reduce the length of the messages or completion. None",
        ("output", 16_384, 9_591, 10_000, 3_207),
    ),
    "vLLM, only the sum": (
        "This model's maximum context length is 131072 tokens. However, you requested 351430 tokens. Please "
        "reduce the length of the messages or completion.",
        ("tokens", 131_072, 351_430, 0, 220_358),
    ),
    "vLLM, which stopped counting": (
        "This model's maximum context length is 262144 tokens. However, you requested 128000 output tokens and "
        "your prompt contains at least 134145 input tokens, for a total of at least 262145 tokens.",
        ("output", 262_144, 0, 128_000, 0),
    ),
    "vLLM, max_tokens": (
        "'max_tokens' or 'max_completion_tokens' is too large: 8192. This model's maximum context length is 8192 "
        "tokens and your request has 500 input tokens (8192 > 8192 - 500).",
        ("output", 8_192, 500, 8_192, 500),
    ),
    "vLLM, the engine": (
        "The decoder prompt (length 21535) is longer than the maximum model length of 16384. Make sure that",
        ("tokens", 16_384, 21_535, 0, 5_151),
    ),
    "DeepSeek": (
        "This model's maximum context length is 131072 tokens. However, you requested 131134 tokens (122942 in "
        "the messages, 8192 in the completion). Please reduce the length of the messages or completion.",
        ("output", 131_072, 122_942, 8_192, 62),
    ),
    "OpenRouter": (
        "This endpoint's maximum context length is 204800 tokens. However, you requested about 205432 tokens "
        "(81684 of text input, 3748 of tool input, 120000 in the output). Please reduce the length of either one",
        ("output", 204_800, 85_432, 120_000, 632),
    ),
    "SGLang": (
        "Requested token count exceeds the model's maximum context length of 202752 tokens. You requested a total "
        "of 202941 tokens: 170941 tokens from the input messages and 32000 tokens for the completion.",
        ("output", 202_752, 170_941, 32_000, 189),
    ),
    "SGLang, the input": (
        "Input length (160062 tokens) exceeds the maximum allowed length (59862 tokens).",
        ("tokens", 59_862, 160_062, 0, 100_200),
    ),
    "Together": (
        "The input (61709 tokens) is longer than the model's context length (40960 tokens).",
        ("tokens", 40_960, 61_709, 0, 20_749),
    ),
    "TGI": (
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens "
        "and 500 `max_new_tokens`",
        ("output", 4_096, 4_000, 500, 404),
    ),
    "TGI, the input": (
        "Input validation error: `inputs` must have less than 1024 tokens. Given: 1168",
        ("tokens", 1_024, 1_168, 0, 144),
    ),
    "Gemini": (
        "The input token count (1048577) exceeds the maximum number of tokens allowed (1048576).",
        ("tokens", 1_048_576, 1_048_577, 0, 1),
    ),
    "Gemini, only the limit": (
        "The input token count exceeds the maximum number of tokens allowed (1048576).",
        ("tokens", 1_048_576, 0, 0, 0),
    ),
    "Gemini, bytes": (
        "Request payload size exceeds the limit: 20971520 bytes.",
        ("bytes", 20_971_520, 0, 0, 0),
    ),
    "Gemini's gateway, bytes": (
        "Maximum request body size 1048576 exceeded, actual body size 1056562",
        ("bytes", 1_048_576, 1_056_562, 0, 7_986),
    ),
    "Bedrock": (
        "An error occurred (ValidationException) when calling the InvokeModel operation: Input is too long for "
        "requested model.",
        ("tokens", 0, 0, 0, 0),
    ),
    "Bedrock, Nova": (
        "Input Tokens Exceeded: Number of input tokens exceeds maximum length. Please update the input.",
        ("tokens", 0, 0, 0, 0),
    ),
    "Bedrock, bytes": (
        "1 validation error detected: Value at 'body' failed to satisfy constraint: Member must have length less "
        "than or equal to 25000000",
        ("bytes", 25_000_000, 0, 0, 0),
    ),
    "xAI": (
        "This model's maximum prompt length is 131072 but the request contains 136973 tokens.",
        ("tokens", 131_072, 136_973, 0, 5_901),
    ),
    "Groq": ("Please reduce the length of the messages or completion.", ("tokens", 0, 0, 0, 0)),
    "Cerebras": (
        "Please reduce the length of the messages or completion. Current length is 42328 while limit is 40000",
        ("tokens", 40_000, 42_328, 0, 2_328),
    ),
    "Mistral": (
        "Prompt contains 65673 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
        ("tokens", 32_768, 65_673, 0, 32_905),
    ),
    "Cohere": (
        "too many tokens: size limit exceeded by 713295 tokens. Try using shorter or fewer inputs. The limit for "
        "this model is 288000 tokens.",
        ("tokens", 288_000, 1_001_295, 0, 713_295),
    ),
    "Cohere, only the excess": (
        "too many tokens: size limit exceeded by 11326 tokens. Try using shorter or fewer inputs",
        ("tokens", 0, 0, 0, 11_326),
    ),
    "GitHub Copilot": (
        "prompt token count of 146270 exceeds the limit of 128000",
        ("tokens", 128_000, 146_270, 0, 18_270),
    ),
    "Kimi": (
        "Invalid request: Your request exceeded model token limit: 262144 (requested: 269030)",
        ("tokens", 262_144, 269_030, 0, 6_886),
    ),
    "MiniMax, whose 2013 is its error number": (
        "invalid params, context window exceeds limit (2013)",
        ("tokens", 0, 0, 0, 0),
    ),
    "z.ai": ("Prompt exceeds max length", ("tokens", 0, 0, 0, 0)),
    "Qwen": (
        "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 204800]",
        ("tokens", 204_800, 0, 0, 0),
    ),
    "Fireworks": (
        "The prompt is too long: 40177, model maximum context length: 32767",
        ("tokens", 32_767, 40_177, 0, 7_410),
    ),
    "llama.cpp": (
        "request (8708 tokens) exceeds the available context size (8192 tokens), try increasing it",
        ("tokens", 8_192, 8_708, 0, 516),
    ),
    "llama.cpp, older": (
        "the request exceeds the available context size. try increasing the context size",
        ("tokens", 0, 0, 0, 0),
    ),
    "llama-cpp-python": (
        "Requested tokens (2065) exceed context window of 1800",
        ("tokens", 1_800, 2_065, 0, 265),
    ),
    "LM Studio": (
        "The number of tokens to keep from the initial prompt is greater than the context length (n_keep: 15857>= "
        "n_ctx: 4096). Try to load the model with a larger context length, or provide a shorter input.",
        ("tokens", 4_096, 15_857, 0, 11_761),
    ),
    "LM Studio, older": (
        "Trying to keep the first 15857 tokens when context the overflows. However, the model is loaded with "
        "context length of only 4096 tokens, which is not enough.",
        ("tokens", 4_096, 15_857, 0, 11_761),
    ),
    "Ollama": (
        "prompt too long; exceeded max context length by 4096 tokens",
        ("tokens", 0, 0, 0, 4_096),
    ),
    "thousands separators": (
        "prompt is too long: 208,310 tokens > 200,000 maximum",
        ("tokens", 200_000, 208_310, 0, 8_310),
    ),
    "no provider named": ("Error: token limit exceeded", ("tokens", 0, 0, 0, 0)),
    "a client for Node": ("413 status code (no body)", ("bytes", 0, 0, 0, 0)),
    "Cerebras, in a client for Node": ("400 status code (no body)", ("tokens", 0, 0, 0, 0)),
    "nginx": ("<html><h1>413 Request Entity Too Large</h1></html>", ("bytes", 0, 0, 0, 0)),
    "a log line": (
        'litellm.BadRequestError: AnthropicException - b\'{"type":"error","error":{"type":'
        '"invalid_request_error","message":"' + ANTHROPIC + "\"}}'",
        ("tokens", 200_000, 208_310, 0, 8_310),
    ),
}


@pytest.mark.parametrize(("text", "said"), WORDINGS.values(), ids=WORDINGS)
def test_numbers_are_read_from_the_wording_of_each_provider(text: str, said: tuple[Any, ...]) -> None:
    assert facts(recognise_overflow(text)) == said
    assert facts(recognise_overflow({"error": {"message": text, "code": None}})) == said
    assert facts(recognise_overflow(RuntimeError(f"the step failed: {text}"))) == said


@pytest.mark.parametrize(("text", "said"), WORDINGS.values(), ids=WORDINGS)
def test_a_real_client_error_gives_the_same_numbers(text: str, said: tuple[Any, ...]) -> None:
    status = 413 if said[0] == "bytes" else 400
    error = {"message": text, "type": "invalid_request_error", "param": None, "code": None}
    assert facts(recognise_overflow(from_openai(status, {"error": error}))) == said
    assert facts(recognise_overflow(from_anthropic(status, {"type": "error", "error": error}))) == said


def test_an_overflow_has_its_code_and_message() -> None:
    body = {"type": "error", "error": {"type": "invalid_request_error", "message": ANTHROPIC}}
    assert recognise_overflow(from_anthropic(400, body)) == ProviderOverflow(
        kind="tokens",
        limit=200_000,
        needed=208_310,
        code="prompt is too long: N tokens > N",
        message=ANTHROPIC,
    )


def test_the_message_is_one_bounded_safe_line_around_the_match() -> None:
    refusal = recognise_overflow("log " * 900 + "\n\x1b[31m" + ANTHROPIC + "\nmore" * 900)
    assert refusal is not None
    assert len(refusal.message) == 300
    assert ANTHROPIC in refusal.message
    assert refusal.message.isprintable()
    assert refusal.message[0] == refusal.message[-1] == "…"


# ── Shapes of errors ────────────────────────────────────────────────────────────────────────────


def test_a_typed_code_decides_without_any_known_wording() -> None:
    error = {"message": "Bitte kürzer.", "type": "invalid_request_error", "code": "context_length_exceeded"}
    assert recognise_overflow(from_openai(400, {"error": error})) == ProviderOverflow(
        kind="tokens", code="context_length_exceeded", message="Error code: 400 - Bitte kürzer."
    )


def test_llama_cpp_gives_its_numbers_as_fields() -> None:
    error = {
        "code": 400,
        "message": "the request exceeds the available context size",
        "type": "exceed_context_size_error",
        "n_prompt_tokens": 14_429,
        "n_ctx": 8_192,
    }
    expected = ProviderOverflow(
        kind="tokens",
        limit=8_192,
        needed=14_429,
        code="exceed_context_size_error",
        message="the request exceeds the available context size",
    )
    assert recognise_overflow(from_openai(400, {"error": error})) == expected
    assert recognise_overflow({"error": error}) == expected
    assert recognise_overflow(json.dumps({"error": error})) == expected
    assert recognise_overflow({"error": {**error, "code": 500}}) == expected, "a typed code needs no status"
    assert facts(recognise_overflow(f"Error code: 400 - {{'error': {error}}}")) == facts(expected)


def test_too_many_bytes_are_distinguished_from_too_many_tokens() -> None:
    body = {"error": {"type": "request_too_large", "message": "Request exceeds the maximum size"}}
    assert recognise_overflow(from_anthropic(413, body)) == ProviderOverflow(
        kind="bytes", code="request_too_large", message="Request exceeds the maximum size"
    )
    assert facts(recognise_overflow(from_openai(413, b""))) == ("bytes", 0, 0, 0, 0)
    assert facts(recognise_overflow(from_openai(413, b"<html>nginx</html>"))) == ("bytes", 0, 0, 0, 0)
    assert facts(recognise_overflow(from_anthropic(413, {"error": {"message": ANTHROPIC}}))) == (
        *("tokens", 200_000, 208_310, 0, 8_310),
    )


def test_an_error_inside_a_stream_without_status_is_recognised() -> None:
    event = {"error": {"message": OPENAI, "type": "invalid_request_error", "code": None}}
    error = from_openai(200, b"data: " + json.dumps(event).encode() + b"\n\n", stream=True)
    assert not hasattr(error, "status_code")
    assert facts(recognise_overflow(error)) == ("tokens", 8_192, 8_202, 0, 10)


def test_an_event_that_ends_a_stream_is_recognised() -> None:
    error = {"code": "context_length_exceeded", "message": WORDINGS["OpenAI Responses"][0]}
    failed = {"type": "response.failed", "response": {"id": "resp_1", "status": "failed", "error": error}}
    refusal = recognise_overflow(failed)
    assert refusal is not None
    assert (refusal.kind, refusal.code) == ("tokens", "context_length_exceeded")


def test_openrouter_wraps_the_providers_error_as_json_in_a_string() -> None:
    raw = json.dumps({"error": {"message": OPENAI, "type": "Bad Request", "code": 400}})
    error = {"message": "Provider returned error", "code": 400, "metadata": {"raw": raw, "is_byok": False}}
    assert facts(recognise_overflow(from_openai(400, {"error": error}))) == ("tokens", 8_192, 8_202, 0, 10)
    assert facts(recognise_overflow(json.dumps({"error": error}))) == ("tokens", 8_192, 8_202, 0, 10)


def test_a_dict_printed_by_python_is_read_without_evaluating_it() -> None:
    printed = f"Error code: 400 - { ({'error': {'message': OPENAI, 'code': 'context_length_exceeded'}}) }"
    refusal = recognise_overflow(printed)
    assert refusal is not None
    assert refusal.code == "context_length_exceeded"
    assert facts(refusal) == ("tokens", 8_192, 8_202, 0, 10)


def test_json_after_a_prefix_is_read() -> None:
    body = {"type": "error", "error": {"type": "invalid_request_error", "message": ANTHROPIC}}
    assert facts(recognise_overflow(f"API Error: 400 {json.dumps(body)}")) == facts(
        recognise_overflow(ANTHROPIC)
    )
    assert recognise_overflow(f"API Error: 529 {json.dumps(body)}") is None


def test_other_libraries_errors_are_recognised_by_their_attributes() -> None:
    class ClientError(Exception):
        """Has the shape of botocore's error."""

        def __init__(self, code: str, message: str, status: int) -> None:
            super().__init__(f"An error occurred ({code}) when calling the Converse operation: {message}")
            self.response = {
                "Error": {"Code": code, "Message": message},
                "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": {}},
            }

    too_long = ClientError("ValidationException", "Input is too long for requested model.", 400)
    assert facts(recognise_overflow(too_long)) == ("tokens", 0, 0, 0, 0)
    bytes_of_text = ClientError("ValidationException", "Too many total text bytes: 30000000 > 25000000", 400)
    assert facts(recognise_overflow(bytes_of_text)) == ("bytes", 0, 0, 0, 0)
    for wording in ("prompt is too long: 210000 tokens > 200000 maximum", "Too many input tokens."):
        assert recognise_overflow(ClientError("ValidationException", wording, 400)) is not None
    throttled = "Too many tokens, please wait before trying again."
    assert recognise_overflow(ClientError("ThrottlingException", throttled, 429)) is None
    assert recognise_overflow(ClientError("ThrottlingException", throttled, 400)) is None
    google = SimpleNamespace(code=400, status="INVALID_ARGUMENT", message=WORDINGS["Gemini"][0], details=[])
    assert facts(recognise_overflow(google)) == WORDINGS["Gemini"][1]
    assert facts(recognise_overflow(SimpleNamespace(status_code=400, text=ANTHROPIC))) == facts(
        recognise_overflow(ANTHROPIC)
    )
    assert facts(recognise_overflow(ANTHROPIC.encode())) == facts(recognise_overflow(ANTHROPIC))


def test_an_error_in_a_group_or_in_arguments_is_found() -> None:
    inner = from_anthropic(400, {"type": "error", "error": {"message": ANTHROPIC}})
    assert facts(recognise_overflow(ExceptionGroup("two tasks", [ValueError("no"), inner]))) == facts(
        recognise_overflow(inner)
    )
    assert facts(recognise_overflow(RuntimeError("the agent failed", inner))) == facts(
        recognise_overflow(inner)
    )


# ── Causes of an exception ────────────────────────────────────────────────────────────────────


def raised(outer: Exception, inner: BaseException, *, stated: bool) -> Exception:
    """Return the outer exception, raised while the inner exception was being handled."""

    def attempt() -> None:
        try:
            raise inner
        except type(inner) as problem:
            if stated:
                raise outer from problem
            raise outer

    with pytest.raises(type(outer)) as caught:
        attempt()
    return caught.value


TOO_LONG_BODY = {"error": {"message": ANTHROPIC, "type": "invalid_request_error", "code": None}}


@pytest.mark.parametrize("stated", [True, False])
def test_the_cause_of_an_exception_without_text_is_examined(stated: bool) -> None:
    inner = from_openai(400, TOO_LONG_BODY)
    middle = raised(RuntimeError("the call failed"), inner, stated=stated)
    outer = raised(ValueError("the step failed"), middle, stated=stated)
    assert facts(recognise_overflow(outer)) == facts(recognise_overflow(ANTHROPIC))


def test_a_handled_overflow_does_not_affect_the_next_error() -> None:
    overflow = from_openai(400, TOO_LONG_BODY)
    for later in (
        from_openai(429, {"error": {"message": "Slow down."}}),
        from_openai(500, {"error": {"message": "Oops."}}),
        from_openai(400, {"error": {"message": "messages: roles must alternate"}}),
        TimeoutError("the retry took too long"),
        ConnectionResetError(),
        raised(openai.APIConnectionError(request=overflow.request), ConnectionError(), stated=True),
    ):
        assert recognise_overflow(raised(later, overflow, stated=False)) is None


def test_a_cancellation_is_never_an_overflow() -> None:
    cancelled = KeyboardInterrupt(ANTHROPIC)
    cancelled.__cause__ = from_openai(400, TOO_LONG_BODY)
    assert recognise_overflow(cancelled) is None


def test_context_overflow_is_not_a_provider_overflow() -> None:
    ours = "context needs 41,220 tokens but 31,900 are available (window 40,000, reserve 4,096, margin 4,000)"
    assert recognise_overflow(ours) is None


# ── Errors that are not overflows ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("status", [401, 403, 404, 408, 429, 500, 502, 503, 529])
def test_any_other_status_excludes_an_overflow(status: int) -> None:
    assert recognise_overflow(from_openai(status, TOO_LONG_BODY)) is None
    assert recognise_overflow({"status": status, **TOO_LONG_BODY}) is None
    assert recognise_overflow(f"Error code: {status} - {ANTHROPIC}") is None
    assert recognise_overflow(f"{status} {ANTHROPIC}") is None


@pytest.mark.parametrize("status", [400, 413, 422])
def test_these_statuses_allow_an_overflow(status: int) -> None:
    assert facts(recognise_overflow(from_openai(status, TOO_LONG_BODY))) == facts(
        recognise_overflow(ANTHROPIC)
    )


def test_the_outermost_status_counts() -> None:
    assert recognise_overflow({"status_code": 429, "body": {"code": 400, "message": ANTHROPIC}}) is None
    assert recognise_overflow({"status_code": 400, "body": {"code": 500, "message": ANTHROPIC}}) is not None


OTHER_ERRORS = {
    "OpenAI's rate": "Rate limit reached for gpt-4o in organization org-1 on tokens per min (TPM): Limit 30000, "
    "Requested 40000. The input or output tokens must be reduced.",
    "OpenAI's rate for one request": "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, "
    "Requested 342389. The input or output tokens must be reduced in order to run successfully.",
    "Groq's rate, as 413": "413 Request too large for model `llama-3.3-70b-versatile` on tokens per minute (TPM): "
    "Limit 12000, Requested 14137, please reduce your message size and try again.",
    "Bedrock's throttling": "ThrottlingException: Too many tokens, please wait before trying again.",
    "a quota": "You exceeded your current quota: prompt is too long for the free plan",
    "a day's allowance": "daily token limit exceeded",
    "one string": "Invalid 'messages[17].content': string too long. Expected a string with maximum length 1048576, "
    "but got a string with length 1744259 instead.",
    "max_tokens above the model's own": "max_tokens: 64000 > 8192, which is the maximum allowed number of output "
    "tokens for claude-3-5-haiku",
    "max_tokens at Cohere": "too many tokens: max tokens must be less than or equal to 4096, the maximum output "
    "for this model - received 8192.",
    "max_tokens at Bedrock": "The maximum tokens you requested exceeds the model limit of 32768",
    "max_tokens at Groq": "400 max_tokens must be less than or equal to 16384, the maximum value for max_tokens is "
    "less than the context_window for this model",
    "max_tokens somewhere": "max_tokens exceeds the limit of 8192",
    "one image": "messages.58.content.2.image.source.base64: image exceeds 5 MB maximum: 6500712 bytes > 5242880",
    "tools": "The number of tools exceeds the limit of 128",
    "a name": "Tool name exceeds the maximum allowed length (64)",
    "no money": "402 This request requires more credits, or fewer max_tokens. You requested up to 8192 tokens",
    "nothing": "",
    "a bare 400": "Error code: 400",
    "no connection": "Connection error.",
}


@pytest.mark.parametrize("text", OTHER_ERRORS.values(), ids=OTHER_ERRORS)
def test_other_errors_are_not_overflows(text: str) -> None:
    assert recognise_overflow(text) is None
    assert recognise_overflow({"error": {"message": text, "code": 400}}) is None
    assert recognise_overflow(from_openai(400, {"error": {"message": text}})) is None


def test_groqs_413_for_a_rate_limit_is_not_an_overflow() -> None:
    error = {"message": OTHER_ERRORS["Groq's rate, as 413"], "type": "tokens", "code": "rate_limit_exceeded"}
    assert recognise_overflow(from_openai(413, {"error": error})) is None


def test_a_string_above_its_maximum_length_is_not_an_overflow() -> None:
    error = {
        "message": OTHER_ERRORS["one string"],
        "param": "messages[17]",
        "code": "string_above_max_length",
    }
    assert recognise_overflow(from_openai(400, {"error": error})) is None


def test_quoted_parts_of_the_request_are_not_read() -> None:
    detail = [{"type": "missing", "loc": ["body", "model"], "msg": "Field required", "input": ANTHROPIC}]
    assert recognise_overflow(from_openai(422, {"detail": detail})) is None
    assert recognise_overflow(f"Error code: 422 - { ({'detail': detail}) }") is None
    assert (
        recognise_overflow({"code": 400, "message": "bad role", "messages": [{"content": ANTHROPIC}]}) is None
    )


# ── Arbitrary objects ──────────────────────────────────────────────────────────────────────────────────


class RaisingObject:
    """Raises on every access."""

    def __getattribute__(self, name: str) -> NoReturn:
        raise RuntimeError(name)

    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError("no")

    def __len__(self) -> int:
        raise RuntimeError("no")

    def __repr__(self) -> str:
        return "RaisingObject()"  # Hypothesis prints a failing example

    __str__ = __bool__ = __hash__ = __eq__ = __len__  # type: ignore[assignment]


class EndlessAttributes:
    """Each attribute is a new object with the same attributes."""

    def __getattr__(self, name: str) -> EndlessAttributes:
        return EndlessAttributes()


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


class BrokenDict(dict[str, Any]):
    def items(self) -> Any:
        yield "message", ANTHROPIC
        raise RuntimeError("no more")


class BrokenText(str):
    def __len__(self) -> int:
        return 3

    def split(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("no")


def test_objects_that_raise_are_skipped_and_the_rest_is_read() -> None:
    around: Json = {
        "a": RaisingObject(),
        "b": [RaisingObject(), Unprintable(RaisingObject())],
        "message": ANTHROPIC,
    }
    assert recognise_overflow(around) == recognise_overflow(ANTHROPIC)
    assert recognise_overflow(BrokenDict()) == recognise_overflow(ANTHROPIC)
    half = SimpleNamespace(
        status_code=RaisingObject(), body=BrokenText("x"), error=RaisingObject(), message=ANTHROPIC
    )
    assert recognise_overflow(half) == recognise_overflow(ANTHROPIC)
    assert recognise_overflow(RaisingObject()) is None
    assert recognise_overflow(EndlessAttributes()) is None
    assert stop_reason(SimpleNamespace(status=RaisingObject(), stopReason=RaisingObject())) == ""


def test_an_object_may_contain_itself() -> None:
    body: Json = {"code": 400}
    body["error"] = [body, {"details": body, "message": ANTHROPIC}]
    error = RuntimeError(body)
    error.__cause__ = error
    error.__context__ = error
    assert recognise_overflow(error) == recognise_overflow(ANTHROPIC)


def test_eight_levels_are_read_and_no_more() -> None:
    def wrapped(levels: int) -> Any:
        node: Any = ANTHROPIC
        for _ in range(levels):
            node = {"error": node}
        return node

    assert recognise_overflow(wrapped(8)) is not None
    assert recognise_overflow(wrapped(9)) is None


simple = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.sampled_from(
        [ANTHROPIC, OPENAI, json.dumps(TOO_LONG_BODY), '{"error": [', "[[[", "Error code: 4" + "0" * 99]
    ),
    st.builds(RaisingObject),
    st.builds(EndlessAttributes),
    st.builds(BrokenDict),
    st.builds(BrokenText, st.text()),
    st.builds(Unprintable, st.text()),
    st.sampled_from([int, print, KeyError, json]),
)
names = st.sampled_from(["error", "message", "code", "status", "n_ctx", "body", "details", "args", "x"])


def exceptions(children: Any) -> Any:
    def chained(kind: type[Exception], args: list[Any], cause: Any, context: Any) -> Exception:
        error = kind(*args)
        error.__cause__ = cause if issubclass(type(cause), BaseException) else None
        error.__context__ = context if issubclass(type(context), BaseException) else None
        return error

    kinds = st.sampled_from([Exception, RuntimeError, TimeoutError, Unprintable])
    return st.builds(chained, kinds, st.lists(children, max_size=3), children, children)


anything = st.recursive(
    simple,
    lambda children: st.one_of(
        st.lists(children, max_size=4),
        st.lists(children, max_size=4).map(tuple),
        st.dictionaries(st.one_of(names, st.integers()), children, max_size=4),
        st.dictionaries(names, children, max_size=4).map(lambda fields: SimpleNamespace(**fields)),
        st.dictionaries(names, st.text(), max_size=3).map(json.dumps),
        exceptions(children),
    ),
    max_leaves=12,
)


@given(anything)
def test_no_object_raises_an_error(error: Any) -> None:
    refusal = recognise_overflow(error)
    assert refusal is None or refusal.excess >= 0
    assert isinstance(stop_reason(error), str)


@given(st.lists(anything, min_size=1, max_size=4), st.data())
def test_cyclic_objects_raise_no_error(parts: list[Any], data: st.DataObject) -> None:
    knots: list[Json] = [{"error": part} for part in parts]
    for knot in knots:
        knot["body"] = data.draw(st.sampled_from(knots))
        knot["args"] = [data.draw(st.sampled_from(knots)) for _ in range(2)]
    recognise_overflow(knots[0])
    stop_reason(knots[0])


noise = st.text(st.sampled_from("xyzäß漢🙂 .,;:-()[]{}'`\\\n\t\x00\u200b\ud800"), max_size=30)
prose = st.sampled_from([case for name, case in WORDINGS.items() if "Node" not in name and "log" not in name])


@given(noise, prose, noise)
def test_noise_around_a_wording_changes_nothing(before: str, case: tuple[str, Any], after: str) -> None:
    wording, said = case
    assert facts(recognise_overflow({"note": before, "message": f"{before} {wording} {after}"})) == said


HUGE = {
    "a long list": lambda: [ANTHROPIC[:9]] * 1_000_000,
    "a wide dict": lambda: {f"key {number}": "prompt " * 20 for number in range(100_000)},
    "a long string": lambda: "input exceeds the context " * 1_000_000,
    "many long strings": lambda: [f"{number} error: prompt (1 tokens) " * 900 for number in range(300)],
    "a deep tree": lambda: tree(5, 9),
    "deep JSON": lambda: '{"error":' * 100_000,
    "many brackets": lambda: "[{" * 10_000,
    "many digits": lambda: "maximum context length is " + "9" * 100_000,
    "mirrors": EndlessAttributes,
}


def tree(levels: int, width: int) -> Any:
    return {f"{place}": tree(levels - 1, width) for place in range(width)} if levels else "too large"


@pytest.mark.parametrize("build", HUGE.values(), ids=HUGE)
def test_a_huge_object_takes_bounded_time(build: Any) -> None:
    error = build()
    with bounded():
        recognise_overflow(error)


def test_the_beginning_and_the_end_of_a_long_string_are_read() -> None:
    for text in (ANTHROPIC + "x" * 10**6, "x" * 10**6 + " " + ANTHROPIC):
        assert facts(recognise_overflow(text)) == facts(recognise_overflow(ANTHROPIC))


def test_a_local_provider_is_recognised_in_all_three_dialects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    long: Any = [{"role": "user", "content": "word " * 9_000}]
    with (
        StandIn(window=6_000) as provider,
        openai.OpenAI(base_url=provider.openai, api_key="none", max_retries=0) as gpt,
        anthropic.Anthropic(base_url=provider.anthropic, api_key="none", max_retries=0) as claude,
    ):
        ask: Any
        for ask, limit in (
            (gpt.chat.completions.create, {}),
            (lambda messages, **more: gpt.responses.create(input=messages, **more), {}),
            (claude.messages.create, {"max_tokens": 100}),
        ):
            with pytest.raises((openai.BadRequestError, anthropic.BadRequestError)) as caught:
                ask(model="some", messages=long, **limit)
            refusal = recognise_overflow(caught.value)
            assert refusal is not None
            assert (refusal.kind, refusal.limit) == ("tokens", 6_000)
            assert refusal.excess == provider.requests[-1].prompt - 6_000 > 0


# ── Silent overflows ────────────────────────────────────────────────────────────────────────────


def test_a_reply_that_fits_is_no_silent_overflow() -> None:
    assert silent_overflow_reason(prompt=50_000, predicted=52_000, window=128_000, stop="end_turn") == ""
    assert silent_overflow_reason(prompt=128_000, predicted=128_000, window=128_000) == ""
    assert silent_overflow_reason(prompt=0, predicted=52_000, window=128_000) == "", "no usage, no verdict"


@pytest.mark.parametrize("stop", ["model_context_window_exceeded", "model_length"])
def test_a_stop_because_the_window_is_full_is_reported(stop: str) -> None:
    assert silent_overflow_reason(prompt=9, predicted=9, window=99, stop=stop) == (
        f"the reply stopped because the window was full ({stop})"
    )


def test_the_stop_reason_of_bedrock_is_read() -> None:
    assert stop_reason({"stopReason": "model_context_window_exceeded"}) == "model_context_window_exceeded"
    assert stop_reason({"messageStop": {"stopReason": "end_turn"}}) == "end_turn"


def test_a_prompt_above_a_known_window_is_reported() -> None:
    assert silent_overflow_reason(prompt=140_000, predicted=139_000, window=128_000) == (
        "the provider counted 140,000 tokens, more than the window of 128,000"
    )
    assert silent_overflow_reason(prompt=140_000, predicted=139_000, window=0) == ""


@pytest.mark.parametrize(
    ("prompt", "predicted"),
    [(2_048, 5_065), (2_048, 91_541), (512, 1_100), (16_386, 50_000), (32_770, 65_700), (2_051, 22_000)],
)
def test_prompts_cut_by_ollama_are_reported(prompt: int, predicted: int) -> None:
    """Sizes from its logs: all of `num_ctx`, or half of it and a few tokens."""
    assert silent_overflow_reason(prompt=prompt, predicted=predicted, window=131_072) == (
        f"the provider counted {prompt:,} tokens of about {predicted:,}: it has cut the request"
    )


def test_a_prompt_cut_to_the_window_is_reported() -> None:
    assert silent_overflow_reason(prompt=59_500, predicted=110_000, window=60_000)
    assert not silent_overflow_reason(prompt=58_500, predicted=110_000, window=60_000)


@pytest.mark.parametrize(
    ("prompt", "predicted", "why"),
    [
        (9_731, 30_000, "a report without the cached tokens is far too low, but not round"),
        (2_048, 3_400, "60 % of the prediction may be a wrong prediction"),
        (512, 999, "small predictions are often wrong"),
        (4_300, 20_000, "near a round number is not at one"),
    ],
)
def test_a_low_count_alone_is_not_reported(prompt: int, predicted: int, why: str) -> None:
    assert silent_overflow_reason(prompt=prompt, predicted=predicted, window=131_072) == "", why


def test_a_random_low_count_rarely_looks_like_a_cut() -> None:
    alarms = sum(
        bool(silent_overflow_reason(prompt=size, predicted=100_000, window=200_000))
        for size in range(4_000, 60_000)
    )
    assert alarms / 56_000 < 0.005


# ── Stop reasons ────────────────────────────────────────────────────────────────────────────────────

CHAT = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "gpt-4.1",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hi."},
            "logprobs": None,
            "finish_reason": "length",
        }
    ],
}
RESPONSE: Json = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "status": "incomplete",
    "incomplete_details": {"reason": "max_output_tokens"},
    "model": "gpt-4.1",
    "output": [],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude",
    "content": [],
    "stop_reason": "model_context_window_exceeded",
    "stop_sequence": None,
    "usage": {"input_tokens": 1, "output_tokens": 1},
}


@pytest.mark.parametrize(
    ("kind", "reply", "reason"),
    [
        (ChatCompletion, CHAT, "length"),
        (Response, RESPONSE, "max_output_tokens"),
        (Response, {**RESPONSE, "status": "completed", "incomplete_details": None}, "completed"),
        (Message, MESSAGE, "model_context_window_exceeded"),
    ],
)
def test_the_stop_reason_is_found_in_each_dialect(kind: Any, reply: Json, reason: str) -> None:
    assert stop_reason(reply) == reason
    assert stop_reason(kind.model_validate(reply)) == reason


def test_the_stop_reason_is_found_in_the_events_of_a_stream() -> None:
    assert stop_reason({"type": "response.incomplete", "response": RESPONSE}) == "max_output_tokens"
    assert (
        stop_reason({"type": "message_start", "message": {**MESSAGE, "stop_reason": "end_turn"}})
        == "end_turn"
    )
    assert stop_reason({"type": "message_delta", "delta": {"stop_reason": "tool_use"}}) == "tool_use"


def test_a_reply_without_a_stop_reason_gives_an_empty_string() -> None:
    silent_ones: list[Any] = [None, "", "stop", 7, {}, {"choices": []}, {"choices": None}, {"status": 200}]
    for reply in (*silent_ones, RaisingObject(), EndlessAttributes()):
        assert stop_reason(reply) == ""
