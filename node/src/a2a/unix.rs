//! The door for programs of this machine: HTTP over a unix socket, and the kernel says who is at the other end.
//!
//! The file has mode 0600, and a connection counts only if its process runs as this node's user or as root: any other is
//! dropped before a byte of HTTP is read. Whoever passes is the operator, whatever the headers say. There is no TLS here and
//! no session; a browser cannot reach it.

use std::{
    fs::{self, DirBuilder, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use axum::{Router, body::Body};
use http::Request;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{rt::TokioIo, server::graceful::GracefulShutdown};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::Semaphore,
    task::JoinSet,
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tower::Service;

use super::listener::{Plain, builder};
use crate::auth::KernelVouches;

/// Most connections at the same time; more wait in the kernel's queue. They are programs of one user.
const MAX_CONNECTIONS: usize = 1_024;
/// How long a stopping node waits for answers that are under way.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the loop rests when the system has no file descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Strangers are told of at most this often: they may come as often as they like.
const TELL_EVERY: Duration = Duration::from_secs(60);
/// Longest path that the kernel takes for a socket, with the zero at its end.
const MAX_PATH_BYTES: usize = 108;
/// What comes before the name of the folder in which a socket is made.
const STAGING: &str = ".towline-";

/// Who is at the other end, as the kernel says: an extension of each request over the socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnixPeer {
    /// The user of its process.
    pub uid: u32,
    /// The socket.
    pub socket: Arc<Path>,
}

/// A socket that is bound and not yet served. Its file goes with it.
#[derive(Debug)]
pub struct UnixDoor {
    listener: UnixListener,
    file: SocketFile,
}

/// The file of a socket, as long as it is still the one that was made.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|file| file.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl UnixDoor {
    /// Makes a socket at `path`, which nobody but its user can connect to at any moment. One that a dead process left is
    /// replaced.
    ///
    /// # Errors
    /// When somebody listens there, something else lies there, or it cannot be made.
    pub fn bind(path: &Path) -> io::Result<Self> {
        clear(path)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let staging = folder.join(format!("{STAGING}{}", std::process::id()));
        let made = staging.join("s");
        if path.as_os_str().len().max(made.as_os_str().len()) >= MAX_PATH_BYTES {
            let text = format!("the path of a socket has less than {MAX_PATH_BYTES} bytes: choose a shorter one");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        // In a folder of its own until its mode is right: there is no moment at which others could connect.
        DirBuilder::new().mode(0o700).create(&staging)?;
        let bound = bind_in(&made, path);
        let _ = fs::remove_file(&made);
        let _ = fs::remove_dir(&staging);
        bound
    }
}

fn bind_in(made: &Path, path: &Path) -> io::Result<UnixDoor> {
    let listener = UnixListener::bind(made)?;
    fs::set_permissions(made, Permissions::from_mode(0o600))?;
    let inode = fs::symlink_metadata(made)?.ino();
    fs::rename(made, path)?;
    Ok(UnixDoor { listener, file: SocketFile { path: path.to_owned(), inode } })
}

/// Removes a socket that nobody listens on any more.
fn clear(path: &Path) -> io::Result<()> {
    let file = match fs::symlink_metadata(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !file.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "something else than a socket lies there"));
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens there")),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => Err(error),
    }
}

/// Who may connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Users {
    own: u32,
}

impl Users {
    fn of_process() -> Self {
        Self { own: rustix::process::geteuid().as_raw() }
    }

    /// This node's own user, or root.
    fn lets_in(self, uid: u32) -> bool {
        uid == self.own || uid == 0
    }
}

/// Serves `router` on the socket until `stop`, then lets what is under way finish, within a limit.
pub async fn serve(door: UnixDoor, router: Router, stop: CancellationToken) {
    serve_for(door, router, stop, Users::of_process()).await;
}

async fn serve_for(door: UnixDoor, router: Router, stop: CancellationToken, users: Users) {
    let UnixDoor { listener, file } = door;
    let socket: Arc<Path> = Arc::from(file.path.as_path());
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    let mut told: Option<Instant> = None;
    while let Some(stream) = next(&listener, &room, &mut connections, &stop).await {
        let uid = match stream.peer_cred() {
            Ok(peer) if users.lets_in(peer.uid()) => peer.uid(),
            refused => {
                if told.is_none_or(|at| at.elapsed() >= TELL_EVERY) {
                    told = Some(Instant::now());
                    let uid = refused.map_or_else(|error| error.to_string(), |peer| peer.uid().to_string());
                    tracing::warn!(uid, socket = %socket.display(), "a connection of another user was dropped");
                }
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else { continue };
        let peer = UnixPeer { uid, socket: Arc::clone(&socket) };
        let router = router.clone();
        let watcher = graceful.watcher();
        connections.spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let mut request = request.map(Body::new);
                request.extensions_mut().insert(peer.clone());
                request.extensions_mut().insert(KernelVouches);
                router.clone().call(request)
            });
            let builder = builder::<Plain>();
            let served = watcher.watch(builder.serve_connection(TokioIo::new(stream), service)).await;
            if let Err(error) = served {
                tracing::debug!(%error, "serve a connection of the socket");
            }
            drop(permit);
        });
    }
    drop(listener);
    drop(file);
    if tokio::time::timeout(DRAIN_TIMEOUT, graceful.shutdown()).await.is_err() {
        tracing::warn!(connections = connections.len(), "connections of the socket did not end in time");
    }
    connections.shutdown().await;
}

/// The next connection; none once the door closes. Accepts only while there is room.
async fn next(
    listener: &UnixListener,
    room: &Semaphore,
    connections: &mut JoinSet<()>,
    stop: &CancellationToken,
) -> Option<UnixStream> {
    loop {
        let accepted = async {
            drop(room.acquire().await);
            listener.accept().await
        };
        tokio::select! {
            () = stop.cancelled() => return None,
            Some(_) = connections.join_next() => {}
            connection = accepted => match connection {
                Ok((stream, _)) => return Some(stream),
                Err(error) => {
                    tracing::warn!(%error, "accept a connection of the socket");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::{Extension, routing::get};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    fn router() -> Router {
        Router::new().route("/uid", get(async |Extension(peer): Extension<UnixPeer>| peer.uid.to_string()))
    }

    async fn ask(path: &Path) -> Result<String, reqwest::Error> {
        // Another test of this process may have been first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder().unix_socket(path).timeout(PATIENCE).build().unwrap();
        http.get("http://localhost/uid").send().await?.text().await
    }

    #[tokio::test]
    async fn a_socket_is_its_users_alone_and_goes_with_its_door() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("towline.sock");
        let door = UnixDoor::bind(&path).unwrap();
        assert_eq!(mode(&path), 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "where it was made is gone");
        let in_use = UnixDoor::bind(&path).unwrap_err();
        assert_eq!(in_use.kind(), io::ErrorKind::AddrInUse);

        let stop = CancellationToken::new();
        let serving = tokio::spawn(serve(door, router(), stop.clone()));
        let own = rustix::process::geteuid().as_raw().to_string();
        assert_eq!(ask(&path).await.unwrap(), own);
        stop.cancel();
        tokio::time::timeout(PATIENCE, serving).await.unwrap().unwrap();
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_connection_of_another_user_is_dropped_before_http() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("towline.sock");
        let door = UnixDoor::bind(&path).unwrap();
        let stop = CancellationToken::new();
        // As if this node ran as another user than this test does; root is let in everywhere.
        let stranger = Users { own: rustix::process::geteuid().as_raw().wrapping_add(1) };
        let serving = tokio::spawn(serve_for(door, router(), stop.clone(), stranger));
        let answer = ask(&path).await;
        assert_eq!(answer.is_ok(), rustix::process::geteuid().is_root(), "{answer:?}");
        stop.cancel();
        tokio::time::timeout(PATIENCE, serving).await.unwrap().unwrap();
    }

    #[test]
    fn the_own_user_and_root_are_let_in_and_nobody_else() {
        let users = Users { own: 1000 };
        assert_eq!([1000, 0, 1001, u32::MAX].map(|uid| users.lets_in(uid)), [true, true, false, false]);
    }

    #[tokio::test]
    async fn what_a_dead_process_left_is_replaced_and_anything_else_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("towline.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "nobody removed it");
        let door = UnixDoor::bind(&path).unwrap();
        drop(door);
        assert!(!path.exists());
        fs::write(&path, "a file").unwrap();
        assert_eq!(UnixDoor::bind(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "a file");
        let long = folder.path().join("x".repeat(MAX_PATH_BYTES));
        assert_eq!(UnixDoor::bind(&long).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
