"""Upper bound of recall: oracles that know which strings later calls quote.

1. Every ten results, an oracle cuts the results since the last cut down to the strings that later calls quote from
   them, so it loses no need.
2. The second oracle also cuts the arguments of all calls but the newest.
3. If a request does not fit, an oracle cuts at once, and then drops the oldest messages, except the task and
   results with needs.
4. Oracles do not use `Context`, but are billed and scored like policies.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from foveal.core.log.events import Call, Instructed, ModelSaid, ToolReturned, UserSaid
from foveal.core.wire.request_text import MessageText, RequestText, make_request
from foveal.replay.play import ReplayCase, RequestScorer, Trace, loss_without_cause
from foveal.replay.recall_score import Need
from foveal.replay.recorded_calls import MessageFact

ORACLE: Final = "knows the future: results"
"""The label of the upper bound that knows which results later calls need."""
ORACLE_ARGUMENTS: Final = "knows the future: results and arguments"
"""The label of the upper bound that also cuts the arguments of calls."""
RESULTS_BETWEEN_CUTS: Final = 10
MAX_UNCUT_ARGUMENT_CHARS: Final = 60
"""Longer arguments are cut."""
CUT_MARKER: Final = "[cut]"


def is_bound(policy: str) -> bool:
    """Return whether a row is an upper bound, not a policy."""
    return policy in (ORACLE, ORACLE_ARGUMENTS)


def short_policy_name(policy: str) -> str:
    """Return the name of a row where there is little room."""
    return {ORACLE: "oracle", ORACLE_ARGUMENTS: "oracle, arguments too"}.get(policy, policy)


def replay_oracle(case: ReplayCase, *, arguments: bool) -> Trace:
    """Replay a case under an oracle; with `arguments` it also cuts the arguments of calls."""
    scorer = RequestScorer(case, ORACLE_ARGUMENTS if arguments else ORACLE)
    oracle = _Oracle(case, cuts_arguments=arguments)
    for number in range(len(case.conversation.calls)):
        scorer.score(number, oracle.request(number), loss_without_cause)
    return scorer.trace


class _Oracle:
    """The requests of an oracle."""

    def __init__(self, case: ReplayCase, *, cuts_arguments: bool) -> None:
        self._case = case
        self._cuts_arguments = cuts_arguments
        self._shown: list[list[MessageText]] = []
        """For each fact so far, its messages as they are shown."""
        self._cut_until = 0
        """Facts before this one have been cut."""
        self._uncut_results = 0
        """Results since then."""
        self._needs: dict[int, list[Need]] = {}
        """For the index of each result with needs, these needs."""
        for need in case.needs:
            self._needs.setdefault(need.place, []).append(need)
        facts = case.conversation.facts
        self._task = next((index for index, fact in enumerate(facts) if isinstance(fact, UserSaid)), -1)

    def request(self, number: int) -> RequestText:
        """Return the request of a call, counted from 0."""
        self._add_facts(self._case.conversation.calls[number].facts)
        if self._uncut_results >= RESULTS_BETWEEN_CUTS:
            self._cut(number + 1)
        request = self._current_request(number)
        if request.tokens > self._case.limit:
            self._cut(number + 1)
            self._drop(self._current_request(number).tokens - self._case.limit)
            request = self._current_request(number)
        return request

    def _add_facts(self, until: int) -> None:
        for index in range(len(self._shown), until):
            fact = self._case.conversation.facts[index]
            self._shown.append(self._case.reader.messages_of(fact))
            self._uncut_results += isinstance(fact, ToolReturned)

    def _current_request(self, number: int) -> RequestText:
        call = self._case.conversation.calls[number]
        prefix = self._case.reader.prefix(system=call.system, tools=call.tools)
        return make_request([*prefix, *(piece for pieces in self._shown for piece in pieces)])

    def _cut(self, call: int) -> None:
        """Cut the facts since the last cut down to what this call and later ones need."""
        facts = self._case.conversation.facts
        newest = max((i for i in range(len(self._shown)) if isinstance(facts[i], ModelSaid)), default=0)
        for index in range(self._cut_until, len(self._shown)):
            fact = facts[index]
            if isinstance(fact, ToolReturned):
                texts = (need.text for need in self._needs.get(index, ()) if need.call >= call)
                self._replace(index, replace(fact, content="\n".join(dict.fromkeys((CUT_MARKER, *texts)))))
            elif self._cuts_arguments and isinstance(fact, ModelSaid) and index < newest:
                self._replace(index, _without_arguments(fact))
        # The newest model message keeps its arguments for now, so the next cut begins with it.
        self._cut_until = newest if self._cuts_arguments else len(self._shown)
        self._uncut_results = 0

    def _replace(self, index: int, fact: MessageFact) -> None:
        shorter = self._case.reader.messages_of(fact)
        if sum(piece.tokens for piece in shorter) < sum(piece.tokens for piece in self._shown[index]):
            self._shown[index] = shorter

    def _drop(self, excess: float) -> None:
        """Drop the oldest messages: the excess, and half the limit, so that the next drop is not needed soon."""
        if excess <= 0:
            return
        facts = self._case.conversation.facts
        latest = max((i for i in range(len(self._shown)) if isinstance(facts[i], UserSaid)), default=-1)
        excess += self._case.limit / 2
        for index in range(len(self._shown) - 1):
            must_stay = isinstance(facts[index], Instructed) or index in (self._task, latest)
            if excess > 0 and not must_stay and index not in self._needs:
                excess -= sum(piece.tokens for piece in self._shown[index])
                self._shown[index] = []


def _without_arguments(fact: ModelSaid) -> ModelSaid:
    """Return a model message without the long arguments of its calls."""
    if isinstance(fact.content, str):
        return fact
    parts = (
        replace(part, arguments="{}")
        if isinstance(part, Call) and part.replaceable and len(part.arguments) > MAX_UNCUT_ARGUMENT_CHARS
        else part
        for part in fact.content
    )
    return replace(fact, content=tuple(parts))
