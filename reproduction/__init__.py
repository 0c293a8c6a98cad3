"""The tables and figures of the paper, regenerated with galton: `python -m reproduction NAME`, in a checkout only.

A recipe computes rows out of points (`points.py`), which the content cache keeps; text and picture follow from the
rows alone, so that both can be made anew from the CSV.
"""
