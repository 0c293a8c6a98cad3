"""Programs that the tests run with several devices or in several processes, which have to be set before JAX starts."""
