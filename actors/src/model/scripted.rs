//! A model that follows rules. It is no AI and says so.

use async_trait::async_trait;

use super::{ModelError, ModelProvider, ModelRequest, ModelStream, ProviderInfo};

/// One mistake in a rules file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleMistake {
    /// Line, from 1; 0 if it is not known.
    pub line: u64,
    /// What is wrong.
    pub message: String,
}

/// All mistakes of a rules file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(|m| format!("line {}: {}", m.line, m.message)).collect::<Vec<_>>().join("\n"))]
pub struct RuleMistakes(pub Vec<RuleMistake>);

/// The scripted provider.
pub struct ScriptedProvider {
    strict: bool,
}

impl ScriptedProvider {
    /// Reads rules.
    ///
    /// # Errors
    /// All mistakes.
    pub fn from_yaml(_rules: &str, strict: bool) -> Result<Self, RuleMistakes> {
        Ok(Self { strict })
    }
}

#[async_trait]
impl ModelProvider for ScriptedProvider {
    fn info(&self) -> ProviderInfo {
        ProviderInfo { name: "towline.scripted".into(), simulated: true }
    }

    async fn complete(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        Err(ModelError::permanent("no_rule", format!("{} {}", request.agent, self.strict)))
    }
}
