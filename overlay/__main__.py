"""The command ``overlay``, which is ``python -m overlay`` too."""

import sys


def main() -> None:
    """Run the command line of this process and leave with its exit code.

    What it needs is imported here, so that Ctrl-C is answered from the first moment on.
    """
    try:
        from overlay.cli.run import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    main()
