"""The command `python -m eval.selection`."""

from eval.show.selection import main

if __name__ == "__main__":
    raise SystemExit(main())
