"""Counts what was checked, and says it in the form that ends a test run."""

from __future__ import annotations

import sys
import time


class Checks:
    """The checks of one suite. A failed one is told at once and does not stop the others."""

    def __init__(self, suite: str) -> None:
        self.suite = suite
        self.passed = 0
        self.failed = 0
        self.skipped = ""

    def skip(self, why: str) -> None:
        """The whole suite does not run."""
        self.skipped = why
        print(f"  SKIPPED {why}")
        sys.stdout.flush()

    def that(self, what: str, holds: bool, detail: object = "") -> bool:
        if holds:
            self.passed += 1
            print(f"  ok      {what}")
        else:
            self.failed += 1
            print(f"  FAILED  {what}: {detail}")
        sys.stdout.flush()
        return holds

    def equal(self, what: str, found: object, expected: object) -> bool:
        return self.that(what, found == expected, f"expected {expected!r}, found {found!r}")

    def summary(self) -> str:
        ran = f"{self.suite}: {self.passed} passed, {self.failed} failed"
        return f"{ran}, SKIPPED" if self.skipped else ran


def wait_for(what: str, seconds: float, condition):
    """Polls until the condition gives something true, and gives that back."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds} s for {what}")
        time.sleep(0.05)
