"""Calls and responses of providers as they are sent: bodies, streams of events, and the replies in them."""
