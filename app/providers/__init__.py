"""Clients of outside services: summarizing models, the gateway's upstream, and webhook receivers."""
