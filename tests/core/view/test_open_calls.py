"""Open calls: a result answers the first open call with its id in the newest step that has one."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from foveal.core.log import Call, ModelSaid
from foveal.core.view.steps import OpenCalls, Slot, Step


@given(seed=st.integers(0, 2**32), moves=st.integers(1, 60))
def test_open_calls_answer_as_a_search_of_all_slots_does(seed: int, moves: int) -> None:
    dice = Random(seed)
    calls, waiting = OpenCalls(), list[Slot]()
    for move in range(moves):
        call_id = f"c{dice.randrange(3)}"
        if dice.random() < 0.5:
            # A checkpoint restores calls of earlier steps after later ones.
            step = Step(move if dice.random() < 0.8 else -move, "model", ModelSaid(content=""))
            for place in range(dice.randint(1, 3)):
                call = Call(id=dice.choice((call_id, "c9")), name="read", arguments="{}")
                slot = step.add_call(place, call)
                calls.add(slot)
                waiting.append(slot)
        else:
            expected = _newest(waiting, call_id)
            assert calls.take(call_id) is expected
            waiting = [slot for slot in waiting if slot is not expected]
        assert {id(slot) for slot in calls} == {id(slot) for slot in waiting}


def _newest(waiting: list[Slot], call_id: str) -> Slot | None:
    """Return the first slot with this id of the newest step that has one."""
    found = [slot for slot in waiting if slot.call.id == call_id]
    return min(found, key=lambda slot: (-slot.step.seq, slot.place), default=None)
