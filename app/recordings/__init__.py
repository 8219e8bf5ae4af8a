"""Recordings: sessions in files, of every format that is read, as what enters a log."""
