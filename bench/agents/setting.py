"""The setting of all scenes: the sides, started on one Postgres, and the recordings."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Final, TypeVar

from app.store import embedded
from app.store.embedded import EmbeddedPostgres
from bench.agents.driver import target_of
from bench.agents.lag import Prober
from bench.agents.sides import ContextParameters, Floor, Ours, Side, a_floor, ours, postmaster
from bench.agents.traffic import Life, lives_of
from bench.quality.servers import temporary_folder
from palimpsest_tools.recordings.recording import Recording

Client = TypeVar("Client", bound=Ours)
OTHER: Final = "other"
"""Name of the side that runs another checkout."""


@dataclass(slots=True)
class Setting:
    """The sides under test: the floor, ours from this checkout, and others. `others` are further pids by role."""

    postgres: EmbeddedPostgres
    folder: Path
    ask: ContextParameters
    floor: Floor
    sides: list[Side]
    recordings: Sequence[Recording]
    lives: Sequence[Life]
    prober: Prober
    others: dict[str, int]
    stack: AsyncExitStack
    _numbers: "count[int]" = field(default_factory=count)
    _begun: float = field(default_factory=time.monotonic)

    def new_name(self, name: str) -> str:
        """Return a session name that is not used yet."""
        return f"{name}-{next(self._numbers)}"

    def say(self, what: str) -> None:
        """Print progress to stderr."""
        print(f"{time.monotonic() - self._begun:5.0f} s  {what}", file=sys.stderr, flush=True)

    async def start_side(
        self, name: str, *, together: bool = False, checkout: Path | None = None, processes: int = 1
    ) -> Ours:
        """Start another side of ours, which is stopped with the rest."""
        side = await ours(
            self.postgres, self.folder, self.ask, name, together=together, checkout=checkout, processes=processes
        )
        self.stack.push_async_callback(side.stop)
        return side

    async def start_client(self, kind: type[Client], name: str) -> Client:
        """Start another side of ours, with clients of a kind."""
        side = await self.start_side(name)
        return kind(side.name, side.url, side.stack, side.ask)


@asynccontextmanager
async def a_setting(
    recordings: Sequence[Recording],
    ask: ContextParameters,
    *,
    floor_tokens: int | None = None,
    other: Path | None = None,
) -> AsyncIterator[Setting]:
    """Start everything, and stop it at the end; the floor fills `floor_tokens`, by default the target of ours."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        options = {**embedded.OPTIONS, "max_connections": "200"}  # all sides are connected at the same time
        postgres = await asyncio.to_thread(embedded.start, folder / "data", options)
        stack.callback(postgres.stop)
        floor = await a_floor(postgres, ask)
        stack.callback(floor.stop)
        prober = Prober()
        stack.callback(prober.stop)
        lives = lives_of(recordings, ask.form)
        others = {"postgres": postmaster(postgres)}
        setting = Setting(postgres, folder, ask, floor, [floor], recordings, lives, prober, others, stack)
        setting.sides.append(await setting.start_side("ours"))
        if other is not None:
            setting.sides.append(await setting.start_side(OTHER, checkout=other))
        floor.ask = replace(ask, floor_tokens=floor_tokens or await target_of(setting.sides[1], lives[0]))
        yield setting
