"""A server made with the Python SDK of MCP: `mcp_server.py PORT` over HTTP at /mcp, `mcp_server.py stdio` on standard input and output.

`noop` is what `towline bench mcp` calls. `traced` says which trace its own span belongs to, by the OpenTelemetry that the SDK has built in.
"""

from __future__ import annotations

import sys

import uvicorn
from mcp.server.mcpserver import MCPServer
from opentelemetry import trace

server = MCPServer("python", log_level="ERROR")


@server.tool()
def noop() -> str:
    """Does nothing."""
    return "done"


@server.tool()
def traced() -> str:
    """Says the trace that this call is part of."""
    return f"{trace.get_current_span().get_span_context().trace_id:032x}"


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        uvicorn.run(server.streamable_http_app(), host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
