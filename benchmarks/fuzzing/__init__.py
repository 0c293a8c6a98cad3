"""Cases of `benchmarks/fuzz.py`: what is called, with which files, and how it is judged."""
