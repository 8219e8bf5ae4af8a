"""Write the API's OpenAPI document: `python -m app.export FILE`."""

import json
import sys
from pathlib import Path

from app.main import create_app
from app.runtime.settings import Settings


def document() -> str:
    """Return the document as committed. No database is needed: the application connects only when it is served."""
    app = create_app(Settings(), "postgresql+asyncpg://nowhere/nothing")
    return json.dumps(app.openapi(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(document())
