"""The room that keeps blocking calls away from the hub, with servers."""
