//! Mistakes of a configuration: what is written, and what is said about it.

use super::*;

const MODELS: &str = "models: { default: { provider: ollama, model: m } }\n";

fn read_with(text: &str, env: &[(&str, &str)], flags: &[(&str, &str)]) -> Result<NodeConfig, Vec<String>> {
    let own =
        |pairs: &[(&str, &str)]| pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect::<Vec<_>>();
    let overrides = Overrides { env: own(env).into_iter().collect(), flags: own(flags) };
    read(text, PathBuf::from("/nowhere"), &overrides).map_err(|mistakes| mistakes.iter().map(said).collect())
}

fn said(mistake: &Mistake) -> String {
    let at = match &mistake.at {
        Origin::File { line, column } => format!("{line}:{column}"),
        Origin::Env(name) | Origin::Flag(name) => name.clone(),
    };
    format!("{at} {}: {}", mistake.path, mistake.message)
}

/// Every mistake starts as expected, in order, and there is no other.
fn assert_mistakes(text: &str, expected: &[&str]) {
    let found = read_with(text, &[], &[]).map(|_| ()).unwrap_err();
    let matches =
        found.len() == expected.len() && found.iter().zip(expected).all(|(found, start)| found.starts_with(start));
    assert!(matches, "in:\n{text}\nexpected:\n{}\nfound:\n{}", expected.join("\n"), found.join("\n"));
}

#[test]
fn the_smallest_configuration_has_defaults_for_the_rest() {
    let config = read_with("node: { name: a }", &[], &[]).unwrap();
    assert_eq!(config.node.http.to_string(), DEFAULT_HTTP);
    assert_eq!(config.node.peer.to_string(), DEFAULT_PEER);
    assert_eq!(config.node.data, Path::new("/nowhere/data"));
    assert_eq!(config.front_door, None);
    assert_eq!(config.telemetry.otlp, None);
}

#[test]
fn a_whole_configuration_is_read() {
    let text = r#"
node: { name: a, data: ./d, listen: { http: "127.0.0.1:0", peer: "0.0.0.0:7421" }, advertise_peer: "10.0.0.1:7421", permits: 8, labels: { zone: eu-1, gpu: "yes" } }
cluster: { name: prod }
front_door: reader
models:
  default: { provider: scripted, rules: "rules: []", strict: true }
  real: { provider: openai, base_url: "https://gw.example/v1", model: gpt-x, api_key: "{{secret:K}}", timeout: 20s }
mcp:
  servers:
    - { name: fs, transport: stdio, command: [server, ./docs], env: { A: "x{{secret:K}}" }, allow: ["read_*"], on_adoption: { "read_*": retry }, trust_annotations: true, timeout: 5s, required: true }
    - { name: web, endpoint: "https://tools.example/mcp/", headers: { Authorization: "Bearer {{secret:K}}" } }
agents:
  - { name: surveyor, description: d, instruction: "Survey.", tools: ["fs.*", "w*.search"], delegates: [reader, legal], max_steps: 9, ask_human: true, tags: [x] }
  - { name: reader, model: real, instruction: "Read.", replicas: all, permits: 4, labels: { gpu: "yes" } }
peers:
  - { name: legal, url: "https://legal.example/", auth: { bearer: "{{secret:K}}" }, idempotent: true }
telemetry: { otlp: "http://127.0.0.1:4317", service_name: towline-a }
"#;
    let config = read_with(text, &[("K", "hunter2")], &[]).unwrap();
    assert_eq!(config.front_door.unwrap().as_str(), "reader");
    assert_eq!(config.cluster.as_deref(), Some("prod"));
    assert_eq!(config.certificate_life, towline_cluster::CERTIFICATE_LIFE);
    assert_eq!(config.mesh.permits, 8);
    assert_eq!(config.node.labels.len(), 2);
    assert_eq!(config.node.labels["zone"], "eu-1");
    assert!(config.mesh.agents[0].labels.is_empty());
    assert_eq!(config.mesh.agents[1].spec().labels["gpu"], "yes");
    let real = &config.mesh.models["real"];
    assert_eq!(real.api_key.as_ref().unwrap().expose(), "hunter2");
    assert_eq!(real.timeouts.total.as_secs(), 20);
    let towline_actors::McpTransport::Stdio { env, cwd, .. } = &config.mesh.servers[0].transport else { panic!() };
    assert_eq!(env["A"], "xhunter2");
    assert_eq!(cwd.as_deref(), Some(Path::new("/nowhere")));
    let towline_actors::McpTransport::Http { endpoint, headers, .. } = &config.mesh.servers[1].transport else {
        panic!()
    };
    assert_eq!(endpoint, "https://tools.example/mcp");
    assert_eq!(headers[0].1.expose(), "Bearer hunter2");
    assert_eq!(config.mesh.agents[1].placement, towline_core::Placement::EveryNode);
    assert_eq!(config.mesh.peers[0].urls, ["https://legal.example"]);
}

#[test]
fn a_server_says_how_it_is_reached_and_how_much_is_asked_of_it() {
    let text = r#"
node: { name: a }
models: { default: { provider: ollama, model: m } }
mcp:
  servers:
    - { name: bare, endpoint: "http://127.0.0.1:1/mcp" }
    - { name: slow, endpoint: "http://127.0.0.1:1/sse", transport: sse, timeout: 10m }
    - { name: side, endpoint: "http://localhost/mcp", socket: run/mcp.sock, idle_timeout: 5s, max_calls: 2, elicitation: true, on_change: block }
agents: [ { name: reader, instruction: Read., resources: ["s*"] } ]
"#;
    let config = read_with(text, &[], &[]).unwrap().mesh;
    let of = |at: usize| (&config.servers[at], config.servers[at].transport.kind());
    let (bare, kind) = of(0);
    assert_eq!((kind, bare.call_timeout.as_secs(), bare.idle_timeout.as_secs(), bare.max_calls), ("http", 300, 30, 32));
    assert_eq!((bare.elicitation, bare.on_change), (false, towline_actors::OnChange::Flag));
    let (slow, kind) = of(1);
    assert_eq!((kind, slow.call_timeout.as_secs(), slow.idle_timeout.as_secs()), ("sse", 600, 600));
    let (side, kind) = of(2);
    assert_eq!((kind, side.call_timeout.as_secs(), side.idle_timeout.as_secs(), side.max_calls), ("unix", 300, 5, 2));
    assert_eq!((side.elicitation, side.on_change), (true, towline_actors::OnChange::Block));
    let towline_actors::McpTransport::Http { socket, .. } = &side.transport else { panic!() };
    assert_eq!(socket.as_deref(), Some(Path::new("/nowhere/run/mcp.sock")));
    assert_eq!(config.agents[0].resources, ["s*"]);
    assert_mistakes(
        &text.replace("block", "stop").replace("name: bare", "name: resource").replace("\"s*\"", "tickets"),
        &[
            "6:7 mcp.servers[0]: a server may not be called \"resource\"",
            "8:139 mcp.servers[2].on_change: \"stop\" is not known",
            "9:59 agents[0].resources[0]: server \"tickets\" is not declared",
        ],
    );
}

#[test]
fn every_mistake_is_reported_at_once_with_its_path_and_place() {
    let text = "\
node:
  nmae: a
  listen: { http: 0.0.0.0:7420 }
modles: {}
agents:
  - name: reader
    instruction: Read.
    tools: [sf.read]
  - name: reader
    model: defualt
    instruction: file://gone.md
    replicas: some
mcp: { servers: [ { name: fs, command: [x], timeout: soon } ] }
models: { default: { provider: ollama, model: m } }
";
    assert_mistakes(
        text,
        &[
            "2:3 node: name is missing",
            "2:3 node.nmae: is not a setting; did you mean \"name\"?",
            "3:19 node.listen.http: 0.0.0.0:7420 is not on loopback",
            "4:1 modles: is not a setting; did you mean \"models\"?",
            "8:13 agents[0].tools[0]: server \"sf\" is not declared in mcp.servers; did you mean \"fs\"?",
            "9:5 agents[1]: agent \"reader\" is declared twice",
            "10:12 agents[1].model: model \"defualt\" is not declared in models; did you mean \"default\"?",
            "11:18 agents[1].instruction: file /nowhere/gone.md",
            "12:15 agents[1].replicas: expected a number of nodes, or all",
            "13:54 mcp.servers[0].timeout: \"soon\" is no duration",
        ],
    );
}

#[test]
fn each_kind_of_mistake_is_said_in_words() {
    let table: &[(&str, &str)] = &[
        ("[]", "1:1 : expected a mapping, found a list"),
        ("node: { name: a", "2:1 : not valid YAML"),
        ("node: { name: a }\nnode: { name: b }", "2:1 : not valid YAML: duplicated key"),
        ("node: { name: a }\n---\nnode: { name: b }", "3:1 : has more than one document"),
        ("cluster: { name: x }", "1:1 : node is missing"),
        ("node: { name: 7 }", "1:15 node.name: expected text (put it in quotes), found a number"),
        ("node: { name: a b }", "1:15 node.name: \"a b\" may have letters, digits"),
        ("node: { name: a, labels: { gpu: true } }", "1:33 node.labels[\"gpu\"]: expected text"),
        ("node: { name: a, labels: { zone: \"a b\" } }", "1:34 node.labels[\"zone\"]: may have 1 to 63 letters"),
        ("node: { name: a, permits: 0 }", "1:27 node.permits: 0 is out of range: 1 to"),
        ("node: { name: a, permits: many }", "1:27 node.permits: expected a whole number"),
        ("node: { name: a, listen: { http: 'x:1' } }", "1:34 node.listen.http: \"x:1\" is no address"),
        (
            "node: { name: a, listen: { http: '127.0.0.1:1', peer: '127.0.0.1:1' } }",
            "1:26 node.listen: http and peer are both",
        ),
        ("node: { name: a, listen: { peer: '0.0.0.0:1' } }", "1:7 node: advertise_peer is missing"),
        ("node: { name: a, advertise_peer: 'http://x' }", "1:34 node.advertise_peer: \"http://x\" is no address"),
        ("node: { name: a, public_url: x }", "1:30 node.public_url: \"x\" is no URL"),
        ("node: { name: a }\nfront_door: x", "2:13 front_door: agent \"x\" is not declared; there is none"),
        (
            "node: { name: a }\nmodels: { m: { provider: opnai } }",
            "2:26 models[\"m\"].provider: provider \"opnai\" is not known; did you mean \"openai\"?",
        ),
        (
            "node: { name: a }\nmodels: { m: { provider: openai, model: x } }",
            "2:14 models[\"m\"]: api_key is missing: write api_key: \"{{secret:OPENAI_API_KEY}}\"",
        ),
        (
            "node: { name: a }\nmodels: { m: { provider: openai, model: x, api_key: sk-1 } }",
            "2:53 models[\"m\"].api_key: is written out",
        ),
        (
            "node: { name: a }\nmodels: { m: { provider: openai, model: x, api_key: '{{secret:GONE}}' } }",
            "2:53 models[\"m\"].api_key: secret GONE is not there: set the environment variable GONE",
        ),
        (
            "node: { name: a }\nmodels: { m: { provider: openai, model: x, base_url: 'http://h.example', api_key: '{{secret:K}}' } }",
            "2:54 models[\"m\"].base_url: is not https",
        ),
        (
            "node: { name: a }\nmodels: { m: { provider: scripted, strict: true } }",
            "2:44 models[\"m\"].strict: rules is missing",
        ),
        (
            "node: { name: a }\nmodels: { m: { provider: scripted, rules: 'rules: [ { nope: 1 } ]' } }",
            "2:43 models[\"m\"].rules: rules line",
        ),
        (
            "node: { name: a }\nmcp: { servers: [ { name: fs } ] }",
            "2:19 mcp.servers[0]: command or endpoint is missing",
        ),
        (
            "node: { name: a }\nmcp: { servers: [ { name: fs, command: [x], endpoint: 'http://h' } ] }",
            "2:19 mcp.servers[0]: has command and endpoint",
        ),
        (
            "node: { name: a }\nmcp: { servers: [ { name: f.s, command: [x] } ] }",
            "2:27 mcp.servers[0].name: \"f.s\" may have letters",
        ),
        (
            "node: { name: a }\nmcp: { servers: [ { name: fs, command: [x], allow: ['read_['] } ] }",
            "2:53 mcp.servers[0].allow[0]: glob \"read_[\" has a bracket",
        ),
        (
            "node: { name: a }\nmcp: { servers: [ { name: fs, command: [x], on_adoption: { x: rety } } ] }",
            "2:63 mcp.servers[0].on_adoption[\"x\"]: \"rety\" is not known; did you mean \"retry\"?",
        ),
        ("node: { name: a }\npeers: [ { name: p, url: ftp://x } ]", "2:26 peers[0].url: \"ftp://x\" is no URL"),
        (
            "node: { name: a }\npeers: [ { name: p, url: 'http://x.example', auth: { bearer: '{{secret:K}}' } } ]",
            "2:26 peers[0].url: is not https",
        ),
        (
            "node: { name: a }\ntelemetry: { otlp: 'localhost:4317' }",
            "2:20 telemetry.otlp: \"localhost:4317\" is no URL",
        ),
        ("node: { name: a }\ntelemetry: { sample: 1.5 }", "2:22 telemetry.sample: expected a number from 0 to 1"),
        (
            "node: { name: a }\ntelemetry: { protocol: http/json }",
            "2:24 telemetry.protocol: \"http/json\" is no protocol",
        ),
        (
            "node: { name: a }\ntelemetry: { content: all }",
            "2:23 telemetry.content: \"all\" is not how content is captured",
        ),
    ];
    for (text, expected) in table {
        let found = read_with(text, &[("K", "k")], &[]).map(|_| ()).unwrap_err();
        assert!(
            found.len() == 1 && found[0].starts_with(expected),
            "in:\n{text}\nexpected:\n{expected}\nfound:\n{}",
            found.join("\n")
        );
    }
}

#[test]
fn agents_may_refer_only_to_what_is_declared() {
    let agent =
        |rest: &str| format!("node: {{ name: a }}\n{MODELS}agents: [ {{ name: x, instruction: i, {rest} }} ]\n");
    for (rest, expected) in [
        ("delegates: [y]", "3:50 agents[0].delegates[0]: \"y\" is neither an agent nor a peer; did you mean \"x\"?"),
        ("tools: [read]", "3:46 agents[0].tools[0]: \"read\" names no server"),
        ("tools: [fs.read]", "3:46 agents[0].tools[0]: server \"fs\" is not declared in mcp.servers; there is none"),
        ("model: other", "3:45 agents[0].model: model \"other\" is not declared in models; known: default"),
        ("max_steps: 0", "3:49 agents[0].max_steps: 0 is out of range"),
        ("replicas: 0", "3:48 agents[0].replicas: 0 is out of range"),
    ] {
        assert_mistakes(&agent(rest), &[expected]);
    }
}

#[test]
fn the_environment_lies_over_the_file_and_the_command_line_over_both() {
    let text = "node: { name: a, permits: 2, listen: { http: '127.0.0.1:1' } }";
    let env =
        [("TOWLINE_NODE__PERMITS", "3"), ("TOWLINE_NODE__LISTEN__HTTP", "127.0.0.1:5"), ("TOWLINE_SERVER", "ignored")];
    let config = read_with(text, &env, &[("node.permits", "4")]).unwrap();
    assert_eq!(config.node.http.port(), 5);
    assert_eq!(config.node.permits, 4);
}

#[test]
fn a_mistake_from_outside_names_the_variable_or_the_flag() {
    let found = read_with(
        "node: { name: a }",
        &[("TOWLINE_NODE__LISTN", "x"), ("TOWLINE_NODE__LISTEN__HTTP", "0.0.0.0:1")],
        &[("node.permits", "no")],
    );
    let found = found.map(|_| ()).unwrap_err();
    assert!(
        found[0].starts_with("TOWLINE_NODE__LISTEN__HTTP node.listen.http: 0.0.0.0:1 is not on loopback"),
        "{found:?}"
    );
    assert!(
        found[1].starts_with("TOWLINE_NODE__LISTN node.listn: is not a setting; did you mean \"listen\"?"),
        "{found:?}"
    );
    assert!(found[2].starts_with("--set node.permits node.permits: expected a whole number"), "{found:?}");
}

#[test]
fn a_secret_may_lie_in_a_file() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("KEY"), "from-file\n").unwrap();
    let text = "node: { name: a }\nmodels: { m: { provider: openai, model: x, api_key: '{{secret:KEY}}' } }";
    let config = read_with(text, &[("TOWLINE_SECRETS_DIR", dir.path().to_str().unwrap())], &[]).unwrap();
    assert_eq!(config.mesh.models["m"].api_key.as_ref().unwrap().expose(), "from-file");
}

#[test]
fn a_key_for_this_machine_only_may_be_written_out() {
    let text = "node: { name: a }\nmodels: { m: { provider: openai, model: x, base_url: 'http://127.0.0.1:9/v1/', api_key: k } }";
    let config = read_with(text, &[], &[]).unwrap();
    assert_eq!(config.mesh.models["m"].api_key.as_ref().unwrap().expose(), "k");
}

#[test]
fn a_file_that_is_not_there_says_what_to_do() {
    let error = load(Path::new("/nowhere/towline.yaml"), &Overrides::default()).unwrap_err();
    assert!(error.to_string().contains("towline init"), "{error}");
}

#[test]
fn every_configuration_in_the_readme_is_a_whole_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let files: Vec<&str> =
        readme.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default()).collect();
    let dir = tempfile::tempdir().unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(["mesh.example".to_owned()]).unwrap().self_signed(&key).unwrap();
    fs::write(dir.path().join("key.pem"), key.serialize_pem()).unwrap();
    for name in ["cert.pem", "clients.pem"] {
        fs::write(dir.path().join(name), certificate.pem()).unwrap();
    }
    let secrets = ["OPENAI_API_KEY", "TICKETS_TOKEN", "LEGAL_TOKEN", "ADA_TOKEN", "DEPLOY_HOOK"];
    let env = secrets.map(|name| (name.to_owned(), "0123456789-0123456789".to_owned())).into_iter().collect();
    let overrides = Overrides { env, flags: Vec::new() };
    for file in &files {
        let mistakes = read(file, dir.path().to_owned(), &overrides).err().unwrap_or_default();
        assert!(mistakes.is_empty(), "{file}\n{:?}", mistakes.iter().map(said).collect::<Vec<_>>());
    }
    let sample = fs::read_to_string(root.join("deploy/real-model.yaml")).unwrap();
    assert!(files.len() >= 6 && files.contains(&sample.as_str()), "the sample is what the README shows");
}
