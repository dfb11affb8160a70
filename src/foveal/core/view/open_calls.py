"""Open calls: the calls that still wait for a result."""

from __future__ import annotations

from collections.abc import Iterator

from foveal.core.view.steps import Slot


class OpenCalls:
    """Finds the call that a result answers. An id can occur several times in a conversation."""

    def __init__(self) -> None:
        self._by_id: dict[str, list[Slot]] = {}

    def __iter__(self) -> Iterator[Slot]:
        for waiting in self._by_id.values():
            yield from waiting

    def add(self, slot: Slot) -> None:
        """Add a call. A call of an earlier step than others with its id goes before these."""
        waiting = self._by_id.setdefault(slot.call.id, [])
        waiting.append(slot)
        if len(waiting) > 1 and waiting[-2].step.seq > slot.step.seq:
            waiting.sort(key=lambda one: one.step.seq)

    def take(self, call_id: str) -> Slot | None:
        """Return the call that a result with this id answers: of the newest step with an open one, the first."""
        waiting = self._by_id.get(call_id)
        if not waiting:
            return None
        newest = waiting[-1].step
        place = next(i for i, slot in enumerate(waiting) if slot.step is newest)
        slot = waiting.pop(place)
        if not waiting:
            del self._by_id[call_id]
        return slot
