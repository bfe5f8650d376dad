// A server made with the TypeScript SDK of MCP: `mcp_server.mjs PORT` over HTTP at /mcp, `mcp_server.mjs stdio` on standard input and output.
// `noop` is what `towline bench mcp` calls.
import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";

function server() {
  const made = new McpServer({ name: "ts", version: "1" });
  made.registerTool("noop", { description: "Does nothing." }, async () => ({ content: [{ type: "text", text: "done" }] }));
  return made;
}

if (process.argv[2] === "stdio") {
  await server().connect(new StdioServerTransport());
} else {
  const transports = new Map();
  const serve = async (request, response) => {
    const known = transports.get(request.headers["mcp-session-id"]);
    if (known) return known.handleRequest(request, response);
    const transport = new StreamableHTTPServerTransport({
      sessionIdGenerator: () => randomUUID(),
      onsessioninitialized: (id) => transports.set(id, transport),
    });
    await server().connect(transport);
    await transport.handleRequest(request, response);
  };
  createServer(serve).listen(Number(process.argv[2]), "127.0.0.1");
}
