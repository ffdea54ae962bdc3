"""The main program of a launched process: it runs the user's script as Python would, and ends with a sentence where
laconic refuses what the script asks for.

    python -u -m laconic.launch.script_process [-m] SCRIPT ARGUMENTS…

Nothing here imports torch before the script does, because scripts choose by environment variables how torch starts.
"""

from __future__ import annotations

import builtins
import errno
import runpy
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from traceback import extract_tb
from types import ModuleType, TracebackType
from typing import Any, NoReturn

from laconic.errors import LaconicError, WorkerLost
from laconic.liveness.detection import EXIT_LOST, EXIT_REFUSED
from laconic.values.run_config import RunConfig

_OPTIMIZERS = "torch.optim.optimizer"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def main() -> None:
    """Run the script, and end the process with an exit code that tells the launcher how."""
    sys.excepthook = _without_own_frames
    sys.meta_path.insert(0, _StepsWatched())
    try:
        _run_script(sys.argv[1:])
        _check_end()
    except LaconicError as error:
        _end(error, str(error), EXIT_LOST if isinstance(error, WorkerLost) else EXIT_REFUSED)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        *_, last = extract_tb(error.__traceback__)
        where = error.filename or f"what {last.filename} writes in line {last.lineno}"
        _end(error, f"{where} does not fit on the disk: {error.strerror}. Free some space.", EXIT_REFUSED)


def _end(error: Exception, sentence: str, code: int) -> NoReturn:
    sys.last_value = error  # as Python does for what it prints itself: those who run at exit look there
    with suppress(OSError):  # the log may be on a full disk
        sys.stdout.flush()
        print(f"laconic: {' '.join(sentence.split())}", file=sys.stderr, flush=True)
    sys.exit(code)


def _run_script(words: Sequence[str]) -> None:
    try:
        if words[0] == "-m":
            sys.argv = list(words[1:])
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = list(words)
            _run_file(Path(words[0]).absolute())
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
        _check_end()
        raise


def _run_file(path: Path) -> None:
    if not sys.flags.safe_path:
        sys.path[0] = str(path.parent)
    module = ModuleType("__main__")
    loader = SourceFileLoader("__main__", str(path))
    module.__dict__.update(__file__=str(path), __builtins__=builtins, __loader__=loader)
    sys.modules["__main__"] = module
    exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)


class _StepsWatched(MetaPathFinder):
    """Watches optimizers from the moment in which the script imports torch."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != _OPTIMIZERS:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def and_watch(module: ModuleType) -> None:
                execute(module)
                module.register_optimizer_step_pre_hook(_before_step)

            spec.loader.exec_module = and_watch  # type: ignore[method-assign]
        return spec


def _before_step(*_: Any) -> None:
    from laconic.runtime.undistributed import before_step  # torch is loaded by now

    before_step()


def _check_end() -> None:
    if _OPTIMIZERS in sys.modules or RunConfig.current().dry_run:
        from laconic.runtime.undistributed import at_end

        at_end()


def _without_own_frames(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Show a traceback that begins in the script, as if Python had started it."""
    own = {__file__, runpy.__file__, "<frozen runpy>"}
    while trace is not None and trace.tb_frame.f_code.co_filename in own:
        trace = trace.tb_next
    sys.__excepthook__(kind, error.with_traceback(trace), trace)


if __name__ == "__main__":
    main()
