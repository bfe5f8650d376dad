//! The demo's folder: made for it, and removed after it unless it is to be kept.

use std::{
    fs::DirBuilder,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use super::{Console, DemoError, NodePlan, file};

/// A temporary folder that only this user can enter: it holds the cluster's keys.
pub(crate) struct Workplace {
    dir: PathBuf,
    keep: bool,
}

impl Workplace {
    pub(crate) fn new(keep: bool) -> Result<Self, DemoError> {
        let dir = std::env::temp_dir().join(format!("towline-demo-{}", uuid::Uuid::now_v7().simple()));
        DirBuilder::new().mode(0o700).create(&dir).map_err(|source| file("make folder", &dir, source))?;
        Ok(Self { dir, keep })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// How to look at what is kept.
    pub(crate) fn explain(&self, nodes: &[NodePlan], task: Option<&str>, console: &mut Console) {
        if !self.keep {
            return;
        }
        console.say("");
        console.say(format!("kept in {}; to look at it, start the nodes again:", self.dir.display()));
        for node in nodes {
            console.say(format!("  towline node -c {} &", node.config.display()));
        }
        if let (Some(node), Some(task)) = (nodes.first(), task) {
            console.say(format!("  towline --server {} task get {task}", node.url()));
            console.say(format!("  towline --server {} cluster status", node.url()));
        }
        let logs: Vec<String> = nodes.iter().map(|node| node.log.display().to_string()).collect();
        console.say(format!("their logs so far: {}", logs.join(", ")));
    }

    /// Removes the folder unless it is to be kept; says what could not be removed.
    pub(crate) fn close(self) -> Option<String> {
        if self.keep {
            return None;
        }
        let removed = std::fs::remove_dir_all(&self.dir);
        removed.err().map(|error| format!("could not remove {}: {error}", self.dir.display()))
    }
}
