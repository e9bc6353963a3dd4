"""Run the benchmarks: python -m benchmarks [NAME ...]; without names, all of them."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import platform
import sys

import benchmarks


def main(arguments: list[str] | None = None) -> int:
    known = sorted(
        item.name for item in pkgutil.iter_modules(benchmarks.__path__) if not item.name.startswith("_")
    )
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=benchmarks.__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(known)}")
    names = parser.parse_args(arguments).names
    unknown = sorted(set(names) - set(known))
    if unknown:
        parser.error(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(known)}")
    print(f"{platform.machine()}, Python {platform.python_version()}", flush=True)
    missed = 0
    for name in names or known:
        rows = importlib.import_module(f"benchmarks.{name}").rows()
        print(f"\n[{name}]\n{benchmarks.table(rows)}", flush=True)
        missed += sum(row.verdict == "MISSED" for row in rows)
    print(f"\n{missed or 'no'} target{'' if missed == 1 else 's'} missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
