"""Batching schemes: their laws against closed forms, reproducibility, fixed shapes, and what truncation costs."""

from __future__ import annotations

import itertools
import json
import math
import stat
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal, localcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special, stats

from galton.batching import (
    PLANNED,
    BallsInBins,
    Batches,
    CyclicPoisson,
    FixedOrder,
    MinSeparation,
    Poisson,
    RedrawnBallsInBins,
    Scheme,
    Shuffle,
    StreamingBallsInBins,
    StreamingRedrawnBallsInBins,
    open_records,
    scheme_from_json,
    shuffle_records,
    skipping,
    smallest_padded_batch_size,
    stream,
    stream_epochs,
    truncation,
    truncation_probability,
)
from galton.batching.balls_in_bins import bin_blocks, bin_sizes, grouped
from galton.batching.poisson import gaps, successes
from galton.batching.randomness import BLOCK, Words, check_seed
from galton.errors import InvalidArgument, InvalidFile
from galton.guarantee import Adjacency
from galton.strategies import Scaled, Strategy, Tree, identity, square_root

LEAST = 1e-6
"""Least p-value of a chi-square test; seeds are fixed, so that a test that passes goes on passing."""

SCHEMES: list[Scheme] = [
    BallsInBins(1000, 7, 17),
    StreamingBallsInBins(1000, 7, 17),
    RedrawnBallsInBins(1000, 7, 17),
    StreamingRedrawnBallsInBins(1000, 7, 17),
    Poisson(1000, 50, 17),
    CyclicPoisson(1000, 50, 4, 17),
    MinSeparation(1000, 50, 4, 17),
    Shuffle(1000, 7, 17),
    Shuffle(1000, 7, 17, reshuffle=True),
    FixedOrder(1000, 7, 17),
]


def words(seed: int) -> Words:
    return Words(check_seed(seed))


def fits(counts: NDArray[Any], expected: NDArray[Any] | float) -> bool:
    """Whether counts fit their expectations, by a chi-square test."""
    target = np.broadcast_to(np.asarray(expected, float), counts.shape)
    return float(stats.chisquare(counts, target * counts.sum() / target.sum()).pvalue) > LEAST


# Words.


def test_words_are_those_of_shake_128_and_of_their_purpose_alone() -> None:
    """The first word of one name, by hashlib; a change of this number changes every batch anyone has drawn."""
    import hashlib

    seed = "ab" * 32
    first = hashlib.shake_128(f"galton {seed} bins 3".encode()).digest(8)
    assert Words(seed).draw("bins", 3, 2).tolist() == np.frombuffer(first, "<u4").tolist()
    assert Words(seed).draw("bins", 3, 5)[:2].tolist() == Words(seed).draw("bins", 3, 2).tolist()
    assert (Words(seed).draw("bins", 4, 8) != Words(seed).draw("bins", 3, 8)).any()


@pytest.mark.parametrize("limit", [2, 3, 1000, 3 * 2**30, 2**31 + 1])
def test_numbers_below_a_limit_are_uniform(limit: int) -> None:
    drawn = words(1).below(limit, "test", 0, 40_000)
    assert drawn.max() < limit
    cells = min(limit, 16)
    counts = np.bincount((drawn.astype(np.float64) * cells / limit).astype(int), minlength=cells)
    edges = np.ceil(np.arange(cells + 1) * limit / cells)
    assert fits(counts, np.diff(edges))


def test_rejected_words_are_drawn_again() -> None:
    """With limit 3 * 2^30 a quarter of all words is rejected; without that, some numbers would come twice as often."""
    drawn = words(2).below(3 * 2**30, "test", 0, 60_000)
    assert fits(np.bincount(drawn % 3, minlength=3), 1.0)


def test_seed_is_checked_and_not_shown() -> None:
    assert check_seed(5) == "0" * 63 + "5"
    assert check_seed(None) != check_seed(None)
    assert len(check_seed(None)) == 64
    for bad in (-1, 2**256, "xyz", "ab", 1.5, True):
        with pytest.raises(InvalidArgument, match="64 hexadecimal digits"):
            check_seed(bad)  # type: ignore[arg-type]
    assert "ab" not in repr(Words("ab" * 32))


# Balls-in-bins.


def assigned(scheme: BallsInBins, seed: int) -> NDArray[np.int64]:
    """Bin of every example."""
    realisation = scheme.open(words(seed))
    bins = np.full(scheme.examples, -1)
    for turn in range(scheme.bins):
        assert (bins[realisation.members(turn)] == -1).all()
        bins[realisation.members(turn)] = turn
    assert (bins >= 0).all()
    return bins


@pytest.mark.parametrize(("examples", "bins"), [(1, 1), (5, 8), (BLOCK + 17, 3), (3 * BLOCK, 1000), (90_000, 70_000)])
def test_grouping_is_a_stable_sort_by_bin(examples: int, bins: int) -> None:
    drawn = np.concatenate([block for _, block in bin_blocks(words(3), examples, bins)])
    order, starts = grouped(words(3), examples, bins)
    assert order.dtype == np.int32
    assert (order == np.argsort(drawn, kind="stable")).all()
    assert (np.diff(starts) == np.bincount(drawn, minlength=bins)).all()
    assert (bin_sizes(words(3), examples, bins) == np.diff(starts)).all()


def test_bins_are_uniform_and_independent() -> None:
    bins = assigned(BallsInBins(200_000, 8, 8), 4)
    assert fits(np.bincount(bins, minlength=8), 1.0)
    for lag in (1, 2, BLOCK):
        assert fits(np.bincount(bins[:-lag] * 8 + bins[lag:], minlength=64), 1.0)


def test_bin_sizes_are_multinomial() -> None:
    """Over seeds: size of one bin is Binomial(n, 1/b); two bins have correlation -1/(b-1)."""
    sizes = np.array([bin_sizes(words(seed), 60, 4) for seed in range(4000)])
    top = np.arange(6, 26)
    counts = np.bincount(np.clip(sizes[:, 0], 5, 25), minlength=26)[6:25]
    assert fits(counts, stats.binom.pmf(top[:-1], 60, 0.25))
    correlation = np.corrcoef(sizes[:, 0], sizes[:, 1])[0, 1]
    assert abs(correlation + 1 / 3) < 5 * (1 - 1 / 9) / math.sqrt(4000)


def test_the_bin_of_an_example_does_not_depend_on_the_others() -> None:
    few, many = assigned(BallsInBins(70_000, 9, 9), 5), assigned(BallsInBins(140_000, 9, 9), 5)
    assert (few == many[:70_000]).all()


def test_every_epoch_has_the_same_bins_and_the_last_may_be_partial() -> None:
    realisation = BallsInBins(100, 4, 10).open(words(6))
    for turn in range(10):
        assert (realisation.members(turn) == realisation.members(turn % 4)).all()
    with pytest.raises(InvalidArgument, match=r"^round = 10: must be at most 9"):
        realisation.members(10)


def test_streaming_has_the_law_of_random_access() -> None:
    """All 3^3 assignments of three examples are equally likely in both forms, given a uniform shuffle."""
    table = {form: np.zeros(27, int) for form in ("random", "streaming")}
    place = 3 ** np.arange(3)
    for seed in range(6000):
        table["random"][assigned(BallsInBins(3, 3, 3), seed) @ place] += 1
        shuffle = Shuffle(3, 1, 1).open(words(seed + 10**6)).members(0)
        by_position = assigned(StreamingBallsInBins(3, 3, 3), seed)
        bins = np.empty(3, int)
        bins[shuffle] = by_position
        table["streaming"][bins @ place] += 1
    assert fits(table["random"], 1.0)
    assert fits(table["streaming"], 1.0)


def letters(size: int) -> Iterator[str]:
    return (f"item {k}" for k in range(size))


def test_stream_reads_each_epoch_once_from_front_to_back() -> None:
    batches = Batches(StreamingBallsInBins(50, 6, 15), padded_batch_size=20, seed=1)
    seen = list(stream(batches, skipping(lambda: letters(50))))
    assert [batch.round for batch, _ in seen] == list(range(15))
    for epoch in (seen[:6], seen[6:12]):
        assert [item for _, items in epoch for item in items] == list(letters(50))
    for batch, items in seen:
        assert items == [f"item {k}" for k in batch.examples]


@pytest.mark.parametrize("stop", [1, 4, 6, 11])
def test_stream_resumes_in_the_middle_of_an_epoch(stop: int) -> None:
    scheme = StreamingBallsInBins(50, 6, 15)
    whole = [items for _, items in stream(Batches(scheme, 20, seed=1), skipping(lambda: letters(50)))]
    first = Batches(scheme, 20, seed=1)
    head = [items for _, items in itertools.islice(stream(first, skipping(lambda: letters(50))), stop)]
    rest = Batches.resume(scheme, json.loads(json.dumps(first.state())))
    tail = [items for _, items in stream(rest, skipping(lambda: letters(50)))]
    assert head + tail == whole


def test_stream_refuses_data_of_another_size() -> None:
    scheme = StreamingBallsInBins(50, 6, 12)
    for size, message in ((49, "the data ends after 49"), (51, "has more examples")):
        with pytest.raises(InvalidArgument, match=message):
            list(stream(Batches(scheme, 30, seed=1), skipping(partial(letters, size))))
    with pytest.raises(InvalidArgument, match="streaming"):
        list(stream(Batches(BallsInBins(50, 6, 12), 30, seed=1), skipping(lambda: letters(50))))


def test_records_are_shuffled_uniformly_and_found_again(tmp_path: Path) -> None:
    records = [f"{k}".encode() * (k % 5) for k in range(300)]
    shuffled = shuffle_records(iter(records), tmp_path / "data", shards=7, seed=1)
    read = list(shuffled.open_pass())
    assert len(shuffled) == 300
    assert read != records
    assert sorted(read) == sorted(records)
    for start in (0, 1, 150, 299, 300):
        assert list(open_records(tmp_path / "data").open_pass(start)) == read[start:]
    with pytest.raises(InvalidFile, match="there already"):
        shuffle_records(records, tmp_path / "data")
    victim = tmp_path / "data" / "shard-0003.records"
    victim.write_bytes(victim.read_bytes()[:-1])
    with pytest.raises(InvalidFile, match="ends too early"):
        list(shuffled.open_pass())


def test_a_shuffle_that_fails_leaves_no_pieces(tmp_path: Path) -> None:
    def torn() -> Iterator[bytes]:
        yield b"a"
        raise ConnectionResetError("gone")

    with pytest.raises(ConnectionResetError):
        shuffle_records(torn(), tmp_path / "data", shards=2)
    assert list((tmp_path / "data").iterdir()) == []
    for wrong in (["a"], [1], np.eye(2)):
        with pytest.raises(InvalidArgument, match=r"records = .*must all be bytes"):
            shuffle_records(wrong, tmp_path / "data", shards=2)  # type: ignore[arg-type]
    assert list((tmp_path / "data").iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(InvalidFile, match=r"file.*: cannot be made"):
        shuffle_records([b"a"], tmp_path / "file" / "data")


def test_shuffled_records_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    """They are the data, and their order is the secret that amplification rests on."""
    shuffle_records([b"a", b"b", b"c"], tmp_path / "records", shards=2, seed=1)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "records").iterdir()}
    assert modes == {0o600}


@pytest.mark.slow
def test_order_of_shuffled_records_is_uniform(tmp_path: Path) -> None:
    """All 3! orders of three records in two shards."""
    counts: dict[bytes, int] = {}
    for seed in range(600):
        order = b"".join(shuffle_records([b"a", b"b", b"c"], tmp_path / str(seed), 2, seed).open_pass())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 6
    assert fits(np.array(list(counts.values())), 1.0)


# Bins redrawn in every epoch.


def redrawn(scheme: RedrawnBallsInBins, seed: int) -> NDArray[np.int64]:
    """Bin of every example in every epoch; -1 where it sits out."""
    realisation = scheme.open(words(seed))
    bins = np.full((scheme.examples, -(-scheme.rounds // scheme.bins)), -1)
    for turn in range(scheme.rounds):
        epoch, place = divmod(turn, scheme.bins)
        members = realisation.members(turn)
        assert (bins[members, epoch] == -1).all()
        bins[members, epoch] = place
    return bins


def test_redrawn_bins_are_uniform_and_independent() -> None:
    """Of an example between epochs (neighbours and others), and of examples within and between epochs."""
    bins = redrawn(RedrawnBallsInBins(100_000, 8, 32), 4)
    assert (bins >= 0).all()
    for epoch in range(4):
        assert fits(np.bincount(bins[:, epoch], minlength=8), 1.0)
    for first, second in itertools.combinations(range(4), 2):
        assert fits(np.bincount(bins[:, first] * 8 + bins[:, second], minlength=64), 1.0)
    for lag in (1, 2, BLOCK):
        assert fits(np.bincount(bins[:-lag, 2] * 8 + bins[lag:, 2], minlength=64), 1.0)
        assert fits(np.bincount(bins[:-lag, 0] * 8 + bins[lag:, 1], minlength=64), 1.0)
    triples = bins[:, 0] * 64 + bins[:, 1] * 8 + bins[:, 2]
    assert fits(np.bincount(triples, minlength=512), 1.0)


def test_a_redrawn_bin_does_not_depend_on_the_others() -> None:
    few, many = (redrawn(RedrawnBallsInBins(examples, 9, 27), 5) for examples in (70_000, 140_000))
    assert (few == many[:70_000]).all()


def test_redrawn_batches_have_random_access() -> None:
    """Round by round, backwards and from a fresh start they are the same; numbers out of range are refused."""
    scheme = RedrawnBallsInBins(500, 4, 14)
    forwards = [members.tolist() for turn in range(14) for members in [scheme.open(words(6)).members(turn)]]
    realisation = scheme.open(words(6))
    for turn in (*range(14), *reversed(range(14)), 9, 0, 13):
        assert realisation.members(turn).tolist() == forwards[turn]
    assert all(forwards[turn] != forwards[turn + 4] for turn in range(10))
    for turn in (-1, 14):
        with pytest.raises(InvalidArgument, match=r"^round = "):
            realisation.members(turn)


@pytest.mark.parametrize("kind", [RedrawnBallsInBins, StreamingRedrawnBallsInBins])
def test_examples_sit_out_a_partial_epoch_by_chance(kind: type[RedrawnBallsInBins]) -> None:
    scheme = kind(40_000, 5, 12)
    assert scheme.meetings == 2.4
    assert scheme.distinct == 12
    bins = redrawn(scheme, 7)
    assert (bins[:, :2] >= 0).all()
    assert fits(np.bincount(bins[:, 2] + 1, minlength=3), np.array([3.0, 1.0, 1.0]))


def test_redrawn_streaming_has_the_law_of_random_access() -> None:
    """All 2^4 bins of two examples in two epochs are equally likely in both forms, given uniform shuffles."""
    table = {form: np.zeros(16, int) for form in ("random", "streaming")}
    place = 2 ** np.arange(4)
    for seed in range(2000):
        table["random"][redrawn(RedrawnBallsInBins(2, 2, 4), seed).ravel() @ place] += 1
        by_position = redrawn(StreamingRedrawnBallsInBins(2, 2, 4), seed)
        bins = np.empty((2, 2), int)
        for epoch in range(2):
            order = Shuffle(2, 1, 2, reshuffle=True).open(words(seed + 10**6)).members(epoch)
            bins[order, epoch] = by_position[:, epoch]
        table["streaming"][bins.ravel() @ place] += 1
    assert fits(table["random"], 1.0)
    assert fits(table["streaming"], 1.0)


def reshuffled(epoch: int, size: int = 50) -> list[str]:
    order = Shuffle(size, 1, 9, reshuffle=True).open(words(99)).members(epoch)
    return [f"item {k}" for k in order]


def open_epoch(epoch: int) -> Any:
    return skipping(lambda: iter(reshuffled(epoch)))


def test_stream_epochs_reads_the_order_of_each_epoch_from_front_to_back() -> None:
    batches = Batches(StreamingRedrawnBallsInBins(50, 6, 15), padded_batch_size=30, seed=1)
    seen = list(stream_epochs(batches, open_epoch))
    assert [batch.round for batch, _ in seen] == list(range(15))
    for epoch in range(3):
        read = [item for _, items in seen[6 * epoch : 6 * epoch + 6] for item in items]
        assert read == reshuffled(epoch)[: len(read)]
        assert len(read) == 50 or epoch == 2
    for batch, items in seen:
        order = reshuffled(batch.round // 6)
        assert items == [order[k] for k in batch.examples]
    assert len({len(items) for _, items in seen[::6]}) > 1  # sizes are drawn afresh


@pytest.mark.parametrize("stop", [1, 6, 8, 12])
def test_stream_epochs_resumes_in_the_middle_of_an_epoch(stop: int) -> None:
    scheme = StreamingRedrawnBallsInBins(50, 6, 15)
    whole = [items for _, items in stream_epochs(Batches(scheme, 30, seed=1), open_epoch)]
    first = Batches(scheme, 30, seed=1)
    head = [items for _, items in itertools.islice(stream_epochs(first, open_epoch), stop)]
    rest = Batches.resume(scheme, json.loads(json.dumps(first.state())))
    assert head + [items for _, items in stream_epochs(rest, open_epoch)] == whole


def test_streams_refuse_batches_of_the_other_kind() -> None:
    """Data that is shuffled once must not be read as if it were shuffled in every epoch, nor the other way round."""
    with pytest.raises(InvalidArgument, match="must be of a balls-in-bins-streaming scheme"):
        stream(Batches(StreamingRedrawnBallsInBins(50, 6, 12), 30), skipping(lambda: letters(50)))
    for scheme in (StreamingBallsInBins(50, 6, 12), RedrawnBallsInBins(50, 6, 12)):
        with pytest.raises(InvalidArgument, match="must be of a balls-in-bins-redrawn-streaming scheme"):
            stream_epochs(Batches(scheme, 30), open_epoch)


# Poisson, cyclic Poisson, b-min-separation.


def test_successes_are_independent_coins() -> None:
    hits = np.zeros(40, int)
    sizes = []
    for number in range(5000):
        hit = successes(words(7), "test", number, 40, 0.2)
        assert (np.diff(hit) > 0).all()
        hits[hit] += 1
        sizes.append(hit.size)
    assert np.abs(hits - 1000).max() < 5 * math.sqrt(5000 * 0.2 * 0.8)
    assert fits(np.bincount(sizes, minlength=18)[2:16], stats.binom.pmf(np.arange(2, 16), 40, 0.2))
    assert successes(words(7), "test", 0, 5, 1.0).tolist() == [0, 1, 2, 3, 4]
    assert successes(words(7), "test", 0, 0, 0.5).size == 0


def test_gaps_are_geometric_and_end_at_the_lattice() -> None:
    drawn = gaps(words(8).uniforms("test", 0, 100_000), 0.3)
    assert fits(np.bincount(np.minimum(drawn, 15))[1:15], stats.geom.pmf(np.arange(1, 15), 0.3))
    assert gaps(np.array([1.0]), 0.3).tolist() == [1]
    assert gaps(np.array([2.0**-53]), 1e-12).tolist() == [2**40]


def test_poisson_rounds_are_independent() -> None:
    scheme = Poisson(100, 30, 4000)
    realisation = scheme.open(words(9))
    taken = np.zeros((4000, 100), bool)
    for turn in range(4000):
        taken[turn, realisation.members(turn)] = True
    assert np.abs(taken.mean(axis=0) - 0.3).max() < 5 * math.sqrt(0.21 / 4000)
    pairs = taken[:-1].astype(int) * 2 + taken[1:]
    assert fits(np.bincount(pairs.ravel(), minlength=4), np.array([0.49, 0.21, 0.21, 0.09]))


def test_cyclic_poisson_keeps_to_its_groups() -> None:
    scheme = CyclicPoisson(4000, 500, 4, 200)
    realisation = scheme.open(words(10))
    group = np.full(4000, -1)
    total = 0
    for turn in range(200):
        members = realisation.members(turn)
        assert ((group[members] == -1) | (group[members] == turn % 4)).all()
        group[members] = turn % 4
        total += members.size
    assert fits(np.bincount(group, minlength=4), 1.0)
    assert abs(total / 200 - 500) < 5 * math.sqrt(500 / 200)
    assert scheme.sampling_probability == 0.5
    full = CyclicPoisson(400, 100, 4, 8).open(words(10))
    assert (full.members(1) == full.members(5)).all()


def test_min_separation_rests_and_is_stationary() -> None:
    scheme = MinSeparation(20_000, 2000, 5, 40)
    realisation = scheme.open(words(11))
    last = np.full(20_000, -100)
    gap_counts = np.zeros(60, int)
    for turn in range(40):
        members = realisation.members(turn)
        assert abs(members.size - 2000) < 5 * math.sqrt(20_000 * 0.1 * 0.9)
        assert (turn - last[members] >= 5).all()
        gap_counts += np.bincount(np.minimum((turn - last[members])[last[members] >= 0], 59), minlength=60)
        last[members] = turn
    chance = scheme.sampling_probability
    assert chance == pytest.approx(1 / 6)
    windows = 40 - np.arange(5, 12)  # a gap of k rounds fits into 40 - k places, all alike as the law is stationary
    assert fits(gap_counts[5:12], (1 - chance) ** np.arange(7) * windows)
    again = scheme.open(words(11))
    assert (again.members(30) == scheme.open(words(11)).members(30)).all()
    assert (again.members(3) == scheme.open(words(11)).members(3)).all()


def test_min_separation_without_a_choice_is_balls_in_bins() -> None:
    realisation = MinSeparation(10_000, 2500, 4, 12).open(words(12))
    sizes = [realisation.members(turn).size for turn in range(4)]
    assert sum(sizes) == 10_000
    assert fits(np.array(sizes), 1.0)
    assert (realisation.members(1) == realisation.members(9)).all()


# Fixed sizes.


@pytest.mark.parametrize("scheme", [FixedOrder(23, 5, 10), Shuffle(23, 5, 10), Shuffle(23, 5, 10, True)])
def test_fixed_sizes_cover_the_data_once_an_epoch(scheme: FixedOrder) -> None:
    realisation = scheme.open(words(13))
    for epoch in (0, 5):
        parts = [realisation.members(epoch + k) for k in range(5)]
        assert {part.size for part in parts} == {4, 5}
        assert sorted(np.concatenate(parts).tolist()) == list(range(23))
    same = all((realisation.members(k) == realisation.members(k + 5)).all() for k in range(5))
    assert same != getattr(scheme, "reshuffle", False)
    assert Batches(scheme).padded_batch_size == 5
    with pytest.raises(InvalidArgument, match=r"^padded_batch_size = 4: must be at least 5"):
        Batches(scheme, 4)


def test_shuffles_are_uniform() -> None:
    counts = np.zeros(27, int)
    for seed in range(3000):
        counts[Shuffle(3, 1, 1).open(words(seed)).members(0) @ np.array([9, 3, 1])] += 1
    assert (counts > 0).sum() == 6
    assert fits(counts[counts > 0], 1.0)


# One interface.


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: s.kind)
def test_a_run_is_a_function_of_its_seed(scheme: Scheme) -> None:
    first, second, other = (Batches(scheme, 300, seed) for seed in (1, 1, 2))
    same = [(a.indices == b.indices).all() and (a.mask == b.mask).all() for a, b in zip(first, second, strict=True)]
    assert all(same)
    differs = any((first.at(t).indices != other.at(t).indices).any() for t in range(scheme.rounds))
    assert differs or scheme.kind in ("fixed-order",)


@pytest.mark.parametrize("stop", [0, 5, 7, 16, 17])
@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: s.kind)
def test_a_run_resumes_bit_by_bit(scheme: Scheme, stop: int) -> None:
    padded_batch_size = 145  # some batches are truncated, some padded
    whole = list(Batches(scheme, padded_batch_size, seed=3))
    batches = Batches(scheme, padded_batch_size, seed=3)
    head = list(itertools.islice(batches, stop))
    batches = Batches.resume(scheme_from_json(scheme.to_json()), json.loads(json.dumps(batches.state())))
    assert batches.round == stop
    assert len(batches) == 17 - stop
    for a, b in zip([*head, *batches], whole, strict=True):
        assert a.round == b.round
        assert a.truncated == b.truncated
        assert (a.indices == b.indices).all()
        assert (a.mask == b.mask).all()


def test_the_seed_comes_from_the_system_and_is_kept() -> None:
    scheme = BallsInBins(100, 5, 5)
    batches, others = Batches(scheme), Batches(scheme)
    assert batches.seed != others.seed
    assert Batches.resume(scheme, batches.state()).seed == batches.seed


def test_a_state_of_another_scheme_is_refused() -> None:
    state = Batches(BallsInBins(100, 5, 10), 50).state()
    with pytest.raises(InvalidArgument, match="must belong to this scheme"):
        Batches.resume(BallsInBins(100, 5, 11), state)
    with pytest.raises(InvalidArgument, match="must belong to this scheme"):
        Batches.resume(StreamingBallsInBins(100, 5, 10), state)
    for name, value in (
        ("format", "x"),
        ("version", 2),
        ("round", 11),
        ("round", -1),
        ("seed", None),
        ("physical", 0),
    ):
        with pytest.raises(InvalidArgument):
            Batches.resume(BallsInBins(100, 5, 10), {**state, name: value})


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: s.kind)
def test_schemes_survive_json(scheme: Scheme) -> None:
    again = scheme_from_json(json.loads(json.dumps(scheme.to_json())))
    assert again == scheme
    assert type(again) is type(scheme)
    assert again.digest == scheme.digest
    with pytest.raises(InvalidArgument):
        scheme_from_json({**scheme.to_json(), "more": 1})
    with pytest.raises(InvalidArgument, match=r"^kind = 'other'"):
        scheme_from_json({**scheme.to_json(), "kind": "other"})


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: BallsInBins(0, 1, 1), "examples"),
        (lambda: BallsInBins(2**31, 1, 1), "examples"),
        (lambda: BallsInBins(10, 0, 1), "bins"),
        (lambda: BallsInBins(10, 5, 4), "rounds"),
        (lambda: RedrawnBallsInBins(10, 5, 4), "rounds"),
        (lambda: Poisson(10, 11, 4), "batch_size"),
        (lambda: Poisson(10, 0, 4), "batch_size"),
        (lambda: CyclicPoisson(10, 6, 2, 4), "batch_size"),
        (lambda: MinSeparation(10, 6, 2, 4), "batch_size"),
        (lambda: FixedOrder(10, 11, 11), "bins"),
        (lambda: Batches(BallsInBins(10, 2, 4), 0), "padded_batch_size"),
    ],
)
def test_impossible_numbers_are_refused(make: Any, argument: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{argument} = "):
        make()


STRATEGIES: list[Strategy] = [identity(32), square_root(32, 8), Scaled(square_root(32, 3), np.linspace(1, 2, 32))]


@pytest.mark.parametrize("name", PLANNED)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=["identity", "square root", "scaled"])
def test_planned_schemes_have_the_batches_that_were_asked_for(name: str, strategy: Strategy) -> None:
    for examples, bins in ((64, 8), (25, 11), (23, 21)):  # 25 / 11 * 11 is above 25 in floating point
        scheme = PLANNED[name](examples, bins, 32, strategy)
        assert scheme.rounds == 32
        assert scheme.expected_batch_size == pytest.approx(examples / bins)
        scheme.check_bins(bins)
        assert math.isfinite(scheme.sensitivity_if_known(strategy))
        assert scheme_from_json(scheme.to_json()) == scheme


def test_rests_are_planned_by_the_bands() -> None:
    make = PLANNED["min-separation"]
    for bands, chance in ((1, 1 / 8), (3, 1 / 6), (8, 1)):
        scheme = make(64, 8, 32, square_root(32, bands))
        assert isinstance(scheme, MinSeparation)
        assert (scheme.separation, scheme.inclusion) == (bands, 1 / 8)
        assert scheme.sampling_probability == pytest.approx(chance)
    for refused in (square_root(32, 9), Tree(32)):
        with pytest.raises(InvalidArgument):
            make(64, 8, 32, refused)
    assert isinstance(make(25, 11, 33, square_root(33, 11)), MinSeparation)
    assert isinstance(PLANNED["cyclic-poisson"](25, 11, 33, square_root(33, 11)), CyclicPoisson)


# Fixed shapes.


def test_padding_fails_where_the_mask_is_forgotten() -> None:
    batch = next(Batches(BallsInBins(10, 5, 5), 8, seed=1))
    size = int(batch.mask.sum())
    assert batch.indices.shape == batch.mask.shape == (8,)
    assert batch.indices.dtype == np.int32
    assert (batch.indices[size:] == 10).all()
    with pytest.raises(IndexError):
        np.zeros(10)[batch.indices]
    taken = batch.take(np.arange(10.0) + 1)
    assert taken[:size].tolist() == (batch.examples + 1.0).tolist()
    assert not taken[size:].any()


def test_truncation_keeps_a_uniform_choice_anew_every_round() -> None:
    scheme = BallsInBins(12, 1, 6000)
    batches = Batches(scheme, 4, seed=2)
    kept = np.zeros((6000, 12), int)
    for batch in batches:
        assert batch.truncated == 8
        assert batch.mask.all()
        kept[batch.round, batch.indices] = 1
    rate = 4 / 12
    assert np.abs(kept.mean(axis=0) - rate).max() < 5 * math.sqrt(rate * (1 - rate) / 6000)
    both = (kept[:, 0] * kept[:, 1]).mean()
    assert abs(both - rate * 3 / 11) < 5 * math.sqrt(0.09 / 6000)
    assert abs((kept[:-1, 0] * kept[1:, 0]).mean() - rate**2) < 5 * math.sqrt(0.1 / 6000)


def test_micro_batches_have_one_shape_and_lose_nothing() -> None:
    batch = Batches(BallsInBins(100, 5, 5), 32, seed=1).at(2)
    parts = batch.micro_batches(8)
    assert [part.padded_batch_size for part in parts] == [8] * 4
    assert np.concatenate([part.examples for part in parts]).tolist() == batch.examples.tolist()
    with pytest.raises(InvalidArgument, match=r"^size = 7: must divide the padded batch size, 32"):
        batch.micro_batches(7)


# Truncation.


def log_factorial(n: int) -> Decimal:
    """Stirling's series; its error is below 1 / (1680 n^7)."""
    x, pi = Decimal(n), Decimal("3.14159265358979323846264338327950288419716939937511")
    return x * x.ln() - x + (2 * pi * x).ln() / 2 + 1 / (12 * x) - 1 / (360 * x**3) + 1 / (1260 * x**5)


def exact_tail(size: int, trials: int, bins: int) -> tuple[float, float]:
    """Pr[N > size] and E (N - size)_+ for N ~ Binomial(trials, 1/bins), term by term in 50 digits."""
    with localcontext() as context:
        context.prec = 50
        k, chance = size + 1, 1 / Decimal(bins)
        term = log_factorial(trials) - log_factorial(k) - log_factorial(trials - k)
        term = (term + k * chance.ln() + (trials - k) * (1 - chance).ln()).exp()
        above = excess = Decimal(0)
        while k <= trials and term > above * Decimal(10) ** -20:
            above, excess = above + term, excess + (k - size) * term
            term *= Decimal(trials - k) / (k + 1) / (bins - 1)
            k += 1
        return float(above), float(excess)


@pytest.mark.parametrize("padded_batch_size", [1, 20, 249, 250, 251, 400, 999])
def test_what_is_left_out_below_the_mean_and_above_it(padded_batch_size: int) -> None:
    chances = stats.binom.pmf(np.arange(1001), 1000, 0.25)
    excess = float(np.maximum(np.arange(1001) - padded_batch_size, 0) @ chances)
    assert truncation(BallsInBins(1000, 4, 8), padded_batch_size).expected == pytest.approx(8 * excess, rel=1e-9)


def test_a_size_far_below_the_mean_takes_few_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forged plan could otherwise keep whoever loads it busy for minutes."""
    terms, betainc = 0, special.betainc

    def counted(*arguments: Any) -> Any:
        nonlocal terms
        terms += np.size(arguments[0])
        return betainc(*arguments)

    monkeypatch.setattr(special, "betainc", counted)
    cost = truncation(BallsInBins(10**9, 4, 8), 38)
    assert cost.expected == pytest.approx(2e9 - 8 * 38, rel=1e-12)
    assert 0 < terms < 1_000_000


@pytest.mark.parametrize(
    ("examples", "bins", "padded_batch_size"),
    [(50_000, 100, 640), (50_000, 100, 700), (1000, 10, 160), (10**8, 10**4, 10_800)],
)
def test_tails_are_exact_where_they_are_small(examples: int, bins: int, padded_batch_size: int) -> None:
    scheme = BallsInBins(examples, bins, 3 * bins)
    cost = truncation(scheme, padded_batch_size)
    truth, excess = exact_tail(padded_batch_size, examples, bins)
    assert cost.per_batch == pytest.approx(truth, rel=1e-8)
    assert cost.probability == pytest.approx(bins * truth, rel=1e-8)
    assert cost.probability >= bins * truth
    assert cost.displacement == pytest.approx(exact_tail(padded_batch_size - 1, examples, bins)[0], rel=1e-8)
    assert cost.displacement >= exact_tail(padded_batch_size - 1, examples, bins)[0]
    assert cost.expected == pytest.approx(3 * bins * excess, rel=1e-8)


def test_any_overflow_of_a_multinomial_lies_between_its_bounds() -> None:
    """Exactly, by the count of allocations with no bin above p: n! [z^n] (sum_{k<=p} z^k/k!)^b / b^n."""
    examples, bins = 40, 5
    for padded_batch_size in (9, 11, 14, 18):
        series = np.array([1 / math.factorial(k) for k in range(padded_batch_size + 1)])
        power = np.ones(1)
        for _ in range(bins):
            power = np.convolve(power, series)
        inside = power[examples] * math.factorial(examples) / bins**examples if power.size > examples else 0.0
        cost = truncation(BallsInBins(examples, bins, 10), padded_batch_size)
        assert cost.probability_lower * (1 - 1e-9) <= 1 - inside <= cost.probability * (1 + 1e-9)


def test_prediction_agrees_with_what_happens() -> None:
    scheme, padded_batch_size = BallsInBins(400, 8, 24), 58
    predicted = truncation(scheme, padded_batch_size)
    dropped, struck = [], 0
    for seed in range(800):
        sizes = bin_sizes(words(seed), 400, 8)
        dropped.append(3 * np.maximum(sizes - padded_batch_size, 0).sum())
        struck += bool((sizes > padded_batch_size).any())
    assert abs(np.mean(dropped) - predicted.expected) < 5 * np.std(dropped) / math.sqrt(800)
    spread = 5 * math.sqrt(0.25 / 800)
    assert predicted.probability_lower - spread < struck / 800 < predicted.probability + spread
    run = list(Batches(scheme, padded_batch_size, seed=3))
    sizes = bin_sizes(words(3), 400, 8)
    assert sum(batch.truncated for batch in run) == 3 * np.maximum(sizes - padded_batch_size, 0).sum()


@pytest.mark.parametrize("rounds", [24, 28])
def test_prediction_for_redrawn_bins_agrees_with_what_happens(rounds: int) -> None:
    scheme, padded_batch_size = RedrawnBallsInBins(400, 8, rounds), 60
    predicted = truncation(scheme, padded_batch_size)
    dropped, struck, pushing = [], 0, 0
    for seed in range(800):
        realisation = scheme.open(words(seed))
        members = [realisation.members(turn) for turn in range(rounds)]
        sizes = np.array([batch.size for batch in members])
        dropped.append(np.maximum(sizes - padded_batch_size, 0).sum())
        struck += bool((sizes > padded_batch_size).any())
        pushing += sum(0 in batch for batch in members if batch.size > padded_batch_size)
    assert abs(np.mean(dropped) - predicted.expected) < 5 * np.std(dropped) / math.sqrt(800)
    spread = 5 * math.sqrt(0.25 / 800)
    assert predicted.probability_lower - spread < struck / 800 < predicted.probability + spread
    tail = stats.binom.sf(padded_batch_size - 1, 400, 1 / 8)
    assert predicted.displacement == pytest.approx(rounds / 8 * tail, rel=1e-6)
    expected = rounds / 8 * stats.binom.sf(padded_batch_size - 1, 399, 1 / 8)  # batches that are full without x
    assert expected <= predicted.displacement
    assert abs(pushing / 800 - expected) < 5 * math.sqrt(expected / 800)
    run = list(Batches(scheme, padded_batch_size, seed=3))
    assert sum(batch.truncated for batch in run) == dropped[3]


@pytest.mark.parametrize("scheme", [s for s in SCHEMES if s.inclusion is not None], ids=lambda s: s.kind)
@pytest.mark.parametrize(("wanted", "multiple"), [(0.1, 1), (1e-10, 1), (1e-10, 16), (1e-200, 1)])
def test_physical_size_is_the_smallest_that_will_do(scheme: Scheme, wanted: float, multiple: int) -> None:
    size = smallest_padded_batch_size(scheme, wanted, multiple)
    assert size % multiple == 0
    assert truncation_probability(scheme, size) <= wanted
    assert size == multiple or truncation_probability(scheme, size - multiple) > wanted


def test_default_physical_size_hardly_ever_truncates() -> None:
    batches = Batches(BallsInBins(50_000, 100, 200))
    assert truncation_probability(batches.scheme, batches.padded_batch_size) <= 1e-12
    assert batches.padded_batch_size < 720


def test_fixed_sizes_are_never_truncated() -> None:
    cost = truncation(Shuffle(100, 7, 14), 15)
    assert cost.probability == cost.expected == cost.delta(1.0) == 0
    with pytest.raises(InvalidArgument, match=r"^padded_batch_size = 14"):
        truncation(Shuffle(100, 7, 14), 14)


def test_displacement_counts_different_batches_only() -> None:
    """Balls-in-bins meets the same batch every epoch; Poisson a new one in each of its rounds."""
    tail = stats.binom.sf(139, 1000, 0.1)
    bins = [truncation(BallsInBins(1000, 10, rounds), 140).displacement for rounds in (10, 200)]
    assert bins == [pytest.approx(tail, rel=1e-6)] * 2
    assert truncation(Poisson(1000, 100, 200), 140).displacement == pytest.approx(200 * 0.1 * tail, rel=1e-6)
    redrawn_bins = [truncation(RedrawnBallsInBins(1000, 10, rounds), 140).displacement for rounds in (10, 200, 204)]
    assert redrawn_bins == [pytest.approx(epochs * tail, rel=1e-6) for epochs in (1, 20, 20.4)]
    cyclic = CyclicPoisson(1000, 100, 4, 200)
    assert truncation(cyclic, 140).displacement == pytest.approx(50 * 0.4 * tail, rel=1e-6)


def test_delta_of_truncation_by_adjacency() -> None:
    cost = truncation(BallsInBins(1000, 10, 100), 140)
    assert cost.delta(2.0, Adjacency.REMOVE) == cost.displacement
    assert cost.delta(2.0, Adjacency.ADD) == cost.delta(2.0) == pytest.approx(cost.displacement * math.exp(2))
    assert cost.delta(2.0, Adjacency.REPLACE) == cost.delta(2.0, Adjacency.ZERO_OUT) == 0
    with pytest.raises(InvalidArgument, match=r"^adjacency"):
        cost.delta(1.0, "other")  # type: ignore[arg-type]
    for adjacency in Adjacency:
        with pytest.raises(InvalidArgument, match=r"^epsilon = -1"):
            cost.delta(-1.0, adjacency)
    json.dumps(cost.to_json())


def outputs(others: int, bins: int, padded_batch_size: int, canary: int | None) -> dict[tuple[int, ...], float]:
    """Law of the noiseless sums per bin: others have gradient -1, the canary +1; a random choice is kept."""
    law: dict[tuple[int, ...], float] = {}
    people = [-1] * others + ([1] if canary is not None else [])
    for bins_of in itertools.product(range(bins), repeat=len(people)):
        options = []
        for group in range(bins):
            here = [value for value, place in zip(people, bins_of, strict=True) if place == group]
            kept = list(itertools.combinations(here, min(padded_batch_size, len(here))))
            options.append([sum(choice) for choice in kept])
        for sums in itertools.product(*options):
            weight = bins ** -len(people) / math.prod(len(option) for option in options)
            law[sums] = law.get(sums, 0.0) + weight
    return law


def divergence(first: NDArray[np.float64], second: NDArray[np.float64], epsilon: float, cell: float) -> float:
    return float(np.maximum(first - math.exp(epsilon) * second, 0).sum() * cell)


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.5])
def test_truncation_costs_no_more_than_claimed_and_is_not_free(epsilon: float) -> None:
    """Four others, two bins, three places, one epoch, in two dimensions by numerical integration."""
    axis = np.linspace(-9, 7, 401)
    grid, cell, sigma = np.meshgrid(axis, axis, indexing="ij"), (axis[1] - axis[0]) ** 2, 0.8

    def density(law: dict[tuple[int, ...], float]) -> NDArray[np.float64]:
        total = np.zeros_like(grid[0])
        for sums, weight in law.items():
            square = sum((g - s) ** 2 for g, s in zip(grid, sums, strict=True))
            total += weight * np.exp(-square / (2 * sigma**2)) / (2 * math.pi * sigma**2)
        return total

    with_x, without_x = (density(outputs(4, 2, 3, canary)) for canary in (1, None))
    mixture = density({(1, 0): 0.5, (0, 1): 0.5})
    alone = density({(0, 0): 1.0})
    cost = truncation(BallsInBins(4, 2, 2), 3)
    for first, second, pair, adjacency in (
        (with_x, without_x, (mixture, alone), Adjacency.REMOVE),
        (without_x, with_x, (alone, mixture), Adjacency.ADD),
    ):
        truth = divergence(first, second, epsilon, cell)
        assert truth <= divergence(*pair, epsilon, cell) + cost.delta(epsilon, adjacency) + 1e-6
    worst = density({(-3, 0): 1.0}), density({(-1, 0): 1.0})  # a full bin in which x has pushed y out: 2, not 1
    assert divergence(*worst, epsilon, cell) > divergence(density({(1, 0): 1.0}), alone, epsilon, cell)


# Size.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "megabytes"),
    [  # 6 bytes an example, or none, beside the program
        *(("BallsInBins", 800), ("StreamingBallsInBins", 150)),
        *(("RedrawnBallsInBins", 800), ("StreamingRedrawnBallsInBins", 150)),
    ],
)
def test_a_hundred_million_examples_in_little_memory(kind: str, megabytes: int) -> None:
    program = f"""
import re
from galton.batching import *
from galton.batching.randomness import Words
found = {kind}(10**8, 10**4, 10**4).open(Words("00" * 32))
found = found.of(0) if hasattr(found, "of") else found
sizes = found.starts[1:] - found.starts[:-1]
peak = re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]
print(found.starts[-1], abs(sizes - 10**4).max(), peak, str(found.members(3).dtype))
"""
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout.split()
    assert int(shown[0]) == 10**8
    assert int(shown[1]) < 6 * 100  # six standard deviations of a bin's size
    assert int(shown[2]) < megabytes * 1000
    assert shown[3] == "int32"
