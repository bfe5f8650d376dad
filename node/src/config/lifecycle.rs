//! `lifecycle:` – how a node ends.

use std::time::Duration;

use super::{section::Section, values::duration};

/// Less than what supervisors of processes usually wait before they kill (30 s of Kubernetes).
const DRAIN_TIMEOUT: Duration = Duration::from_secs(25);
/// In less, not even the leadership is handed over.
const SHORTEST_DRAIN: Duration = Duration::from_secs(1);
/// Who wants to wait for longer drains the node first (`towline cluster drain`), which has no such limit.
const LONGEST_DRAIN: Duration = Duration::from_secs(3600);

/// `lifecycle:`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LifecycleSettings {
    /// How long a stop may take in all.
    pub drain_timeout: Duration,
}

impl Default for LifecycleSettings {
    fn default() -> Self {
        Self { drain_timeout: DRAIN_TIMEOUT }
    }
}

/// Reads the section; the default stands where a mistake was noted.
pub(crate) fn read(root: &mut Section<'_>) -> LifecycleSettings {
    let Some(mut section) = root.get("lifecycle").and_then(|field| field.section()) else {
        return LifecycleSettings::default();
    };
    let drain_timeout = section.get("drain_timeout").and_then(|field| field.parse(drain_timeout));
    section.finish();
    LifecycleSettings { drain_timeout: drain_timeout.unwrap_or(DRAIN_TIMEOUT) }
}

fn drain_timeout(text: &str) -> Result<Duration, String> {
    let length = duration(text)?;
    if (SHORTEST_DRAIN..=LONGEST_DRAIN).contains(&length) {
        return Ok(length);
    }
    Err(format!("{text} is out of range: 1s to 1h"))
}

#[cfg(test)]
mod tests {
    use super::super::{NodeConfig, Overrides, read};
    use super::*;

    fn with(lifecycle: &str) -> Result<NodeConfig, Vec<String>> {
        let read = read(&format!("node: {{ name: a }}\n{lifecycle}\n"), "/nowhere".into(), &Overrides::default());
        read.map_err(|mistakes| mistakes.iter().map(|one| format!("{}: {}", one.path, one.message)).collect())
    }

    #[test]
    fn a_stop_may_take_what_the_file_says_or_a_little_less_than_supervisors_wait() {
        let limit = |text: &str| with(text).unwrap().lifecycle.drain_timeout;
        assert_eq!(limit("lifecycle: { drain_timeout: 2m }"), Duration::from_secs(120));
        assert_eq!(limit(""), Duration::from_secs(25));
        assert_eq!(limit("lifecycle:"), Duration::from_secs(25));
    }

    #[test]
    fn a_stop_that_takes_no_time_or_a_day_is_a_mistake() {
        for wrong in ["999ms", "2h"] {
            let mistakes = with(&format!("lifecycle: {{ drain_timeout: {wrong} }}")).unwrap_err();
            assert_eq!(mistakes, [format!("lifecycle.drain_timeout: {wrong} is out of range: 1s to 1h")]);
        }
    }
}
