"""Pages for operators and authors of agents, under `/ui/`: sessions, windows, calls and their reasons, in a browser."""

import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel, Field, SecretStr

from app.runtime.wing import Wing

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from app.runtime.settings import KernelSettings
    from app.runtime.wiring import Services

SHARED: Final = "PALIMPSEST_PAGES_SECRET"
"""The variable in which the processes of a server share their secret."""


class PagesSettings(BaseModel):
    """Settings of the pages."""

    pages: bool = Field(True, description="Whether pages for people are served under `/ui/`.")
    pages_secret: SecretStr | None = Field(
        None,
        description="Secret that encrypts the cookies of people logged in to the pages, the same for all servers"
        " behind one address. Default: derived from `API_KEY`, else a new one at each start, which ends all logins.",
    )


if TYPE_CHECKING:

    class Settings(PagesSettings, KernelSettings):
        """All settings that this wing uses."""


@contextmanager
def _start(settings: PagesSettings) -> Iterator[None]:
    """Give all processes of this server the same secret."""
    if settings.pages and settings.pages_secret is None:
        os.environ[SHARED] = secrets.token_urlsafe(32)
    yield


def _services(settings: "Settings", _: "Services") -> Iterable[object]:
    if settings.pages:
        from app.wings.pages.access import Logins

        given = settings.pages_secret
        yield Logins(settings.api_key or os.environ.get(SHARED) if given is None else given.get_secret_value())


def _routes(settings: PagesSettings) -> "Sequence[BaseRoute]":
    if not settings.pages:
        return ()
    from app.wings.pages.routes import ROUTES

    return ROUTES


WING = Wing(settings=PagesSettings, services=_services, routes=_routes, start=_start)
