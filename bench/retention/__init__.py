"""What summaries made without a model keep, measured on recorded sessions."""
