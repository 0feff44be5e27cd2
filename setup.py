"""What is compiled, where there is a C compiler. All else is in pyproject.toml."""

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
    # One wheel for Python 3.11 and all later ones.
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
