"""
Compute the hashes of passwords in native threads: each takes up to a second, in C code that lets
other threads run Python meanwhile, as under gthread.
"""

import hashlib
import sys
from collections.abc import Callable
from functools import update_wrapper
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

from greenline.offload.imports import after_import
from greenline.offload.threads import Turns

# With fewer a thread is not worth it: ten thousand take some milliseconds.
MIN_ITERATIONS = 5_000
# By module, the functions of what the package index has.
FUNCTIONS = {
    "bcrypt": ("checkpw", "hashpw", "kdf"),
    "argon2.low_level": ("hash_secret", "hash_secret_raw", "verify_secret"),
    "nacl.bindings.crypto_pwhash": (
        "crypto_pwhash_alg", "crypto_pwhash_scryptsalsa208sha256_ll",
        "crypto_pwhash_scryptsalsa208sha256_str", "crypto_pwhash_scryptsalsa208sha256_str_verify",
        "crypto_pwhash_str_alg", "crypto_pwhash_str_verify",
    ),
}  # fmt: skip
# By module of the package cryptography, the classes whose methods compute.
KDF = "cryptography.hazmat.primitives.kdf"
CLASSES = {
    f"{KDF}.argon2": ("Argon2d", "Argon2i", "Argon2id"),
    f"{KDF}.pbkdf2": ("PBKDF2HMAC",),
    f"{KDF}.scrypt": ("Scrypt",),
}
METHODS = ("derive", "derive_into", "derive_phc_encoded", "verify")

# With more threads than cores the hub would seldom have one.
turns = Turns(1, is_left=True)

P = ParamSpec("P")
T = TypeVar("T")

_pbkdf2_hmac: Callable[..., bytes] = hashlib.pbkdf2_hmac


def patch() -> None:
    """Replace the functions of hashlib; those of other modules right after their import."""
    _replace("pbkdf2_hmac", pbkdf2_hmac)
    if hasattr(hashlib, "scrypt"):  # not in each OpenSSL
        _replace("scrypt", _in_a_thread(hashlib.scrypt, hashlib.scrypt.__module__))
    for module in FUNCTIONS:
        after_import(module, _patch)
    for module in CLASSES:
        after_import(module, _patch_classes)


def _replace(name: str, ours: Callable[..., bytes]) -> None:
    # It names the module in C, in which pickle finds it. passlib takes a function that names
    # hashlib for a slow one in Python, and computes in a loop of its own.
    for module in (hashlib, sys.modules[ours.__module__]):
        setattr(module, name, ours)


def _patch_classes(module: ModuleType) -> None:
    for kind in (getattr(module, name, None) for name in CLASSES[module.__name__]):
        for name in METHODS:
            if hasattr(kind, name):
                setattr(kind, name, _in_a_thread(getattr(kind, name), module.__name__))


def _patch(module: ModuleType) -> None:
    for name in FUNCTIONS[module.__name__]:
        if hasattr(module, name):
            setattr(module, name, _in_a_thread(getattr(module, name), module.__name__))


def _in_a_thread(original: Callable[P, T], module: str) -> Callable[P, T]:
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return turns.run(original, *args, **kwargs)

    run = update_wrapper(run, original)
    run.__module__ = module  # where it stands now: else it cannot be pickled
    return run


_pbkdf2_hmac_in_a_thread = _in_a_thread(_pbkdf2_hmac, _pbkdf2_hmac.__module__)


def pbkdf2_hmac(
    hash_name: str, password: Any, salt: Any, iterations: int, dklen: int | None = None
) -> bytes:
    """Do what :func:`hashlib.pbkdf2_hmac` does, in a native thread where it takes long."""
    is_short = isinstance(iterations, int) and iterations < MIN_ITERATIONS
    compute = _pbkdf2_hmac if is_short else _pbkdf2_hmac_in_a_thread
    return compute(hash_name, password, salt, iterations, dklen)


pbkdf2_hmac.__module__ = _pbkdf2_hmac.__module__
