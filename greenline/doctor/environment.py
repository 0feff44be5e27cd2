"""Compare the Python that runs the doctor with the environment of the application."""

import sys
from collections.abc import Iterator
from pathlib import Path

from greenline.doctor.project import Project
from greenline.doctor.requirements import declared, installed, parsed

ENVIRONMENTS = (".venv", "venv", "env")  # where tools make one, beside the code
MAX_NAMES = 5


def note(project: Project) -> str:
    """
    Say that the doctor does not run in the application's environment.

    It looks libraries up, and imports the application, in the environment that it runs in.

    :returns: one line, str; empty: nothing says that the application has another environment.
    """
    for name in ENVIRONMENTS:
        folder = project.folder / name
        if (folder / "pyvenv.cfg").exists() and folder.resolve() != Path(sys.prefix).resolve():
            return (
                f"{name}/ is the environment of the application, and the doctor runs in "
                f"{sys.prefix}: start it by {name}/bin/python -m greenline doctor"
            )
    missing = sorted(set(_missing(project.folder)))
    if not missing:
        return ""
    more = f" and {len(missing) - MAX_NAMES} more" if len(missing) > MAX_NAMES else ""
    return (
        f"declared, and not installed in {sys.prefix}, where the doctor runs: "
        f"{', '.join(missing[:MAX_NAMES])}{more}"
    )


def _missing(folder: Path) -> Iterator[str]:
    for requirement in map(parsed, declared(folder, with_groups=False)):
        if requirement is not None and installed(requirement.name) is None:
            yield requirement.name
