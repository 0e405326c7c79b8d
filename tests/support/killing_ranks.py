"""Kill, stop and disconnect ranks under torchrun, on one host and on two: the long form of `test_ranks.py`.

    cd tests && python -m support.killing_ranks --times 20

The other ranks must leave in time and without saving. torchrun restarts all ranks. The run must then end with the same
files as an undisturbed run, except for times. Two hosts are two network namespaces with a cable, which needs root.
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

from support.small_runs import differences, ending, write_texts
from transduce.storage.run_log import reports

TESTS = Path(__file__).parents[1]
TIMEOUT = 8  # seconds that a rank waits for the other ranks
GRACE = 10  # more seconds until it must have left
STEPS = 96
RECIPE = f"""
from dataclasses import replace
from support.small_runs import AVERAGE

def recipe():
    return replace(AVERAGE, train=replace(AVERAGE.train, max_steps={STEPS}, patience=None))
"""

# ---- torchrun ----------------------------------------------------------------------------------------------------


class Torchrun:
    """torchrun on one host, with its ranks. Their output is appended to the file `output`.

    prefix: the words that run a command on that host.
    """

    def __init__(self, options: Sequence[str], work: Sequence[str], output: Path, prefix: Sequence[str] = ()) -> None:
        paths = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
        command = [*prefix, sys.executable, "-m", "torch.distributed.run", *options, *work]
        with output.open("ab") as file:
            self.process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)

    def ranks(self) -> dict[int, int]:
        """Return the process id of each living rank."""
        processes = {}
        for process in self._children():
            with suppress(OSError):
                rank = re.search(rb"(?:^|\0)RANK=(\d+)\0", Path(f"/proc/{process}/environ").read_bytes())
                if rank is not None:
                    processes[int(rank[1])] = process
        return processes

    def kill(self) -> None:
        """Kill torchrun and its ranks."""
        for process in (self.process.pid, *self._children()):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.process.wait()

    def _children(self) -> list[int]:
        with suppress(OSError):
            return [*map(int, Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split())]
        return []


class Runs:
    """Runs of one short training in one folder. All options that a restart could break are on.

    As a context manager, it kills at its end all processes that it started.
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
        """Return the folder for a new run."""
        self.count += 1
        return self.folder / f"run-{self.count}"

    def start(self, run: Path, options: Sequence[str], prefix: Sequence[str] = ()) -> Torchrun:
        """Start or resume a run with torchrun."""
        words = ["-m", "transduce", "train", "--recipe", f"{self.folder / 'recipe.py'}:recipe", "--out", run]
        words += ["--train", *self.texts["train"], "--valid", *self.texts["valid"], "--resume"]
        work = [*map(str, words), "--rank-timeout", str(TIMEOUT)]
        self.jobs.append(Torchrun([*options, "--max-restarts=3"], work, output_of(run), prefix))
        return self.jobs[-1]

    def on_one_host(self, run: Path, ranks: int) -> Torchrun:
        """Start or resume a run with all ranks on this host."""
        return self.start(run, ["--standalone", f"--nproc-per-node={ranks}"])


def output_of(run: Path) -> Path:
    """Return the file with the output of torchrun and its ranks."""
    return run.with_suffix(".output")


def wait_until(is_reached: Callable[[], bool], seconds: float, problem: str, run: Path) -> float:
    """Wait for a condition and return the seconds that it took. Fails with `problem` after `seconds`."""
    started_at = time.monotonic()
    while not is_reached():
        duration = time.monotonic() - started_at
        assert duration < seconds, f"after {seconds:.0f} s: {problem}\n{output_of(run).read_text('utf-8')}"
        time.sleep(0.005)
    return time.monotonic() - started_at


def has_reached(run: Path, step: int) -> bool:
    """Return True if the log of a run has `step` or a later one."""
    return any(report["step"] >= step for report in reports(run))


def have_ended(processes: Iterable[int]) -> bool:
    """Return True if no process is alive."""
    return not any(map(_is_alive, processes))


def _is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


# ---- on one host -------------------------------------------------------------------------------------------------


def reference_ending(runs: Runs, ranks: int) -> dict[str, Any]:
    """Return the `ending` of an undisturbed run."""
    run = runs.new()
    job = runs.on_one_host(run, ranks)
    finish([job], run)
    return ending(run)


def disturb(runs: Runs, expected: dict[str, Any], ranks: int, victim: int, by: signal.Signals, step: int) -> float:
    """Send a signal to one rank after a step, and check the `ending` of the run.

    Returns the seconds until the other ranks have left.
    """
    run = runs.new()
    job = runs.on_one_host(run, ranks)
    wait_until(lambda: has_reached(run, step), 300, f"no step {step} yet", run)
    processes = job.ranks()
    os.kill(processes.pop(victim), by)
    seconds = wait_until(lambda: have_ended(processes.values()), TIMEOUT + GRACE, "other ranks still run", run)
    finish([job], run)
    compare(run, expected, f"rank {victim} of {ranks} got {by.name} after step {step}")
    return seconds


def finish(jobs: Sequence[Torchrun], run: Path) -> None:
    """Wait until all processes have ended, and check their exit codes."""
    codes = [job.process.wait(400) for job in jobs]
    assert codes == [0] * len(jobs), output_of(run).read_text("utf-8")


def compare(run: Path, expected: dict[str, Any], story: str) -> None:
    """Check the `ending` of a run, and remove the run."""
    lines = differences(ending(run), expected)
    assert not lines, "\n".join([f"{story}: the run differs from an undisturbed one", *lines])
    shutil.rmtree(run)


# ---- on two hosts ------------------------------------------------------------------------------------------------


class Hosts:
    """Two hosts with their own addresses and a cable between them, as a context manager."""

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
        """Disconnect or reconnect the second host. Packets are lost meanwhile, and neither host gets an error."""
        ip("-n", self.names[1], "link", "set", self.plugs[1], state)

    def start(self, runs: Runs, run: Path, host: int) -> Torchrun:
        """Start torchrun with one rank on a host. The rendezvous is on the first host."""
        options = ["--nnodes=2", "--nproc-per-node=1", f"--rdzv-id={run.name}", "--rdzv-backend=c10d"]
        options += [f"--rdzv-endpoint={self.addresses[0]}:29400"]
        # torchrun compares host names, which are equal here.
        options += [f"--rdzv-conf=is_host={str(host == 0).lower()}"]
        options += [f"--local-addr={self.addresses[host]}"]
        prefix = ["ip", "netns", "exec", self.names[host], "env", f"GLOO_SOCKET_IFNAME={self.plugs[host]}"]
        prefix.append("TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1")  # otherwise a restarted host has no address to connect to
        return runs.start(run, options, prefix)


def ip(*words: str) -> None:
    """Run the command `ip`."""
    process = subprocess.run(["ip", *words], capture_output=True, text=True)
    assert process.returncode == 0, f"ip {' '.join(words)}: {process.stderr}"


def why_no_hosts() -> str | None:
    """Return the reason why this machine cannot simulate two hosts; None if it can."""
    if os.geteuid() != 0:
        return "two hosts on one machine need root"
    if shutil.which("ip") is None:
        return "two hosts on one machine need the command ip (package iproute2)"
    process = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True)
    return f"no network namespaces here: {process.stderr.strip()}" if process.returncode else None


def cut_cable(runs: Runs, hosts: Hosts, expected: dict[str, Any], step: int) -> float:
    """Disconnect the hosts after a step. Both ranks leave; torchrun resumes when the cable is back.

    Returns the seconds until both have left.
    """
    run = runs.new()
    jobs = [hosts.start(runs, run, host) for host in range(2)]
    wait_until(lambda: has_reached(run, step), 300, f"no step {step} yet", run)
    processes = [process for job in jobs for process in job.ranks().values()]
    hosts.cable("down")
    seconds = wait_until(lambda: have_ended(processes), TIMEOUT + GRACE, "ranks still run", run)
    hosts.cable("up")
    finish(jobs, run)
    compare(run, expected, f"the hosts were disconnected after step {step}")
    return seconds


def lose_host(runs: Runs, hosts: Hosts, expected: dict[str, Any], victim: int, step: int) -> float:
    """Cut the power of a host after a step, and restart it when the rank of the other host has left.

    The first host has the rendezvous of torchrun, so if that host is lost, torchrun restarts on both.
    Returns the seconds until the rank of the other host has left.
    """
    run = runs.new()
    jobs = [hosts.start(runs, run, host) for host in range(2)]
    wait_until(lambda: has_reached(run, step), 300, f"no step {step} yet", run)
    processes = jobs[1 - victim].ranks()
    hosts.cable("down")  # otherwise its system would close the connections
    jobs[victim].kill()
    seconds = wait_until(lambda: have_ended(processes.values()), TIMEOUT + GRACE, "the other rank still runs", run)
    hosts.cable("up")
    if victim == 0:
        assert jobs[1].process.wait(300) != 0, "torchrun continues without its rendezvous"
        jobs[1] = hosts.start(runs, run, 1)
    jobs[victim] = hosts.start(runs, run, victim)
    finish(jobs, run)
    compare(run, expected, f"host {victim} was lost after step {step}")
    return seconds


# ---- the long form -----------------------------------------------------------------------------------------------


def disturb_everywhere(folder: Path, times: int, seed: int) -> Iterator[str]:
    """Kill or stop one of two or three ranks on one host, then disturb two hosts. Yields a line for each case."""
    rng = random.Random(seed)
    started_at = time.monotonic()
    with Runs(folder) as runs:
        expected = {ranks: reference_ending(runs, ranks) for ranks in (2, 3)}
        slowest = {signal.SIGKILL: 0.0, signal.SIGSTOP: 0.0}
        for number in range(times):
            ranks, by = 2 + number % 2, (signal.SIGKILL, signal.SIGSTOP)[number // 2 % 2]
            victim, step = rng.randrange(ranks), rng.randrange(1, STEPS - 10)
            seconds = disturb(runs, expected[ranks], ranks, victim, by, step)
            slowest[by] = max(slowest[by], seconds)
            yield f"rank {victim} of {ranks}, {by.name} after step {step}: others left after {seconds:.1f} s; equal"
        for by, seconds in slowest.items():
            yield f"{by.name}: others left after at most {seconds:.1f} s (timeout {TIMEOUT} s)"
        if reason := why_no_hosts():
            yield f"two hosts: skipped, {reason}"
            return
        with Hosts() as hosts:
            step = rng.randrange(1, STEPS - 10)
            yield f"cable cut after step {step}: left after {cut_cable(runs, hosts, expected[2], step):.1f} s; equal"
            for victim in (0, 1):
                step = rng.randrange(1, STEPS - 10)
                seconds = lose_host(runs, hosts, expected[2], victim, step)
                yield f"host {victim} lost after step {step}: the other left after {seconds:.1f} s; equal"
    yield f"{time.monotonic() - started_at:.0f} s"


def main() -> None:
    """Disturb runs as often as the command line says, and print a line for each. A run that differs is an error."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--times", type=int, default=20, help="ranks killed or stopped on one host")
    parser.add_argument("--seed", type=int, default=1, help="of ranks and steps")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for line in disturb_everywhere(Path(folder), options.times, options.seed):
            print(line, flush=True)


if __name__ == "__main__":
    main()
