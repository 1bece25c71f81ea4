"""
A program in the place of an aggregator: it speaks with its agent, notes its orders, and sums nothing.

Its orders are lines in a file beside its Unix socket. Of a part that it is to hold with a copy it says at once that the
copy is whole; of one that it is to hold without, that it was measured. When a further rank comes it says so again, of
generation 1.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys

LASTED = {1: 0.0, 2: 1000.0}
"""Rank → seconds of an iteration of what is measured when it comes."""


def main() -> None:
    """Speak until the agent hangs up."""
    parser = argparse.ArgumentParser()
    for name in ("--orders", "--host", "--port", "--socket"):
        parser.add_argument(name, required=True)
    given = parser.parse_args()
    listener = socket.create_server((given.host or "127.0.0.1", int(given.port)))
    agent = socket.socket(fileno=int(given.orders))
    lines, answers = agent.makefile("r"), agent.makefile("w")  # one for both would drop what it has read ahead
    with open(f"{given.socket}.orders", "w") as orders:

        def say(**message: object) -> None:
            print(json.dumps(message), file=answers, flush=True)

        say(type="ready", port=listener.getsockname()[1])
        for line in lines:
            order = json.loads(line)
            if order["type"] == "ping":
                say(type="pong", number=order["number"], busy_s=0.5, refused={"COUNTED": 1}, received_bytes=7)
                continue
            orders.write(line)
            orders.flush()
            about = {name: order[name] for name in ("job_id", "epoch", "generation") if name in order}
            if order["type"] == "open_part" and order["how"] == "copy":
                say(type="copied", part=order["part"], step=3, copied_bytes=64, pause_s=0.25, **about)
            elif order["type"] == "open_part":
                say(type="measured", steps=20, iteration_s=0.5, costs_s={str(order["part"]): 0.1}, **about)
            elif order["type"] == "grant" and order["rank"] > 0:
                say(type="measured", generation=1, steps=20, iteration_s=LASTED[order["rank"]], costs_s={}, **about)
            elif order["type"] == "send_part" and order["part"] == 1:
                say(type="copy_failed", part=1, reason="it fails with every second part", **about)


if __name__ == "__main__":
    sys.exit(main())
