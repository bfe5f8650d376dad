//! Certificates, SPIFFE IDs, signatures and WebSockets, against servers that look at them.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use futures::{SinkExt as _, StreamExt as _};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType};
use std::{path::Path, sync::Mutex};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_rustls::rustls::{
    RootCertStore, ServerConfig,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
    server::WebPkiClientVerifier,
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, protocol::Role},
};

use super::{
    wire::{text, tool},
    *,
};
use crate::{
    Secret,
    mcp_connection::{McpAuth, McpSecurity, McpTls, SigV4Settings},
};

const ID: &str = "spiffe://mesh.example/tools";

/// Who signs certificates, with its own.
struct Authority(Issuer<'static, KeyPair>, String, rcgen::Certificate);

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        Self(Issuer::new(params, key), certificate.pem(), certificate)
    }

    fn signed(&self, names: Vec<SanType>) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.subject_alt_names = names;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        (params.signed_by(&key, &self.0).unwrap(), key)
    }

    /// A server with a certificate for these names. It lets in who has one of this authority, and remembers whose came.
    async fn serve(&self, names: Vec<SanType>) -> (String, Arc<Mutex<Vec<Vec<u8>>>>, JoinHandle<()>) {
        install_crypto();
        let (certificate, key) = self.signed(names);
        let mut roots = RootCertStore::empty();
        roots.add(self.2.der().clone()).unwrap();
        let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build().unwrap();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = ServerConfig::builder().with_client_cert_verifier(verifier);
        let config = config.with_single_cert(vec![certificate.der().clone()], key).unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shown = Arc::new(Mutex::new(Vec::new()));
        let seen = shown.clone();
        let serving = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (acceptor, seen) = (acceptor.clone(), seen.clone());
                tokio::spawn(async move {
                    let Ok(mut stream) = acceptor.accept(stream).await else { return };
                    let peer = stream.get_ref().1.peer_certificates().unwrap()[0].to_vec();
                    seen.lock().unwrap().push(peer);
                    while let Some((_, body)) = read_request(&mut stream).await {
                        let answer = answer_to(&serde_json::from_slice(&body).unwrap_or_default());
                        if stream.write_all(answer.as_bytes()).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        (format!("https://127.0.0.1:{port}/mcp"), shown, serving)
    }

    fn write(&self, folder: &Path, identity: &(rcgen::Certificate, KeyPair)) -> McpTls {
        let path = |name: &str| folder.join(name);
        std::fs::write(path("ca.pem"), &self.1).unwrap();
        std::fs::write(path("cert.pem"), identity.0.pem()).unwrap();
        std::fs::write(path("key.pem"), identity.1.serialize_pem()).unwrap();
        McpTls { ca: Some(path("ca.pem")), identity: Some((path("cert.pem"), path("key.pem"))), spiffe_id: None }
    }
}

/// One request over a connection: its head in lower case, and its body.
async fn read_request(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> Option<(String, Vec<u8>)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap();
    let length = head.to_lowercase().lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).await.ok()?;
    Some((head, body))
}

pub(super) fn result_of(message: &Value) -> Option<Value> {
    let result = match message["method"].as_str().unwrap_or_default() {
        "initialize" => json!({ "protocolVersion": "2025-11-25", "capabilities": { "tools": {} },
            "serverInfo": { "name": "s", "version": "1" } }),
        "tools/list" => json!({ "tools": [tool("work", "Works.")] }),
        "tools/call" => text("done"),
        "server/discover" => {
            let error = json!({ "code": -32601, "message": "no such method" });
            return Some(json!({ "jsonrpc": "2.0", "id": message["id"], "error": error }));
        }
        _ => return None,
    };
    Some(json!({ "jsonrpc": "2.0", "id": message["id"], "result": result }))
}

fn answer_to(message: &Value) -> String {
    match result_of(message).map(|result| result.to_string()) {
        Some(body) => {
            format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len())
        }
        None => "HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n".to_owned(),
    }
}

fn with_tls(endpoint: &str, tls: McpTls) -> McpServerConfig {
    let security = McpSecurity { tls: Some(tls), ..McpSecurity::default() };
    McpServerConfig { security, ..McpServerConfig::new("s", McpTransport::http(endpoint)) }
}

fn loopback() -> SanType {
    SanType::IpAddress("127.0.0.1".parse().unwrap())
}

fn id(text: &str) -> SanType {
    SanType::URI(text.try_into().unwrap())
}

#[tokio::test]
async fn a_server_that_wants_a_certificate_is_shown_it_and_is_shown_the_next_one_without_a_restart() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let (endpoint, shown, serving) = authority.serve(vec![loopback()]).await;
    let first = authority.signed(vec![id("spiffe://mesh.example/towline")]);
    let tls = authority.write(folder.path(), &first);
    let handle = connected(with_tls(&endpoint, tls)).await;
    assert_eq!(call(&handle, "work").await.unwrap().text, "done");
    assert_eq!(*shown.lock().unwrap().last().unwrap(), **first.0.der());
    let second = authority.signed(vec![id("spiffe://mesh.example/towline")]);
    authority.write(folder.path(), &second);
    let replaced = async {
        while *shown.lock().unwrap().last().unwrap() != **second.0.der() {
            assert_eq!(call(&handle, "work").await.unwrap().text, "done");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(WITHIN, replaced).await.expect("the new certificate is shown");
    handle.stop().await;
    serving.abort();
}

#[tokio::test]
async fn a_server_is_known_by_its_spiffe_id_and_no_other_one_is_taken_for_it() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let ours = authority.signed(vec![id("spiffe://mesh.example/towline")]);
    let tls = || McpTls { spiffe_id: Some(ID.to_owned()), ..authority.write(folder.path(), &ours) };
    // The address is in no certificate: the ID alone counts.
    let (endpoint, _, serving) = authority.serve(vec![id(ID)]).await;
    let handle = connected(with_tls(&endpoint, tls())).await;
    assert_eq!(call(&handle, "work").await.unwrap().text, "done");
    handle.stop().await;
    serving.abort();
    for (names, says) in [
        (vec![id("spiffe://mesh.example/other"), loopback()], "spiffe://mesh.example/other, and not spiffe://mesh"),
        (vec![loopback()], "NotValidForName"),
        (vec![id(ID), id("spiffe://mesh.example/other")], "NotValidForName"),
    ] {
        let (endpoint, _, serving) = authority.serve(names).await;
        let reason = refused(with_tls(&endpoint, tls())).await;
        assert!(reason.contains(says), "{reason}");
        serving.abort();
    }
    let (endpoint, shown, serving) = Authority::new().serve(vec![id(ID)]).await;
    let reason = refused(with_tls(&endpoint, tls())).await;
    assert!(reason.contains("certificate is not good") && shown.lock().unwrap().is_empty(), "{reason}");
    serving.abort();
}

/// Why a server is not there.
async fn refused(config: McpServerConfig) -> String {
    let handle = McpHandle::spawn(config, None, "", None).await.unwrap();
    let mut published = handle.published.clone();
    let fails = published.wait_for(|now| matches!(now.phase, Phase::Waiting { .. }));
    tokio::time::timeout(WITHIN, fails).await.expect("it fails").unwrap();
    let reason = handle.status().reason.unwrap();
    handle.stop().await;
    reason
}

#[tokio::test]
async fn each_request_is_signed_and_the_secret_is_not_in_it() {
    install_crypto();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}/mcp", listener.local_addr().unwrap());
    let heads = Arc::new(Mutex::new(Vec::new()));
    let seen = heads.clone();
    let serving = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let seen = seen.clone();
            tokio::spawn(async move {
                while let Some((head, body)) = read_request(&mut stream).await {
                    seen.lock().unwrap().push(head);
                    let answer = answer_to(&serde_json::from_slice(&body).unwrap_or_default());
                    stream.write_all(answer.as_bytes()).await.unwrap();
                }
            });
        }
    });
    let settings = SigV4Settings {
        region: "eu-central-1".into(),
        service: "execute-api".into(),
        access_key: "AKID".into(),
        secret_key: Secret::new("hunter2"),
        session_token: Some(Secret::new("session")),
    };
    let security = McpSecurity { auth: McpAuth::SigV4(settings), ..McpSecurity::default() };
    let config = McpServerConfig { security, ..McpServerConfig::new("s", McpTransport::http(endpoint)) };
    let handle = connected(config).await;
    assert_eq!(call(&handle, "work").await.unwrap().text, "done");
    handle.stop().await;
    let heads = heads.lock().unwrap().clone();
    assert!(heads.len() >= 4);
    let signatures: std::collections::BTreeSet<&str> = heads
        .iter()
        .map(|head| {
            let signed = "/eu-central-1/execute-api/aws4_request, SignedHeaders=content-type;host;x-amz-date;x-amz-security-token";
            let post = !head.starts_with("POST") || head.contains(signed);
            assert!(post && head.contains("x-amz-security-token: session") && !head.contains("hunter2"), "{head}");
            head.split("Signature=").nth(1).unwrap().lines().next().unwrap()
        })
        .collect();
    assert!(signatures.len() >= 4, "each message has its own: {signatures:?}");
    serving.abort();
}

/// Takes a WebSocket, by hand.
pub(super) async fn web_socket(mut stream: TcpStream) -> (String, WebSocketStream<TcpStream>) {
    let (head, _) = read_request(&mut stream).await.unwrap();
    let key = head.lines().find_map(|line| line.strip_prefix("sec-websocket-key: ")).unwrap();
    let text = format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    let accept = STANDARD.encode(ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes()));
    let answer = format!(
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-protocol: mcp\r\nsec-websocket-accept: {accept}\r\n\r\n"
    );
    stream.write_all(answer.as_bytes()).await.unwrap();
    (head, WebSocketStream::from_raw_socket(stream, Role::Server, None).await)
}

#[tokio::test]
async fn a_server_over_a_websocket_is_called_announces_changes_and_is_called_again_after_a_loss() {
    install_crypto();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("ws://{}/mcp", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move {
        for round in 0.. {
            let (head, mut socket) = web_socket(listener.accept().await.unwrap().0).await;
            assert!(head.contains("x-key: hunter2") && head.contains("sec-websocket-protocol: mcp"), "{head}");
            while let Some(Ok(message)) = socket.next().await {
                let Message::Text(message) = message else { continue };
                let message: Value = serde_json::from_str(&message).unwrap();
                if message["method"] == "tools/call" && round == 0 {
                    break;
                }
                let ping = Message::Ping("alive".into());
                socket.send(ping).await.unwrap();
                if let Some(answer) = result_of(&message) {
                    socket.send(Message::text(answer.to_string())).await.unwrap();
                }
            }
        }
    });
    let headers = vec![("x-key".to_owned(), Secret::new("hunter2"))];
    let transport = McpTransport::Http { endpoint, headers, socket: None, legacy: false };
    let handle = connected(McpServerConfig::new("s", transport)).await;
    assert_eq!((handle.status().transport.as_str(), handle.status().push.as_deref()), ("ws", Some("live")));
    let lost = call(&handle, "work").await.unwrap_err();
    assert!(lost.may_have_happened, "{lost}");
    let again = async {
        loop {
            match call(&handle, "work").await {
                Ok(result) => return result.text,
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    };
    assert_eq!(tokio::time::timeout(WITHIN, again).await.unwrap(), "done");
    handle.stop().await;
    serving.abort();
}

#[tokio::test]
async fn what_is_no_websocket_or_says_too_much_is_no_server() {
    install_crypto();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("ws://{}/mcp", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move {
        let (mut plain, _) = listener.accept().await.unwrap();
        read_request(&mut plain).await.unwrap();
        plain.write_all(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        loop {
            let (_, mut socket) = web_socket(listener.accept().await.unwrap().0).await;
            let huge = Message::text("x".repeat(17 * 1024 * 1024));
            // It hangs up in the middle.
            let _ = socket.send(huge).await;
        }
    });
    let config = McpServerConfig::new("s", McpTransport::http(endpoint));
    let reason = refused(config.clone()).await;
    assert!(reason.contains("403"), "{reason}");
    let reason = refused(config).await;
    assert!(reason.starts_with("handshake:"), "{reason}");
    serving.abort();
}
