"""Metrics for Prometheus, and traces by OpenTelemetry."""
