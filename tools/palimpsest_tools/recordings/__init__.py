"""Recorded sessions in files, read from every supported format into the events of a log."""
