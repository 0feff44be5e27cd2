"""One repository per resource; Postgres and MongoDB never meet here."""
