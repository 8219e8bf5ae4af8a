"""The clients: the connection to a server, and all operations that are not on one session."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import httpx2

from palimpsest._method import Asynchronous, Blocking, listing, operation
from palimpsest._speaking import SessionState
from palimpsest._transport import AsyncTransport, Connections, Options, Transport
from palimpsest.operations import records, retention, sessions, tenant
from palimpsest.operations.names import Format
from palimpsest.session import AsyncSession, Session
from palimpsest.types import PolicyDocument

DEFAULT_URL = "http://127.0.0.1:8700"
TIMEOUT_SECONDS = 60.0
MAX_RETRIES = 2


class ClientOperations:
    """Every operation of the API that is not on one session, named as in the API's document."""

    list_sessions = listing(sessions.list_sessions)
    audit_calls = listing(records.audit_calls)
    get_audit_ledger = operation(records.get_audit_ledger)

    put_policy = operation(tenant.put_policy)
    get_policy = operation(tenant.get_policy)
    list_policies = listing(tenant.list_policies)

    recall_tool = operation(tenant.recall_tool)
    compact_tool = operation(tenant.compact_tool)

    list_calibrations = listing(tenant.list_calibrations)
    delete_calibrations = operation(tenant.delete_calibrations)

    create_key = operation(tenant.create_key)
    list_keys = listing(tenant.list_keys)
    revoke_key = operation(tenant.revoke_key)

    put_webhook = operation(tenant.put_webhook)
    get_webhook = operation(tenant.get_webhook)
    delete_webhook = operation(tenant.delete_webhook)
    list_webhooks = listing(tenant.list_webhooks)
    list_deliveries = listing(tenant.list_deliveries)
    retry_delivery = operation(tenant.retry_delivery)

    put_retention = operation(retention.put_retention)
    get_retention = operation(retention.get_retention)
    preview_retention = operation(retention.preview_retention)
    create_erasure = operation(retention.create_erasure)
    preview_erasure = operation(retention.preview_erasure)
    get_erasure = operation(retention.get_erasure)
    list_erasures = listing(retention.list_erasures)
    list_erased_sessions = listing(retention.list_erased_sessions)

    get_gateway = operation(tenant.get_gateway)
    healthz = operation(tenant.healthz)
    readyz = operation(tenant.readyz)
    metrics = operation(tenant.metrics)


class Palimpsest(ClientOperations, Blocking):
    """A blocking client. Threads may share it; a session must be used by one thread at a time."""

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float = TIMEOUT_SECONDS,
        max_retries: int = MAX_RETRIES,
        headers: Mapping[str, str] | None = None,
        http_client: httpx2.Client | None = None,
    ) -> None:
        """Create a client.

        `base_url` defaults to PALIMPSEST_URL, else to a server on this machine; `api_key` to PALIMPSEST_API_KEY.
        `timeout` is in seconds and applies to each attempt; temporary failures are retried up to `max_retries` times.
        """
        options = _options(base_url, api_key, timeout, max_retries, headers)
        self._transport = Transport(options, http_client or Connections())

    def session(
        self,
        id: str,
        *,
        model: str | None = None,
        format: Format = "openai",
        max_tokens: int | None = None,
        policy: str | PolicyDocument | None = None,
        view: str | None = None,
        recall: bool | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Session:
        """Return the session with your own `id`. A new session is created at its first use.

        `max_tokens` is the window that contexts are made for; by default that of the policy or the model. `policy` is
        a policy's name or a document. `view` reads the log with its own window and policy. `recall` sets whether the
        model gets the recall tool; by default it does if `tools` are set.
        """
        speaker = SessionState(id, format, model, max_tokens, policy, view, recall, metadata)
        return Session(self._transport, speaker)

    def with_options(
        self,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float | None = None,
        max_retries: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Palimpsest:
        """Return a copy with another `timeout`, `max_retries`, `api_key` or `base_url`, or with more `headers`.

        Connections are shared.
        """
        options = self._transport.options.replace(base_url, api_key, timeout, max_retries, headers)
        changed = object.__new__(Palimpsest)
        changed._transport = Transport(options, self._transport.http)
        return changed

    def close(self) -> None:
        """Close all connections."""
        self._transport.http.close()

    def __enter__(self) -> Palimpsest:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncPalimpsest(ClientOperations, Asynchronous):
    """An asynchronous client."""

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float = TIMEOUT_SECONDS,
        max_retries: int = MAX_RETRIES,
        headers: Mapping[str, str] | None = None,
        http_client: httpx2.AsyncClient | None = None,
    ) -> None:
        """Create a client, with the arguments of `Palimpsest`."""
        options = _options(base_url, api_key, timeout, max_retries, headers)
        self._transport = AsyncTransport(options, http_client or httpx2.AsyncClient())

    def session(
        self,
        id: str,
        *,
        model: str | None = None,
        format: Format = "openai",
        max_tokens: int | None = None,
        policy: str | PolicyDocument | None = None,
        view: str | None = None,
        recall: bool | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> AsyncSession:
        """Return a session; see `Palimpsest.session`."""
        speaker = SessionState(id, format, model, max_tokens, policy, view, recall, metadata)
        return AsyncSession(self._transport, speaker)

    def with_options(
        self,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float | None = None,
        max_retries: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncPalimpsest:
        """Return a copy with other options; see `Palimpsest.with_options`."""
        options = self._transport.options.replace(base_url, api_key, timeout, max_retries, headers)
        changed = object.__new__(AsyncPalimpsest)
        changed._transport = AsyncTransport(options, self._transport.http)
        return changed

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.http.aclose()

    async def __aenter__(self) -> AsyncPalimpsest:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _options(
    base_url: str | None, api_key: str | None, timeout: float, max_retries: int, headers: Mapping[str, str] | None
) -> Options:
    return Options(
        (base_url or os.environ.get("PALIMPSEST_URL") or DEFAULT_URL).rstrip("/"),
        api_key or os.environ.get("PALIMPSEST_API_KEY") or None,
        timeout,
        max_retries,
        dict(headers or {}),
    )
