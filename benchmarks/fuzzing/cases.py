"""Cases: each a pure function of the seed and its number."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.fuzzing.command_line import draw_words
from benchmarks.fuzzing.public_api import VALUES, api_calls


@dataclass(frozen=True)
class Case:
    """One call: of a command, with its words, or of a public name, with places and names of arguments that change."""

    index: int
    name: str
    words: tuple[str, ...] = ()
    changes: tuple[tuple[str, int], ...] = ()


def cases(seed: int, start: int, stop: int) -> Iterator[Case]:
    """Yields cases; each depends on the seed and its number alone. Two in five are of the command line."""
    names = sorted(api_calls())
    for index in range(start, stop):
        random_numbers = random.Random(f"{seed} {index}")
        if random_numbers.random() < 0.4:
            words = draw_words(random_numbers)
            yield Case(index, words[0] if words else "", words=tuple(words))
        else:
            name = names[random_numbers.randrange(len(names))]
            arguments = sorted(api_calls()[name])
            count = min(len(arguments), random_numbers.choice((0, 1, 1, 1, 1, 2)))
            chosen = random_numbers.sample(arguments, count)
            changes = tuple((argument, random_numbers.randrange(len(VALUES))) for argument in chosen)
            yield Case(index, name, changes=changes)
