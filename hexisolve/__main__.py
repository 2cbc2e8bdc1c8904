"""``python -m hexisolve``: the shell."""

from hexisolve.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
