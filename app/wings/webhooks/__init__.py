"""Webhooks that are notified of compactions."""
