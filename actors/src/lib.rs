//! The supervision tree: dispatcher, agents, task runs, MCP connections, delegations, models.
