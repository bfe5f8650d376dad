//! `auth.device_grant:` – whether people sign in at devices, and as what.

use std::time::Duration;

use towline_core::{PrincipalRole, limits::MAX_SESSION_MS};

use super::{node::NodeSettings, section::Section, values};
use crate::auth::AuthSettings;
use crate::sign_in::{DEFAULT_SESSION_TTL, DeviceGrantSettings};

/// A session that ends sooner would have people sign in all the time.
const SHORTEST_SESSION: Duration = Duration::from_secs(5 * 60);

/// Reads the section below `auth:`; a default stands where a mistake was noted.
pub(crate) fn read(auth: &mut Section<'_>) -> DeviceGrantSettings {
    let default = DeviceGrantSettings::default();
    let Some(mut section) = auth.get("device_grant").and_then(|field| field.section()) else { return default };
    let enabled = section.get("enabled").and_then(|field| field.flag()).unwrap_or(default.enabled);
    let session_ttl = section.get("session_ttl").and_then(|field| field.parse(session_ttl));
    let allow_operator = section.get("allow_operator").and_then(|field| field.flag()).unwrap_or(default.allow_operator);
    section.finish();
    DeviceGrantSettings { enabled, session_ttl: session_ttl.unwrap_or(DEFAULT_SESSION_TTL), allow_operator }
}

/// Refuses a device grant where nobody could approve: it ends that whoever shows nothing is the operator.
pub(crate) fn check(root: &Section<'_>, node: &NodeSettings, auth: &AuthSettings) {
    let by_rule = auth.rules.iter().any(|rule| rule.role == PrincipalRole::Operator);
    let by_certificate = auth.client_certificates && auth.rules.is_empty();
    if auth.device_grant.enabled && !by_rule && !by_certificate && node.unix.is_none() {
        root.mistake(
            "auth.device_grant is on, and nobody could approve a sign-in: give the operator a way in, as in node.listen: { unix: \
             unix:///run/towline.sock }, or auth.principals: [ { id: ops, role: operator, bearer: { sha256: HASH } } ]",
        );
    }
}

fn session_ttl(text: &str) -> Result<Duration, String> {
    let ttl = values::duration(text)?;
    if (SHORTEST_SESSION..=Duration::from_millis(MAX_SESSION_MS)).contains(&ttl) {
        return Ok(ttl);
    }
    Err(format!("{text:?} is out of range: 5m to 720h (30 days); 8h is the default"))
}

#[cfg(test)]
mod tests {
    use super::{super::Overrides, *};

    fn with(auth: &str) -> Result<DeviceGrantSettings, Vec<String>> {
        with_node("{ name: a, listen: { unix: t.sock } }", auth)
    }

    fn with_node(node: &str, auth: &str) -> Result<DeviceGrantSettings, Vec<String>> {
        let text = format!(
            "node: {node}\nmodels: {{ default: {{ provider: ollama, model: m }} }}\n\
             agents: [ {{ name: reader, instruction: Read. }} ]\n{auth}\n"
        );
        let read = super::super::read(&text, "/nowhere".into(), &Overrides::default());
        let read = read.map(|config| config.auth.device_grant);
        read.map_err(|mistakes| mistakes.iter().map(|one| format!("{}: {}", one.path, one.message)).collect())
    }

    #[test]
    fn the_device_grant_is_off_and_gives_no_operator_unless_the_file_says_so() {
        assert_eq!(with("").unwrap(), DeviceGrantSettings::default());
        let on = with("auth: { device_grant: { enabled: true, session_ttl: 30m, allow_operator: true } }").unwrap();
        let session_ttl = Duration::from_secs(30 * 60);
        assert_eq!(on, DeviceGrantSettings { enabled: true, session_ttl, allow_operator: true });
        assert!(!with("auth: { device_grant: { enabled: true } }").unwrap().allow_operator);
    }

    #[test]
    fn a_grant_that_nobody_could_approve_is_a_mistake() {
        let grant = "device_grant: { enabled: true }";
        let mistakes = with_node("{ name: a }", &format!("auth: {{ {grant} }}")).unwrap_err();
        assert!(mistakes.len() == 1 && mistakes[0].contains("nobody could approve a sign-in"), "{mistakes:?}");
        let hash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let ops = format!("principals: [ {{ id: ops, role: operator, bearer: {{ sha256: {hash} }} }} ]");
        with_node("{ name: a }", &format!("auth: {{ {grant}, {ops} }}")).unwrap();
        with_node("{ name: a }", "auth: { device_grant: { enabled: false } }").unwrap();
    }

    #[test]
    fn a_session_that_is_too_short_or_too_long_is_a_mistake() {
        for (auth, says) in [
            ("{ session_ttl: 1m }", "auth.device_grant.session_ttl: \"1m\" is out of range: 5m to 720h"),
            ("{ session_ttl: 721h }", "is out of range"),
            ("{ enabled: 1 }", "expected true or false"),
            ("{ on: true }", "auth.device_grant.on: is not a setting"),
        ] {
            let mistakes = with(&format!("auth: {{ device_grant: {auth} }}")).unwrap_err();
            assert!(mistakes.len() == 1 && mistakes[0].contains(says), "{mistakes:?}");
        }
    }
}
