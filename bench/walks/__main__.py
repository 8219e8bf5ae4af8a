"""`python -m bench.walks`: print docs/walk.md, the functions that each request passes, as the code is now."""

from bench import walks

if __name__ == "__main__":
    print(walks.page(walks.take()))
