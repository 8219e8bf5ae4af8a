"""Figures from public data: evidence before the model, and summaries against those of real compactions."""
