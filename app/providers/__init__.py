"""Models that write summaries, behind one protocol, with limits on failures and spending; and webhook requests."""
