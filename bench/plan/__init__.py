"""What planning costs."""
