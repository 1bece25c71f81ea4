"""
The folder that is uploaded with a script: the script itself, how it is run, its environment, and its programs.

It is the counterpart of Slurm's spool: what is changed in the script after its submission does not matter, and an array
of ten thousand jobs has one copy. The environment lies in it, and so is not in the log; it is removed with the folder,
seven days after the last job that names it.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from penstock_cli.sbatch.options import SbatchError
from penstock_cli.sbatch.script import SbatchScript

COMMAND: Final = ("/bin/sh", "-c", 'exec "$PENSTOCK_CODE_DIR/bin/penstock-batch" "$@"')
"""What a job runs, with the script's name and its arguments behind it."""
PROGRAMS: Final = ("srun", "scontrol", "scancel", "squeue", "sbatch", "sacct", "sstat", "salloc", "sinfo")
_PACKAGE: Final = "penstock_batch"
_NOT_EXPORTED: Final = ("SLURM_", "SBATCH_", "SRUN_", "PENSTOCK_", "BASH_FUNC_srun")
_CREDENTIALS: Final = "PENSTOCK_CREDENTIALS"
_EXPORTED: Final = ("PENSTOCK_URL", _CREDENTIALS, "PENSTOCK_CONTEXT", "PENSTOCK_CONFIG")
_BEGINNING: Final = "import sys; sys.path.insert(0, sys.argv.pop(1)); from "
_START: Final = f"""\
#!/bin/sh
# Runs the program of a job that was submitted as a script of sbatch, by the first interpreter that will do.
for python in python3 /usr/bin/python3 "$PENSTOCK_PYTHON" /usr/libexec/platform-python; do
  if "$python" -I -c 'import sys; sys.exit(sys.version_info < (3, 7))' 2>/dev/null; then
    exec "$python" -I -c '{_BEGINNING}{_PACKAGE}.batch import main; main()' "$PENSTOCK_CODE_DIR" "$@"
  fi
done
echo "penstock: this node has no python3 (3.7 or later) that may be used; a script of sbatch needs one to be run" >&2
exit 1
"""
_PROGRAM: Final = f"""\
#!/bin/sh
exec "$PENSTOCK_BATCH_PYTHON" -I -c '{_BEGINNING}{_PACKAGE}.MODULE import main; main()' "$PENSTOCK_CODE_DIR" NAME"$@"
"""


def write(folder: Path, script: SbatchScript, plan: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    """Write the folder of a script; its plan is as :mod:`penstock_cli.sbatch.job` makes it."""
    programs = Path(__file__).parent / "node_programs"
    target = folder / _PACKAGE
    target.mkdir()
    for source in sorted(programs.glob("*.py")):
        shutil.copyfile(source, target / source.name)
    (folder / "script").mkdir()
    (folder / "script" / script.name).write_bytes(script.body)
    (folder / "plan.json").write_text(json.dumps({**plan, "script": script.name}))
    (folder / "environment.json").write_text(json.dumps(dict(environment)))
    (folder / "secret").write_text(secrets.token_hex(32))
    (folder / "bin").mkdir()
    _write_program(folder / "bin" / "penstock-batch", _START)
    for name in PROGRAMS:
        module, word = ("srun", "") if name == "srun" else ("job_control", f"{name} ")
        _write_program(folder / "bin" / name, _PROGRAM.replace("MODULE", module).replace("NAME", word))


def _write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def submitter(cwd: str, user: str) -> dict[str, str]:
    """Return what the plan says of who submits, and where."""
    return {"submit_dir": cwd, "submit_host": socket.gethostname(), "user": user}


def exported(export: str, export_file: str, environ: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """
    Return whether the whole environment is exported, as ``ALL`` or ``NONE``, and the variables that are.

    Variables of Slurm's and of Penstock's own are made anew for each job.

    Examples
    --------
    >>> exported("A,B=2", "", {"A": "1", "C": "3"})
    ('NONE', {'A': '1', 'B': '2'})
    >>> exported("ALL,B=2", "", {"A": "1", "SLURM_JOB_ID": "3"})
    ('ALL', {'A': '1', 'B': '2'})
    """
    found: dict[str, str] = {}
    names = [word.strip() for word in export.split(",") if word.strip()]
    whole = any(word.upper() == "ALL" for word in names)
    if whole:
        found |= {
            name: value for name, value in environ.items() if not name.startswith(_NOT_EXPORTED) or name in _EXPORTED
        }
        if os.path.basename(environ.get(_CREDENTIALS, "")) == _CREDENTIALS:  # a secret of the run that submits, and
            del found[_CREDENTIALS]  # its file, which nodes call by its variable, ends with that run
    for word in names:
        name, equals, value = word.partition("=")
        if name.upper() in {"ALL", "NONE", "NIL"} and not equals:
            continue
        if equals:
            found[name] = value
        elif name in environ:
            found[name] = environ[name]
    if export_file:
        try:
            found |= _of_file(Path(export_file).read_bytes())
        except OSError as error:
            raise SbatchError(f"--export-file {export_file} cannot be read ({error.strerror})") from error
    return "ALL" if whole else "NONE", found


def _of_file(body: bytes) -> dict[str, str]:
    """Return the variables of a file, as sbatch has it: ``NAME=VALUE`` with NUL bytes between them."""
    pairs = (
        os.fsdecode(entry).partition("=") for entry in body.split(b"\0" if b"\0" in body else b"\n") if entry.strip()
    )
    return {name: value for name, equals, value in pairs if equals}
