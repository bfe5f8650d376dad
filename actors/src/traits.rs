//! What must not come together in one agent: data that is not for everybody, a way out, and text of people who may want both.

/// What an agent's context may hold and do. With all three, a text from outside could have the data sent away.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traits {
    /// It holds data that is not for everybody.
    pub sensitive: bool,
    /// It can send something out of the mesh.
    pub egress: bool,
    /// It reads text that anybody may have written.
    pub untrusted: bool,
}

impl Traits {
    /// The words for them in a configuration.
    pub const WORDS: [&str; 3] = ["sensitive", "egress", "untrusted"];

    /// A peer outside of this mesh: what it is told leaves the mesh, and its answer comes from outside.
    pub const PEER: Self = Self { sensitive: false, egress: true, untrusted: true };

    /// What a tag says; none for a tag that says nothing of this.
    pub fn of_tag(tag: &str) -> Option<Self> {
        let traits = Self::default();
        match tag {
            "sensitive" => Some(Self { sensitive: true, ..traits }),
            "egress" => Some(Self { egress: true, ..traits }),
            "untrusted" => Some(Self { untrusted: true, ..traits }),
            _ => None,
        }
    }

    /// What some tags say.
    pub fn of_tags<'a>(tags: impl IntoIterator<Item = &'a String>) -> Self {
        tags.into_iter().filter_map(|tag| Self::of_tag(tag)).fold(Self::default(), Self::and)
    }

    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            sensitive: self.sensitive || other.sensitive,
            egress: self.egress || other.egress,
            untrusted: self.untrusted || other.untrusted,
        }
    }

    /// Whether text from outside must be kept away: the data and the way out are there.
    pub fn must_stay_clean(self) -> bool {
        self.sensitive && self.egress
    }

    /// Whether all three are there.
    pub fn is_trifecta(self) -> bool {
        self.must_stay_clean() && self.untrusted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_all_three_together_are_refused() {
        let tags = |tags: &[&str]| Traits::of_tags(&tags.iter().map(|tag| (*tag).to_owned()).collect::<Vec<_>>());
        assert!(tags(&["sensitive", "egress", "untrusted"]).is_trifecta());
        for pair in [["sensitive", "egress"], ["sensitive", "untrusted"], ["egress", "untrusted"]] {
            assert!(!tags(&pair).is_trifecta(), "{pair:?}");
        }
        assert!(tags(&["sensitive", "egress"]).must_stay_clean());
        assert_eq!(tags(&["reader"]), Traits::default());
        assert!(Traits::PEER.and(tags(&["sensitive"])).is_trifecta(), "a peer reads and answers");
    }
}
