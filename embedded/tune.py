"""
``make demo-tune``: run ``greenline tune`` for the service, on the embedded servers.

What it finds is in ``tune`` in the data folder: the report, the figures, and a gunicorn.conf.py.
"""

import logging
import subprocess
import sys
import tempfile
from pathlib import Path

from embedded import signals
from embedded.serve import DATE_FORMAT, FORMAT, Serve
from embedded.settings import CHECKOUT
from greenline.errors import ConfigError

TOTAL_S = 275  # with the start of the servers, less than five minutes
STOP_S = 60.0
# An access log: what is asked often is in it often.
MIX = Path(__file__).with_name("demo_mix.log")
OBJECTIVE = "p99=200ms,errors=0.1%"


def main(arguments: list[str]) -> int:
    """Measure; return the exit status."""
    serve = Serve(dev=False)
    logging.basicConfig(level=logging.INFO, format=FORMAT, datefmt=DATE_FORMAT)
    signals.raise_stopped()
    child: subprocess.Popen[bytes] | None = None
    try:
        serve.take_data_folder()
        serve.have_postgres()
        serve.have_mongo()
        serve.prepare_databases()
        serve.make_key()
        with tempfile.NamedTemporaryFile("w", prefix="greenline-tune-") as header:
            header.write(f"Authorization: Bearer {serve.key}\n" if serve.key is not None else "")
            header.flush()
            command = [*_command(serve.folder / "tune"), "--header-file", header.name, *arguments]
            child = subprocess.Popen(command, cwd=CHECKOUT, env=serve.env)
            return child.wait()
    except ConfigError as error:
        print(f"tune: {error}", file=sys.stderr, flush=True)
        return 1
    except signals.Stopped:
        # It says what is known so far; a Ctrl-C it has got by itself.
        if child is not None:
            child.terminate()
            return child.wait(STOP_S)
        return 130
    finally:
        signals.only_answer()
        serve.stop()


def _command(folder: Path) -> list[str]:
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "greenline", "tune", "app.wsgi:app", "--load", str(MIX)]
    command += ["--slo", OBJECTIVE, "--total", str(TOTAL_S)]
    command += ["--json", str(folder / "result.json"), "--report", str(folder / "report.html")]
    return [*command, "--write", str(folder / "gunicorn.conf.py")]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
