"""Put pip into this interpreter's environment, from the package index, where ensurepip is missing."""

import hashlib
import html.parser
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request


class _Links(html.parser.HTMLParser):
    """Collects the links of a simple index page (PEP 503), leaving out yanked files."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep the target of each anchor."""
        given = dict(attrs)
        if tag == "a" and given.get("href") and "data-yanked" not in given:
            self.found.append(str(given["href"]))


def newest_wheel(page: str) -> tuple[str, str]:
    """Return ``(link, sha256)`` of the newest final pip wheel on an index page."""
    links = _Links()
    links.feed(page)
    wheels = []
    for link in links.found:
        match = re.search(r"/pip-([0-9.]+)-py3-none-any\.whl#sha256=([0-9a-f]{64})$", link)
        if match:
            wheels.append((tuple(int(part) for part in match[1].split(".")), link, match[2]))
    if not wheels:
        raise ValueError("no pip wheel is listed there")
    _, link, digest = max(wheels)
    return link, digest


def main() -> None:
    """Fetch the newest pip wheel, check its digest, and let it install itself."""
    page = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/") + "/pip/"
    try:
        with urllib.request.urlopen(page, timeout=60) as answer:
            link, digest = newest_wheel(answer.read().decode())
        with urllib.request.urlopen(urllib.parse.urljoin(page, link), timeout=180) as answer:
            body = answer.read()
    except (OSError, ValueError) as error:
        sys.exit(f"cannot get pip from {page}: {error}; install Debian's python3-venv, then run make again")
    if hashlib.sha256(body).hexdigest() != digest:
        sys.exit(f"the pip wheel does not have the digest that {page} gives; try again")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / link.split("#")[0].rsplit("/", 1)[-1]
        path.write_bytes(body)
        subprocess.run([sys.executable, f"{path}/pip", "install", "--quiet", str(path)], check=True)


if __name__ == "__main__":
    main()
