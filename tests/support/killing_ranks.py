"""Ranks that are killed, stopped or cut off under torchrun, on one host and on two: the long form of `test_ranks.py`.

    python tests/support/killing_ranks.py --times 20

The others must leave in time and without saving. torchrun starts all of them again, and the run must end in the same
files, but for times, as one that nothing disturbed. Two hosts are two network namespaces with a cable between them,
which takes root.
"""

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from support.killing import differences, ending, write_texts
from transduce.storage.run_log import reports

TESTS = Path(__file__).parents[1]
TIMEOUT = 8  # seconds that a rank waits for the others
GRACE = 10  # seconds that it may take to leave after that
STEPS = 96
RECIPE = f"""
from dataclasses import replace
from support.killing import AVERAGE

def recipe():
    return replace(AVERAGE, train=replace(AVERAGE.train, max_steps={STEPS}, patience=None))
"""

# ---- torchrun ----------------------------------------------------------------------------------------------------


class Torchrun:
    """torchrun on one host, with its ranks. What they say is added to the file `said`.

    inside: how a command is run on that host.
    """

    def __init__(self, options: Sequence[str], work: Sequence[str], said: Path, inside: Sequence[str] = ()) -> None:
        paths = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
        command = [*inside, sys.executable, "-m", "torch.distributed.run", *options, *work]
        with said.open("ab") as file:
            self.process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)

    def ranks(self) -> dict[int, int]:
        """The number of the process of each rank that is alive."""
        found = {}
        for process in self._children():
            with suppress(OSError):
                rank = re.search(rb"(?:^|\0)RANK=(\d+)\0", Path(f"/proc/{process}/environ").read_bytes())
                if rank is not None:
                    found[int(rank[1])] = process
        return found

    def kill(self) -> None:
        """torchrun and its ranks, at once."""
        for process in (self.process.pid, *self._children()):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.process.wait()

    def _children(self) -> list[int]:
        with suppress(OSError):
            return [*map(int, Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split())]
        return []


class Runs:
    """Runs of the same short training with everything on that a restart could get wrong, all in one folder.

    As a context: what was started for them ends with it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0
        self.jobs: list[Torchrun] = []
        (folder / "recipe.py").write_text(RECIPE, encoding="utf-8")
        self.texts = write_texts(folder)

    def __enter__(self) -> "Runs":
        return self

    def __exit__(self, *_: object) -> None:
        for job in self.jobs:
            job.kill()

    def new(self) -> Path:
        """The folder of a run that is yet to begin."""
        self.count += 1
        return self.folder / f"run-{self.count}"

    def start(self, run: Path, options: Sequence[str], inside: Sequence[str] = ()) -> Torchrun:
        """Let torchrun begin or go on with a run."""
        words = ["-m", "transduce", "train", "--recipe", f"{self.folder / 'recipe.py'}:recipe", "--out", run]
        words += ["--train", *self.texts["train"], "--valid", *self.texts["valid"], "--resume"]
        work = [*map(str, words), "--rank-timeout", str(TIMEOUT)]
        self.jobs.append(Torchrun([*options, "--max-restarts=3"], work, said(run), inside))
        return self.jobs[-1]

    def on_one_host(self, run: Path, ranks: int) -> Torchrun:
        """All ranks here."""
        return self.start(run, ["--standalone", f"--nproc-per-node={ranks}"])


def said(run: Path) -> Path:
    """Where torchrun and the ranks of a run have said something."""
    return run.with_suffix(".said")


def wait_until(is_so: Callable[[], bool], seconds: float, what: str, run: Path) -> float:
    """How many seconds it took."""
    began_at = time.monotonic()
    while not is_so():
        assert time.monotonic() - began_at < seconds, f"after {seconds:.0f} s: {what}\n{said(run).read_text('utf-8')}"
        time.sleep(0.005)
    return time.monotonic() - began_at


def has_reached(run: Path, step: int) -> bool:
    """Whether the log of a run tells of `step`, or of a later one."""
    return any(report["step"] >= step for report in reports(run))


def all_gone(processes: Iterable[int]) -> bool:
    """Whether all of them have ended."""
    return not any(map(_is_alive, processes))


def _is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


# ---- on one host -------------------------------------------------------------------------------------------------


def undisturbed(runs: Runs, ranks: int) -> dict[str, Any]:
    """How a run ends that is left alone."""
    run = runs.new()
    job = runs.on_one_host(run, ranks)
    finish([job], run)
    return ending(run)


def disturbed(runs: Runs, expected: dict[str, Any], ranks: int, victim: int, by: signal.Signals, step: int) -> float:
    """Send a signal to one rank after a step, and see the run end as expected.

    Returns how many seconds later the others had left.
    """
    run = runs.new()
    job = runs.on_one_host(run, ranks)
    wait_until(lambda: has_reached(run, step), 300, f"no step {step} yet", run)
    processes = job.ranks()
    os.kill(processes.pop(victim), by)
    seconds = wait_until(lambda: all_gone(processes.values()), TIMEOUT + GRACE, "others are still there", run)
    finish([job], run)
    compare(run, expected, f"rank {victim} of {ranks} got {by.name} after step {step}")
    return seconds


def finish(jobs: Sequence[Torchrun], run: Path) -> None:
    """Wait until all have ended well."""
    codes = [job.process.wait(400) for job in jobs]
    assert codes == [0] * len(jobs), said(run).read_text("utf-8")


def compare(run: Path, expected: dict[str, Any], story: str) -> None:
    """See that a run has ended as expected, and remove it."""
    found = differences(ending(run), expected)
    assert not found, "\n".join([f"{story}: the run ended otherwise than one that nothing disturbed", *found])
    shutil.rmtree(run)


# ---- on two hosts ------------------------------------------------------------------------------------------------


class Hosts:
    """Two hosts with their own addresses, and a cable between them. As a context: they are there."""

    def __init__(self) -> None:
        self.names = [f"transduce-{os.getpid()}-{number}" for number in range(2)]
        self.plugs = [f"td{os.getpid()}-{number}" for number in range(2)]
        self.addresses = ["10.213.77.1", "10.213.77.2"]

    def __enter__(self) -> "Hosts":
        for name in self.names:
            ip("netns", "add", name)
        ends = [f"{plug} netns {name}" for plug, name in zip(self.plugs, self.names, strict=True)]
        ip("link", "add", *ends[0].split(), "type", "veth", "peer", *ends[1].split())
        for name, plug, address in zip(self.names, self.plugs, self.addresses, strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", plug)
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", plug, "up")
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.names:
            ip("netns", "delete", name)

    def cable(self, state: Literal["up", "down"]) -> None:
        """Pull the cable out of the second host, or put it in again. What is sent meanwhile is lost; nobody is told."""
        ip("-n", self.names[1], "link", "set", self.plugs[1], state)

    def start(self, runs: Runs, run: Path, host: int) -> Torchrun:
        """torchrun with one rank on a host. The first host is where the two meet."""
        options = ["--nnodes=2", "--nproc-per-node=1", f"--rdzv-id={run.name}", "--rdzv-backend=c10d"]
        options += [f"--rdzv-endpoint={self.addresses[0]}:29400"]
        options += [f"--rdzv-conf=is_host={str(host == 0).lower()}"]  # it looks at names, and here both have the same
        options += [f"--local-addr={self.addresses[host]}"]
        inside = ["ip", "netns", "exec", self.names[host], "env", f"GLOO_SOCKET_IFNAME={self.plugs[host]}"]
        inside.append("TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1")  # or one that comes back is not told where to go
        return runs.start(run, options, inside)


def ip(*words: str) -> None:
    """The command of this name."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"


def why_no_hosts() -> str | None:
    """What keeps this machine from having two hosts within."""
    if os.geteuid() != 0:
        return "two hosts within one machine take root"
    if shutil.which("ip") is None:
        return "two hosts within one machine take the command ip (package iproute2)"
    done = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True)
    return f"no network namespaces here: {done.stderr.strip()}" if done.returncode else None


def cut_off(runs: Runs, hosts: Hosts, expected: dict[str, Any], step: int) -> float:
    """Pull the cable after a step. Both ranks leave; when it is back, torchrun goes on by itself.

    Returns how many seconds later both had left.
    """
    run = runs.new()
    jobs = [hosts.start(runs, run, host) for host in range(2)]
    wait_until(lambda: has_reached(run, step), 300, f"no step {step} yet", run)
    processes = [process for job in jobs for process in job.ranks().values()]
    hosts.cable("down")
    seconds = wait_until(lambda: all_gone(processes), TIMEOUT + GRACE, "ranks are still there", run)
    hosts.cable("up")
    finish(jobs, run)
    compare(run, expected, f"the cable was cut after step {step}")
    return seconds


def host_lost(runs: Runs, hosts: Hosts, expected: dict[str, Any], victim: int, step: int) -> float:
    """A host loses its power after a step, and is started again when the rank of the other one has left.

    With the first host all is lost that torchrun knows: then it is started again on both.
    Returns how many seconds later the rank of the other host had left.
    """
    run = runs.new()
    jobs = [hosts.start(runs, run, host) for host in range(2)]
    wait_until(lambda: has_reached(run, step), 300, f"no step {step} yet", run)
    processes = jobs[1 - victim].ranks()
    hosts.cable("down")  # or its system would tell the other one that connections are closed
    jobs[victim].kill()
    seconds = wait_until(lambda: all_gone(processes.values()), TIMEOUT + GRACE, "the other is still there", run)
    hosts.cable("up")
    if victim == 0:
        assert jobs[1].process.wait(300) != 0, "torchrun goes on without the place where all meet"
        jobs[1] = hosts.start(runs, run, 1)
    jobs[victim] = hosts.start(runs, run, victim)
    finish(jobs, run)
    compare(run, expected, f"host {victim} was lost after step {step}")
    return seconds


# ---- the long form -----------------------------------------------------------------------------------------------


def disturb_everywhere(folder: Path, times: int, seed: int) -> Iterator[str]:
    """Two and three ranks on one host, one rank of which is killed or stopped; then two hosts. A line on each."""
    rng, began_at = random.Random(seed), time.monotonic()
    with Runs(folder) as runs:
        expected = {ranks: undisturbed(runs, ranks) for ranks in (2, 3)}
        slowest = {signal.SIGKILL: 0.0, signal.SIGSTOP: 0.0}
        for number in range(times):
            ranks, by = 2 + number % 2, (signal.SIGKILL, signal.SIGSTOP)[number // 2 % 2]
            victim, step = rng.randrange(ranks), rng.randrange(1, STEPS - 10)
            seconds = disturbed(runs, expected[ranks], ranks, victim, by, step)
            slowest[by] = max(slowest[by], seconds)
            yield f"rank {victim} of {ranks}, {by.name} after step {step}: others left after {seconds:.1f} s; equal"
        for by, seconds in slowest.items():
            yield f"{by.name}: others left after at most {seconds:.1f} s (timeout {TIMEOUT} s)"
        if reason := why_no_hosts():
            yield f"two hosts: not tried, {reason}"
            return
        with Hosts() as hosts:
            step = rng.randrange(1, STEPS - 10)
            yield f"cable cut after step {step}: left after {cut_off(runs, hosts, expected[2], step):.1f} s; equal"
            for victim in (0, 1):
                step = rng.randrange(1, STEPS - 10)
                seconds = host_lost(runs, hosts, expected[2], victim, step)
                yield f"host {victim} lost after step {step}: the other left after {seconds:.1f} s; equal"
    yield f"{time.monotonic() - began_at:.0f} s"


def main() -> None:
    """Disturb as often as the command line asks, and print what came of it. A run that ends otherwise is an error."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--times", type=int, default=20, help="ranks killed or stopped on one host")
    parser.add_argument("--seed", type=int, default=1, help="of who, and when")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for line in disturb_everywhere(Path(folder), asked.times, asked.seed):
            print(line, flush=True)


if __name__ == "__main__":
    main()
