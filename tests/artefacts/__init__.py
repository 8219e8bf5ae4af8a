"""Tests of the artefacts of a release, built and used outside the source folder."""
