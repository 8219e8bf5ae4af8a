"""The interpreter that runs the benchmarks: `make bench` prints it before their output."""

import platform
import sysconfig
from typing import Final

OPTIONS: Final = ("--enable-optimizations", "--with-lto", "--disable-gil", "--with-pydebug")
"""Options of CPython's `configure` that change its speed."""


def interpreter() -> str:
    """Return implementation, version, compiler, and the OPTIONS that it was configured with.

    Debian's packages optimize in another way, and patch installation schemes of their own into `sysconfig`.
    """
    given = sysconfig.get_config_var("CONFIG_ARGS") or ""
    options = " ".join(option for option in OPTIONS if option in given) or f"without {OPTIONS[0]}"
    made = "Debian's package" if "deb_system" in sysconfig.get_scheme_names() else f"configured {options}"
    return f"{platform.python_implementation()} {platform.python_version()}, {platform.python_compiler()}, {made}"


if __name__ == "__main__":
    print(f"{interpreter()}\n", flush=True)
