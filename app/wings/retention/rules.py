"""The rules for how long data is kept, and the sessions that are due."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Final, Literal, get_args

from app.core.errors import InvalidRequest

DAYS_MAX: Final = 36_500
DELIVERY_DAYS_MAX: Final = 30
"""The maximum days for which deliveries are kept, whatever a rule says."""

SessionRule = Literal["age", "idle"]
RecordRule = Literal["calls", "compactions", "changes", "deliveries"]
RECORD_RULES: Final[tuple[RecordRule, ...]] = get_args(RecordRule)


@dataclass(frozen=True, slots=True)
class RetentionDays:
    """The days for which data is kept; None: no rule. Deliveries are then kept 30 days, calls as policy and server say.

    `session_days` counts from a session's creation, `idle_days` from its last use. The others apply to records about
    sessions: calls, ended compactions, changes for streams, ended deliveries.
    """

    session_days: int | None = None
    idle_days: int | None = None
    call_days: int | None = None
    compaction_days: int | None = None
    change_days: int | None = None
    delivery_days: int | None = None

    def record_rules(self) -> Mapping[RecordRule, int]:
        """Return the rules about records that are set, with their days."""
        days = (self.call_days, self.compaction_days, self.change_days, self.delivery_days)
        return {rule: number for rule, number in zip(RECORD_RULES, days, strict=True) if number is not None}

    def session_rules(self) -> Mapping[SessionRule, int]:
        """Return the rules about sessions that are set, with their days."""
        days: dict[SessionRule, int | None] = {"age": self.session_days, "idle": self.idle_days}
        return {rule: number for rule, number in days.items() if number is not None}

    def created_before(self, now: datetime) -> datetime | None:
        """Return the creation time before which sessions may be expired; None if sessions have no limit."""
        days = self.session_rules().values()
        return now - timedelta(days=min(days)) if days else None

    def expired_rule(self, life: "Life", now: datetime) -> SessionRule | None:
        """Return the rule by which a session is expired; None if it is not."""
        if self.session_days is not None and life.created_at < now - timedelta(days=self.session_days):
            return "age"
        if (
            self.idle_days is not None
            and not life.has_open_compaction
            and life.used_at < now - timedelta(days=self.idle_days)
        ):
            return "idle"
        return None


@dataclass(frozen=True, slots=True)
class Life:
    """The creation and last use of a session with its lines, and whether a compaction of it has not ended."""

    created_at: datetime
    used_at: datetime
    has_open_compaction: bool = False


@dataclass(frozen=True, slots=True)
class DueSession:
    """A session that is due, and the rule by which it is expired."""

    id: str
    rule: SessionRule
    created_at: datetime
    used_at: datetime


@dataclass(frozen=True, slots=True)
class RuleDue:
    """The data due by a rule: the number of items, a lower bound if `more`, and their oldest and newest times."""

    rule: SessionRule | RecordRule
    count: int
    more: bool
    oldest: datetime | None
    newest: datetime | None


def validate(rules: RetentionDays) -> RetentionDays:
    """Return the rules with None in place of 0, which means the same. Raises InvalidRequest for days out of range."""
    values: dict[str, int | None] = {}
    for one in fields(rules):
        days = getattr(rules, one.name)
        most = DELIVERY_DAYS_MAX if one.name == "delivery_days" else DAYS_MAX
        if days is not None and not 0 <= days <= most:
            raise InvalidRequest(f"{one.name} must be from 0 to {most}; 0 means no rule", field=one.name)
        values[one.name] = days or None
    return RetentionDays(**values)


def due_sessions(
    rules: RetentionDays, now: datetime, lives: Mapping[str, Life], families: Mapping[str, Collection[str]]
) -> list[DueSession]:
    """Return the expired sessions whose forks, which share their events, are all expired too."""
    rule_of = {name: rules.expired_rule(life, now) for name, life in lives.items()}
    found = []
    for name, family in families.items():
        rule = rule_of.get(name)
        if rule is not None and all(rule_of.get(one) for one in family):
            found.append(DueSession(name, rule, lives[name].created_at, lives[name].used_at))
    return found
