"""A cluster of real node processes, started and joined as the README says."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import httpx

from checks import wait_for

NAMES = ("a", "b", "c")
READY_SECONDS = 60
STOP_SECONDS = 15


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on at this moment."""
    sockets = [socket.socket() for _ in range(count)]
    for opened in sockets:
        opened.bind(("127.0.0.1", 0))
    ports = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports


class Process:
    """A child that ends with this one."""

    def __init__(self, command: list[str], log: Path, env: dict[str, str] | None = None, cwd: Path | None = None) -> None:
        self.log = log
        with log.open("ab") as out:
            self.child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=out, stderr=out, cwd=cwd, env={**os.environ, **(env or {})}
            )

    def check(self) -> None:
        if self.child.poll() is not None:
            raise RuntimeError(f"{self.child.args} ended with {self.child.returncode}:\n{tail(self.log)}")

    def stop(self) -> None:
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
        try:
            self.child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()


def tail(log: Path, lines: int = 25) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


class Cluster:
    """Three nodes with the same mesh."""

    def __init__(self, binary: Path, folder: Path, mesh: str, env: dict[str, str]) -> None:
        self.binary, self.folder, self.mesh, self.env = binary, folder, mesh, env
        ports = free_ports(2 * len(NAMES))
        self.listen = {name: (ports[2 * at], ports[2 * at + 1]) for at, name in enumerate(NAMES)}
        self.nodes: dict[str, Process] = {}

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{http}" for http, _ in self.listen.values()]

    def start(self) -> None:
        for name in NAMES:
            self.configure(name)
        first, *others = NAMES
        self.towline("init", "--name", "interop", "--dir", str(self.folder / first))
        self.launch(first)
        self.wait_ready(first)
        peer = f"127.0.0.1:{self.listen[first][1]}"
        for name in others:
            token = self.towline("cluster", "join-token", "--server", self.urls[0]).strip()
            self.launch(name, ["--join", peer], {"TOWLINE_TOKEN": token})
        for name in others:
            self.wait_ready(name)
        wait_for("three voters", READY_SECONDS, self.all_vote)

    def configure(self, name: str) -> None:
        http, peer = self.listen[name]
        home = self.folder / name
        home.mkdir()
        head = f"node:\n  name: {name}\n  data: ./data\n  listen: {{ http: '127.0.0.1:{http}', peer: '127.0.0.1:{peer}' }}\n"
        (home / "towline.yaml").write_text(head + "cluster: { name: interop }\n" + self.mesh)

    def towline(self, *arguments: str) -> str:
        done = subprocess.run(
            [str(self.binary), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, **self.env},
        )
        if done.returncode != 0:
            raise RuntimeError(f"towline {' '.join(arguments)} ended with {done.returncode}: {done.stderr}")
        return done.stdout

    def launch(self, name: str, more: list[str] | None = None, env: dict[str, str] | None = None) -> None:
        home = self.folder / name
        command = [str(self.binary), "node", "-c", str(home / "towline.yaml"), "--exit-with-stdin", *(more or [])]
        self.nodes[name] = Process(command, home / "node.log", {**self.env, **(env or {})})

    def wait_ready(self, name: str) -> None:
        url = f"http://127.0.0.1:{self.listen[name][0]}/healthz"

        def ready() -> bool:
            self.nodes[name].check()
            try:
                return httpx.get(url, timeout=2).status_code == 200
            except httpx.HTTPError:
                return False

        wait_for(f"node {name} to be ready ({self.folder / name / 'node.log'})", READY_SECONDS, ready)

    def all_vote(self) -> bool:
        members = httpx.get(f"{self.urls[0]}/api/v1/cluster", timeout=5).json()["members"]
        return len(members) == len(NAMES) and all(member["voting"] for member in members)

    def tools_are_ready(self) -> bool:
        servers = [server for url in self.urls for server in httpx.get(f"{url}/api/v1/mcp", timeout=10).json()["servers"]]
        return all(server["state"] == "ready" for server in servers)

    def record(self, task_id: str) -> dict:
        """The whole record of a task, as the operator API shows it."""
        answer = httpx.get(f"{self.urls[-1]}/api/v1/tasks/{task_id}", timeout=10)
        answer.raise_for_status()
        return answer.json()

    def send(self, agent: str, text: str, node: int = 0) -> dict:
        """A blocking SendMessage without any SDK: the task."""
        import uuid

        message = {"messageId": str(uuid.uuid4()), "role": "ROLE_USER", "parts": [{"text": text}]}
        body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
        url = f"{self.urls[node]}/agents/{agent}"
        answer = httpx.post(url, json=body, headers={"A2A-Version": "1.0"}, timeout=60).json()
        if "error" in answer:
            raise RuntimeError(f"{url}: {answer['error']}")
        return answer["result"]["task"]

    def stop(self) -> None:
        for node in self.nodes.values():
            node.child.stdin.close()
        for node in self.nodes.values():
            node.stop()


def text_of(task: dict) -> str:
    """The text of all artifacts of a task in ProtoJSON."""
    artifacts = task.get("artifacts", [])
    return "".join(part.get("text", "") for artifact in artifacts for part in artifact["parts"])


def outcomes(record: dict) -> dict[str, dict]:
    """What came of each call in a task record, by the model's id of the call."""
    found = {}
    for step in record["journal"]:
        ((_, intent),) = step["intent"].items()
        if "call_id" in intent and step["ended"]:
            found[intent["call_id"]] = step["ended"]["outcome"]
    return found


def model_steps(record: dict) -> list[dict]:
    """The answers of the model in a task record."""
    answers = [step["ended"]["outcome"] for step in record["journal"] if "Model" in step["intent"] and step["ended"]]
    return [answer["Answered"] for answer in answers if "Answered" in answer]
