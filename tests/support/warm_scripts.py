"""Scripts that do and print the same after an exec and after a warm start."""

from __future__ import annotations

import textwrap
from pathlib import Path

SCRIPTS = {
    "nothing": "",
    "main": "print(__name__, __file__, __spec__, __package__, __doc__, sorted(vars()), __loader__.name)",
    "argv": "import sys; print(sys.argv, sys.orig_argv, sys.executable, sys.flags, sys.path)",
    "commandline": "print(open('/proc/self/cmdline').read().split(chr(0)), open('/proc/self/comm').read())",
    "environ": """
        import os, subprocess
        os.environ["NEW"] = "value"; del os.environ["HOME"]
        seen = {**os.environ}
        print(sorted(seen.items()))
        print(sorted(subprocess.run(["env"], capture_output=True, text=True).stdout.splitlines()))
        shown = open("/proc/self/environ").read().strip(chr(0)).split(chr(0))
        print(sorted(line for line in shown if not line.startswith("LC_CTYPE")))
    """,
    "descriptors": """
        import os
        print([os.readlink(f"/proc/self/fd/{fd}").partition(":")[0] for fd in range(3)])
    """,
    "signals": """
        import signal, faulthandler
        print([(n, signal.getsignal(n)) for n in sorted(signal.valid_signals())], signal.pthread_sigmask(0, []))
        kinds = ("SigPnd", "SigBlk", "SigIgn", "SigCgt", "Threads", "NoNew")
        print([line.split()[-1][-8:] for line in open("/proc/self/status") if line.startswith(kinds)])
        signal.signal(signal.SIGTERM, lambda *_: print("term"))
        signal.raise_signal(signal.SIGTERM)
        signal.setitimer(signal.ITIMER_REAL, 0.01); signal.signal(signal.SIGALRM, lambda *_: print("alarm"))
        signal.pause()
        print(faulthandler.is_enabled(), signal.set_wakeup_fd(-1))
    """,
    "session": """
        import os
        print(os.getpid() == os.getpgrp(), os.getppid() == os.getsid(0) == os.getpgrp(), os.nice(3), os.umask(0))
        import resource
        print([resource.getrlimit(n) for n in range(12)], open("/proc/self/oom_score_adj").read())
    """,
    "subreaper": """
        import ctypes
        seen = ctypes.c_int()
        ctypes.CDLL(None).prctl(37, ctypes.byref(seen)); print(seen.value, ctypes.CDLL(None).prctl(3))
    """,
    "threads": """
        import threading, queue
        from concurrent.futures import ThreadPoolExecutor
        print(threading.main_thread() is threading.current_thread(), threading.current_thread())
        print(threading.active_count())
        q = queue.Queue()
        threads = [threading.Thread(target=q.put, args=(i,)) for i in range(4)]
        print([t.name for t in threads])
        for t in threads: t.start()
        for t in threads: t.join()
        print(sorted(q.get() for _ in threads))
        with ThreadPoolExecutor(2) as pool: print(list(pool.map(abs, range(-3, 0))))
    """,
    "late_threads": """
        import threading, time
        def late():
            time.sleep(0.05); print("late", flush=True)
        threading.Thread(target=late).start()
        threading.Thread(target=lambda: time.sleep(60), daemon=True).start()
        print("main is over")
    """,
    "fork": """
        import multiprocessing as mp
        class Point:
            def __init__(self, x): self.x = x
        def double(p): return Point(2 * p.x)
        if __name__ == "__main__":
            with mp.get_context("fork").Pool(2) as pool: print([p.x for p in pool.map(double, [Point(1), Point(2)])])
    """,
    "spawn": """
        import multiprocessing as mp
        class Point:
            def __init__(self, x): self.x = x
        def double(p): return Point(2 * p.x), __name__
        if __name__ == "__main__":
            with mp.get_context("spawn").Pool(1) as pool: print([(p.x, n) for p, n in pool.map(double, [Point(1)])])
    """,
    "forkserver": """
        import multiprocessing as mp
        def name(_): return __name__, mp.current_process().name
        if __name__ == "__main__":
            with mp.get_context("forkserver").Pool(1) as pool: print(pool.map(name, [1]))
            print(mp.current_process(), mp.parent_process(), mp.active_children(), mp.process.ORIGINAL_DIR)
    """,
    "pickled_main": """
        import pickle, sys
        class Thing:
            def __eq__(self, other): return type(self) is type(other)
        print(pickle.loads(pickle.dumps(Thing())) == Thing(), Thing.__module__, pickle.dumps(Thing()))
        import __main__
        print(__main__.Thing is Thing, sys.modules["__main__"] is __main__)
    """,
    "atexit": """
        import atexit, logging, weakref
        class Last:
            def __del__(self): print("deleted")
        kept = Last()
        atexit.register(print, "first registered"); atexit.register(print, "last registered")
        weakref.finalize(kept, print, "finalized")
    """,
    "exit_code": "import sys; sys.exit(7)",
    "exit_text": "import sys; sys.exit('an error message')",
    "exit_none": "raise SystemExit",
    "exit_now": "import os; print('lost'); print('kept', flush=True); os._exit(9)",
    "exit_large": "import sys; sys.exit(300)",
    "exception": """
        def inner(): return 1 / 0
        def outer():
            try: inner()
            except ZeroDivisionError as error: raise ValueError("outer") from error
        outer()
    """,
    "syntax": "print('never'\n)) = 3",
    "excepthook": """
        import sys, traceback
        def hook(kind, value, trace): print("hook", kind, traceback.extract_tb(trace))
        sys.excepthook = hook
        raise RuntimeError("seen by the hook")
    """,
    "interrupt": """
        import os, signal, time, atexit
        atexit.register(print, "at exit")
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
    """,
    "killed": "import os, signal; print('up', flush=True); os.kill(os.getpid(), signal.SIGTERM)",
    "broken_pipe": """
        import subprocess
        print(subprocess.run(["bash", "-c", "yes | head -1; echo ${PIPESTATUS[0]}"], capture_output=True))
    """,
    "no_frames": """
        import inspect, sys, traceback
        def look():
            traceback.print_stack()
            return [(frame.filename, frame.function, frame.lineno) for frame in inspect.stack()]
        print(look())
        try: sys._getframe(1)
        except ValueError as error: print(error)
    """,
    "recursion": """
        import sys
        def deep(n):
            try: return deep(n + 1)
            except RecursionError: return n
        print(deep(0) > 980, sys.getrecursionlimit())
    """,
    "sys_path": """
        import sys, os
        sys.path.insert(0, os.path.join(os.path.dirname(__file__), "lib"))
        import mine
        print(mine.__file__, sys.path[:2])
    """,
    "relative_file": """
        import pathlib
        print(pathlib.Path(__file__).with_name("data.txt").read_text(), open("data.txt").read())
    """,
    "stdin": "import sys; print(repr(sys.stdin.read()), sys.stdin.isatty())",
    "streams": """
        import sys
        for s in (sys.stdin, sys.stdout, sys.stderr):
            print(s.encoding, s.errors, s.line_buffering, s.mode, s.isatty(), s.fileno())
        print("to stderr", file=sys.stderr); sys.stdout.write("no newline"); sys.stderr.write("héllo ∑")
    """,
    "big_output": "for i in range(40_000): print(i, 'x' * 40)",
    "asyncio": """
        import asyncio
        async def main():
            process = await asyncio.create_subprocess_exec("echo", "sub", stdout=-1)
            print((await process.communicate())[0], await asyncio.gather(*(asyncio.sleep(0, i) for i in range(3))))
            loop = asyncio.get_running_loop()
            print(await loop.run_in_executor(None, abs, -3))
        asyncio.run(main())
    """,
    "logging": """
        import logging, logging.config
        print(logging.root.handlers, logging.root.level)
        logging.warning("before")
        logging.config.dictConfig({"version": 1, "disable_existing_loggers": False,
            "root": {"level": "DEBUG", "handlers": ["h"]},
            "handlers": {"h": {"class": "logging.StreamHandler", "formatter": "f", "stream": "ext://sys.stdout"}},
            "formatters": {"f": {"format": "%(name)s %(message)s %(processName)s %(threadName)s %(filename)s"}}})
        logging.getLogger("asyncio").debug("after")
        print(logging.LogRecord("n", 10, "p", 1, "m", (), None).relativeCreated < 5000)
    """,
    "warnings": """
        import numpy, warnings, sys
        print(warnings.filters, sys.warnoptions)
        warnings.warn("seen once"); warnings.warn("deprecated", DeprecationWarning); warnings.warn("far", stacklevel=9)
    """,
    "locale": """
        import locale, time
        print(locale.getlocale(), locale.setlocale(locale.LC_ALL), time.tzname, locale.getpreferredencoding())
    """,
    "faulthandler": """
        import ctypes, faulthandler, numpy.random
        faulthandler.enable(); faulthandler.dump_traceback(); ctypes.string_at(0)
    """,
    "gc": """
        import gc
        print(gc.isenabled(), gc.get_threshold(), gc.get_debug())
        x = []; x.append(x); del x
        print(gc.collect() >= 1)
    """,
    "reload": """
        import importlib, json, random
        print(importlib.reload(json) is json, importlib.reload(random) is random)
    """,
    "runpy": "import runpy; print(sorted(runpy.run_path('lib/mine.py')))",
    "tempfile": "import tempfile, os; os.environ['TMPDIR'] = os.getcwd(); print(tempfile.gettempdir())",
    "unittest": """
        import unittest, sys
        class Sums(unittest.TestCase):
            def test_one(self): self.assertEqual(1 + 1, 2)
        runner = unittest.TextTestRunner(stream=open("/dev/null", "w"), verbosity=0)
        unittest.main(argv=["x"], exit=False, testRunner=runner)
        print(sys.modules["__main__"].Sums)
    """,
    "numpy": """
        import numpy as np
        np.random.seed(3); print(np.random.rand(2), np.random.default_rng(5).random(2))
        print((np.ones((300, 300)) @ np.ones((300, 300))).sum())
        import random; random.seed(3); print(random.random())
    """,
    "daemon": """
        import os, sys
        if os.fork() == 0:
            os.setsid(); print("child", flush=True); sys.exit(3)
        print("parent", os.waitstatus_to_exitcode(os.wait()[1]))
    """,
    "exec": "import os, sys; print('before', flush=True); os.execv(sys.executable, ['python', '-c', 'print(1)'])",
    "annotations": "x: int = 3\nprint(__annotations__, __builtins__.__name__)",
    "input": "input('name? ')",
    "debug": """
        import sys
        print(__debug__, sys.flags.dev_mode, sys.gettrace(), sys.getprofile(), sys.dont_write_bytecode)
    """,
}


def in_folder(folder: Path, script: str) -> Path:
    """Make a folder with a script and what scripts need."""
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "mine.py").write_text("here = 1\n")
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").write_text("print('package', __name__)\n")
    (folder / "package" / "__main__.py").write_text(
        "import sys; print(__name__, __package__, sys.argv, sys.path[0], __spec__)\n1/0\n"
    )
    (folder / "data.txt").write_text("data")
    (folder / "s.py").write_text(textwrap.dedent(script).lstrip("\n"))
    return folder
