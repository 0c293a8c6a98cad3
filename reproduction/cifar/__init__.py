"""The deep-learning experiments of the paper on CIFAR-10."""
