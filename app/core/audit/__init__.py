"""What a call was made of: recorded, rendered again, explained, and what it cost."""
