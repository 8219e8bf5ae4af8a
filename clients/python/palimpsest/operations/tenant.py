"""Operations of the tenant and the server: policies, tools, keys, webhooks, calibrations, and health."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, cast

from palimpsest._request import Listing, Request, path
from palimpsest.operations.names import Format
from palimpsest.types import (
    CalibrationOut,
    CalibrationsForgotten,
    DeliveryOut,
    GatewayOut,
    KeyMade,
    KeyOut,
    PolicyDocument,
    PolicyOut,
    WebhookMade,
    WebhookOut,
)

Scope = Literal["ingest", "read", "audit", "admin"]
DeliveryState = Literal["pending", "delivered", "failed"]
WebhookEvent = Literal["compaction.scheduled", "compaction.started", "compaction.finished", "compaction.failed"]


def put_policy(name: str, policy: PolicyDocument) -> Request[PolicyOut]:
    """Store a document as the newest version of a policy. Versions never change."""
    return Request("PUT", path("policies", name), PolicyOut, body=cast("dict[str, Any]", policy))


def get_policy(name: str, *, version: int | None = None) -> Request[PolicyOut]:
    """Get one version of a policy, by default the newest."""
    return Request("GET", path("policies", name), PolicyOut, {"version": version})


def list_policies(*, limit: int | None = None, cursor: str | None = None) -> Listing[PolicyOut]:
    """List the policies in their newest versions: presets first, then the tenant's own by name."""
    return Listing("GET", path("policies"), PolicyOut, {"limit": limit, "cursor": cursor})


def recall_tool(*, format: Format | None = None) -> Request[dict[str, Any]]:
    """Get the definition of the recall tool in one format, or in all formats by name."""
    return Request("GET", path("tools", "recall"), dict, {"format": format})


def compact_tool(*, format: Format | None = None) -> Request[dict[str, Any]]:
    """Get the definition of the compaction tool in one format, or in all formats by name."""
    return Request("GET", path("tools", "compact"), dict, {"format": format})


def list_calibrations(*, limit: int | None = None, cursor: str | None = None) -> Listing[CalibrationOut]:
    """List the calibrations: how each model counts tokens, as learned from reported usage."""
    return Listing("GET", path("calibrations"), CalibrationOut, {"limit": limit, "cursor": cursor})


def delete_calibrations(*, model: str | None = None, estimator: str | None = None) -> Request[CalibrationsForgotten]:
    """Forget how models count tokens, for all models or for those selected."""
    return Request("DELETE", path("calibrations"), CalibrationsForgotten, {"model": model, "estimator": estimator})


def create_key(
    *,
    name: str,
    scopes: Sequence[Scope],
    expires_at: str | datetime | None = None,
    session_prefix: str | None = None,
) -> Request[KeyMade]:
    """Create an API key. It cannot access more sessions, or live longer, than the key that creates it."""
    body = {"name": name, "scopes": list(scopes), "expires_at": expires_at, "session_prefix": session_prefix}
    return Request("POST", path("keys"), KeyMade, body=body, repeatable=False)


def list_keys(*, limit: int | None = None, cursor: str | None = None) -> Listing[KeyOut]:
    """List the tenant's API keys, newest first."""
    return Listing("GET", path("keys"), KeyOut, {"limit": limit, "cursor": cursor})


def revoke_key(key_id: str) -> Request[None]:
    """Revoke an API key: it stops working everywhere within two seconds, and stays in the list."""
    return Request("DELETE", path("keys", key_id), None)


def put_webhook(
    name: str, *, url: str, events: Sequence[WebhookEvent], secret: str | None = None
) -> Request[WebhookMade]:
    """Create or change a webhook: a URL that is notified of events in all sessions of the tenant."""
    body = {"url": url, "events": list(events), "secret": secret}
    return Request("PUT", path("webhooks", name), WebhookMade, body=body, repeatable=False)


def get_webhook(name: str) -> Request[WebhookOut]:
    """Get a webhook, without its secret."""
    return Request("GET", path("webhooks", name), WebhookOut)


def delete_webhook(name: str) -> Request[None]:
    """Delete a webhook and its deliveries; pending ones are not attempted."""
    return Request("DELETE", path("webhooks", name), None)


def list_webhooks(*, limit: int | None = None, cursor: str | None = None) -> Listing[WebhookOut]:
    """List the tenant's webhooks by name."""
    return Listing("GET", path("webhooks"), WebhookOut, {"limit": limit, "cursor": cursor})


def list_deliveries(
    name: str, *, state: DeliveryState | None = None, limit: int | None = None, cursor: str | None = None
) -> Listing[DeliveryOut]:
    """List the deliveries of a webhook, newest first."""
    query = {"state": state, "limit": limit, "cursor": cursor}
    return Listing("GET", path("webhooks", name, "deliveries"), DeliveryOut, query)


def retry_delivery(name: str, delivery_id: str) -> Request[DeliveryOut]:
    """Attempt a failed or pending delivery now, and reset its number of attempts."""
    return Request("POST", path("webhooks", name, "deliveries", delivery_id) + ":retry", DeliveryOut)


def get_gateway(*, limit: int | None = None) -> Request[GatewayOut]:
    """Get the addresses that the gateway forwards to, and the newest requests through it."""
    return Request("GET", path("gateway"), GatewayOut, query={"limit": limit})


def healthz() -> Request[dict[str, str]]:
    """Check that the process is running, without using the database."""
    return Request("GET", "/healthz", dict)


def readyz() -> Request[dict[str, str]]:
    """Check that requests can be served."""
    return Request("GET", "/readyz", dict)


def metrics() -> Request[str]:
    """Get metrics in Prometheus' text format."""
    return Request("GET", "/metrics", str)
