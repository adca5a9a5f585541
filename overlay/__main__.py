"""``python -m overlay``: the same as the command ``overlay``."""

from overlay.cli import main

if __name__ == "__main__":
    main()
