"""An upstream with a model that binds thinking to what comes before it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from foveal.core.wire.bound_thinking import BINDING_BETA, ThinkingCheck, is_thinking_block
from support.raw_upstream import Piece, ReceivedRequest, answer

Json = dict[str, Any]
REFUSAL: Final = (
    "messages.1.content.0: Invalid `signature` in `thinking` block. The block is bound to a different "
    'conversation. Remove the block, or set `thinking.block_binding.prefix_mismatch_behavior` to "drop_block".'
)


class ThinkingUpstream:
    """The script of a `RawUpstream`. With `knows_controls=False` it is a gateway that refuses unknown fields."""

    def __init__(self, *, knows_controls: bool = True) -> None:
        self.check = ThinkingCheck()
        self.knows_controls = knows_controls
        self.refused: list[str] = []
        """What was refused, or dropped, of the thinking in requests."""
        self.unknown_fields = 0
        """Requests that were refused because of the field `block_binding`."""
        self.replies = 0
        self.bodies: list[Json] = []
        """The answered requests of clients. Foveal's own requests for a summary ask for no thinking."""

    def __call__(self, seen: ReceivedRequest, number: int) -> Iterator[Piece]:
        body: Json = json.loads(seen.body)
        controls = (body.get("thinking") or {}).get("block_binding")
        if controls is not None and not self.knows_controls:
            self.unknown_fields += 1
            yield self._refuse("thinking.block_binding: Extra inputs are not permitted")
            return
        assert (controls is not None) == (BINDING_BETA in seen.headers.get("anthropic-beta", ""))
        beside = {"system": body.get("system"), "tools": body.get("tools")}
        faults = self.check.faults("anthropic", body["messages"], **beside)
        self.refused += faults
        if faults and controls is None:
            yield self._refuse(REFUSAL)
            return
        self.replies += 1
        thought = {
            "type": "thinking",
            "thinking": f"Thought {self.replies}.",
            "signature": f"sig{self.replies}",
        }
        call = {
            "type": "tool_use",
            "id": f"call_{self.replies}",
            "name": "bash",
            "input": {"command": "make"},
        }
        reply = {"role": "assistant", "content": [thought, call]}
        self.check.remember("anthropic", body["messages"], [reply], **beside)
        if "thinking" in body:
            self.bodies.append(body)
        usage = {"input_tokens": len(seen.body) // 4, "output_tokens": 5}
        whole = {
            "type": "message",
            "id": "msg_1",
            "model": "m",
            "stop_reason": "tool_use",
            "usage": usage,
            **reply,
        }
        yield answer(json.dumps(whole).encode())

    def _refuse(self, message: str) -> bytes:
        error = {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
        return answer(json.dumps(error).encode(), status="400 Bad Request")


def thoughts(messages: list[Json]) -> list[str]:
    """Return the signatures of all thinking in messages."""
    blocks = (
        block for message in messages if isinstance(message["content"], list) for block in message["content"]
    )
    return [block["signature"] for block in blocks if is_thinking_block(block)]
