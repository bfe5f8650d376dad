//! The addresses that a node listens on: free before it starts.

use std::{io, net::SocketAddr, path::Path};

use tokio::net::{TcpListener, UnixStream};

use super::{Check, Patient, Planned, planned};

const AREA: &str = "port";

pub(super) fn plan(patient: &Patient) -> Vec<Planned> {
    let node = patient.config.node.clone();
    let runs = patient.live.is_some();
    let mut plan = Vec::new();
    for (setting, address) in [("node.listen.http", node.http), ("node.listen.peer", node.peer)] {
        plan.push(planned(AREA, setting, async move {
            vec![if runs {
                Check::ok(AREA, setting, format!("{address}: this node listens"))
            } else {
                port(setting, address).await
            }]
        }));
    }
    if let Some(path) = node.unix {
        plan.push(planned(AREA, "node.listen.unix", async move { vec![socket(&path, runs).await] }));
    }
    plan
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the other kinds of I/O error need no advice of their own")]
async fn port(setting: &str, address: SocketAddr) -> Check {
    let error = match TcpListener::bind(address).await {
        Ok(_) => return Check::ok(AREA, setting, format!("{address} is free")),
        Err(error) => error,
    };
    let mend = match error.kind() {
        io::ErrorKind::AddrInUse => format!(
            "if this node runs already, ask it: `towline doctor` without --config; else stop what `ss -ltnp` shows there, or \
             set {setting} to another port"
        ),
        io::ErrorKind::AddrNotAvailable => format!("set {setting} to an address that `ip addr` shows"),
        io::ErrorKind::PermissionDenied => {
            format!("set {setting} to a port above 1023, or let the node bind lower ones")
        }
        _ => format!("set {setting} to another address"),
    };
    Check::fail(AREA, setting, format!("{address}: {error}"), mend)
}

/// A socket that somebody listens on is in use; one that is left over is replaced at the start.
async fn socket(path: &Path, runs: bool) -> Check {
    const SETTING: &str = "node.listen.unix";
    let shown = path.display();
    if runs {
        return Check::ok(AREA, SETTING, format!("{shown}: this node listens"));
    }
    let folder = path.parent().unwrap_or(Path::new("/"));
    if !folder.is_dir() {
        let mend = format!("mkdir -p -m 0700 {}, as the user of the node", folder.display());
        return Check::fail(AREA, SETTING, format!("{shown}: its folder is not there"), mend);
    }
    match UnixStream::connect(path).await {
        Ok(_) => {
            let mend = "stop what listens there, or set node.listen.unix to another path";
            Check::fail(AREA, SETTING, format!("{shown}: another process listens"), mend)
        }
        Err(_) => Check::ok(AREA, SETTING, format!("{shown} is free")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[tokio::test]
    async fn a_port_that_is_taken_is_told_with_its_setting() {
        let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = taken.local_addr().unwrap();
        let check = port("node.listen.http", address).await;
        assert_eq!(check.verdict, Verdict::Fail, "{check:?}");
        assert!(check.mend.unwrap().contains("set node.listen.http"));
        drop(taken);
        assert_eq!(port("node.listen.http", address).await.verdict, Verdict::Ok);
    }

    #[tokio::test]
    async fn a_socket_is_in_use_only_while_somebody_listens() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        assert_eq!(socket(&folder.path().join("none/a.sock"), false).await.verdict, Verdict::Fail);
        assert_eq!(socket(&path, false).await.verdict, Verdict::Ok);
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        assert_eq!(socket(&path, false).await.verdict, Verdict::Fail);
        drop(listener);
        assert_eq!(socket(&path, false).await.verdict, Verdict::Ok, "what is left over is no listener");
    }
}
