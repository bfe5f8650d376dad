"""Our MCP client for the public conformance suite: a node whose one server is that of a scenario, driven through its gateway.

Usage: mcp_suite_client.py BINARY URL, with the environment that the suite gives its clients. A question of the server is accepted
without content, so that defaults count.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import httpx

from checks import wait_for
from towline import Process, free_ports

START_SECONDS = 60
CONFIG = """
node: {{ name: client, listen: {{ http: "127.0.0.1:{port}", peer: "127.0.0.1:{peer}" }} }}
models: {{ default: {{ provider: ollama, model: none }} }}
agents: [ {{ name: reader, description: Reads., instruction: Read. }} ]
mcp:
  servers: [ {{ name: suite, endpoint: "{url}", elicitation: true }} ]
  serve: {{ federate: [ {{ server: suite, allow: ["**"], clients: [operator], prefix: false }} ] }}
"""
REVISION = "2025-11-25"


class Session:
    """A client of the gateway that has a person who accepts everything."""

    def __init__(self, url: str) -> None:
        self.url, self.headers, self.http = url, {"mcp-protocol-version": REVISION}, httpx.Client(timeout=60)
        capabilities = {"elicitation": {"form": {}}}
        named = {"name": "suite", "version": "1"}
        params = {"protocolVersion": REVISION, "capabilities": capabilities, "clientInfo": named}
        body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
        self.headers["mcp-session-id"] = self.http.post(url, json=body).headers["mcp-session-id"]

    def ask(self, method: str, params: dict) -> dict:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        with self.http.stream("POST", self.url, json=body, headers=self.headers) as answer:
            for line in answer.iter_lines():
                if "{" not in line:
                    continue
                message = json.loads(line.removeprefix("data:"))
                if message.get("method") == "elicitation/create":
                    said = {"jsonrpc": "2.0", "id": message["id"], "result": {"action": "accept", "content": {}}}
                    httpx.post(self.url, json=said, headers=self.headers, timeout=20)
                elif "method" not in message:
                    return message
        raise RuntimeError(f"{method}: no answer")


def arguments_for(schema: dict) -> dict:
    """Something for each argument that a tool needs."""
    made = {"string": "x", "number": 1, "integer": 1, "boolean": True, "object": {}, "array": []}
    properties = schema.get("properties") or {}
    return {name: made.get((properties.get(name) or {}).get("type"), "x") for name in schema.get("required") or []}


def drive(session: Session, tools: dict[str, dict]) -> None:
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    calls = [(call["name"], call.get("arguments") or {}) for call in context.get("toolCalls") or []]
    if not calls:
        calls = [(name, arguments_for(tool["inputSchema"])) for name, tool in tools.items()]
    for name, arguments in calls:
        seen = tools.get("json_schema_2020_12_tool")
        if seen and "schema" in (tools.get(name, {}).get("inputSchema", {}).get("properties") or {}):
            arguments = {"schema": seen["inputSchema"]}
        print(name, json.dumps(session.ask("tools/call", {"name": name, "arguments": arguments}))[:2_000])


def main() -> None:
    binary, url = sys.argv[1:3]
    folder = Path(tempfile.mkdtemp(prefix="towline-suite-"))
    port, peer = free_ports(2)
    (folder / "client.yaml").write_text(CONFIG.format(port=port, peer=peer, url=url))
    command = [binary, "node", "--ephemeral", "-c", str(folder / "client.yaml"), "--exit-with-stdin"]
    node = Process(command, folder / "client.log", cwd=folder)
    door = f"http://127.0.0.1:{port}"

    def ready() -> dict | None:
        node.check()
        try:
            servers = httpx.get(f"{door}/api/v1/mcp", timeout=5).json().get("servers") or []
        except (httpx.HTTPError, ValueError):
            return None
        return next((server for server in servers if server["state"] == "ready"), None)

    try:
        wait_for("the node to know its server", START_SECONDS, ready)
        session = Session(f"{door}/mcp")
        own = {"list_agents", "get_agent", "list_tasks", "get_task", "get_trace", "search_events"}
        listed = session.ask("tools/list", {})["result"]["tools"]
        drive(session, {tool["name"]: tool for tool in listed if tool["name"] not in own})
    finally:
        node.child.stdin.close()
        node.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
