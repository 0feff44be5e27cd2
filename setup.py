"""What is in C, compiled where there is a compiler. All else is in pyproject.toml."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "greenline.postgres._copying",
            ["greenline/postgres/_copying.c"],
            optional=True,  # greenline.postgres.copying does without it
            py_limited_api=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},  # one wheel for 3.11 and all later ones
)
