"""`python -m e2e.tied STRING MODULE ARGUMENTS…` runs a Python module that ends at once when its string is cut.

The string is the path of a file (cut when it vanishes), or `-` for standard input (cut when whoever holds the other end
ends, even by SIGKILL). So nothing that was started for a test or for a cluster outlives it.
"""

import os
import runpy
import sys
import threading
import time
from pathlib import Path


def wait_for_cut(string: str) -> None:
    """Returns when the string is cut."""
    if string == "-":
        os.read(0, 1)
    else:
        while Path(string).exists():
            time.sleep(0.5)


def main() -> None:
    """The command."""
    string, module, *arguments = sys.argv[1:]

    def end_when_cut() -> None:
        wait_for_cut(string)
        os._exit(1)

    threading.Thread(target=end_when_cut, daemon=True).start()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
