"""Convert `pip config list` (standard input) to a pip.conf (standard output), environment settings included.

Constraints are left out: they are in a file of this machine, and a lock leaves nothing to choose. Settings of one pip
command stay with it. If a setting is both in a file and in the environment, the environment wins, as it does for pip.
"""

import ast
import sys
from configparser import RawConfigParser


def main() -> None:
    """Read `section.name='value'` lines, and write sections."""
    settings = RawConfigParser()
    settings.read_dict({"global": {}})
    pairs = [line.split("=", 1) for line in sys.stdin.read().splitlines() if "=" in line]
    for key, value in sorted(pairs, key=lambda pair: pair[0].startswith(":env:")):
        section, name = key.rsplit(".", 1)
        if name == "constraint":
            continue
        section = "global" if section == ":env:" else section
        if not settings.has_section(section):
            settings.add_section(section)
        settings.set(section, name, ast.literal_eval(value))
    settings.write(sys.stdout)


if __name__ == "__main__":
    main()
