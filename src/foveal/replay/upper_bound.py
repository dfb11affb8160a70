"""What could be reached by somebody who knows the future: a bound, no policy.

Every ten results the oracle cuts the results since the last time down to the strings that later calls will quote
from them, so it forgets nothing. The second one also cuts the arguments of all calls but the newest. When a request
does not fit they cut at once, and then leave out the oldest messages but the task and what will be quoted. They do
not go through `Context`, but are billed and searched like everybody else.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from foveal.core.log.events import Call, Instructed, ModelSaid, ToolReturned, UserSaid
from foveal.replay.play import Loss, Scorer, ScoringTable, Trace
from foveal.replay.recall_score import MessageText, Need, RequestText, whole
from foveal.replay.recorded_calls import Said

ORACLE: Final = "knows the future: results"
ORACLE_ARGUMENTS: Final = "knows the future: results and arguments"
EVERY: Final = 10
"""Results between two cuts."""
SHORT: Final = 60
"""Characters of arguments that are not worth a cut."""
CUT: Final = "[cut]"


def oracle(table: ScoringTable, *, arguments: bool) -> Trace:
    scorer = Scorer(table, ORACLE_ARGUMENTS if arguments else ORACLE)
    player = _Oracle(table, arguments=arguments)
    for number in range(len(table.conversation.calls)):
        scorer.score(number, player.request(number), _loss)
    return scorer.trace


class _Oracle:
    def __init__(self, table: ScoringTable, *, arguments: bool) -> None:
        self._table = table
        self._arguments = arguments
        self._shown: list[list[MessageText]] = []
        """For each fact so far what is shown of it."""
        self._cut_to = 0
        """Facts before this one have been cut."""
        self._uncut = 0
        """Results since then."""
        self._wanted: dict[int, list[Need]] = {}
        """For the place of each result what is needed of it."""
        for need in table.needs:
            self._wanted.setdefault(need.place, []).append(need)
        facts = table.conversation.facts
        self._task = next((place for place, fact in enumerate(facts) if isinstance(fact, UserSaid)), -1)

    def request(self, number: int) -> RequestText:
        self._take(self._table.conversation.calls[number].facts)
        if self._uncut >= EVERY:
            self._cut(number + 1)
        request = self._sent(number)
        if request.tokens > self._table.limit:
            self._cut(number + 1)
            self._drop(self._sent(number).tokens - self._table.limit)
            request = self._sent(number)
        return request

    def _take(self, until: int) -> None:
        for place in range(len(self._shown), until):
            fact = self._table.conversation.facts[place]
            self._shown.append(self._table.reader.fact(fact))
            self._uncut += isinstance(fact, ToolReturned)

    def _sent(self, number: int) -> RequestText:
        call = self._table.conversation.calls[number]
        front = self._table.reader.front(system=call.system, tools=call.tools)
        return whole([*front, *(piece for pieces in self._shown for piece in pieces)])

    def _cut(self, call: int) -> None:
        facts = self._table.conversation.facts
        newest = max((p for p in range(len(self._shown)) if isinstance(facts[p], ModelSaid)), default=0)
        for place in range(self._cut_to, len(self._shown)):
            fact = facts[place]
            if isinstance(fact, ToolReturned):
                wanted = (need.text for need in self._wanted.get(place, ()) if need.call >= call)
                self._replace(place, replace(fact, content="\n".join(dict.fromkeys((CUT, *wanted)))))
            elif self._arguments and isinstance(fact, ModelSaid) and place < newest:
                self._replace(place, _shorter(fact))
        self._cut_to, self._uncut = (newest if self._arguments else len(self._shown)), 0

    def _replace(self, place: int, fact: Said) -> None:
        shorter = self._table.reader.fact(fact)
        if sum(p.tokens for p in shorter) < sum(p.tokens for p in self._shown[place]):
            self._shown[place] = shorter

    def _drop(self, excess: float) -> None:
        """Leave out the oldest, so that there is room for a while."""
        if excess <= 0:
            return
        facts = self._table.conversation.facts
        latest = max((p for p in range(len(self._shown)) if isinstance(facts[p], UserSaid)), default=-1)
        excess += self._table.limit / 2
        for place in range(len(self._shown) - 1):
            stays = isinstance(facts[place], Instructed) or place in (self._task, latest)
            if excess > 0 and not stays and place not in self._wanted:
                excess -= sum(piece.tokens for piece in self._shown[place])
                self._shown[place] = []


def _shorter(fact: ModelSaid) -> ModelSaid:
    """The utterance without the long arguments of its calls."""
    if isinstance(fact.content, str):
        return fact
    cut = (
        replace(part, arguments="{}")
        if isinstance(part, Call) and part.replaceable and len(part.arguments) > SHORT
        else part
        for part in fact.content
    )
    return replace(fact, content=tuple(cut))


def _loss(need: Need) -> Loss:
    """It keeps what it needs; only a request that could not be written as it was said can lose something."""
    return Loss(
        call=need.call,
        kind=need.kind,
        text=need.text,
        far=need.far,
        handle="",
        tool="",
        level="",
        rule="",
        by="",
    )
