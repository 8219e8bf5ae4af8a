"""Builders of logs for tests."""

from dataclasses import dataclass, field
from typing import Any

from app.core.log.event import Event
from app.core.log.events import EventType
from app.core.plan.pipeline import Plan, plan
from app.core.plan.state.frontier import START, Frontier
from app.core.plan.update import PlanInputs
from app.core.policy.groups import Retention
from app.core.policy.policy import Policy
from app.core.tokens.budget import Budget
from app.core.tokens.counter import HEURISTIC, Counter
from app.core.tokens.scales import AREA

COUNTER = Counter(HEURISTIC, AREA)


def simple_retention(**rules: Any) -> Retention:
    """Return rules by age and count alone: every result may be evicted, and its stub keeps nothing."""
    plain = {"per_tool": True, "min_tokens": 0, "identifiers": 0.0, "dense": 1.0, "arguments": False}
    return Retention(**{**plain, "superseded": False, **rules})


PLAIN = Policy(evict="on_pressure", retention=simple_retention(keep_last=8))


@dataclass
class Log:
    """Events in order; each method appends one and returns its seq."""

    events: list[Event] = field(default_factory=list)
    turn: int = 0

    def add(self, kind: EventType, tokens: int, **more: object) -> int:
        seq = len(self.events) + 1
        cum = (self.events[-1].cum_tokens if self.events else 0) + tokens
        body = {"content": f"{kind}-{seq} " + "x" * tokens * 2}
        values = {"body": body, **more}
        self.events.append(Event(seq, kind, self.turn, tokens, cum, **values))
        return seq

    def system(self, tokens: int = 10) -> int:
        return self.add(EventType.SYSTEM_PROMPT, tokens)

    def user(self, tokens: int = 10, **more: object) -> int:
        self.turn += 1
        return self.add(EventType.USER_MESSAGE, tokens, **more)

    def assistant(self, tokens: int = 10, **more: object) -> int:
        return self.add(EventType.ASSISTANT_MESSAGE, tokens, **more)

    def call(self, tool: str = "read", tokens: int = 20, **more: object) -> int:
        seq = len(self.events) + 1
        return self.add(EventType.TOOL_CALL, tokens, call_id=f"c{seq}", tool=tool, **more)

    def result(self, call: int, tokens: int = 500, **more: object) -> int:
        made = self.events[call - 1]
        return self.add(
            EventType.TOOL_RESULT,
            tokens,
            call_id=made.call_id,
            tool=made.tool,
            call_seq=call,
            **{"gist": "first", **more},
        )

    def round(self, tool: str = "read", tokens: int = 500) -> int:
        return self.result(self.call(tool), tokens)

    def plan(self, target: int, *, policy: Policy = PLAIN, state: Frontier = START, goal: int | None = None) -> Plan:
        low_water = policy.low_water if goal is None else goal / target
        budget = Budget(target, 0, 0, target, int(target * low_water), low_water=low_water)
        return plan(PlanInputs(self.events, self.turn, COUNTER), budget, policy, state)
