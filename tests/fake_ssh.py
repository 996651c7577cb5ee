"""An ssh without a network: every host is this machine.
Some names make it fail as the real one does."""

from __future__ import annotations

import os
import sys

FAILS = {
    "denied": "me@denied: Permission denied (publickey).",
    "closed": "ssh: connect to host closed port 22: Connection refused",
    "unknown": "Host key verification failed.",
    "nowhere": "ssh: Could not resolve hostname nowhere: Name or service not known",
}

if __name__ == "__main__":
    target, command = sys.argv[-2:]
    host = target.rpartition("@")[2]
    if host in FAILS:
        print(FAILS[host], file=sys.stderr)
        sys.exit(255)
    print("Welcome to this host! Last login: never", flush=True)  # as profiles do
    os.execvp("/bin/sh", ["sh", "-c", command])
