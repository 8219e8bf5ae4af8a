"""`python -m app.cli`, the same as the command `palimpsest`."""

from app.cli.main import main

if __name__ == "__main__":
    main()
