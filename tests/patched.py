"""
Patch the tests' process as a worker is, before any plugin of pytest is loaded.

pyproject.toml names this module as a plugin of its own: another one may import ssl.
"""

from greenline.patch import patch_all

patch_all()
