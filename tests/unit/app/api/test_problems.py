"""app.api.problems: what an error says beside its status."""

from app.api import problems
from app.errors import IdempotencyKeyInProgress
from greenline.flask import Flask


def test_a_duplicate_gets_retry_after_while_the_first_is_at_work() -> None:
    """A 409 that is over soon has a Retry-After."""
    app = Flask(__name__)
    problems.register(app)

    @app.get("/")
    def view() -> str:
        raise IdempotencyKeyInProgress

    answer = app.test_client().get("/")
    assert (answer.status_code, answer.headers["Retry-After"]) == (409, "1")
