"""Signatures of plans: a privacy officer vouches for every byte of a plan, and runs ask for that by a public key.

Ed25519, by the package `cryptography`: the extra `sign`. What is signed is a line that says what it is, and SHA256SUMS
of the plan's folder, so that a signature can also be checked without galton.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from galton import files
from galton.errors import GaltonError, InvalidArgument, InvalidFile
from galton.fields import Fields
from galton.typechecking import typechecked

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

FORMAT = "galton-signature"
VERSION = 1
_LONGEST_KEY = 1 << 16
"""Bytes of a PEM file; an Ed25519 key has about a hundred."""
_DOMAIN = b"galton plan signature, version 1\n"
"""So that no signature of anything else is ever one of a plan."""


@dataclass(frozen=True)
class Signature:
    """An Ed25519 signature of a plan.

    Attributes:
      public_key: of the signer, 64 hexadecimal digits. What counts is the key that the signature is checked with.
      value: the signature, 128 hexadecimal digits.
    """

    public_key: str
    value: str

    def __post_init__(self) -> None:
        for name, size in (("public_key", 32), ("value", 64)):
            text = getattr(self, name)
            if len(text) != 2 * size or set(text) - set("0123456789abcdef"):
                raise InvalidArgument(name, text, f"must be {2 * size} hexadecimal digits")

    @property
    def signer(self) -> str:
        """The public key in short, for people."""
        return f"ed25519:{self.public_key[:8]}"

    def to_json(self) -> dict[str, Any]:
        """Returns the content of plan.sig."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "algorithm": "ed25519",
            "public_key": self.public_key,
            "signature": self.value,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Signature:
        """Rebuilds a signature from `to_json`; says nothing about whether it is valid.

        Args:
          value: a dictionary as `to_json` returns it.

        Returns:
          The signature, which says nothing until it is checked.
        """
        body = Fields("signature", value)
        signature = cls(body.text("public_key"), body.text("signature"))
        if value != signature.to_json():
            raise InvalidArgument("signature", sorted(value), f"must be a {FORMAT} of version {VERSION} by ed25519")
        return signature


def read_signature(path: Path) -> Signature | None:
    """Reads a signature; None if there is no such file."""
    if not path.exists():
        return None
    try:
        return Signature.from_json(files.read_json(path))
    except InvalidArgument as error:
        raise InvalidFile(f"{path}: is not a signature of a plan ({error}); remove it, or sign anew") from None


def sign(checksums: str, key: str | Path) -> Signature:
    """Signs a plan.

    Args:
      checksums: SHA256SUMS of the plan.
      key: file of the private key (PEM, as `new_key_pair` writes it), readable by its owner only.

    Returns:
      The signature.
    """
    private = _read_private_key(Path(key))
    return Signature(private.public_key().public_bytes_raw().hex(), private.sign(_DOMAIN + checksums.encode()).hex())


def is_signed_by(signature: Signature, checksums: str, key: Ed25519PublicKey) -> bool:
    """Whether a signature is one of this plan, by this key.

    Args:
      signature: the signature.
      checksums: SHA256SUMS of the plan.
      key: the public key that is trusted; see `read_public_key`.

    Returns:
      Whether it is.
    """
    from cryptography.exceptions import InvalidSignature

    if signature.public_key != key.public_bytes_raw().hex():
        return False
    try:
        key.verify(bytes.fromhex(signature.value), _DOMAIN + checksums.encode())
    except InvalidSignature:
        return False
    return True


@typechecked
def new_key_pair(path: str | Path) -> Path:
    """Makes a key pair: the private key for its owner only, and beside it the public key; overwrites nothing.

    Args:
      path: file of the private key, such as officer.pem.

    Returns:
      The file of the public key, officer.pub.pem.

    Example:
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     new_key_pair(f"{folder}/officer.pem").name
      'officer.pub.pem'
    """
    _need_cryptography()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    if not Path(path).name:
        raise InvalidArgument("path", str(path), "must name a file, such as officer.pem")
    private, public = Path(path), Path(path).with_suffix(".pub" + Path(path).suffix)
    files.check_new(public)
    key = Ed25519PrivateKey.generate()
    pem = serialization.Encoding.PEM
    files.write_new(
        private,
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
        secret=True,
    )
    files.write_new(public, key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
    return public


def _read_private_key(path: Path) -> Ed25519PrivateKey:
    _need_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    content, mode = _read(path)
    try:
        key = load_pem_private_key(content, None)
    except TypeError:
        raise InvalidFile(f"{path}: is encrypted; galton reads private keys without a passphrase only") from None
    except Exception:  # whatever is wrong with the file
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidFile(f"{path}: is not a private Ed25519 key (PEM); galton keygen makes one")
    if mode & 0o077:
        raise InvalidFile(f"{path}: others than its owner may use this private key; chmod 600, or make a new one")
    return key


def read_public_key(key: str | Path | bytes) -> Ed25519PublicKey:
    """Reads a public key.

    Args:
      key: its file (PEM), or the content of that file.

    Returns:
      The key.
    """
    _need_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    content, name = (key, "trusted_key") if isinstance(key, bytes) else (_read(Path(key))[0], str(key))
    try:
        public = load_pem_public_key(content)
    except Exception:  # whatever is wrong with the file
        public = None
    if not isinstance(public, Ed25519PublicKey):
        private = ": it is a private key, keep it to yourself" if b"PRIVATE KEY" in content else ""
        raise InvalidFile(f"{name}: is not a public Ed25519 key (PEM){private}")
    return public


def _read(path: Path) -> tuple[bytes, int]:
    """Returns the content of a file, and its mode; a file without end, such as /dev/zero, is refused."""
    try:
        with path.open("rb") as file:
            content, mode = file.read(_LONGEST_KEY + 1), os.fstat(file.fileno()).st_mode
    except OSError as error:
        raise InvalidFile(f"{path}: cannot be read ({error.strerror})") from None
    if len(content) > _LONGEST_KEY:
        raise InvalidFile(f"{path}: is too long for a key")
    return content, mode


def _need_cryptography() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise GaltonError("signatures need the package cryptography: pip install 'galton[sign]'") from None
