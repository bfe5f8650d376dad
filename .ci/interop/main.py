"""Starts a cluster and the parts that nobody here wrote, and has them work with each other.

Usage: python main.py --binary target/release/towline --modules DIR   (DIR holds node_modules of package-lock.json)
Prints each check, a line `SUITE: N passed, N failed` per suite, and exits 1 if any failed.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import httpx

import a2a_client
import a2a_peers
import a2a_push
import mcp_door
import mcp_servers
import openai_wire
import signed_cards
import suites
from checks import Checks, wait_for
from towline import Cluster, Process, free_ports, tail

HERE = Path(__file__).resolve().parent
KEY = "interop-key"
NOTE = "Ropes are in the second drawer."
START_SECONDS = 60
# Six Node.js processes on two cores.
TOOLS_SECONDS = 120


def mesh(modules: Path, everything_port: int, python_port: int, aimock: str, notes: Path, peer_ports: list[int]) -> str:
    """What every node of the cluster runs."""
    servers = modules / "node_modules" / "@modelcontextprotocol"
    names = ("everything", "filesystem", "memory")
    everything, filesystem, memory = (servers / f"server-{name}" / "dist" / "index.js" for name in names)
    return f"""
front_door: talker
models:
  default: {{ provider: openai, base_url: "{aimock}/v1", model: gpt-interop, api_key: "{{{{secret:INTEROP_KEY}}}}" }}
mcp:
  servers:
    - {{ name: stdio, transport: stdio, command: [node, "{everything}", stdio], on_adoption: {{ "*": retry }} }}
    - {{ name: http, endpoint: "http://127.0.0.1:{everything_port}/mcp", on_adoption: {{ "*": retry }} }}
    - {{ name: files, transport: stdio, command: [node, "{filesystem}", "{notes}"], allow: ["list_*", "read_*"] }}
    - {{ name: memory, transport: stdio, command: [node, "{memory}"], env: {{ MEMORY_FILE_PATH: "{notes.parent}/memory.jsonl" }}, on_adoption: {{ "*": retry }} }}
    - {{ name: python, endpoint: "http://127.0.0.1:{python_port}/mcp", on_adoption: {{ "*": retry }} }}
agents:
  - {{ name: talker, description: Talks about ropes., instruction: Talk., ask_human: true, replicas: all }}
  - {{ name: calculator, description: Adds., instruction: Add., tools: ["stdio.*"], replicas: all }}
  - {{ name: forecaster, description: Knows the weather., instruction: Forecast., tools: ["http.*"], replicas: all }}
  - {{ name: tracer, description: Traces., instruction: Trace., tools: ["python.*", "memory.*"], replicas: all }}
  - {{ name: librarian, description: Reads notes., instruction: Read., tools: ["files.*"], replicas: all }}
  - {{ name: manager, description: Has others work., instruction: Delegate., delegates: [talker, python, javascript], replicas: all }}
peers:
  - {{ name: python, url: "http://127.0.0.1:{peer_ports[0]}" }}
  - {{ name: javascript, url: "http://127.0.0.1:{peer_ports[1]}" }}
push: {{ enabled: true, allow: [127.0.0.1] }}
cards: {{ signing_key: "file://../card.pem" }}
"""


def start_everything(modules: Path, folder: Path, port: int) -> Process:
    program = modules / "node_modules/@modelcontextprotocol/server-everything/dist/index.js"
    return Process(["node", str(program), "streamableHttp"], folder / "everything.log", {"PORT": str(port)})


def start_aimock(modules: Path, folder: Path, notes: Path, port: int) -> Process:
    fixtures = folder / "openai.json"
    fixtures.write_text((HERE / "openai.json").read_text().replace("NOTES_DIR", str(notes)))
    program = modules / "node_modules/@copilotkit/aimock/dist/cli.js"
    command = ["node", str(program), "-p", str(port), "-f", str(fixtures), "--strict", "--validate-on-load"]
    # With a key set, aimock answers 401 to whoever does not send it.
    return Process(command, folder / "aimock.log", {"AIMOCK_API_KEYS": KEY})


def wait_listening(process: Process, url: str) -> None:
    def answers() -> bool:
        process.check()
        try:
            httpx.get(url, timeout=2)
            return True
        except httpx.HTTPError:
            return False

    wait_for(f"{url} to answer", START_SECONDS, answers)


def scripts(modules: Path, folder: Path) -> Path:
    """Puts the JavaScript programs where their packages are found."""
    beside = folder / "js"
    beside.mkdir()
    for script in HERE.glob("*.mjs"):
        shutil.copy(script, beside)
    (beside / "node_modules").symlink_to(modules / "node_modules")
    return beside


def start_peers(programs: Path, folder: Path, ports: list[int]) -> list[Process]:
    python, javascript = (str(port) for port in ports)
    return [
        Process([sys.executable, str(HERE / "a2a_server.py"), python], folder / "python-peer.log"),
        Process(["node", str(programs / "a2a_server.mjs"), javascript], folder / "javascript-peer.log"),
    ]


def javascript(programs: Path, nodes: list[str]) -> Checks:
    """Runs the JavaScript client."""
    script = programs / "a2a_client.mjs"
    done = subprocess.run(["node", str(script), *nodes], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=180)
    checks = Checks("a2a-sdk-js")
    counted = re.search(r"(\d+) passed, (\d+) failed", done.stdout)
    print("\n".join(line for line in done.stdout.splitlines() if line.startswith("  ")))
    if counted:
        checks.passed, checks.failed = int(counted[1]), int(counted[2])
    else:
        checks.that("the client ran", False, done.stdout + done.stderr)
    return checks


def suite(name: str, run) -> Checks:
    """Runs one suite; what it throws is a failure like any other."""
    print(f"\n{name}")
    try:
        return run()
    except suites.Skipped as why:
        checks = Checks(re.sub(r"\W+", "-", name))
        checks.skip(str(why))
        return checks
    except Exception:  # noqa: BLE001 - the other suites are to run all the same
        checks = Checks(re.sub(r"\W+", "-", name))
        checks.that("the suite went through", False, traceback.format_exc())
        return checks


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", type=Path, required=True)
    parser.add_argument("--modules", type=Path, required=True)
    arguments = parser.parse_args()
    modules = arguments.modules.resolve()
    folder = Path(tempfile.mkdtemp(prefix="towline-interop-"))
    notes = folder / "notes"
    notes.mkdir()
    signed_cards.make_key(folder / "card.pem")
    (notes / "note.md").write_text(f"# Note\n\n{NOTE}\n")
    everything_port, python_port, aimock_port, *peer_ports = free_ports(5)
    programs = scripts(modules, folder)
    aimock = f"http://127.0.0.1:{aimock_port}"
    running: list[Process] = []
    config = mesh(modules, everything_port, python_port, aimock, notes, peer_ports)
    cluster = Cluster(arguments.binary.resolve(), folder, config, {"INTEROP_KEY": KEY})
    results: list[Checks] = []
    try:
        running.append(start_everything(modules, folder, everything_port))
        running.append(start_aimock(modules, folder, notes, aimock_port))
        running.append(Process([sys.executable, str(HERE / "mcp_server.py"), str(python_port)], folder / "python-mcp.log"))
        wait_listening(running[0], f"http://127.0.0.1:{everything_port}/")
        wait_listening(running[2], f"http://127.0.0.1:{python_port}/mcp")
        wait_listening(running[1], f"{aimock}/__aimock/journal")
        peers = start_peers(programs, folder, peer_ports)
        running.extend(peers)
        for peer, port in zip(peers, peer_ports):
            wait_listening(peer, f"http://127.0.0.1:{port}/.well-known/agent-card.json")
        cluster.start()
        wait_for("the MCP servers on every node", TOOLS_SECONDS, cluster.tools_are_ready)
        results.append(suite("OpenAI API, played by aimock", lambda: openai_wire.run(cluster, aimock, KEY)))
        results.append(suite("MCP servers", lambda: mcp_servers.run(cluster, NOTE)))
        results.append(suite("A2A client in Python", lambda: a2a_client.run(cluster.urls)))
        results.append(suite("Webhooks of the A2A client in Python", lambda: a2a_push.run(cluster.urls)))
        results.append(suite("Signed cards, verified in Python", lambda: signed_cards.run(cluster.urls)))
        results.append(suite("A2A client in JavaScript", lambda: javascript(programs, cluster.urls)))
        binary = arguments.binary.resolve()
        results.append(suite("MCP conformance suites and Inspector", lambda: mcp_door.run(binary, modules, folder)))
        results.append(suite("Contracts of a2a-proof", lambda: suites.proof(binary, folder)))
        results.append(suite("Contracts of a2a-testbed", lambda: suites.testbed(binary, folder)))
        results.append(suite("A2A servers of others as peers", lambda: a2a_peers.run(cluster, [f"http://127.0.0.1:{port}" for port in peer_ports])))
    except Exception:  # noqa: BLE001 - reported and counted below
        traceback.print_exc()
        results.append(Checks("start"))
        results[-1].failed = 1
    finally:
        cluster.stop()
        for process in running:
            process.stop()
    failed = sum(checks.failed for checks in results)
    if failed:
        for name in cluster.nodes:
            print(f"\nlog of node {name}:\n{tail(folder / name / 'node.log')}")
    shutil.rmtree(folder, ignore_errors=True)
    print()
    for checks in results:
        print(checks.summary())
    skipped = [checks for checks in results if checks.skipped]
    for checks in skipped:
        print(f"NOT RUN: {checks.suite}: {checks.skipped}")
    passed = sum(checks.passed for checks in results)
    print(f"interop: {passed} passed, {failed} failed, {len(skipped)} suite(s) skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
