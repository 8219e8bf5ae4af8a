"""A client's list in the log: its line and head, the appended events, and the plan for each message."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from app.core.audit.client_plan import ClientPlan, client_plan
from app.core.log.events import Json
from app.core.render.layers import Content
from app.core.render.request import enclose_injection
from app.resources.contexts.service import ContextAnswer
from app.resources.events.appends import EventReceipt
from app.resources.reconcile.messages import ClientMessages


@dataclass(frozen=True, slots=True)
class Reconciled:
    """A context made from a client's messages. `appended` are the new events, each with its message's index."""

    answer: ContextAnswer
    appended: tuple[tuple[int | None, EventReceipt], ...]
    plan: ClientPlan


@dataclass(frozen=True, slots=True)
class AppliedList:
    """A client's list in the log: its line and last seq, the appended events, each with its message's index, and the
    seqs of the messages' links and of the prompts in force."""

    line: str
    head: int
    appended: tuple[tuple[int | None, EventReceipt], ...]
    seqs: Sequence[int]
    prompts: Sequence[int]

    def to_stored(self) -> Mapping[str, Json]:
        """Return the part stored under an idempotency key; the chain has the rest."""
        appended = [[index, *receipt] for index, receipt in self.appended]
        return {"line": self.line, "head": self.head, "appended": appended, "prompts": list(self.prompts)}

    @classmethod
    def from_stored(cls, stored: Mapping[str, Any], seqs: Sequence[int]) -> "AppliedList":
        """Restore a list from its stored part and the seqs of its links."""
        appended = tuple((index, EventReceipt(*receipt)) for index, *receipt in stored["appended"])
        return cls(stored["line"], stored["head"], appended, seqs, stored["prompts"])


def seqs_by_message(given: ClientMessages, seqs: Sequence[int], prompt_seqs: Sequence[int]) -> list[list[int]]:
    """Return the seqs of each message's events: those of the links, and of the leading prompts if they are in force."""
    found: list[list[int]] = [[] for _ in range(given.count)]
    if len(prompt_seqs) == len(given.prompts):
        for prompt, seq in zip(given.prompts, prompt_seqs, strict=True):
            if prompt.index is not None:
                found[prompt.index].append(seq)
    for link, seq in zip(given.links, seqs, strict=True):
        if link.place not in given.added:
            found[given.indices[link.place]].append(seq)
    return found


def client_plan_of(answer: ContextAnswer, seqs: Sequence[Sequence[int]]) -> ClientPlan:
    """Return the plan for the client's messages, whose events are at `seqs`."""
    inputs, planned = answer.assembled.inputs, answer.assembled.rendered.plan
    tail: list[tuple[Literal["layer", "injection", "note"], str | None, Content]] = [
        ("layer", layer.kind, layer.shown) for layer in inputs.layers
    ]
    if planned.notice is not None:
        tail.append(("note", None, planned.notice))
    tail += [("injection", one.name, enclose_injection(one.name, one.content)) for one in inputs.request.injections]
    return client_plan(seqs, planned.context, planned.state, tail)
