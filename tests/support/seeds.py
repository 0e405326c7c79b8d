"""The seed of the random tests: another one for each commit, so that every landing tries other inputs."""

import os
import subprocess

from support.toy_task import ROOT

REQUESTS = int(os.environ.get("TRANSDUCE_REQUESTS", "5000"))  # that a slow test of the service sends


def seed_of_the_commit() -> str:
    """Return the value of `TRANSDUCE_SEED`, which repeats a run; without it the commit, or "1" outside a checkout.

    A test prints the seed, and names it when it fails.
    """
    if seed := os.environ.get("TRANSDUCE_SEED"):
        return seed
    try:
        commit = subprocess.check_output(["git", "-C", ROOT, "rev-parse", "HEAD"], text=True, stderr=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        return "1"
    return commit[:12]
