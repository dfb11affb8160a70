"""Errors about encrypted content, in the forms in which providers and clients report them."""

from __future__ import annotations

from typing import Any

import pytest

from foveal.core.wire.overflow_errors import MAX_PROBLEM_CHARS, refused_encryption

MESSAGE = "The encrypted content for item rs_1 could not be verified."


class BadRequestError(Exception):
    """Has the fields of the exception of OpenAI's client."""

    status_code = 400
    code = "invalid_encrypted_content"
    body = {"message": MESSAGE, "code": "invalid_encrypted_content"}  # noqa: RUF012


@pytest.mark.parametrize(
    "error",
    [
        BadRequestError(f"Error code: 400 - {MESSAGE}"),
        {"error": {"message": MESSAGE, "code": "invalid_encrypted_content"}},
        {"type": "response.failed", "response": {"error": {"code": "x", "message": MESSAGE}}},
        MESSAGE,
    ],
)
def test_a_refusal_is_recognised_with_its_message(error: Any) -> None:
    found = refused_encryption(error)
    assert found is not None
    assert MESSAGE in found


def test_a_code_without_a_message_is_enough() -> None:
    assert refused_encryption({"error": {"code": "invalid_encrypted_content"}}) == "invalid_encrypted_content"


def test_a_long_message_is_cut() -> None:
    found = refused_encryption(f"{MESSAGE} {'gAAA ' * 500}")
    assert found is not None
    assert len(found) == MAX_PROBLEM_CHARS


@pytest.mark.parametrize(
    "error",
    [
        None,
        {},
        "prompt is too long: 210000 tokens > 200000 maximum",
        {"error": {"message": "Unknown parameter: include[0] reasoning.encrypted_content"}},
        {"error": {"message": "Store must be false to get encrypted content."}},
    ],
)
def test_other_errors_are_not(error: Any) -> None:
    assert refused_encryption(error) is None
