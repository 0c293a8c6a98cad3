"""What benchmarks/training.py measures: models in JAX and PyTorch, and one worker process for each package."""
