"""The command `python -m eval.score`."""

from eval.scores.score import main

if __name__ == "__main__":
    raise SystemExit(main())
