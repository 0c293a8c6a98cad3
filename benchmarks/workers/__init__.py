"""What `benchmarks/peers.py` runs in the environment of each package: one file a package, run by `run.py`.

A file has `TASKS`, a function for each kind of cell that the package can do. Those of `check`, `epsilon`, `calibrate`
and `error` are timed as a whole and return a dictionary; that of `noise` returns a function that does one round, which
is timed over and over. `offers` says which cells a package is not asked for, and why.

All of them take and give noise as `sigma`, the standard deviation of z for clip norm 1 and the C whose first column
is `coefficients`. What a package calls a noise multiplier is converted in its file.
"""
