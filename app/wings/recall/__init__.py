"""Recall of originals, over HTTP and over the Model Context Protocol."""
