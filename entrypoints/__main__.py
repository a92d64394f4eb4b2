"""``python -m hotfire.entrypoints`` is the ``hotfire`` command."""

from hotfire.entrypoints.cli import main

if __name__ == "__main__":
    main()
