"""Which examples take part in which round: a `Scheme` says how batches are drawn, `Batches` draws them."""

from galton.batching.balls_in_bins import BallsInBins
from galton.batching.base import Scheme
from galton.batching.batch import Batch
from galton.batching.batches import Batches
from galton.batching.order import FixedOrder, Shuffle
from galton.batching.overflow import Truncation, smallest_padded_batch_size, truncation, truncation_probability
from galton.batching.poisson import CyclicPoisson, Poisson
from galton.batching.records import ShuffledRecords, open_records, shuffle_records
from galton.batching.redrawn import RedrawnBallsInBins, StreamingRedrawnBallsInBins, stream_epochs
from galton.batching.registry import PLANNED, SCHEMES, scheme_from_json
from galton.batching.separation import MinSeparation
from galton.batching.streaming import StreamingBallsInBins, skipping, stream
from galton.batching.users import Users, group_by_user

__all__ = [
    "PLANNED",
    "SCHEMES",
    "BallsInBins",
    "Batch",
    "Batches",
    "CyclicPoisson",
    "FixedOrder",
    "MinSeparation",
    "Poisson",
    "RedrawnBallsInBins",
    "Scheme",
    "Shuffle",
    "ShuffledRecords",
    "StreamingBallsInBins",
    "StreamingRedrawnBallsInBins",
    "Truncation",
    "Users",
    "group_by_user",
    "open_records",
    "scheme_from_json",
    "shuffle_records",
    "skipping",
    "smallest_padded_batch_size",
    "stream",
    "stream_epochs",
    "truncation",
    "truncation_probability",
]
