//! Says once, for people, that this node is not answered, and what to look at. It goes on asking all the same.

use std::time::Duration;

use towline_core::NodeAddresses;

/// An election, a restart of the leader, a slow disk: all of that is over by then.
const LONG: Duration = Duration::from_secs(10);

/// Since when no keep-alive was answered well.
pub(crate) struct Unheard {
    since: Duration,
    said: bool,
}

impl Unheard {
    pub(crate) fn since(now: Duration) -> Self {
        Self { since: now, said: false }
    }

    /// A keep-alive was answered.
    pub(crate) fn heard(&mut self, now: Duration) {
        *self = Self::since(now);
    }

    /// Whether it lasts for long, once.
    pub(crate) fn is_to_be_said(&mut self, now: Duration) -> bool {
        let is_long = now.saturating_sub(self.since) >= LONG;
        is_long && !std::mem::replace(&mut self.said, true)
    }
}

/// What may be wrong: `known` are the addresses of this node as the cluster has them, `own` those that it advertises.
pub(crate) fn what_to_check(known: Option<&NodeAddresses>, own: &NodeAddresses) -> String {
    match known {
        Some(known) if known.peer != own.peer => format!(
            "the cluster knows this node at {}, and it advertises {}: if a node with the same identity runs there, this is a \
             copy of its data folder, which must not run: stop it, and join as a new node with an empty one",
            known.peer, own.peer
        ),
        Some(_) | None => {
            "is a majority of the voters up, can they be reached at their peer addresses, and can they reach \
                           this one at its own?"
                .to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(peer: &str) -> NodeAddresses {
        NodeAddresses { http: "http://127.0.0.1:7420".into(), peer: peer.into() }
    }

    #[test]
    fn a_node_that_is_not_answered_for_long_says_so_once_until_it_is_answered_again() {
        let seconds = Duration::from_secs;
        let mut unheard = Unheard::since(seconds(100));
        assert!(!unheard.is_to_be_said(seconds(109)));
        assert!(unheard.is_to_be_said(seconds(110)));
        assert!(!unheard.is_to_be_said(seconds(200)));
        unheard.heard(seconds(200));
        assert!(!unheard.is_to_be_said(seconds(209)));
        assert!(unheard.is_to_be_said(seconds(210)));
    }

    #[test]
    fn a_copy_under_another_address_is_told_where_the_node_is_that_it_was_made_of() {
        let told = what_to_check(Some(&at("127.0.0.1:1")), &at("127.0.0.1:2"));
        assert!(told.contains("127.0.0.1:1") && told.contains("127.0.0.1:2") && told.contains("copy"), "{told}");
        for known in [Some(at("127.0.0.1:2")), None] {
            assert!(!what_to_check(known.as_ref(), &at("127.0.0.1:2")).contains("copy"));
        }
    }
}
