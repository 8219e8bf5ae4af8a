"""Tests that run in environments of their own, with the packages that they test."""
