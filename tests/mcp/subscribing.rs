//! Subscriptions to resources of other MCP servers, through a node.

use serde_json::{Value, json};
use towline_tests::{Answer, Cluster, FakeMcp, FakeModel, Plan, Says, eventually, http_client};

use crate::client::{Listened, McpClient};

const INBOX: &str = "memo://inbox";
const HERE: &str = "towline://mcp/fake/memo://inbox";

async fn started(server: &FakeMcp, clients: &str) -> Cluster {
    let model = FakeModel::start(|_| Answer::say("Nothing.")).await;
    let mesh = model.config()
        + &format!(
            "mcp:\n  servers:\n    - {{ name: fake, endpoint: \"{}\" }}\n  serve:\n    federate:\n      \
             - {{ server: fake, allow: [], resources: [\"memo://*\"], clients: [{clients}] }}\n\
             agents:\n  - {{ name: caller, description: Calls., instruction: Call. }}\n",
            server.url()
        );
    let cluster = Cluster::start(Plan::one(mesh)).await;
    eventually("the server to be connected", async || {
        let servers = cluster.nodes[0].operator("mcp").await?;
        (servers["servers"][0]["state"] == "ready").then_some(())
    })
    .await;
    cluster
}

/// Waits for the word that a resource changed.
async fn told(stream: &mut Listened, uri: &str) -> Value {
    loop {
        let message = stream.message().await;
        if message["method"] == "notifications/resources/updated" {
            assert_eq!(message["params"]["uri"], uri, "{message}");
            return message;
        }
    }
}

/// Opens `subscriptions/listen` of a client without a session.
async fn listening(url: &str, uris: &[&str]) -> Listened {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let params = json!({ "_meta": meta, "notifications": { "resourceSubscriptions": uris } });
    let body = json!({ "jsonrpc": "2.0", "id": "mine", "method": "subscriptions/listen", "params": params });
    let request = http_client().post(format!("{url}/mcp")).header("mcp-protocol-version", "2026-07-28");
    let request = request.header("mcp-method", "subscriptions/listen");
    let answer = request.header("accept", "application/json, text/event-stream").json(&body).send().await.unwrap();
    Listened::of(answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn all_clients_of_a_resource_of_another_server_share_one_subscription_and_are_told_of_each_change() {
    let mut server = FakeMcp::start(Says::Updates, &[(INBOX, "one"), ("secret://x", "one")]);
    let cluster = started(&server, "operator").await;
    let url = cluster.nodes[0].url.clone();
    let (first, second) = (McpClient::begin(&url).await, McpClient::begin(&url).await);
    for uri in ["secret://x", "towline://mcp/fake/secret://x", "towline://mcp/fake/memo://none", "towline://mcp/none/x"]
    {
        let refused = first.ask(&url, "resources/subscribe", json!({ "uri": uri })).await;
        assert_eq!(refused["error"]["code"], -32002, "{uri}: {refused}");
    }
    let (mut one, mut two) = (first.listen(&url, None).await, second.listen(&url, None).await);
    for (client, uri) in [(&first, HERE), (&second, INBOX)] {
        let subscribed = client.ask(&url, "resources/subscribe", json!({ "uri": uri })).await;
        assert_eq!(subscribed["result"], json!({}), "{subscribed}");
    }
    let mut three = listening(&url, &[HERE, "secret://x"]).await;
    let acknowledged = three.message().await;
    assert_eq!(acknowledged["params"]["notifications"]["resourceSubscriptions"], json!([HERE]), "{acknowledged}");
    eventually("one subscription for all", async || (server.subscriptions() == 1).then_some(())).await;

    server.set(INBOX, "two");
    told(&mut one, HERE).await;
    told(&mut two, INBOX).await;
    let tagged = told(&mut three, HERE).await;
    assert_eq!(tagged["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], "mine", "{tagged}");

    // What changed while the server was away is told as well, without a word of it.
    server.stop();
    server.set(INBOX, "three");
    server.start_again();
    told(&mut one, HERE).await;
    told(&mut two, INBOX).await;

    // And what changed while a client was away, where it stands.
    let place = one.last.clone().unwrap();
    drop(one);
    server.set(INBOX, "four");
    told(&mut two, INBOX).await;
    let mut one = first.listen(&url, Some(&place)).await;
    told(&mut one, HERE).await;

    let ended = second.ask(&url, "resources/unsubscribe", json!({ "uri": INBOX })).await;
    assert_eq!(ended["result"], json!({}), "{ended}");
    drop((one, three));
    eventually("nothing to be subscribed to", async || (server.subscriptions() == 0).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_tells_nothing_is_looked_at_and_who_is_not_listed_subscribes_to_nothing() {
    let server = FakeMcp::start(Says::Nothing, &[(INBOX, "one")]);
    let cluster = started(&server, "operator").await;
    let url = cluster.nodes[0].url.clone();
    let mut stream = listening(&url, &[HERE]).await;
    stream.message().await;
    server.set(INBOX, "two");
    told(&mut stream, HERE).await;

    let others = started(&server, "\"user:ada\"").await;
    let url = others.nodes[0].url.clone();
    let client = McpClient::begin(&url).await;
    let refused = client.ask(&url, "resources/subscribe", json!({ "uri": HERE })).await;
    assert_eq!(refused["error"]["code"], -32002, "{refused}");
    let acknowledged = listening(&url, &[HERE]).await.message().await;
    assert_eq!(acknowledged["params"]["notifications"], json!({}), "{acknowledged}");
}
