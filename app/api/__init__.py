"""The HTTP interface: resources, the routes of their operations, and problem documents."""
