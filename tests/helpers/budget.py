"""Call greenline budget, whatever is set around it."""

from typing import Any

from click.testing import CliRunner, Result

from greenline.cli import main
from greenline.settings import MONGODB_MAX_POOL_SIZE, POSTGRES_POOL_SIZE, VARIABLES, WORKERS

# What a person's shell may have set.
NOTHING: dict[str, Any] = dict.fromkeys(
    [
        *(one.name for one in (*VARIABLES, WORKERS, POSTGRES_POOL_SIZE, MONGODB_MAX_POOL_SIZE)),
        "DATABASE_URL",
        "MONGODB_URI",
    ]
)


def budget(*arguments: str, **environ: str) -> Result:
    return CliRunner().invoke(main, ["budget", *arguments], env={**NOTHING, **environ})
