"""`python -m galton` is the command `galton`."""

from galton.cli import main

if __name__ == "__main__":
    main()
