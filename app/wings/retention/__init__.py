"""Retention: rules for how long data is kept, and erasures of sessions that match a filter."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from app.runtime.wing import MakeJobs, Wing

if TYPE_CHECKING:
    import typer

    from app.http.operation import Resource
    from app.runtime.wiring import Services


def _services(_: object, kernel: "Services") -> Iterable[object]:
    from app.wings.retention.erasures import Erasures
    from app.wings.retention.service import DataRetention

    yield DataRetention(kernel.database)
    yield Erasures(kernel.database)


def _routes(_: object) -> "Sequence[Resource]":
    from app.wings.retention.routes import router

    return [router]


def _jobs(_: object) -> Sequence[MakeJobs]:
    from app.wings.retention.jobs import RetentionJobs

    return [RetentionJobs]


def _commands(app: "typer.Typer") -> None:
    from app.wings.retention.commands import retention

    app.command()(retention)


WING = Wing(services=_services, routes=_routes, jobs=_jobs, commands=_commands)
