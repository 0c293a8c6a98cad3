"""The secret key of a run's noise: 128 bits, from the operating system unless the user chooses a seed."""

from __future__ import annotations

import hashlib
import secrets

import jax
import jax.numpy as jnp
import numpy as np

from galton.errors import InvalidArgument, count
from galton.noise import threefry
from galton.typechecking import typechecked

BITS = 128
APART = 0xFFFFFFFF
"""In the place of the number of a draw, which normals never have."""


@typechecked
def fresh_key() -> jax.Array:
    """Returns a secret noise key of 128 bits from the operating system.

    Returns:
      Four uint32 words.

    Example:
      >>> fresh_key().shape
      (4,)
    """
    return key_from_bytes(secrets.token_bytes(BITS // 8))


@typechecked
def key_from_seed(seed: int, plan: str = "") -> jax.Array:
    """Returns the noise key that belongs to a seed, for tests and repeatable studies.

    Whoever can guess the seed can remove the noise: take `fresh_key` for data that needs protection.

    Args:
      seed: a whole number from 0.
      plan: content hash of the plan that the noise is for, so that no two plans share noise by sharing a seed.

    Returns:
      Four uint32 words, the same for the same seed and plan.

    Example:
      >>> bool((key_from_seed(1) == key_from_seed(1)).all())
      True
    """
    count("seed", seed, at_least=0)
    content = f"galton noise key {seed}" + (f" of plan {plan}" if plan else "")
    return key_from_bytes(hashlib.sha256(content.encode()).digest()[: BITS // 8])


def check_key(key: jax.Array) -> jax.Array:
    """Returns the key; raises `InvalidArgument` for anything else."""
    if getattr(key, "shape", None) != (4,) or key.dtype != jnp.uint32:
        raise InvalidArgument("key", key, "must be four uint32 words, from fresh_key or key_from_seed")
    return key


def fingerprint(key: jax.Array) -> str:
    """Returns a hash that identifies a key without revealing it."""
    return "sha256:" + hashlib.sha256(b"galton noise fingerprint" + np.asarray(key, "<u4").tobytes()).hexdigest()


def key_from_bytes(raw: bytes) -> jax.Array:
    """Returns the key that 16 bytes spell."""
    return jnp.asarray(np.frombuffer(raw, "<u4").astype(np.uint32))


def apart(key: jax.Array, purpose: int) -> jax.Array:
    """Returns words of a key that no normals are made of, for a purpose of their own (1 to 4 are taken)."""
    counter = (jnp.uint32(purpose), jnp.uint32(0), jnp.uint32(0), jnp.uint32(APART))
    return jnp.stack(threefry.block(tuple(key), counter))
