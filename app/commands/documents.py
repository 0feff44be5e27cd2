"""``flask documents``: fill, copy and compare collections of MongoDB."""

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click
from pymongo.errors import PyMongoError

from app.commands.sample import SEED, faker
from app.documents.checkpoint import Checkpoint, Terms, require_not_ours
from app.documents.compare import Comparison, Result
from app.documents.copy import CheckpointSaver, Copy, identity_of
from app.documents.endpoint import CollectionAddress, CollectionEndpoint, opened, parse
from app.documents.failures import FailureFile
from app.documents.follow import Follower, position_now, require_position
from app.documents.job import Job, JobLimits
from app.documents.populate import MAX_SEED, Vocabulary
from app.documents.populate import populate as write_products
from app.documents.progress import Display, display, plural
from app.documents.reading import BATCH
from app.documents.retry import passes
from app.documents.stop import Stop, stoppable
from app.documents.transform import Recipe
from app.documents.transform import load as load_transform
from config import load_mongodb
from greenline.errors import ConfigError, GreenlineError
from greenline.mongo.errors import first_sentence
from greenline.mongo.options import DOCUMENTDB, Options

F = TypeVar("F", bound=Callable[..., Any])

PLACES_HELP = """
SOURCE and TARGET are mongodb://HOST/DATABASE.COLLECTION with the options of any MongoDB URI, or
DATABASE.COLLECTION or COLLECTION on the service's own server, as MONGODB_URI has it.
"""


def batches_option(command: F) -> F:
    """Add the option ``--batches-at-once``."""
    return click.option(
        "--batches-at-once",
        type=click.IntRange(1, 1_000),
        default=10,
        show_default=True,
        help=f"How many batches of {BATCH:,} documents are written at a time.",
    )(command)


def json_option(command: F) -> F:
    """Add the option ``--json``."""
    return click.option(
        "--json", "as_json", is_flag=True, help="Progress and result as lines of JSON on stdout."
    )(command)


def recipe_options(command: F) -> F:
    """Add the options that change documents, ``--new-ids`` and ``--transform``."""
    command = click.option(
        "--transform",
        metavar="MODULE:FUNCTION",
        help="Call it with each document, a dict; it returns a dict, or None to leave it out. "
        "It has to return the same for the same document: the comparison calls it again.",
    )(command)
    return click.option(
        "--new-ids", is_flag=True, help="Give each document a new ObjectId, derived from its _id."
    )(command)


@click.group()
def documents() -> None:
    """Fill, copy and compare collections of MongoDB, of any size."""


@documents.command()
@click.argument("target")
@click.argument("count", type=click.IntRange(1))
@click.option(
    "--seed",
    type=click.IntRange(0, MAX_SEED),
    default=SEED,
    show_default=True,
    help="The same seed gives the same products.",
)
@batches_option
@json_option
def populate(target: str, count: int, seed: int, batches_at_once: int, as_json: bool) -> None:
    """
    Write COUNT fake products to TARGET.

    TARGET is mongodb://HOST/DATABASE.COLLECTION, or DATABASE.COLLECTION or COLLECTION on the
    service's own server. Products that are there from an earlier run are left as they are.
    """
    with reported(), stoppable() as stop:
        # Before the connection: it fails if Faker is not installed.
        vocabulary = Vocabulary.of(faker(seed))
        with (
            opened(place(target), batches_at_once) as there,
            display("written", count, as_json=as_json) as shown,
        ):
            written = write_products(
                there, vocabulary, count, seed, batches_at_once, stop, shown.update
            )
            shown.done = written
            text = f"{there.name}: {written:,} {plural(written)}{_speed(shown)}"
            shown.end(text, documents=written)
        if stop.is_set():
            click.echo(how_to_go_on(), err=True)
    _exit_if_stopped(stop)


@documents.command(epilog=PLACES_HELP)
@click.argument("source")
@click.argument("target")
@recipe_options
@batches_option
@click.option(
    "--max-rate", type=click.IntRange(1), help="Write at most so many documents a second."
)
@click.option(
    "--max-errors",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Stop when more documents than this have failed.",
)
@click.option(
    "--failed",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file for documents that fail.  [default: COLLECTION.failed.ndjson]",
)
@click.option("--follow", is_flag=True, help="Then apply the changes of SOURCE, until Ctrl-C.")
@click.option("--restart", is_flag=True, help="Forget how far an earlier copy into TARGET was.")
@json_option
def copy(
    source: str,
    target: str,
    new_ids: bool,
    transform: str | None,
    batches_at_once: int,
    max_rate: int | None,
    max_errors: int,
    failed: Path | None,
    follow: bool,
    restart: bool,
    as_json: bool,
) -> None:
    """
    Copy all documents of SOURCE into TARGET, and compare both sides.

    A copy that ended early, by Ctrl-C or in any other way, goes on when it is called again. A
    document that fails is written to a file, with its reason. The exit status is 1 when one did,
    or when the sides differ.
    """
    limits = JobLimits(BATCH, batches_at_once, max_rate, max_errors)
    with reported(), stoppable() as stop, ExitStack() as stack:
        from_place, to_place = place(source), place(target)
        for each in (from_place, to_place):
            require_not_ours(each)
        # All arguments are checked, and both sides connected, before the checkpoint is claimed.
        function = None if transform is None else load_transform(transform)
        source_side = stack.enter_context(opened(from_place))
        target_side = stack.enter_context(opened(to_place, batches_at_once))
        with source_side.errors():
            source_side.require()
        identity = _identity(from_place, to_place) if new_ids else None
        recipe = Recipe(identity, function, target_side.max_document_bytes)
        checkpoint = Checkpoint(target_side, Terms(str(from_place), new_ids, transform), stop)
        path = failed or Path(f"{target_side.collection.name}.failed.ndjson")
        failures = stack.enter_context(closing(FailureFile(path)))
        resumed = _claimed(checkpoint, from_place, to_place, source_side, restart=restart)
        job = Job(source_side, target_side, checkpoint, recipe, failures, limits, stop)
        if not CopyRun(job, stop).run(resumed, follow=follow, as_json=as_json):
            raise click.exceptions.Exit(1)
    _exit_if_stopped(stop)


@documents.command(epilog=PLACES_HELP)
@click.argument("source")
@click.argument("target")
@recipe_options
@json_option
def compare(source: str, target: str, new_ids: bool, transform: str | None, as_json: bool) -> None:
    """
    Compare counts, and a hash by range of _id, of SOURCE and TARGET.

    The exit status is 1 when they differ. Give the options that the copy was made with.
    """
    with reported(), stoppable() as stop, ExitStack() as stack:
        from_place, to_place = place(source), place(target)
        function = None if transform is None else load_transform(transform)
        source_side = stack.enter_context(opened(from_place))
        target_side = stack.enter_context(opened(to_place))
        for side in (source_side, target_side):
            with side.errors():
                side.require()
        identity = _identity(from_place, to_place) if new_ids else None
        recipe = Recipe(identity, function, target_side.max_document_bytes)
        shown = stack.enter_context(display("compared", _count(source_side), as_json=as_json))
        result = Comparison(source_side, target_side, recipe, shown.update, stop).run()
        # An incomplete comparison has no result.
        _exit_if_stopped(stop)
        shown.end(str(result), **_numbers(result))
    if not result.is_equal:
        raise click.exceptions.Exit(1)


class CopyRun:
    """
    One run of ``copy`` that has claimed its checkpoint.

    :param job: the copy.
    :param stop: set by a signal.
    """

    def __init__(self, job: Job, stop: Stop) -> None:
        self._job = job
        self._source = job.source
        self._checkpoint = job.checkpoint
        self._stop = stop

    def run(self, resumed: bool, *, follow: bool, as_json: bool) -> bool:
        """
        Copy, and then compare or follow.

        :param resumed: the copy continues another one, bool.
        :param follow: apply the changes of the source afterwards, bool.
        :param as_json: show progress as lines of JSON, bool.
        :returns: False if documents have failed or the sides differ. After a signal True.
        :raises GreenlineError: the copy cannot continue.
        """
        if follow:
            self._take_position()
        try:
            if resumed:
                done = self._checkpoint.progress.copied
                click.echo(f"going on after {done:,} {plural(done)}", err=True)
            self._copy(as_json, follow=follow)
            if not self._stop.is_set():
                if not follow:
                    return self._compared(as_json)
                self._follow(as_json)
        except GreenlineError as error:
            # Released, so that the next run need not wait until this process counts as dead.
            self._release()
            if error.retryable or (error.__cause__ is not None and passes(error.__cause__)):
                click.echo(how_to_go_on(), err=True)
            raise
        self._checkpoint.release()
        click.echo(how_to_go_on(), err=True)
        return True

    def _take_position(self) -> None:
        """Store the position of the change stream before the first document is read."""
        done = self._checkpoint.progress
        if done.after is None and done.token is None:
            try:
                self._checkpoint.start(position_now(self._source))
            except GreenlineError:
                self._checkpoint.remove()  # no document was copied
                raise
        try:
            require_position(self._checkpoint.progress.token)
        except ConfigError:
            self._release()
            raise

    def _copy(self, as_json: bool, *, follow: bool) -> None:
        # The rate is that of this run: documents of an earlier one do not count.
        before = self._checkpoint.progress.copied
        with display("copied", _count(self._source), before, as_json=as_json) as shown:
            Copy(self._job, shown.update, is_followed=follow).run()
            done = self._checkpoint.progress
            text = f"{self._job.target.name}: {done.copied:,} {plural(done.copied)} copied"
            text += f", {done.skipped:,} skipped" if done.skipped else ""
            text += (
                f", {done.failed:,} failed: see {self._job.failures.path}" if done.failed else ""
            )
            numbers = {"copied": done.copied, "skipped": done.skipped, "failed": done.failed}
            shown.end(text + _speed(shown), **numbers)

    def _compared(self, as_json: bool) -> bool:
        # A comparison may take longer than the time after which a silent copy counts as dead.
        with (
            CheckpointSaver(self._checkpoint, lambda _: None, self._stop),
            display("compared", _count(self._source), as_json=as_json) as shown,
        ):
            compared = Comparison(
                self._source, self._job.target, self._job.recipe, shown.update, self._stop
            ).run()
            if not self._stop.is_set():
                shown.end(str(compared), **_numbers(compared))
        if self._stop.is_set():
            self._checkpoint.release()
            click.echo(how_to_go_on(), err=True)
            return True
        # Also if the sides differ: all documents were copied, and repeating that would not help.
        self._checkpoint.remove()
        return compared.is_equal and not self._checkpoint.progress.failed

    def _follow(self, as_json: bool) -> None:
        with display("applied", 0, noun="changes", as_json=as_json) as shown:
            click.echo("following the changes until Ctrl-C", err=True)
            Follower(self._job, shown.update).run()
            self._stop.followed = True
            shown.end(f"{shown.done:,} changes applied", changes=shown.done)

    def _release(self) -> None:
        """Release the checkpoint, if the target can be reached."""
        # If not, the next run waits until this process counts as dead.
        with suppress(GreenlineError):
            self._checkpoint.release()


@contextmanager
def reported() -> Iterator[None]:
    """Turn errors of a ``with`` block into one line without a stack trace."""
    try:
        yield
    except GreenlineError as error:
        raise click.ClickException(str(error)) from error
    except PyMongoError as error:
        raise click.ClickException(first_sentence(error)) from error


def place(text: str) -> CollectionAddress:
    """
    Return the address of a collection that an argument names.

    :raises ConfigError: it names none.
    """
    return parse(text, _own)


def how_to_go_on() -> str:
    """Return the command line that continues this run, without passwords."""
    # Without --restart, which would begin again.
    arguments = [_without_password(one) for one in sys.argv[1:] if one != "--restart"]
    return f"to go on: {shlex.join(['flask', *arguments])}"


def _own() -> tuple[str, Options]:
    uri, is_documentdb = load_mongodb()
    if uri is None:
        raise ConfigError("MONGODB_URI: the service has no MongoDB; give a URI")
    return uri, DOCUMENTDB if is_documentdb else {}


def _identity(source: CollectionAddress, target: CollectionAddress) -> bytes:
    return identity_of(str(source), f"{target.database}.{target.collection}")


def _claimed(
    checkpoint: Checkpoint,
    from_place: CollectionAddress,
    to_place: CollectionAddress,
    source: CollectionEndpoint,
    *,
    restart: bool,
) -> bool:
    """
    Claim the checkpoint; return whether the copy continues from it.

    :raises ConfigError: the target is the source.
    """
    resumed = checkpoint.claim(restart=restart)
    names = (from_place.database, from_place.collection)
    # Two different URIs may name one server. It is one if the checkpoint, which was written through
    # the target's URI, can be read through the source's.
    if names == (to_place.database, to_place.collection) and checkpoint.is_seen_by(source):
        checkpoint.remove()
        raise ConfigError(f"{to_place}: the target is the source")
    return resumed


def _count(side: CollectionEndpoint) -> int:
    # For the display only: an exact count would read a whole index.
    with side.errors():
        return side.collection.estimated_document_count()


def _numbers(result: Result) -> dict[str, Any]:
    return {
        "equal": result.is_equal,
        "source": result.source,
        "refused": result.refused,
        "target": result.target,
        "ranges": result.ranges,
        "differing": result.differing,
        "examples": result.examples,
    }


def _speed(shown: Display) -> str:
    return f" in {shown.seconds:,.1f} s, {shown.rate:,.0f}/s"


def _exit_if_stopped(stop: Stop) -> None:
    """Exit with the status of a process that the signal has ended."""
    if stop.signal is not None and not stop.followed:
        raise click.exceptions.Exit(128 + stop.signal)


def _without_password(argument: str) -> str:
    if "://" not in argument:
        return argument
    password = urlsplit(argument).password
    return argument.replace(f":{password}@", ":***@", 1) if password else argument
