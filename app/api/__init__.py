"""HTTP: one blueprint per resource, the operations' routes, and errors as problem documents."""
