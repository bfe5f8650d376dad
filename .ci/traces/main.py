"""Runs the demo against a real Jaeger and asks its query API what it made of the traces.

Usage: python main.py --binary target/release/towline --jaeger PATH --dir FOLDER [--write]
FOLDER has the text files that the demo surveys. --write writes the golden file of the tree in place of comparing it.
Prints each check and exits 1 if any failed.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from shape import Trace, difference

HERE = Path(__file__).resolve().parent
GOLDEN = HERE.parent.parent / "tests" / "traces" / "demo.txt"
START_SECONDS = 60
SETTLE_SECONDS = 20
DEMO_SECONDS = 180
# A machine that stands still for a second loses leases; what is looked at first is a demo in which nothing is lost.
TRIES = 3
NODES = {"towline-a", "towline-b", "towline-c"}
FILES = "towline-mcp-files"
# Spans that ended this long before a node is killed may not have left it: the delay of a batch, and what an export takes.
WINDOW_US = 500_000


class Checks:
    """Says what holds and what does not."""

    def __init__(self) -> None:
        self.failed = 0

    def __call__(self, name: str, holds: bool, detail: object = "") -> None:
        print(f"  {'ok  ' if holds else 'FAIL'} {name}" + ("" if holds else f": {detail}"), flush=True)
        self.failed += not holds


class Jaeger:
    """A Jaeger on free ports of loopback."""

    def __init__(self, binary: Path, folder: Path) -> None:
        names = ("QUERY_HTTP", "QUERY_GRPC", "OTLP_GRPC", "OTLP_HTTP")
        sockets = [socket.socket() for _ in names]
        for opened in sockets:
            opened.bind(("127.0.0.1", 0))
        self.ports = {name: opened.getsockname()[1] for name, opened in zip(names, sockets)}
        for opened in sockets:
            opened.close()
        self.log = folder / "jaeger.log"
        with self.log.open("wb") as log:
            env = {**os.environ, **{name: str(port) for name, port in self.ports.items()}}
            command = [str(binary), "--config", str(HERE / "jaeger.yaml")]
            self.child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)
        deadline = time.monotonic() + START_SECONDS
        while self.get("/api/services") is None:
            if self.child.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Jaeger did not start: {self.log.read_text()[-2000:]}")
            time.sleep(0.2)

    def get(self, path: str) -> dict | None:
        """What the query API answers; none if it does not, or has nothing."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports['QUERY_HTTP']}{path}", timeout=10) as answer:
                return json.load(answer)
        except (urllib.error.URLError, OSError):
            return None

    def trace(self, trace_id: str) -> Trace:
        """A trace, once no more spans of it come."""
        deadline, spans, since = time.monotonic() + SETTLE_SECONDS, -1, time.monotonic()
        while True:
            found = self.get(f"/api/traces/{trace_id}")
            count = len(found["data"][0]["spans"]) if found and found.get("data") else 0
            if count != spans:
                spans, since = count, time.monotonic()
            if spans > 0 and time.monotonic() - since > 2:
                return Trace(found["data"][0])
            if time.monotonic() > deadline:
                raise RuntimeError(f"Jaeger has {spans} spans of trace {trace_id}")
            time.sleep(0.2)

    def dependencies(self) -> set[tuple[str, str]]:
        """Who calls whom."""
        now = int(time.time() * 1000)
        found = self.get(f"/api/dependencies?endTs={now}&lookback=3600000") or {"data": []}
        return {(edge["parent"], edge["child"]) for edge in found["data"]}

    def stop(self) -> None:
        self.child.terminate()
        try:
            self.child.wait(10)
        except subprocess.TimeoutExpired:
            self.child.kill()


def demo(binary: Path, folder: Path, more: list[str], env: dict[str, str]) -> dict:
    command = [str(binary), "demo", "--dir", str(folder), "-o", "json", *more]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEMO_SECONDS, env={**os.environ, **env}
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def check_always(check: Checks, trace: Trace) -> None:
    """What holds of every trace of a demo."""
    check("the spans of all nodes, the caller and the tool are in one trace", trace.services >= NODES | {"towline-cli", FILES}, trace.services)
    check("no span id comes twice, but for owners that were taken for dead and lived", not trace.twice, trace.twice)
    unmarked = [span.name for span in trace.spans.values() if (span.tag("error") is True) != (span.tag("error.type") is not None)]
    check("a span is marked as an error exactly if it names the type of one", not unmarked, unmarked)
    proposals = [span for span in trace.spans.values() if span.name.startswith("raft.propose ")]
    applied = [span for span in proposals if span.tag("towline.raft.index") is not None]
    bare = [span.name for span in applied if not {"raft.committed", "raft.applied"} <= set(span.events)]
    check(f"{len(applied)} of {len(proposals)} proposals were applied, and tell when", bool(applied) and not bare, bare)
    served = [span for span in trace.spans.values() if span.name == "towline.v1.Peer/Propose" and span.kind == "server"]
    check(f"{len(served)} proposals were sent on to the leader, and say by whom", served and all(span.follows for span in served))
    outside = trace.not_nested()
    check("what is waited for lies within what waits for it", not outside, outside)


def check_quiet(check: Checks, trace: Trace, write: bool) -> None:
    """A demo in which nobody dies."""
    check("there is one root", len(trace.roots) == 1, [span.name for span in trace.roots])
    check("no span has lost its parent", not trace.orphans, [span.name for span in trace.orphans])
    check("Jaeger warns of nothing but turns that outlive their request", not trace.warnings, sorted(set(trace.warnings)))
    failed = [f"{span.name}: {span.tag('error.type')}" for span in trace.spans.values() if span.tag("error")]
    check("nothing failed", not failed, failed)
    tree = trace.tree()
    if write:
        GOLDEN.parent.mkdir(parents=True, exist_ok=True)
        GOLDEN.write_text(tree)
        return
    check(f"the tree is that of {GOLDEN.name}", tree == GOLDEN.read_text(), "\n" + difference(GOLDEN.read_text(), tree))


def check_kill(check: Checks, trace: Trace, report: dict) -> None:
    """A demo in which the owner of the survey is killed."""
    dead = f"towline-{report['kill']['name'].removeprefix('towline-')}"
    lost = [span for span in trace.spans.values() if span.tag("error.type") == "node_lost"]
    check(f"{len(lost)} spans of the node that was lost are told", bool(lost))
    check("they say who tells them", all(span.tag("towline.span.recovered") is True and span.tag("error") is True for span in lost))
    check("another node tells them", all(span.service != dead for span in lost), [span.service for span in lost])
    turns = [span for span in lost if span.name == "invoke_agent surveyor" and span.kind == "internal"]
    check("the turn of the survey is among them", len(turns) == 1, [span.name for span in lost])
    adopted = [span for span in trace.spans.values() if turns and turns[0].id in span.follows and span.name == turns[0].name]
    check("the turn that goes on is linked to it, in the same trace", len(adopted) == 1, len(adopted))
    check("both are below the same request", adopted and adopted[0].parent == turns[0].parent)
    # What had ended and was not sent yet is gone with the node; nothing else may be.
    gone_at = max((span.end for span in trace.spans.values() if span.service == dead), default=0)
    late = [span for span in trace.orphans if span.start > gone_at + WINDOW_US]
    check(f"{len(trace.orphans)} spans have lost a parent that the dead node had not sent", not late, [span.name for span in late])
    missing = {span.parent for span in trace.orphans}
    other = [text for text in trace.warnings if not any(parent in text for parent in missing)]
    check("Jaeger warns of nothing else", not other, sorted(set(other)))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", type=Path, required=True)
    parser.add_argument("--jaeger", type=Path, required=True)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    check = Checks()
    with tempfile.TemporaryDirectory(prefix="towline-traces-") as temporary:
        jaeger = Jaeger(args.jaeger, Path(temporary))
        try:
            print("a demo in which nobody dies, over gRPC:")
            grpc = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{jaeger.ports['OTLP_GRPC']}"}
            for _ in range(TRIES):
                report = demo(args.binary, args.dir, ["--no-kill", "--files", "6"], grpc)
                trace = jaeger.trace(report["trace"]["trace_id"])
                if not any(span.recovered for span in trace.spans.values()):
                    break
                print("  a node was taken for dead on a busy machine: once more")
            check_always(check, trace)
            check_quiet(check, trace, args.write)
            print("the owner of the survey is killed, over HTTP:")
            http = {
                "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{jaeger.ports['OTLP_HTTP']}",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
                "OTEL_BSP_SCHEDULE_DELAY": "20",
            }
            report = demo(args.binary, args.dir, ["--kill", "owner", "--files", "12"], http)
            trace = jaeger.trace(report["trace"]["trace_id"])
            check_always(check, trace)
            check_kill(check, trace, report)
            edges = jaeger.dependencies()
            between = {(a, b) for a, b in edges if a in NODES and b in NODES and a != b}
            check("the graph has nodes that ask nodes", bool(between), edges)
            check("the graph has nodes that ask the tool", {(a, b) for a, b in edges if a in NODES and b == FILES}, edges)
            check("the graph has the caller", any(a == "towline-cli" for a, _ in edges), edges)
        finally:
            jaeger.stop()
    print(f"traces: {'all checks passed' if not check.failed else f'{check.failed} checks failed'}")
    return 1 if check.failed else 0


if __name__ == "__main__":
    sys.exit(main())
