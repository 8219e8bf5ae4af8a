"""The Palimpsest server of a project: its address, and requests to it."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from settings import ADDRESS, GATEWAY

DEFAULT = "http://127.0.0.1:8700"
KEY_HEADER = "x-palimpsest-key"
SECONDS_MAX = 5.0
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def address_of(environment: Mapping[str, str]) -> str:
    """Return the server's address: PALIMPSEST_URL, else the one whose gateway Claude Code uses, else this machine's."""
    if environment.get("PALIMPSEST_URL"):
        return environment["PALIMPSEST_URL"].rstrip("/")
    used = environment.get(ADDRESS, "").rstrip("/")
    return used[: -len(GATEWAY)] if used.endswith(GATEWAY) else DEFAULT


def key_of(environment: Mapping[str, str]) -> str | None:
    """Return the server's key: PALIMPSEST_API_KEY, else the one that Claude Code sends to the gateway."""
    if environment.get("PALIMPSEST_API_KEY"):
        return environment["PALIMPSEST_API_KEY"]
    return sent_key(environment)


def sent_key(environment: Mapping[str, str]) -> str | None:
    """Return the server's key among the headers that Claude Code sends with each call."""
    for line in environment.get("ANTHROPIC_CUSTOM_HEADERS", "").splitlines():
        name, _, value = line.partition(":")
        if name.strip().lower() == KEY_HEADER:
            return value.strip()
    return None


def ask(path: str, body: bytes | None = None, more: dict[str, str] | None = None) -> bytes:
    """Return the server's answer; raise OSError if there is none, or its status is an error."""
    url, key = address_of(os.environ) + path, key_of(os.environ)
    headers = {"accept": "application/json, text/event-stream", "content-type": "application/json", **(more or {})}
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    if urlsplit(url).scheme not in ("http", "https"):
        raise OSError(f"{url} is no address of a server")
    direct = urlsplit(url).hostname in _LOOPBACK  # a proxy cannot reach this machine
    proxies = urllib.request.ProxyHandler({} if direct else None)
    request = urllib.request.Request(url, body, headers)  # noqa: S310 - checked above
    with urllib.request.build_opener(proxies).open(request, timeout=SECONDS_MAX) as response:
        answer: bytes = response.read()
        return answer


def gateway() -> dict[str, Any]:
    """Return what the server's gateway forwards to, and its newest requests."""
    found: dict[str, Any] = json.loads(ask("/v1/gateway?limit=10"))
    return found
