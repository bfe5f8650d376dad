"""The public black-box suites, against a node whose agent is tests/tck/: a2a-testbed and a2a-proof."""

from __future__ import annotations

import glob
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import httpx

from checks import Checks, wait_for
from towline import Process, free_ports, tail

HERE = Path(__file__).resolve().parent
TCK = HERE.parent.parent / "tests" / "tck"
# As many contracts of a2a-testbed 0.3.0a3 hold, beside those that its baseline names and those about what the card does not
# promise: a release of it that checks less is to be noticed.
TESTBED_PASSED = 58
TESTBED_ACCEPTED = 1
PROOF_BINDINGS = ("JSONRPC", "HTTP+JSON", "GRPC")
PROOF_SCENARIOS = 9
READY_SECONDS = 60
INSTALL_SECONDS = 180
SUITE_SECONDS = 150


class Skipped(Exception):
    """The suite cannot run here; the text says why."""


class Agent:
    """One node in memory that does what the suites ask of an agent."""

    def __init__(self, binary: Path, folder: Path) -> None:
        http, peer = free_ports(2)
        self.url = f"http://127.0.0.1:{http}"
        listen = [f"--set=node.listen.http=127.0.0.1:{http}", f"--set=node.listen.peer=127.0.0.1:{peer}"]
        command = [str(binary), "node", "--ephemeral", "-c", str(TCK / "towline.yaml"), "--exit-with-stdin", *listen]
        self.process = Process(command, folder / "suites.log")

    def __enter__(self) -> Agent:
        def ready() -> bool:
            self.process.check()
            try:
                return httpx.get(f"{self.url}/healthz", timeout=2).status_code == 200
            except httpx.HTTPError:
                return False

        wait_for("the node of the suites to be ready", READY_SECONDS, ready)
        return self

    def __exit__(self, *_) -> None:
        self.process.child.stdin.close()
        self.process.stop()


def run(command: list[str], seconds: float, **more) -> subprocess.CompletedProcess:
    options = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": seconds}
    return subprocess.run(command, **options, **more)


def newer_python() -> str:
    """A Python that a2a-testbed runs on: 3.12 or later, in PATH or under pyenv."""
    names = [f"python3.{minor}" for minor in range(12, 20)]
    candidates = [shutil.which(name) for name in names] + [sys.executable]
    candidates += sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/3.1[2-9]*/bin/python3")))
    is_new = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 12))"
    for candidate in filter(None, candidates):
        # What pyenv puts into PATH may be there and not work.
        if run([candidate, "-c", is_new], 30).returncode == 0:
            return candidate
    raise Skipped("a2a-testbed needs Python 3.12 or later, and none is in PATH or under ~/.pyenv/versions")


def testbed(binary: Path, folder: Path) -> Checks:
    checks = Checks("a2a-testbed")
    python = newer_python()
    venv, report = folder / "testbed", folder / "testbed.json"
    for step in (
        [python, "-m", "venv", str(venv)],
        [str(venv / "bin/pip"), "install", "--quiet", "--disable-pip-version-check", "-r", str(HERE / "requirements-testbed.txt")],
    ):
        done = run(step, INSTALL_SECONDS)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(step)} ended with {done.returncode}: {done.stderr}")
    with Agent(binary, folder) as agent:
        command = [str(venv / "bin/a2a-testbed"), "conformance", agent.url, "--strict", "--no-step-summary"]
        command += ["--baseline", str(TCK / "testbed.yaml"), "--report", str(report)]
        done = run(command, SUITE_SECONDS, cwd=folder)
    if not report.exists():
        raise RuntimeError(f"a2a-testbed ended with {done.returncode} and no report: {done.stdout}{done.stderr}")
    results = json.loads(report.read_text())["results"]
    by_outcome = lambda outcome: [result for result in results if result["outcome"] == outcome]
    for result in results:
        if result["outcome"] not in ("pass", "skip", "accepted"):
            checks.that(result["id"], False, f"{result['spec_section']}: {result['detail']}")
    checks.equal("contracts that hold", len(by_outcome("pass")), TESTBED_PASSED)
    checks.equal("contracts that the baseline accepts", len(by_outcome("accepted")), TESTBED_ACCEPTED)
    checks.equal("its exit code", done.returncode, 0)
    checks.passed += len(by_outcome("pass"))
    return checks


def proof(binary: Path, folder: Path) -> Checks:
    checks = Checks("a2a-proof")
    program = Path(sys.executable).parent / "a2a-proof"
    with Agent(binary, folder) as agent:
        for binding in PROOF_BINDINGS:
            command = [str(program), "run", str(TCK / "proof.yaml"), "--transport", binding, "--format", "json"]
            done = run(command, SUITE_SECONDS, env={**os.environ, "A2A_URL": agent.url})
            try:
                report = json.loads(done.stdout)
            except ValueError:
                checks.that(f"contracts over {binding} ran", False, f"{done.stdout}{done.stderr}")
                continue
            checks.that(f"the card, before {binding}", report["card"]["passed"], report["card"])
            scenarios = report["scenarios"]
            for scenario in scenarios:
                checks.that(f"{scenario['name']} ({binding})", scenario["passed"], scenario["trials"])
            checks.equal(f"contracts over {binding}", sum(one["passed"] for one in scenarios), PROOF_SCENARIOS)
        if checks.failed:
            print(f"\nlog of the node:\n{tail(agent.process.log)}")
    return checks
