//! The configuration files that `demo` and `dev` write for their nodes: the same ones that a person would.

use std::path::Path;

use super::{
    cluster::NodePlan,
    options::{ModelArgs, ModelChoice},
};

/// The rules of the scripted model.
pub(crate) const RULES: &str = include_str!("rules.yaml");

const SURVEYOR: &str = "You survey a folder. List it with fs.list_directory (path \".\"). Take the text files that the task \
    asks for, the first by name, and delegate each of them to the agent `reader`, all in one answer, with the message \
    \"Read NAME and report.\". Each reader reports path, lines, words, bytes and heading of its file. When all have \
    reported, answer with a Markdown table with exactly the columns path, lines, words, bytes, heading, one row per file in the \
    order of the names, and a last row `total` with the sums. Write the numbers as plain digits, exactly as reported.";

const READER: &str = "You read one file. Call fs.read_file with the path that the task names. Answer with its path, its lines, \
    words and bytes exactly as the tool reports them, and its heading: the first heading or first line of documentation.";

/// What the nodes run: the same on each of them.
pub(crate) struct MeshSpec<'a> {
    /// Name of the cluster.
    pub(crate) cluster: &'a str,
    /// The folder that the file tool shows.
    pub(crate) folder: &'a Path,
    /// This program, which also is the file tool.
    pub(crate) program: &'a Path,
    /// Which model the agents use.
    pub(crate) model: &'a ModelArgs,
}

impl MeshSpec<'_> {
    /// The configuration file of one node. The rules are expected in the folder above.
    pub(crate) fn config_of(&self, node: &NodePlan) -> String {
        let NodePlan { name, http, peer, .. } = node;
        let cluster = quoted(self.cluster);
        let model = self.model();
        let program = quoted(&self.program.to_string_lossy());
        let collector = collector();
        let folder = quoted(&self.folder.to_string_lossy());
        let surveyor = quoted(SURVEYOR);
        let reader = quoted(READER);
        format!(
            "# Written by towline; relative paths are relative to this file.
node:
  name: {name}
  data: ./data
  listen: {{ http: \"{http}\", peer: \"{peer}\" }}
cluster: {{ name: {cluster} }}
telemetry: {{ service_name: towline-{name} }}
front_door: surveyor
models:
  default: {model}
mcp:
  servers:
    - name: fs
      transport: stdio
      command: [{program}, mcp-files, {folder}]{collector}
      allow: [list_directory, read_file, search_files]
      on_adoption: {{ \"*\": retry }}
agents:
  - name: surveyor
    description: Surveys a folder and delegates the reading of each file.
    instruction: {surveyor}
    tools: [fs.list_directory]
    delegates: [reader]
    replicas: 1
  - name: reader
    description: Reads one file and reports its lines, words, bytes and heading.
    instruction: {reader}
    tools: [fs.read_file]
    replicas: all
"
        )
    }

    fn model(&self) -> String {
        match &self.model.model {
            ModelChoice::Scripted => "{ provider: scripted, rules: \"file://../rules.yaml\" }".to_owned(),
            ModelChoice::Real { provider, name, key } => {
                let mut fields = vec![format!("provider: {provider}"), format!("model: {}", quoted(name))];
                fields.extend(self.model.model_url.as_ref().map(|url| format!("base_url: {}", quoted(url))));
                fields.extend(key.map(|key| format!("api_key: \"{{{{secret:{key}}}}}\"")));
                format!("{{ {} }}", fields.join(", "))
            }
        }
    }
}

/// The file tool has nothing of this process's environment: where spans go it is told, so that its own are in the trace.
fn collector() -> String {
    let is_for_spans = |name: &str| name.starts_with("OTEL_EXPORTER_OTLP_") || name.starts_with("OTEL_BSP_");
    let named = std::env::vars().filter(|(name, _)| is_for_spans(name));
    let named: Vec<String> = named.map(|(name, value)| format!("{name}: {}", quoted(&value))).collect();
    if named.is_empty() { String::new() } else { format!("\n      env: {{ {} }}", named.join(", ")) }
}

/// A YAML scalar: JSON strings are YAML.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use regex::Regex;

    use super::RULES;

    #[test]
    fn the_file_that_is_to_be_read_ends_before_the_full_stop_of_the_sentence() {
        let rule = RULES.lines().find_map(|line| line.trim().strip_prefix("user: '(?is)\\Aread")).unwrap();
        let pattern = Regex::new(&format!("(?is)\\Aread{}", rule.strip_suffix('\'').unwrap())).unwrap();
        for (said, file) in [
            ("Read README.md.", "README.md"),
            ("Read README.md and report.", "README.md"),
            ("read README.md!\n", "README.md"),
            ("Read README.md", "README.md"),
            ("Read notes. and report.", "notes."),
            ("Read a file with blanks.txt and report.", "a file with blanks.txt"),
        ] {
            let found = pattern.captures(said).and_then(|groups| Some(groups.get(1)?.as_str().to_owned()));
            assert_eq!(found.as_deref(), Some(file), "{said}");
        }
    }
}
