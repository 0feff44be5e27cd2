"""The room that fills, copies and compares collections: what needs no server."""
