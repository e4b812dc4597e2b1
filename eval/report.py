"""The command `python -m eval.report`."""

from eval.show.report import main

if __name__ == "__main__":
    raise SystemExit(main())
