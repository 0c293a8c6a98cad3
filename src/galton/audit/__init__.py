"""Audit of a plan: attacks what really runs with worst-case canaries, and compares with what was certified."""

from galton.audit.audit import Audit, audit
from galton.audit.bound import Limit
from galton.audit.checks import Check
from galton.audit.system import RealSystem, System

__all__ = ["Audit", "Check", "Limit", "RealSystem", "System", "audit"]
