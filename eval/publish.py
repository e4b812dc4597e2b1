"""The command `python -m eval.publish`."""

from eval.show.publish import main

if __name__ == "__main__":
    raise SystemExit(main())
