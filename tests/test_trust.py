"""A run starts from a plan that is pinned, signed, or was proved by this user's galton; and from no other."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from galton import Adjacency, Guarantee, InvalidArgument, InvalidFile, Options, files
from galton.accountants.monte_carlo import ATTEMPTS
from galton.accounting import default_ledger
from galton.accounting.certificate import FAILURE_SHARE, target_digest
from galton.pair import dominating_pair
from galton.plan import (
    Basis,
    Plan,
    PlanNotTrusted,
    check_signature,
    establish_trust,
    load_plan,
    make_plan,
    marks,
    new_key_pair,
    save_plan,
    sign_plan,
    trust,
    verify_plan,
)
from galton.plan.folder import PLAN, SIGNATURE, STRATEGY, SUMS
from galton.training import TrainingRun, check_record
from tests.forging import rewrite_sums, with_noise
from tests.test_cli import galton as command

PARAMS = {"w": np.zeros(3, np.float32)}


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """A plan that is made and verified in no time, since its accountant calculates."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GALTON_STATE", str(tmp_path_factory.mktemp("state")))
        return planned()


def planned() -> Plan:
    guarantee = Guarantee(4.0, 1e-3, Adjacency.ZERO_OUT)
    return make_plan(guarantee, examples=64, batch_size=8, epochs=4, batching="fixed-order", strategy="sqrt:8")


@pytest.fixture
def theirs(ours: Plan) -> Plan:
    """An honest plan that was made elsewhere."""
    return replace(ours, created="2001-01-01T00:00:00+00:00")


@pytest.fixture
def forged(ours: Plan) -> Plan:
    """A tenth of the noise."""
    return with_noise(ours, 0.1 * ours.noise_multiplier)


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Every test, and whatever calls this, is a process of its own."""
    monkeypatch.setattr(marks, "_in_this_process", {})
    return lambda: monkeypatch.setattr(marks, "_in_this_process", {})


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The plans that were verified because a run, or a signature, asked for it."""
    plans: list[str] = []

    def spy(plan: Plan, *arguments: Any) -> Any:
        plans.append(plan.digest)
        return verify_plan(plan, *arguments)

    monkeypatch.setattr(trust, "verify_plan", spy)
    return plans


def opened(plan: Plan | Path, folder: Path, **words: Any) -> TrainingRun:
    return TrainingRun(plan, folder, PARAMS, examples=64, clip_norm=1.0, **words)


def mark_of(plan: Plan, state: Path) -> Path:
    return state / "marks" / f"{plan.digest.removeprefix('sha256:')}.json"


def test_a_forged_plan_is_refused_and_leaves_nothing(forged: Plan, tmp_path: Path, own_state: Path) -> None:
    folder = save_plan(forged, tmp_path / "plan")
    for _ in range(2):
        with pytest.raises(PlanNotTrusted, match=f"plan {forged.digest}: its guarantee could not be proved"):
            opened(folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert not mark_of(forged, own_state).exists()


def test_a_forged_certificate_is_refused_and_counts_as_an_attempt(small_plan: Plan, tmp_path: Path) -> None:
    folder = save_plan(with_noise(small_plan, 0.1 * small_plan.noise_multiplier), tmp_path / "plan")
    with pytest.raises(PlanNotTrusted, match="fresh samples do NOT prove"):
        opened(folder, tmp_path / "run")
    attempts = json.loads(default_ledger().path.read_text())
    assert {count for count, _ in attempts.values()} == {1}


def test_whoever_makes_a_plan_never_verifies_it(
    tmp_path: Path, verified: list[str], forget: Callable[[], None]
) -> None:
    plan = planned()
    with opened(plan, tmp_path / "first") as run:
        assert run.trust.basis is Basis.MADE
    folder = save_plan(plan, tmp_path / "plan")
    forget()
    with opened(folder, tmp_path / "second") as run:
        assert run.trust.basis is Basis.MADE
    assert check_record(tmp_path / "second")["trust"]["basis"] == "made"
    assert verified == []


def test_a_plan_of_others_is_verified_once(
    theirs: Plan, tmp_path: Path, verified: list[str], forget: Callable[[], None]
) -> None:
    folder = save_plan(theirs, tmp_path / "plan")
    with opened(folder, tmp_path / "run") as run:
        assert run.trust.basis is Basis.VERIFIED_AT_START
        run.noise()
        run.save()
    assert "proves delta" in check_record(tmp_path / "run")["trust"]["words"]
    forget()
    with opened(folder, tmp_path / "run") as run:  # resumed
        assert (run.round, run.trust.basis) == (1, Basis.VERIFIED)
    forget()
    opened(folder, tmp_path / "another").close()
    assert verified == [theirs.digest]


def test_after_verify_a_run_does_not_verify(
    theirs: Plan, tmp_path: Path, verified: list[str], forget: Callable[[], None]
) -> None:
    folder = save_plan(theirs, tmp_path / "plan")
    assert command("verify", str(folder)).code == 0
    forget()
    opened(folder, tmp_path / "run").close()
    assert verified == []


def test_another_version_verifies_for_a_new_run_but_not_in_the_middle_of_one(
    theirs: Plan, tmp_path: Path, verified: list[str], forget: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(theirs, tmp_path / "run").close()
    monkeypatch.setattr(marks, "version", lambda name: "99.0")
    forget()
    opened(theirs, tmp_path / "run").close()
    assert verified == [theirs.digest]
    opened(theirs, tmp_path / "another").close()
    assert verified == 2 * [theirs.digest]


def test_a_run_folder_that_is_handed_over_with_a_plan_vouches_for_nothing(
    forged: Plan, tmp_path: Path, own_state: Path, monkeypatch: pytest.MonkeyPatch, forget: Callable[[], None]
) -> None:
    """Not even if the other one trusted it, and has a mark: it is under another key."""
    opened(forged, tmp_path / "run", pinned=forged.digest).close()
    monkeypatch.setenv("GALTON_STATE", str(tmp_path / "others"))
    marks.leave_mark(forged.digest, marks.Mark.VERIFIED)
    forget()
    monkeypatch.setenv("GALTON_STATE", str(own_state))
    with pytest.raises(PlanNotTrusted, match="could not be proved"):
        opened(forged, tmp_path / "run")
    shutil.copy(mark_of(forged, tmp_path / "others"), mark_of(forged, own_state))
    with pytest.warns(marks.MarkWarning, match="not left by"), pytest.raises(PlanNotTrusted, match="be proved"):
        opened(forged, tmp_path / "run")


def resealed(body: dict[str, Any], key: bytes) -> dict[str, Any]:
    """The mark as it would be under this key."""
    inside = {name: value for name, value in body.items() if name != "mac"}
    content = b"galton mark\n" + json.dumps(inside, sort_keys=True, separators=(",", ":")).encode()
    return inside | {"mac": "hmac-sha256:" + hmac.new(key, content, hashlib.sha256).hexdigest()}


MARKS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "of another plan": lambda mark: mark,
    "changed": lambda mark: mark | {"plan": "sha256:" + "0" * 64},
    "empty key": lambda mark: resealed(mark, b""),
    "key of zeros": lambda mark: resealed(mark, bytes(32)),
    "no mac": lambda mark: {name: value for name, value in mark.items() if name != "mac"},
    "empty mac": lambda mark: mark | {"mac": ""},
    "a mac that is no text": lambda mark: mark | {"mac": None},
    "a mac that cannot be written": lambda mark: mark | {"mac": "\ud800"},
    "a list": lambda mark: [mark],
}


@pytest.mark.parametrize("change", MARKS.values(), ids=MARKS)
def test_a_forged_mark_is_ignored_and_says_so(
    change: Callable[[dict[str, Any]], Any], ours: Plan, forged: Plan, tmp_path: Path, own_state: Path
) -> None:
    """Also a good mark under the name of another plan."""
    marks.leave_mark(ours.digest, marks.Mark.MADE)
    body = json.loads(mark_of(ours, own_state).read_text())
    assert resealed(body, (own_state / "marks.key").read_bytes()) == body
    fresh = body if change is MARKS["of another plan"] else body | {"plan": forged.digest}
    mark_of(forged, own_state).write_text(json.dumps(change(fresh)))
    with pytest.warns(marks.MarkWarning, match="ignored"), pytest.raises(PlanNotTrusted, match="be proved"):
        opened(forged, tmp_path / "run")


def test_the_key_is_for_its_owner_only(own_state: Path, ours: Plan) -> None:
    marks.leave_mark(ours.digest, marks.Mark.MADE)
    key = own_state / "marks.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert len(key.read_bytes()) == 32
    before = key.read_bytes()
    marks.leave_mark(ours.digest, marks.Mark.VERIFIED)
    assert key.read_bytes() == before


def link_elsewhere(key: Path) -> None:
    shutil.move(key, key.with_name("elsewhere"))
    key.symlink_to(key.with_name("elsewhere"))


def make_pipe(key: Path) -> None:
    key.unlink()
    os.mkfifo(key, 0o600)


KEYS: dict[str, Callable[[Path], object]] = {
    "readable by the group": lambda key: key.chmod(0o640),
    "readable by all": lambda key: key.chmod(0o604),
    "empty": lambda key: key.write_bytes(b""),
    "too short": lambda key: key.write_bytes(bytes(31)),
    "too long": lambda key: key.write_bytes(key.read_bytes() + b"x"),
    "a link": link_elsewhere,
    "a pipe": make_pipe,
}


@pytest.mark.parametrize("spoil", KEYS.values(), ids=KEYS)
def test_a_key_that_others_may_know_is_not_relied_on(
    spoil: Callable[[Path], object], theirs: Plan, own_state: Path, verified: list[str], forget: Callable[[], None]
) -> None:
    marks.leave_mark(theirs.digest, marks.Mark.VERIFIED)
    key = own_state / "marks.key"
    spoil(key)
    forget()
    with pytest.warns(marks.MarkWarning, match="remove it to get a new one"):
        establish_trust(theirs)
    assert verified == [theirs.digest]
    key.unlink()
    forget()
    with pytest.warns(marks.MarkWarning, match="not left by"):  # the key is a new one
        establish_trust(theirs)
    forget()
    establish_trust(theirs)
    assert verified == 2 * [theirs.digest]


def test_the_key_of_another_user_is_not_relied_on(
    theirs: Plan, verified: list[str], forget: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    marks.leave_mark(theirs.digest, marks.Mark.VERIFIED)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    forget()
    with pytest.warns(marks.MarkWarning, match="only this user can read"):
        establish_trust(theirs)
    assert verified == [theirs.digest]


def test_where_no_mark_can_be_left_the_process_knows_what_it_made(
    tmp_path: Path, verified: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GALTON_STATE", str(tmp_path / "file"))
    with pytest.warns(marks.MarkWarning, match="will verify this plan again"):
        plan = planned()
    with opened(plan, tmp_path / "run") as run:
        assert run.trust.basis is Basis.MADE
    assert verified == []


def test_a_pinned_plan_is_that_plan_or_refused(
    theirs: Plan, forged: Plan, tmp_path: Path, verified: list[str], own_state: Path
) -> None:
    with pytest.raises(PlanNotTrusted, match="is not the pinned one"):
        opened(forged, tmp_path / "run", pinned=theirs.digest)
    for bad in (theirs.digest[:15], theirs.digest.removeprefix("sha256:"), "", theirs.digest + "\n", 7):
        with pytest.raises(InvalidArgument, match="pinned = "):
            opened(theirs, tmp_path / "run", pinned=bad)
    assert not (tmp_path / "run").exists()
    with opened(theirs, tmp_path / "run", pinned=theirs.digest) as run:
        assert run.record()["trust"] == run.trust.to_json()
        assert run.trust.basis is Basis.PINNED
    assert verified == []
    assert not mark_of(theirs, own_state).exists(), "the caller trusts it; nothing was proved"


def test_a_pin_does_not_help_a_plan_that_was_changed_in_memory(ours: Plan, tmp_path: Path) -> None:
    """The size of batches is not in the hash: it follows from what is."""
    with pytest.raises(InvalidArgument, match="truncation"):
        opened(replace(ours, padded_batch_size=9), tmp_path / "run", pinned=ours.digest)


def test_delta_pays_for_four_verifications_and_no_more(small_plan: Plan) -> None:
    """After as many rejected attempts at the target as there is room for, an accepted one proves too little."""
    claim = small_plan.accountant.room(small_plan.claim)
    target = target_digest(dominating_pair(small_plan.strategy, small_plan.bins), claim)
    ledger, failure = default_ledger(), FAILURE_SHARE * claim.delta
    for _ in range(ATTEMPTS - 1):
        ledger.begin([target], failure)
    last = verify_plan(small_plan, Options(seed=7))
    assert last.accepted
    assert last.certificate is not None
    assert last.certificate.attempts == ATTEMPTS
    assert last.certificate.stated_delta <= small_plan.claim.delta
    assert marks.find_mark(small_plan.digest) is marks.Mark.VERIFIED
    ledger.begin([target], failure)
    late = verify_plan(small_plan, Options(seed=7))
    assert not late.accepted
    assert late.certificate is not None
    assert late.certificate.accepted
    assert late.certificate.stated_delta > small_plan.claim.delta
    assert "but after 4 rejected attempts" in late.words
    assert marks.find_mark(small_plan.digest) is None, "the next run looks again"


def test_runs_that_start_together_verify_once(
    theirs: Plan, verified: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second looks for a mark, finds none, waits for the first, and looks again."""
    looked = threading.Event()

    def look(plan: str, any_version: bool) -> marks.Mark | None:
        mark = marks.find_mark(plan, any_version)
        looked.set()
        return mark

    monkeypatch.setattr(trust, "find_mark", look)
    with ThreadPoolExecutor(1) as pool:
        with marks.one_at_a_time(theirs.digest):
            second = pool.submit(establish_trust, theirs)
            assert looked.wait(60)
            verify_plan(theirs)
        assert second.result().basis is Basis.VERIFIED
    assert verified == []


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Private and public keys of the officer and of somebody else."""
    pytest.importorskip("cryptography")
    folder = tmp_path_factory.mktemp("keys")
    private = {name: folder / f"{name}.pem" for name in ("officer", "other")}
    return private | {f"{name} public": new_key_pair(path) for name, path in private.items()}


@pytest.fixture
def signed(theirs: Plan, keys: dict[str, Path], tmp_path: Path, forget: Callable[[], None]) -> Path:
    """A plan with the officer's signature, handed to somebody who never saw it."""
    folder = save_plan(theirs, tmp_path / "plan")
    sign_plan(folder, keys["officer"])
    shutil.rmtree(tmp_path / "state")
    forget()
    return folder


def test_a_signed_plan_trains_without_verification(
    signed: Path, keys: dict[str, Path], tmp_path: Path, verified: list[str]
) -> None:
    key = keys["officer public"]
    for number, trusted in enumerate((key, str(key), key.read_bytes())):
        with opened(signed, tmp_path / f"run{number}", trusted_key=trusted) as run:
            assert run.trust.basis is Basis.SIGNED
    assert "signed by the key ed25519:" in check_record(tmp_path / "run0")["trust"]["words"]
    copy = save_plan(load_plan(signed), tmp_path / "copy")
    opened(copy, tmp_path / "run", trusted_key=key).close()
    assert verified == []


def test_the_signature_can_be_checked_without_galton(signed: Path, keys: dict[str, Path]) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    for line in (signed / SUMS).read_text().splitlines():
        claimed, name = line.split()
        assert hashlib.sha256((signed / name).read_bytes()).hexdigest() == claimed
    key = load_pem_public_key(keys["officer public"].read_bytes())
    assert isinstance(key, Ed25519PublicKey)
    value = json.loads((signed / SIGNATURE).read_text())["signature"]
    key.verify(bytes.fromhex(value), b"galton plan signature, version 1\n" + (signed / SUMS).read_bytes())


def test_a_signature_of_another_key_or_plan_is_refused(
    signed: Path, forged: Plan, keys: dict[str, Path], tmp_path: Path
) -> None:
    key = keys["officer public"]
    with pytest.raises(PlanNotTrusted, match="is not one of this plan by the trusted key"):
        opened(signed, tmp_path / "run", trusted_key=keys["other public"])
    swapped = save_plan(forged, tmp_path / "forged")
    with pytest.raises(PlanNotTrusted, match="is not signed"):
        opened(swapped, tmp_path / "run", trusted_key=key)
    shutil.copy(signed / SIGNATURE, swapped / SIGNATURE)
    with pytest.raises(PlanNotTrusted, match="is not one of this plan"):
        opened(swapped, tmp_path / "run", trusted_key=key)
    with pytest.raises(PlanNotTrusted, match="is not one of this plan"):
        opened(swapped, tmp_path / "run", trusted_key=key, pinned=forged.digest)
    with pytest.raises(PlanNotTrusted, match="not the pinned one"):
        opened(signed, tmp_path / "run", trusted_key=key, pinned=forged.digest)
    body = json.loads((signed / SIGNATURE).read_text())
    (signed / SIGNATURE).write_text(json.dumps(body | {"public_key": "0" * 64}))
    with pytest.raises(PlanNotTrusted, match="is not one of this plan"):
        opened(signed, tmp_path / "run", trusted_key=key)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (STRATEGY, lambda text: text.replace(b",", b", ", 1)),
        (STRATEGY, lambda text: text.replace(b"\n", b"\r\n")),
        (PLAN, lambda text: text.replace(b"\n", b"\r\n")),
        (PLAN, lambda text: text + b"\n"),
    ],
    ids=["a space in strategy.json", "line ends of strategy.json", "line ends of plan.json", "an empty line"],
)
def test_no_byte_of_a_plan_can_change(ours: Plan, tmp_path: Path, name: str, change: Callable[[bytes], bytes]) -> None:
    """Not even one that changes nothing, with fresh hashes: what is hashed is what is read."""
    folder = save_plan(ours, tmp_path / "plan")
    (folder / name).write_bytes(change((folder / name).read_bytes()))
    rewrite_sums(folder)
    with pytest.raises(InvalidFile, match="not as galton writes it"):
        load_plan(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body | {"signature": body["signature"][:-1]},
        lambda body: body | {"signature": body["signature"].upper()},
        lambda body: body | {"public_key": "x" * 64},
        lambda body: body | {"algorithm": "none"},
        lambda body: body | {"version": 2},
        lambda body: body | {"more": 1},
        lambda body: {},
    ],
)
def test_a_file_that_is_no_signature_is_refused(signed: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = signed / SIGNATURE
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(InvalidFile, match=r"plan\.sig: is not a signature"):
        load_plan(signed)


def test_signing_verifies_a_plan_that_the_signer_never_saw(
    forged: Plan, theirs: Plan, keys: dict[str, Path], tmp_path: Path, verified: list[str]
) -> None:
    with pytest.raises(PlanNotTrusted, match="could not be proved"):
        sign_plan(save_plan(forged, tmp_path / "forged"), keys["officer"])
    assert not (tmp_path / "forged" / SIGNATURE).exists()
    folder = save_plan(theirs, tmp_path / "plan")
    sign_plan(folder, keys["officer"])
    sign_plan(folder, keys["other"], tmp_path / "second.sig")
    assert verified == [forged.digest, theirs.digest]
    with pytest.raises(InvalidFile, match="is there already"):
        sign_plan(folder, keys["other"])
    check_signature(load_plan(folder), keys["officer public"])


def test_keys_that_are_no_keys_are_refused(signed: Path, keys: dict[str, Path], tmp_path: Path) -> None:
    plan = load_plan(signed)
    with pytest.raises(InvalidFile, match="it is a private key"):
        check_signature(plan, keys["officer"])
    with pytest.raises(InvalidFile, match="is not a public Ed25519 key"):
        check_signature(plan, b"")
    with pytest.raises(InvalidFile, match="cannot be read"):
        check_signature(plan, tmp_path / "nothing")
    for name, match in (("officer public", "not a private Ed25519 key"), ("nothing", "cannot be read")):
        with pytest.raises(InvalidFile, match=match):
            sign_plan(signed, keys.get(name, tmp_path / name), tmp_path / "new.sig")
    known = tmp_path / "known.pem"
    known.write_bytes(keys["officer"].read_bytes())
    known.chmod(0o644)
    with pytest.raises(InvalidFile, match="others than its owner"):
        sign_plan(signed, known, tmp_path / "new.sig")
    assert not (tmp_path / "new.sig").exists()


def test_the_command_line_makes_keys_signs_and_checks(theirs: Plan, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    folder, private = save_plan(theirs, tmp_path / "plan"), tmp_path / "officer.pem"
    made = json.loads(command("keygen", str(private), "--json").out)
    assert made == {"private": str(private), "public": str(tmp_path / "officer.pub.pem")}
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    again = command("keygen", str(private))
    assert (again.code, again.out) == (2, "")
    assert "is there already" in again.err
    nowhere = command("keygen", "/")
    assert (nowhere.code, nowhere.out) == (2, "")
    assert "must name a file" in nowhere.err
    endless = command("sign", str(folder), "--key", "/dev/zero")
    assert (endless.code, endless.out) == (2, "")
    assert "too long for a key" in endless.err
    unsigned = command("verify", str(folder), "--key", made["public"])
    assert unsigned.code == 3
    assert "REJECTED" in unsigned.out
    assert command("sign", str(folder), "--key", str(private)).code == 0
    shown = command("verify", str(folder), "--key", made["public"])
    assert shown.code == 0
    assert "signed by the key ed25519:" in shown.out
    assert theirs.digest in "".join(shown.out.split()), "whole, as it can be pinned"
    other = json.loads(command("keygen", str(tmp_path / "other"), "--json").out)
    refused = command("verify", str(folder), "--key", other["public"], "--json")
    assert refused.code == 3
    assert json.loads(refused.out)["accepted"] is False
    assert command("verify", str(folder), "--key", str(private)).code == 2


def test_without_the_extra_it_says_what_to_install(ours: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_plan(ours, tmp_path / "plan")
    monkeypatch.setitem(sys.modules, "cryptography", None)
    for words in (["keygen", str(tmp_path / "key")], ["sign", str(folder), "--key", str(tmp_path / "key")]):
        result = command(*words)
        assert result.code == 2
        assert "pip install 'galton[sign]'" in result.err


def test_a_new_file_is_written_by_one_only(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "key"
    files.write_new(path, b"first", secret=True)
    with pytest.raises(InvalidFile, match="is there already"):
        files.write_new(path, b"second")
    assert path.read_bytes() == b"first"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    link = tmp_path / "folder" / "link"
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidFile, match="is there already"):
        files.write_new(link, b"third")
    assert not (tmp_path / "elsewhere").exists()
    assert {entry.name for entry in path.parent.iterdir()} == {"key", "link"}


@pytest.mark.slow
def test_examples_in_docstrings_leave_no_marks_with_the_user(tmp_path: Path) -> None:
    root = Path(__file__).parents[1]
    environment = {name: value for name, value in os.environ.items() if name != "GALTON_STATE"}
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "src/galton/plan/folder.py"]
    subprocess.run(words, cwd=root, check=True, env=environment | {"XDG_STATE_HOME": str(tmp_path / "state")})
    assert not (tmp_path / "state").exists()


def test_what_a_killed_process_left_beside_its_mark_is_removed(small_plan: Plan) -> None:
    """Killed once the mark was in its place, and before its temporary folder was removed: nobody writes there again."""
    marks.leave_mark(small_plan.digest, marks.Mark.VERIFIED)
    folder, lock = files._make_locked_folder(marks._path(small_plan.digest).parent)
    assert lock is not None
    os.close(lock)
    marks._in_this_process.clear()
    assert marks.find_mark(small_plan.digest) is marks.Mark.VERIFIED
    assert not folder.exists()
