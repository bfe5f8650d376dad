//! `push:` – whether clients may have themselves told of their tasks at a URL, and where such URLs may lead.

use std::sync::Arc;

use towline_actors::egress::{Allowed, EgressPolicy};

use super::section::Section;

/// Reads the section; none where push notifications are off.
pub(crate) fn read(root: &mut Section<'_>) -> Option<Arc<EgressPolicy>> {
    let mut section = root.get("push").and_then(|field| field.section())?;
    let enabled = section.flag("enabled", false);
    let allowed: Vec<Allowed> = section.list("allow").iter().filter_map(|field| field.parse(str::parse)).collect();
    section.finish();
    enabled.then(|| Arc::new(EgressPolicy::new(allowed)))
}

#[cfg(test)]
mod tests {
    use super::super::{NodeConfig, Overrides, read};

    fn with(push: &str) -> Result<NodeConfig, Vec<String>> {
        let read = read(&format!("node: {{ name: a }}\n{push}\n"), "/nowhere".into(), &Overrides::default());
        read.map_err(|mistakes| mistakes.iter().map(|one| format!("{}: {}", one.path, one.message)).collect())
    }

    #[test]
    fn webhooks_are_off_until_they_are_turned_on_and_lead_only_to_what_is_public_or_named() {
        for off in ["", "push: {}", "push: { enabled: false, allow: [127.0.0.1] }"] {
            assert!(with(off).unwrap().push.is_none(), "{off}");
        }
        let open = with("push: { enabled: true, allow: [10.0.0.0/8, hooks.internal] }").unwrap().push.unwrap();
        assert!(open.target("http://10.1.2.3/").is_ok());
        assert!(open.target("http://hooks.internal/").is_ok());
        let closed = with("push: { enabled: true }").unwrap().push.unwrap();
        assert!(closed.target("https://10.1.2.3/").is_err());
    }

    #[test]
    fn what_is_neither_a_network_nor_a_host_is_a_mistake() {
        let mistakes = with("push: { enabled: true, allow: [10.0.0.0/33, ok.internal] }").unwrap_err();
        assert!(
            mistakes.len() == 1 && mistakes[0].starts_with("push.allow[0]: \"10.0.0.0/33\" is neither"),
            "{mistakes:?}"
        );
        let mistakes = with("push: { enable: true }").unwrap_err();
        assert!(mistakes[0].starts_with("push.enable: is not a setting"), "{mistakes:?}");
    }
}
