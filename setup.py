"""What is compiled, where there is a C compiler. All else is in pyproject.toml."""

import sys

from setuptools import Extension, setup

# What each request passes. A wheel has these modules compiled as well, by Cython from the same
# sources: docs/benchmarks.md says what that gives. Python does without. Not those whose frames are
# looked for: a deadline spares what cleans up in greenline.flask.app, and a wait in plain_client.
HOT = [
    "greenline/flask/context.py",
    "greenline/flask/json.py",
    "greenline/flask/request.py",
    "greenline/flask/response.py",
    "greenline/flask/routing.py",
    "greenline/http/connection.py",
    "greenline/http/fast_parser.py",
    "greenline/http/response.py",
]
extensions = [
    Extension(
        "greenline.postgres._copying",
        ["greenline/postgres/_copying.c"],
        optional=True,  # greenline.postgres.copying does without it
        py_limited_api=True,
    )
]
# Not beside sources that are edited, which it would hide.
if is_compiled := "bdist_wheel" in sys.argv:
    try:
        from Cython.Build import cythonize
    except ModuleNotFoundError:  # pip has it, from pyproject.toml
        is_compiled = False
    else:
        extensions += cythonize(
            [
                Extension(
                    path.removesuffix(".py").replace("/", "."),
                    [path],
                    optional=True,
                    extra_compile_args=["-O1", "-g0"],  # as fast as -O2, and sooner compiled
                )
                for path in HOT
            ],
            build_dir="build/cython",
            compiler_directives={"annotation_typing": False, "language_level": 3},
        )

setup(
    ext_modules=extensions,
    # Without them one wheel is for Python 3.11 and all later ones.
    options={} if is_compiled else {"bdist_wheel": {"py_limited_api": "cp311"}},
)
