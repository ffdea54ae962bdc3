"""The process of one row of a comparison: an ordinary run whose request names the socket of its gate."""

from __future__ import annotations

import json
import sys

from laconic.errors import LaconicError
from laconic.launch.launch import exit_process, launch
from laconic.launch.request import Request


def main(text: str) -> int:
    """Run a request that a comparison serialised as JSON, and return the exit code for the shell."""
    fields = json.loads(text)
    try:
        request = Request(**{**fields, "command": tuple(fields["command"])})
        code = launch(request)
    except LaconicError as error:
        print(f"laconic: {' '.join(str(error).splitlines())}", file=sys.stderr)
        return 2
    if request.engine == "real":
        exit_process(code)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
