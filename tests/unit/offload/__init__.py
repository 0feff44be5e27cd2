"""Tests of the room that keeps blocking calls away from the hub."""
