"""Policies: what an operator decides about a view, validated, with a default and a unit for every field."""
