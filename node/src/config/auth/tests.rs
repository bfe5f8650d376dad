use std::fs;

use super::super::{NodeConfig, Overrides, read};

/// What `printf %s TOKEN | towline auth hash` prints for `the-token-of-a-test-1`.
fn hash(token: &str) -> String {
    crate::auth::Sha256::of(token.as_bytes()).to_string()
}

fn with_base(base: &std::path::Path, node: &str, rest: &str) -> Result<NodeConfig, Vec<String>> {
    let text = format!(
        "node: {{ name: a{node} }}\nmodels: {{ default: {{ provider: ollama, model: m }} }}\n\
         agents: [ {{ name: reader, instruction: Read. }} ]\n{rest}\n"
    );
    let env = [("CI_TOKEN", "a secret of more than twenty bytes"), ("SHORT", "short")];
    let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let read = read(&text, base.into(), &Overrides { env, ..Overrides::default() });
    read.map_err(|mistakes| mistakes.iter().map(|one| format!("{}: {}", one.path, one.message)).collect())
}

fn auth(principals: &str) -> Result<NodeConfig, Vec<String>> {
    with_base("/nowhere".as_ref(), "", &format!("auth: {{ principals: [ {principals} ] }}"))
}

/// A folder with a certificate of 127.0.0.1, its key, and an authority.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(["127.0.0.1".to_owned()]).unwrap().self_signed(&key).unwrap();
    let other = rcgen::KeyPair::generate().unwrap();
    for (name, content) in
        [("cert.pem", certificate.pem()), ("key.pem", key.serialize_pem()), ("other.pem", other.serialize_pem())]
    {
        fs::write(folder.path().join(name), content).unwrap();
    }
    fs::write(folder.path().join("junk.pem"), "junk").unwrap();
    folder
}

/// A rule that takes tokens of an issuer.
const TOKENS: &str = "principals: [ { id: \"oidc:{sub}\", role: user, jwt: {} } ]";

const TLS: &str = ", tls: { certificate: cert.pem, key: key.pem }";

#[test]
fn rules_say_who_shows_what() {
    let folder = folder();
    let config = with_base(
        folder.path(),
        &format!("{TLS}, public_url: \"https://mesh.example\", listen: {{ http: \"0.0.0.0:7420\" }}"),
        &format!(
            "auth:\n  client_ca: cert.pem\n  origins: [ \"https://console.example\" ]\n  \
             jwt: {{ issuer: \"https://id.example\", audience: towline, jwks_url: \"https://id.example/keys\", algorithms: [ES256], leeway: 10s, cache: 5m }}\n  \
             principals:\n  - {{ id: root, role: operator, bearer: {{ sha256: {} }} }}\n  \
             - {{ id: ci, role: agent, bearer: \"{{{{secret:CI_TOKEN}}}}\", labels: {{ team: build }}, grants: [cluster.status] }}\n  \
             - {{ id: gateway, role: agent, certificate: {{ san: GW.example }} }}\n  \
             - {{ id: \"oidc:{{sub}}\", role: user, jwt: {{ claims: {{ groups: mesh }} }} }}\n  \
             - {{ id: guest, role: anonymous, any: true }}",
            hash("the-token-of-a-test-1")
        ),
    )
    .unwrap();
    let ids: Vec<&str> = config.auth.rules.iter().map(|rule| rule.id.as_str()).collect();
    assert_eq!(ids, ["root", "ci", "gateway", "oidc:{sub}", "guest"]);
    assert_eq!(config.auth.rules[1].labels["team"], "build");
    assert!(config.auth.client_certificates && config.auth.origins.len() == 1);
    assert_eq!(config.auth.jwt.unwrap().kept.as_secs(), 300);
    assert_eq!(config.node.tls.unwrap().client_ca.len(), 1);
}

#[test]
fn a_listener_that_others_can_reach_needs_tls_callers_and_a_name() {
    let folder = folder();
    let bearer = format!("auth: {{ principals: [ {{ id: a, role: user, bearer: {{ sha256: {} }} }} ] }}", hash("x"));
    let listen = ", listen: { http: \"0.0.0.0:7420\" }";
    for (node, rest, says) in [
        (format!("{listen}{TLS}, public_url: \"https://m.example\""), "", "nothing says who may call"),
        (format!("{listen}, public_url: \"https://m.example\""), bearer.as_str(), "could be read on the way"),
        (format!("{listen}{TLS}"), bearer.as_str(), "is every address"),
    ] {
        let mistakes = with_base(folder.path(), &node, rest).unwrap_err();
        assert_eq!(mistakes.len(), 1, "{mistakes:?}");
        assert!(mistakes[0].starts_with("node.listen.http: ") && mistakes[0].contains(says), "{mistakes:?}");
    }
    with_base(folder.path(), &format!("{TLS}, listen: {{ http: \"10.0.0.1:7420\" }}"), &bearer).unwrap();
    with_base(folder.path(), "", "").unwrap();
}

#[test]
fn a_section_that_changes_nothing_is_refused() {
    for (rest, place) in [
        ("auth: {}", "auth: "),
        ("auth:", "auth: "),
        ("auth: { principals: [] }", "auth.principals: "),
        ("auth: { principals: }", "auth.principals: "),
    ] {
        let mistakes = with_base("/nowhere".as_ref(), "", rest).unwrap_err();
        assert_eq!(mistakes.len(), 1, "{rest}: {mistakes:?}");
        let says = &mistakes[0];
        assert!(says.starts_with(place) && says.contains("nobody is told apart by it"), "{rest}: {mistakes:?}");
    }
}

#[test]
fn tls_that_could_not_be_spoken_is_refused() {
    let folder = folder();
    for (node, rest, says) in [
        (", tls: { certificate: cert.pem, key: other.pem }", "", "node.tls: certificate and key cannot be used"),
        (", tls: { certificate: cert.pem }", "", "key is missing"),
        (", tls: { certificate: junk.pem, key: key.pem }", "", "no certificate in PEM"),
        (", tls: { certificate: gone.pem, key: key.pem }", "", "gone.pem"),
        (", tls: { certificate: cert.pem, key: junk.pem }", "", "file junk.pem"),
        ("", "auth: { client_ca: cert.pem }", "node.tls is missing"),
    ] {
        let mistakes = with_base(folder.path(), node, rest).unwrap_err();
        assert!(mistakes.len() == 1 && mistakes[0].contains(says), "{says}: {mistakes:?}");
    }
}

#[test]
fn a_rule_that_says_what_cannot_be_is_refused() {
    let bearer = |number: u32| format!("bearer: {{ sha256: {} }}", hash(&number.to_string()));
    let (first, second) = (bearer(1), bearer(2));
    for (rules, says) in [
        (format!("{{ role: user, {first} }}"), "id is missing"),
        (format!("{{ id: a, {first} }}"), "role is missing"),
        (format!("{{ id: a, role: usr, {first} }}"), "did you mean \"user\"?"),
        (format!("{{ id: \"a b\", role: user, {first} }}"), "no space"),
        (format!("{{ id: \"node:1\", role: user, {first} }}"), "nodes of the cluster"),
        (format!("{{ id: operator, role: user, {first} }}"), "what the operator is called"),
        ("{ id: a, role: user }".to_owned(), "nothing that a caller could show"),
        (format!("{{ id: a, role: user, any: true, {first} }}"), "write a rule for each"),
        ("{ id: a, role: operator, any: true }".to_owned(), "everybody the operator"),
        (format!("{{ id: a, role: user, {first}, grants: [cluster.drain] }}"), "operator's alone"),
        (format!("{{ id: a, role: user, {first}, grants: [\"cluster.r*\"] }}"), "operator's alone"),
        (format!("{{ id: a, role: user, {first}, grants: [fly] }}"), "is no operation"),
        (format!("{{ id: a, role: operator, {first}, grants: [\"*\"] }}"), "has everything already"),
        (format!("{{ id: a, role: user, {first}, colour: red }}"), "is not a setting"),
        (format!("{{ id: a, role: user, {first} }}, {{ id: a, role: agent, {second} }}"), "one principal has one role"),
        (format!("{{ id: a, role: user, {first} }}, {{ id: b, role: user, {first} }}"), "bearer of a rule above"),
        (format!("{{ id: \"a{{sub}}\", role: user, {first} }}"), "only the token of a rule with jwt has"),
        ("{ id: a, role: user, bearer: written-out-in-the-file }".to_owned(), "is written out"),
        ("{ id: a, role: user, bearer: \"{{secret:SHORT}}\" }".to_owned(), "can be guessed"),
        ("{ id: a, role: user, bearer: { sha256: 12ab } }".to_owned(), "is no SHA-256"),
        ("{ id: a, role: user, certificate: { san: x } }".to_owned(), "auth.client_ca"),
        ("{ id: a, role: user, jwt: { claims: { sub: x } } }".to_owned(), "no issuer is known"),
    ] {
        let mistakes = auth(&rules).unwrap_err();
        assert!(mistakes.len() == 1 && mistakes[0].contains(says), "{rules}: {mistakes:?}");
        assert!(mistakes[0].starts_with("auth.principals["), "{mistakes:?}");
    }
    auth(&format!("{{ id: a, role: user, {first} }}, {{ id: a, role: user, {second} }}")).unwrap();
}

#[test]
fn origins_and_issuers_are_named_or_refused() {
    let jwt = |more: &str| {
        format!("auth: {{ jwt: {{ issuer: i, audience: a, jwks_url: \"https://id.example/k\"{more} }}, {TOKENS} }}")
    };
    for (rest, says) in [
        ("auth: { origins: [\"*\"] }".to_owned(), "any page could act"),
        ("auth: { origins: [\"https://*.example\"] }".to_owned(), "any page could act"),
        ("auth: { origins: [console.example] }".to_owned(), "is no origin"),
        ("auth: { rules: [] }".to_owned(), "is not a setting"),
        (format!("auth: {{ jwt: {{ issuer: i, audience: a }}, {TOKENS} }}"), "jwks_url is missing"),
        (jwt("").replace(TOKENS, "origins: []"), "nobody would be known by a token"),
        (jwt(", algorithms: [HS256]"), "is not taken"),
        (jwt(", algorithms: [none]"), "is not taken"),
        (jwt(", cache: 1s"), "is out of range"),
        (jwt(", leeway: 1h"), "is out of range"),
        (jwt("").replace("https://", "http://"), "can be replaced on the way"),
    ] {
        let mistakes = with_base("/nowhere".as_ref(), "", &rest).unwrap_err();
        assert!(mistakes.len() == 1 && mistakes[0].contains(says), "{rest}: {mistakes:?}");
    }
}
