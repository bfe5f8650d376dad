"""A trace as Jaeger's query API has it, and its shape: what is the same in every run."""

from __future__ import annotations

import difflib
import itertools
import re
from collections import Counter

# Values that are the same in every run; of other attributes only the key is.
SHOWN = (
    "a2a.method.name",
    "a2a.task.state",
    "error.type",
    "gen_ai.agent.name",
    "gen_ai.operation.name",
    "http.request.method",
    "http.route",
    "mcp.method.name",
    "network.transport",
    "peer.service",
    "towline.model.simulated",
)
# Tags that Jaeger or the SDK adds.
ADDED = re.compile(r"span\.kind|otel\.|internal\.|w3c\.|error$")
# The log has a rule of its own: how often a proposal is sent on depends on who leads.
LOG = re.compile(r"raft\.propose |towline\.v1\.Peer/")
# A turn outlives the request that made it, which another node may have taken: Jaeger takes that for clocks that differ,
# and tells that it corrects nothing. The same of what the log knows in milliseconds only, and of an owner that lived.
EXPECTED = re.compile(r"clock skew adjustment disabled|Negative duration detected|duplicate span IDs")
# Lines of a difference that are shown.
MOST_LINES = 60
# Recovered spans have the milliseconds of the log.
SLACK_US = 2_000


class Span:
    def __init__(self, raw: dict, processes: dict) -> None:
        self.id, self.name = raw["spanID"], raw["operationName"]
        self.service = processes[raw["processID"]]["serviceName"]
        self.tags = {tag["key"]: tag["value"] for tag in raw["tags"]}
        self.start, self.end = raw["startTime"], raw["startTime"] + raw["duration"]
        self.warnings = raw.get("warnings") or []
        references = raw.get("references") or []
        own = [ref["spanID"] for ref in references if ref["refType"] == "CHILD_OF" and ref["traceID"] == raw["traceID"]]
        self.parent = own[0] if own else None
        self.follows = [ref["spanID"] for ref in references if ref["refType"] == "FOLLOWS_FROM"]
        named = (field["value"] for log in raw.get("logs") or [] for field in log["fields"] if field["key"] == "event")
        self.events = list(named)

    def tag(self, key: str) -> object:
        return self.tags.get(key)

    @property
    def recovered(self) -> bool:
        return self.tag("towline.span.recovered") is True

    @property
    def kind(self) -> str:
        return str(self.tags.get("span.kind", "internal"))

    def line(self) -> str:
        """What is the same of it in every run."""
        service = "node" if re.fullmatch(r"towline-[abc]", self.service) else self.service
        keys = sorted(key for key in self.tags if not ADDED.match(key) and key not in SHOWN)
        # How far a task is when its request is answered depends on who is quicker.
        varies = {"a2a.task.state"} if self.kind == "server" else set()
        values = [f"{key}={'*' if key in varies else self.tags[key]}" for key in SHOWN if key in self.tags]
        return f"{self.name} [{self.kind}] {service} | {' '.join(values)} | {' '.join(keys)} | {' '.join(sorted(set(self.events)))}".rstrip(" |")


class Trace:
    def __init__(self, raw: dict) -> None:
        spans = [Span(span, raw["processes"]) for span in raw["spans"]]
        # What an owner says itself counts before what was told for it.
        spans.sort(key=lambda span: not span.recovered)
        self.spans = {span.id: span for span in spans}
        own = Counter(span.id for span in spans if not span.recovered)
        told = Counter(span.id for span in spans if span.recovered)
        self.twice = [self.spans[id].name for counts in (own, told) for id, count in counts.items() if count > 1]
        self.services = {span.service for span in spans}
        self.roots = [span for span in spans if span.parent is None]
        self.orphans = [span for span in spans if span.parent is not None and span.parent not in self.spans]
        named = (text for span in spans for text in span.warnings)
        self.warnings = [text for text in (*(raw.get("warnings") or []), *named) if not EXPECTED.match(text)]
        self.children: dict[str | None, list[Span]] = {}
        for span in spans:
            self.children.setdefault(span.parent, []).append(span)

    def tree(self) -> str:
        """The shape: one line for each span below its parent, without the log; subtrees of the same shape are one."""

        def shapes(spans: list[Span]) -> list[tuple]:
            seen = {shape(span) for span in spans if not LOG.match(span.name)}
            return sorted(seen, key=repr)

        def shape(span: Span) -> tuple:
            return (span.line(), tuple(shapes(self.children.get(span.id, []))))

        def lines(shape: tuple, depth: int) -> list[str]:
            line, below = shape
            return ["  " * depth + line, *(text for child in below for text in lines(child, depth + 1))]

        return "".join(line + "\n" for root in shapes(self.roots) for line in lines(root, 0))

    def not_nested(self) -> list[str]:
        """Spans that begin before their parent or end after it, although it waits for them.

        A turn is not waited for by the request that made it, and a stream outlives its head; nobody waits any more for
        what a lost node had begun, nor for the answer to a proposal whose effect ended the turn that made it.
        """
        found = []
        for span in self.spans.values():
            parent = self.spans.get(span.parent or "")
            if parent is None or parent.tag("error.type") == "node_lost" or span.tag("error.type") == "node_lost":
                continue
            given_up = span.name.startswith("raft.propose ") and span.tag("towline.raft.index") is None
            served = span.name == "towline.v1.Peer/Propose" and span.kind == "server"
            follows = given_up or served or parent.kind == "server" and span.kind == "internal" and (
                span.name.startswith("invoke_agent ") or span.name == "a2a.stream"
            )
            late = span.end > parent.end + SLACK_US and not follows
            if span.start + SLACK_US < parent.start or late:
                found.append(f"{span.name} [{span.kind}] below {parent.name}: {span.start - parent.start} µs, {span.end - parent.end} µs")
        return found


def difference(expected: str, found: str) -> str:
    lines = difflib.unified_diff(expected.splitlines(), found.splitlines(), "expected", "found", lineterm="", n=1)
    return "\n".join(itertools.islice(lines, MOST_LINES))
