//! `towline mcp-files`: a read-only file server over MCP.
