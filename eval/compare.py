"""The command `python -m eval.compare`."""

from eval.show.compare import main

if __name__ == "__main__":
    raise SystemExit(main())
