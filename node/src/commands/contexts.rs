//! Which clusters this user talks to from the command line, and the sessions there: one file in the user's configuration
//! folder, which only the user may read.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::error::CliError;

/// Names another folder than the usual one.
const FOLDER_VARIABLE: &str = "TOWLINE_CONFIG_DIR";
const FILE: &str = "contexts.json";
/// Largest such file: some thousand contexts.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// One cluster, and who this user is there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Context {
    /// Its nodes; any of them answers for it.
    pub servers: Vec<String>,
    /// The token of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// Whose the session is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// Id of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// When it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<String>,
    /// File with the authority of the certificates of its nodes, where the machine does not know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
}

/// All contexts of this user.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Contexts {
    /// Which one commands use that name no server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<String>,
    /// By name.
    #[serde(default)]
    pub contexts: BTreeMap<String, Context>,
}

impl Contexts {
    /// What the file says; nothing where there is none.
    pub(crate) fn load() -> Result<Self, CliError> {
        match file() {
            Some(path) => Self::load_from(&path),
            None => Ok(Self::default()),
        }
    }

    fn load_from(path: &Path) -> Result<Self, CliError> {
        let failed = |error: &dyn std::fmt::Display| {
            CliError::Usage(format!("read {}: {error}; remove it to begin anew", path.display()))
        };
        let size = match fs::metadata(path) {
            Ok(metadata) => metadata.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(failed(&error)),
        };
        if size > MAX_FILE_BYTES {
            return Err(failed(&format!("{size} bytes; the limit is {MAX_FILE_BYTES}")));
        }
        let text = fs::read_to_string(path).map_err(|error| failed(&error))?;
        serde_json::from_str(&text).map_err(|error| failed(&error))
    }

    /// Puts it into the file, whole or not at all.
    pub(crate) fn save(&self) -> Result<(), CliError> {
        let path = file().ok_or_else(|| {
            CliError::Usage(format!("there is no folder for settings: set HOME, XDG_CONFIG_HOME or {FOLDER_VARIABLE}"))
        })?;
        self.save_to(&path).map_err(|error| CliError::Other(format!("write {}: {error}", path.display())))
    }

    fn save_to(&self, path: &Path) -> io::Result<()> {
        let folder = path.parent().unwrap_or(Path::new("."));
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        // Of this process alone, so that two commands at once leave one whole file.
        let unfinished = folder.join(format!("{FILE}.{}", std::process::id()));
        let _ = fs::remove_file(&unfinished);
        let written = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&unfinished)
            .and_then(|mut file| file.write_all(&text).and_then(|()| file.sync_all()))
            .and_then(|()| fs::rename(&unfinished, path));
        if written.is_err() {
            let _ = fs::remove_file(&unfinished);
        }
        written
    }

    /// The context in use.
    pub(crate) fn current(&self) -> Option<&Context> {
        self.contexts.get(self.current.as_ref()?)
    }

    /// The token for whatever is below the URL of a node that some context names: it goes nowhere else.
    pub(crate) fn token_for(&self, url: &str) -> Option<&str> {
        self.of_url(url)?.token.as_deref()
    }

    /// The context of a node below whose URL this one is.
    pub(crate) fn of_url(&self, url: &str) -> Option<&Context> {
        let is_below =
            |server: &str| url.strip_prefix(server).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        let knows = |context: &&Context| context.servers.iter().any(|server| is_below(server));
        self.current().into_iter().chain(self.contexts.values()).find(knows)
    }

    /// The name of the context of a node, if there is one.
    pub(crate) fn name_of(&self, server: &str) -> Option<&str> {
        let knows = |context: &Context| context.servers.iter().any(|known| known == server);
        self.contexts.iter().find(|(_, context)| knows(context)).map(|(name, _)| name.as_str())
    }
}

/// What a context of a URL is called that was given no name.
pub(crate) fn name_of_url(url: &str) -> String {
    url.split_once("://").map_or(url, |(_, rest)| rest).trim_matches('/').to_owned()
}

fn file() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = set(FOLDER_VARIABLE)
        .or_else(|| set("XDG_CONFIG_HOME").map(|folder| folder.join("towline")))
        .or_else(|| set("HOME").map(|home| home.join(".config/towline")))?;
    Some(folder.join(FILE))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn context(server: &str, token: &str) -> Context {
        Context { servers: vec![server.to_owned()], token: Some(token.to_owned()), ..Context::default() }
    }

    #[test]
    fn what_is_saved_is_read_again_and_by_its_user_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/contexts.json");
        assert_eq!(Contexts::load_from(&path).unwrap(), Contexts::default());
        let mut contexts = Contexts { current: Some("prod".into()), ..Contexts::default() };
        contexts.contexts.insert("prod".into(), context("https://prod", "t"));
        for _ in 0..2 {
            contexts.save_to(&path).unwrap();
            assert_eq!(Contexts::load_from(&path).unwrap(), contexts);
        }
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing unfinished is left");
        fs::write(&path, "{").unwrap();
        assert_eq!(Contexts::load_from(&path).unwrap_err().code(), 2);
    }

    #[test]
    fn an_authority_counts_for_the_nodes_of_its_cluster_and_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("contexts.json");
        let mut contexts = Contexts::default();
        let authority = Some(PathBuf::from("/etc/towline/authority.pem"));
        let with_authority = Context { ca_file: authority.clone(), ..context("https://a:7420", "t") };
        contexts.contexts.insert("a".into(), with_authority);
        contexts.contexts.insert("b".into(), context("https://b:7420", "t"));
        contexts.save_to(&path).unwrap();
        let read = Contexts::load_from(&path).unwrap();
        let of = |url: &str| read.of_url(url).and_then(|context| context.ca_file.clone());
        assert_eq!(
            (of("https://a:7420/agents/x"), of("https://b:7420"), of("https://a:74200")),
            (authority, None, None)
        );
    }

    #[test]
    fn a_token_goes_to_the_nodes_of_its_cluster_and_nowhere_else() {
        let mut contexts = Contexts::default();
        contexts.contexts.insert("a".into(), context("http://a:7420", "token-a"));
        contexts.contexts.insert("b".into(), context("http://b:7420/mesh", "token-b"));
        for (url, token) in [
            ("http://a:7420", Some("token-a")),
            ("http://a:7420/agents/reader", Some("token-a")),
            ("http://b:7420/mesh/", Some("token-b")),
            ("http://a:74200", None),
            ("http://b:7420", None),
            ("http://b:7420/mesh2", None),
            ("http://other", None),
        ] {
            assert_eq!(contexts.token_for(url), token, "{url}");
        }
    }
}
