"""Models that write summaries, behind one protocol, and what keeps their failures and their price in bounds."""
