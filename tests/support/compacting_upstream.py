"""An upstream that compacts conversations, and reads only what it has compacted for the same model and key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from support.raw_upstream import Piece, ReceivedRequest, answer

Json = dict[str, Any]
COMPACTION = "compaction"


class CompactingUpstream:
    """The script of a `RawUpstream` that speaks Responses."""

    def __init__(self) -> None:
        self.bodies: list[Json] = []
        """The requests that were answered."""
        self.refused = 0
        """Requests with an item that was made for another model or key."""
        self.items = 0
        self.max_bytes = 1 << 30
        """The size of a request above which it is refused."""
        self.too_large = 0

    def __call__(self, seen: ReceivedRequest, number: int) -> Iterator[Piece]:
        body: Json = json.loads(seen.body)
        reader = f"{body['model']} {seen.headers['authorization']}"
        items = [item for item in body["input"] if item.get("type") == COMPACTION]
        if any(json.loads(item["encrypted_content"])[0] != reader for item in items):
            self.refused += 1
            yield _refuse("invalid_encrypted_content", "The encrypted content could not be verified.")
            return
        if len(seen.body) > self.max_bytes:
            self.too_large += 1
            yield _refuse("context_length_exceeded", "Your input exceeds the context window of this model.")
            return
        self.bodies.append(body)
        if seen.line.split()[1].endswith("/compact"):
            kept = [item for item in body["input"] if item.get("role") == "user"]
            made = {"id": "cmp", "object": "response.compaction", "output": [*kept, self._item(reader)]}
            yield answer(json.dumps({**made, "usage": _usage(seen)}).encode())
            return
        asks = body["input"][-1].get("type") == "compaction_trigger"
        text = {"type": "output_text", "text": f"Answer {len(self.bodies)}."}
        said = {"type": "message", "role": "assistant", "id": "msg", "content": [text]}
        output = [self._item(reader) if asks else said]
        reply = {"id": "resp", "status": "completed", "output": output, "usage": _usage(seen)}
        yield answer(json.dumps(reply).encode())

    def _item(self, reader: str) -> Json:
        self.items += 1
        secret = json.dumps([reader, self.items])
        return {"type": COMPACTION, "id": f"cmp_{self.items}", "encrypted_content": secret}


def _usage(seen: ReceivedRequest) -> Json:
    return {"input_tokens": len(seen.body) // 4, "output_tokens": 5}


def _refuse(code: str, message: str) -> bytes:
    error = {"message": message, "type": "invalid_request_error", "code": code}
    return answer(json.dumps({"error": error}).encode(), status="400 Bad Request")
