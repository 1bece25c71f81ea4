"""Put pip into this interpreter's environment, from the package index, where ensurepip is missing."""

import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request


def main() -> None:
    """Fetch the newest pip wheel, check its digest, and let it install itself."""
    index = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/")
    request = urllib.request.Request(f"{index}/pip/", headers={"Accept": "application/vnd.pypi.simple.v1+json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            files = json.load(answer)["files"]
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"cannot read {index}/pip/: {error}; install Debian's python3-venv, then run make again")
    wheel = [f for f in files if f["filename"].endswith("-py3-none-any.whl") and not f.get("yanked")][-1]
    url = urllib.parse.urljoin(f"{index}/pip/", wheel["url"])
    with urllib.request.urlopen(url, timeout=180) as answer:
        body = answer.read()
    if hashlib.sha256(body).hexdigest() != wheel["hashes"]["sha256"]:
        sys.exit(f"{wheel['filename']} does not have the digest that the index gives; try again")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / wheel["filename"]
        path.write_bytes(body)
        subprocess.run([sys.executable, f"{path}/pip", "install", "--quiet", str(path)], check=True)


if __name__ == "__main__":
    main()
