"""What an agent asks of its own history: searched, recalled, hidden, shown or pinned."""
