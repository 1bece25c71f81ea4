"""
A real SSH server for tests, on this machine, with a login shell that talks and a home folder with a space in its path.

Its port and its keys are its own, and so are the settings of the ``ssh`` that finds it, which a program of this name
gives that stands first in ``PATH``. Of the hosts, ``desk`` and ``lathe`` are this server, and so is ``stranger``, but
its key is not known; ``locked`` takes no key of ours, and nobody listens on ``down``. On ``foreign``, one is another
user than here, where root runs this.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_SERVER: Final = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin")
_BANNER: Final = "Welcome to physics\n"
_SERVER_SETTINGS: Final = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
PidFile none
AuthorizedKeysFile {folder}/authorized_keys
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
StrictModes no
UsePAM no
PrintMotd no
AcceptEnv AS_UID
Banner {folder}/banner
ForceCommand {folder}/login_shell
"""
_LOGIN_SHELL: Final = """#!/bin/bash
export HOME={home}
cd "$HOME"
echo "Welcome to physics"
echo "Quota: 3 of 10 GiB"
if [ -n "$AS_UID" ]; then exec setpriv --reuid="$AS_UID" --clear-groups bash -c "$SSH_ORIGINAL_COMMAND"; fi
exec bash -c "$SSH_ORIGINAL_COMMAND"
"""
_CLIENT_SETTINGS: Final = """
Host stranger
  HostKeyAlias stranger
Host locked
  IdentityFile {folder}/other_key
Host foreign
  SetEnv AS_UID=54321
Host down
  Port {closed}
Host * !locked
  IdentityFile {folder}/key
Host *
  HostName 127.0.0.1
  HostKeyAlias desk
  Port {port}
  User {user}
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile /dev/null
"""


def missing() -> str:
    """Return what is not installed here of a server and its client; empty if all is."""
    if _SERVER is None:
        return "sshd"
    return next((name for name in ("ssh", "ssh-keygen") if shutil.which(name) is None), "")


class SshHost:
    """
    A server, and where its settings are.

    Attributes
    ----------
    bin : Path
        A folder with the program ``ssh`` that knows it.
    home : Path
        What its login shell takes for the user's home.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin, self.home = folder, folder / "bin", folder / "my home"
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def path(self) -> str:
        """The ``PATH`` in which its ``ssh`` comes first."""
        return f"{self.bin}:{os.environ['PATH']}"

    def up(self) -> None:
        """Start the server, and wait until it listens."""
        folder = self.folder
        for path in (self.bin, self.home):
            path.mkdir(parents=True)
        for name in ("host_key", "key", "other_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            other.bind(("127.0.0.1", 0))
            port, closed = one.getsockname()[1], other.getsockname()[1]
        words = {"folder": folder, "home": f"'{self.home}'", "user": getpass.getuser(), "port": port, "closed": closed}
        (folder / "authorized_keys").write_text((folder / "key.pub").read_text())
        (folder / "known_hosts").write_text(f"desk {(folder / 'host_key.pub').read_text()}")
        (folder / "banner").write_text(_BANNER)
        (folder / "sshd_config").write_text(_SERVER_SETTINGS.format_map(words))
        (folder / "ssh_config").write_text(_CLIENT_SETTINGS.format_map(words))
        for path, text in (
            (folder / "login_shell", _LOGIN_SHELL.format_map(words)),
            (self.bin / "ssh", f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder / "ssh_config"} "$@"\n'),
        ):
            path.write_text(text)
            path.chmod(0o755)
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # a service manager makes it elsewhere
        log = (folder / "sshd.log").open("wb")
        with log:
            self._server = subprocess.Popen([str(_SERVER), "-D", "-e", "-f", folder / "sshd_config"], stderr=log)
        for _ in range(600):
            with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
                return
            assert self._server.poll() is None, (folder / "sshd.log").read_text()
            time.sleep(0.1)
        raise AssertionError((folder / "sshd.log").read_text())

    def down(self) -> None:
        """Stop the server."""
        if self._server is not None:
            self._server.terminate()
            self._server.wait(timeout=30)


@contextlib.contextmanager
def running_host(folder: Path) -> Iterator[SshHost]:
    """Run a server on a folder of its own."""
    host = SshHost(folder)
    try:
        host.up()
        yield host
    finally:
        host.down()
