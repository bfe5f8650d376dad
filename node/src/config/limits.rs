//! `limits:` – how much one caller may have of what all share. What else is bounded is a constant beside what it protects.

use std::time::Duration;

use towline_core::{Budget, limits::MAX_OPEN_TASKS};

use super::{section::Section, values::duration};

/// More than a node answers in a second, and more than it has connections.
const MOST: u32 = 1_000_000;

/// `limits:`
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LimitSettings {
    /// Most tasks of one principal that have not ended, for requests at this node; none means the default.
    pub open_tasks_per_principal: Option<u32>,
    /// Most requests of one principal at this node in a second; none means the default.
    pub requests_per_second: Option<u32>,
    /// Most streams of one principal at this node; none means the default.
    pub streams_per_principal: Option<u32>,
    /// Most tokens that a task may take that nobody here delegated, with what it delegates; none means no limit.
    pub task_tokens: Option<u32>,
    /// Most steps of such a task: model calls, tool calls, delegations.
    pub task_steps: Option<u32>,
    /// How long such a task may take.
    pub task_time: Option<Duration>,
}

impl LimitSettings {
    /// What a task may spend.
    pub fn task_budget(&self) -> Budget {
        Budget { tokens: self.task_tokens.map(u64::from), steps: self.task_steps.map(u64::from) }
    }
}

/// Reads the section; a default stands where a mistake was noted.
pub(crate) fn read(root: &mut Section<'_>) -> LimitSettings {
    let Some(mut section) = root.get("limits").and_then(|field| field.section()) else {
        return LimitSettings::default();
    };
    let most = u32::try_from(MAX_OPEN_TASKS).unwrap_or(u32::MAX);
    let open_tasks_per_principal = section.get("open_tasks_per_principal").and_then(|field| field.number(1, most));
    let requests_per_second = section.get("requests_per_second").and_then(|field| field.number(1, MOST));
    let streams_per_principal = section.get("streams_per_principal").and_then(|field| field.number(1, MOST));
    let task_tokens = section.get("task_tokens").and_then(|field| field.number(1, u32::MAX));
    let task_steps = section.get("task_steps").and_then(|field| field.number(1, MOST));
    let task_time = section.get("task_time").and_then(|field| field.parse(duration));
    section.finish();
    LimitSettings {
        open_tasks_per_principal,
        requests_per_second,
        streams_per_principal,
        task_tokens,
        task_steps,
        task_time,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{NodeConfig, Overrides, read};

    fn with(queue: &str, limits: &str) -> Result<NodeConfig, Vec<String>> {
        let text = format!(
            "node: {{ name: a }}\nmodels: {{ default: {{ provider: ollama, model: m }} }}\n\
             agents: [ {{ name: reader, instruction: Read.{queue} }} ]\n{limits}\n"
        );
        let read = read(&text, "/nowhere".into(), &Overrides::default());
        read.map_err(|mistakes| mistakes.iter().map(|one| format!("{}: {}", one.path, one.message)).collect())
    }

    #[test]
    fn an_agent_and_a_principal_have_the_room_that_the_file_says_or_the_default() {
        let config = with(", queue: 7", "limits: { open_tasks_per_principal: 500 }").unwrap();
        assert_eq!(config.mesh.agents[0].spec().queue, Some(7));
        assert_eq!(config.limits.open_tasks_per_principal, Some(500));
        let config = with("", "").unwrap();
        assert_eq!((config.mesh.agents[0].spec().queue, config.limits.open_tasks_per_principal), (None, None));
    }

    #[test]
    fn more_room_than_the_cluster_has_is_a_mistake() {
        for (queue, limits, says) in [
            (", queue: 10001", "", "agents[0].queue: 10001 is out of range: 1 to 10000"),
            (", queue: 0", "", "agents[0].queue: 0 is out of range"),
            ("", "limits: { open_tasks_per_principal: 50001 }", "is out of range: 1 to 50000"),
            ("", "limits: { open_tasks: 1 }", "limits.open_tasks: is not a setting"),
        ] {
            let mistakes = with(queue, limits).unwrap_err();
            assert!(mistakes.len() == 1 && mistakes[0].contains(says), "{mistakes:?}");
        }
    }
}
