//! `oauth:`, `sigv4:` and `tls:` of an MCP server – how this node shows it who it is, and how it knows the server.

use std::path::PathBuf;

use towline_actors::{
    McpTransport,
    mcp_connection::{McpAuth, McpSecurity, McpTls, OAuthGrant, OAuthSettings, SigV4Settings},
};

use super::{
    mistakes::hint,
    section::{Field, Section},
    values::{http_url, is_plain_remote, resolve, url_text},
};

/// How a SPIFFE ID begins.
const SPIFFE: &str = "spiffe://";

/// Reads the three sections of a server.
pub(super) fn read(section: &mut Section<'_>, transport: Option<&McpTransport>) -> McpSecurity {
    let (oauth, sigv4, tls) = (section.get("oauth"), section.get("sigv4"), section.get("tls"));
    let written = [&oauth, &sigv4, &tls];
    let Some(transport) = transport else { return McpSecurity::default() };
    let McpTransport::Http { endpoint, headers, .. } = transport else {
        let mistake = |field: &Field<'_>| field.mistake("is for servers with an endpoint; this one is a child process");
        written.into_iter().flatten().for_each(mistake);
        return McpSecurity::default();
    };
    let says_who = |field: &Field<'_>| {
        if headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("authorization")) {
            field.mistake("stands beside an Authorization header: a request has one");
        }
        if is_plain(endpoint) {
            field.mistake("needs https: what it sends would travel in plain text");
        }
    };
    let auth = match (&oauth, &sigv4) {
        (Some(_), Some(sigv4)) => {
            sigv4.mistake("stands beside oauth: a request has one Authorization header");
            McpAuth::Headers
        }
        (Some(field), None) => {
            says_who(field);
            read_oauth(field).map(McpAuth::OAuth).unwrap_or_default()
        }
        (None, Some(field)) => {
            says_who(field);
            read_sigv4(field).map(McpAuth::SigV4).unwrap_or_default()
        }
        (None, None) => McpAuth::Headers,
    };
    let tls = tls.and_then(|field| {
        if !(endpoint.starts_with("https:") || endpoint.starts_with("wss:")) {
            field.mistake("is for servers over https or wss");
        }
        read_tls(&field)
    });
    McpSecurity { auth, tls, folder: None }
}

/// Whether what is sent to an endpoint can be read on the way.
fn is_plain(endpoint: &str) -> bool {
    // `ws` is to `wss` what `http` is to `https`.
    let as_http = endpoint.strip_prefix("ws").map_or_else(|| endpoint.to_owned(), |rest| format!("http{rest}"));
    http_url(&as_http).is_ok_and(|url| is_plain_remote(&url))
}

fn read_oauth(field: &Field<'_>) -> Option<OAuthSettings> {
    let mut section = field.section()?;
    let grant = section.get("grant").and_then(|field| field.parse(grant)).unwrap_or_default();
    let client_id = section.get("client_id").and_then(|field| field.expanded());
    let secret = section.get("client_secret");
    let client_secret = secret.as_ref().and_then(|field| field.secret_for(None, "MCP_CLIENT_SECRET"));
    let issuer = section.get("issuer").and_then(|field| {
        let url = field.parse(http_url)?;
        if is_plain_remote(&url) {
            field.mistake("is not https: tokens do not travel in plain text");
        }
        // An issuer is compared letter by letter.
        field.text().map(str::to_owned)
    });
    let scopes = section.texts("scopes");
    let allow = section.list("allow").iter().filter_map(|field| field.parse(str::parse)).collect();
    if grant == OAuthGrant::ClientCredentials && (client_id.is_none() || secret.is_none()) {
        section.mistake("grant client_credentials needs client_id and client_secret");
    }
    if client_id.is_none() && secret.is_some() {
        section.mistake("client_secret needs a client_id");
    }
    section.finish();
    Some(OAuthSettings { grant, client_id, client_secret, scopes, issuer, allow })
}

fn grant(text: &str) -> Result<OAuthGrant, String> {
    match text {
        "login" => Ok(OAuthGrant::Login),
        "client_credentials" => Ok(OAuthGrant::ClientCredentials),
        _ => Err(format!("{text:?} is not known; {}", hint(text, ["login", "client_credentials"]))),
    }
}

fn read_sigv4(field: &Field<'_>) -> Option<SigV4Settings> {
    let mut section = field.section()?;
    let region = section.required("region", "eu-central-1").and_then(|field| field.text().map(str::to_owned));
    let service = section.required("service", "execute-api").and_then(|field| field.text().map(str::to_owned));
    let access_key = section.required("access_key", "\"{{secret:AWS_ACCESS_KEY_ID}}\"");
    let access_key = access_key.and_then(|field| field.expanded());
    let secret_key = section.required("secret_key", "\"{{secret:AWS_SECRET_ACCESS_KEY}}\"");
    let secret_key = secret_key.and_then(|field| field.secret_for(None, "AWS_SECRET_ACCESS_KEY"));
    let token = section.get("session_token");
    let session_token = token.and_then(|field| field.secret_for(None, "AWS_SESSION_TOKEN"));
    section.finish();
    Some(SigV4Settings {
        region: region?,
        service: service?,
        access_key: access_key?,
        secret_key: secret_key?,
        session_token,
    })
}

fn read_tls(field: &Field<'_>) -> Option<McpTls> {
    let mut section = field.section()?;
    let path = |field: Field<'_>| -> Option<PathBuf> { Some(resolve(&field.context.base, field.text()?)) };
    let ca = section.get("ca").and_then(path);
    let certificate = section.get("cert").and_then(path);
    let key = section.get("key").and_then(path);
    let spiffe_id = section.get("spiffe_id").and_then(|field| field.parse(spiffe_id));
    if certificate.is_some() != key.is_some() {
        section.mistake("has one of cert and key: a certificate is shown with its key");
    }
    if spiffe_id.is_some() && ca.is_none() {
        section.mistake("spiffe_id needs ca, the authorities of the trust domain");
    }
    section.finish();
    Some(McpTls { ca, identity: certificate.zip(key), spiffe_id })
}

fn spiffe_id(text: &str) -> Result<String, String> {
    let domain = text.strip_prefix(SPIFFE).and_then(|rest| rest.split('/').next());
    match domain {
        Some(domain) if !domain.is_empty() && url_text_is_same(text) => Ok(text.to_owned()),
        _ => Err(format!("{text:?} is no SPIFFE ID, as in {SPIFFE}mesh.example/tools")),
    }
}

/// An ID is compared letter by letter: it must not be one that a URL would be written otherwise as.
fn url_text_is_same(text: &str) -> bool {
    reqwest::Url::parse(text).is_ok_and(|url| url_text(&url) == text && url.query().is_none() && url.port().is_none())
}

#[cfg(test)]
mod tests {
    use towline_actors::mcp_connection::{McpAuth, OAuthGrant};

    use super::super::{NodeConfig, Overrides, read};

    fn with(server: &str) -> Result<NodeConfig, Vec<String>> {
        let mut overrides = Overrides::default();
        overrides.env.insert("KEY".into(), "hunter2".into());
        let text = format!("node: {{ name: a }}\nmcp:\n  servers:\n  - {{ name: s, {server} }}\n");
        let read = read(&text, "/nowhere".into(), &overrides);
        read.map_err(|mistakes| mistakes.iter().map(|one| format!("{}: {}", one.path, one.message)).collect())
    }

    #[test]
    fn a_server_says_how_it_is_shown_who_asks() {
        let oauth = "endpoint: 'https://a.example/mcp', oauth: { grant: client_credentials, client_id: me, client_secret: '{{secret:KEY}}', issuer: 'https://b.example', scopes: [x], allow: [10.0.0.0/8] }";
        let security = with(oauth).unwrap().mesh.servers[0].security.clone();
        let McpAuth::OAuth(settings) = &security.auth else { panic!("{security:?}") };
        assert_eq!(
            (settings.grant, settings.issuer.as_deref()),
            (OAuthGrant::ClientCredentials, Some("https://b.example"))
        );
        assert!(!format!("{security:?}").contains("hunter2"));
        let tls = "endpoint: 'wss://a.example/mcp', tls: { ca: ca.pem, cert: /c.pem, key: /k.pem, spiffe_id: 'spiffe://mesh.example/tools' }";
        let tls = with(tls).unwrap().mesh.servers[0].security.tls.clone().unwrap();
        assert_eq!(tls.ca.as_deref(), Some(std::path::Path::new("/nowhere/ca.pem")));
        let sigv4 = "endpoint: 'https://a.example/mcp', sigv4: { region: r, service: s, access_key: a, secret_key: '{{secret:KEY}}' }";
        assert!(matches!(with(sigv4).unwrap().mesh.servers[0].security.auth, McpAuth::SigV4(_)));
        assert!(matches!(
            with("endpoint: 'https://a.example/mcp', oauth: {}").unwrap().mesh.servers[0].security.auth,
            McpAuth::OAuth(_)
        ));
    }

    #[test]
    fn what_cannot_be_or_would_give_a_secret_away_is_a_mistake() {
        for (server, says) in [
            ("command: [x], oauth: {}", "child process"),
            ("endpoint: 'http://a.example/mcp', oauth: {}", "needs https"),
            ("endpoint: 'ws://a.example/mcp', oauth: {}", "needs https"),
            ("endpoint: 'https://a.example/mcp', headers: { Authorization: b }, oauth: {}", "has one"),
            ("endpoint: 'https://a.example/mcp', oauth: {}, sigv4: {}", "one Authorization"),
            ("endpoint: 'https://a.example/mcp', oauth: { client_id: a, client_secret: b }", "is written out"),
            ("endpoint: 'https://a.example/mcp', oauth: { grant: client_credentials }", "needs client_id"),
            ("endpoint: 'https://a.example/mcp', oauth: { grant: password }", "is not known"),
            ("endpoint: 'https://a.example/mcp', oauth: { issuer: 'http://b.example' }", "plain text"),
            ("endpoint: 'https://a.example/mcp', sigv4: { region: r }", "service is missing"),
            ("endpoint: 'http://127.0.0.1:1/mcp', tls: { ca: x }", "over https"),
            ("endpoint: 'https://a.example/mcp', tls: { cert: x }", "one of cert and key"),
            ("endpoint: 'https://a.example/mcp', tls: { spiffe_id: 'spiffe://d/x' }", "needs ca"),
            ("endpoint: 'https://a.example/mcp', tls: { ca: x, spiffe_id: 'https://d/x' }", "no SPIFFE ID"),
        ] {
            let mistakes = with(server).unwrap_err();
            assert!(mistakes.iter().any(|mistake| mistake.contains(says)), "{server}: {mistakes:?}");
        }
    }
}
