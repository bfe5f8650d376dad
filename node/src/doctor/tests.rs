//! All checks together, before the first start.

use std::net::TcpListener;

use super::*;
use crate::config::{self, Overrides};

async fn examined(text: &str) -> Report {
    let folder = tempfile::tempdir().unwrap();
    let config = config::read(text, folder.path().into(), &Overrides::default()).unwrap();
    let patient = Patient::new(Arc::new(config), None).unwrap();
    examine(&patient, |_, _| {}).await
}

fn of<'a>(report: &'a Report, area: &str, subject: &str) -> &'a Check {
    let found = report.checks.iter().find(|check| check.area == area && check.subject == subject);
    found.unwrap_or_else(|| panic!("{area} {subject} is not in {report:#?}"))
}

#[tokio::test]
async fn everything_that_a_configuration_needs_is_looked_at_and_each_failure_says_what_mends_it() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    // Nobody listens there once it is dropped.
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let report = examined(&format!(
        r#"
node: {{ name: a, listen: {{ http: "{}", peer: "127.0.0.1:0" }} }}
models:
  real: {{ provider: ollama, base_url: "http://{nobody}", model: m }}
  rules: {{ provider: scripted }}
mcp:
  servers:
    - {{ name: fs, command: [no-such-program] }}
    - {{ name: web, endpoint: "http://{nobody}/mcp" }}
agents: [ {{ name: reader, model: rules, instruction: Read. }} ]
peers: [ {{ name: legal, url: "http://{nobody}" }}, {{ name: near, url: "unix:///none/agent.sock" }} ]
telemetry: {{ otlp: "http://{nobody}", jaeger_ui: "http://{nobody}" }}
"#,
        taken.local_addr().unwrap()
    ))
    .await;
    assert!(!report.running);
    for (area, subject, says) in [
        ("port", "node.listen.http", "set node.listen.http"),
        ("model", "real", "ollama serve"),
        ("mcp", "fs", "no-such-program"),
        ("mcp", "web", "mcp.servers"),
        ("peer", "legal", "peers[].url"),
        ("peer", "near", "peers[].url"),
        ("telemetry", "OTLP", "telemetry.otlp"),
        ("telemetry", "Jaeger", "telemetry.jaeger_ui"),
    ] {
        let check = of(&report, area, subject);
        assert_eq!(check.verdict, Verdict::Fail, "{check:?}");
        assert!(check.mend.as_ref().unwrap().contains(says), "{check:?}");
    }
    for (area, subject) in [("port", "node.listen.peer"), ("model", "rules")] {
        assert_eq!(of(&report, area, subject).verdict, Verdict::Ok);
    }
    let areas: Vec<&str> = report.checks.iter().map(|check| check.area.as_str()).collect();
    let mut in_order = areas.clone();
    in_order.dedup();
    assert_eq!(in_order, ["port", "disk", "model", "mcp", "peer", "telemetry"], "whatever ended first");
}

#[tokio::test(start_paused = true)]
async fn who_hangs_does_not_hold_the_others_up() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    // Connections are taken by the kernel, and nobody answers.
    let hanging = TcpListener::bind("127.0.0.1:0").unwrap();
    let report = examined(&format!(
        "node: {{ name: a, listen: {{ http: \"127.0.0.1:0\", peer: \"127.0.0.1:0\" }} }}\n\
         models: {{ real: {{ provider: ollama, base_url: \"http://{}\", model: m }}, rules: {{ provider: scripted }} }}\n",
        hanging.local_addr().unwrap()
    ))
    .await;
    let check = of(&report, "model", "real");
    assert_eq!(check.verdict, Verdict::Fail, "{check:?}");
    assert_eq!(of(&report, "model", "rules").verdict, Verdict::Ok);
}
