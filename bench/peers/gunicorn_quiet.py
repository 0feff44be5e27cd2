"""Our gunicorn.conf.py without an access log: uvicorn writes none in the benches either."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_ours = spec_from_file_location(
    "gunicorn_conf", Path(__file__).resolve().parents[2] / "gunicorn.conf.py"
)
_module = module_from_spec(_ours)
_ours.loader.exec_module(_module)
globals().update({name: value for name, value in vars(_module).items() if name[0] != "_"})
accesslog = None
