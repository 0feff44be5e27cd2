"""The room that fills, copies and compares collections, on a server."""
