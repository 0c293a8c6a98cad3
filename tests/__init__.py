"""The tests of galton. The processes that run them, and those that they start, share what JAX compiles."""

from pathlib import Path

from galton.programs import keep_programs

keep_programs(Path(__file__).parent.parent / "build" / "programs")
