"""The secret key of a run's noise: 128 bits, from the operating system unless the user fixes them."""

from __future__ import annotations

import hashlib
import secrets

import jax
import jax.numpy as jnp
import numpy as np

from galton.errors import InvalidArgument, count

BITS = 128


def fresh_key() -> jax.Array:
    """Returns a key from the operating system's entropy."""
    return _key_from_bytes(secrets.token_bytes(BITS // 8))


def key_from_seed(seed: int) -> jax.Array:
    """Returns the key of a seed that the user chose; whoever can guess the seed can take the noise away."""
    count("seed", seed, at_least=0)
    return _key_from_bytes(hashlib.sha256(f"galton noise key {seed}".encode()).digest()[: BITS // 8])


def check_key(key: jax.Array) -> jax.Array:
    """Refuses what is not a key."""
    if getattr(key, "shape", None) != (4,) or key.dtype != jnp.uint32:
        raise InvalidArgument("key", key, "must be four uint32 words, from fresh_key or key_from_seed")
    return key


def fingerprint(key: jax.Array) -> str:
    """Returns a hash that tells keys apart and gives none away."""
    return "sha256:" + hashlib.sha256(b"galton noise fingerprint" + np.asarray(key, "<u4").tobytes()).hexdigest()


def _key_from_bytes(raw: bytes) -> jax.Array:
    return jnp.asarray(np.frombuffer(raw, "<u4").astype(np.uint32))
