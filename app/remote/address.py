"""Where the server is, and the key that opens it."""

from dataclasses import dataclass, field

import httpx2


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server. `named` says that a person chose it; otherwise it is where `serve` would listen."""

    url: str
    key: str | None = field(default=None, repr=False)
    named: bool = False

    def http(self, seconds_max: float, url: str | None = None) -> httpx2.AsyncClient:
        """A client of the server, or of the one at `url`, that sends the key. Raises httpx2.InvalidURL."""
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        return httpx2.AsyncClient(base_url=url or self.url, headers=headers, timeout=seconds_max)
