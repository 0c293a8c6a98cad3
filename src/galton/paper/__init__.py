"""Tables and figures of the paper, regenerated: `galton paper NAME`."""

from galton.paper.registry import RESULTS, find_result
from galton.paper.result import Result, write_result

__all__ = ["RESULTS", "Result", "find_result", "write_result"]
