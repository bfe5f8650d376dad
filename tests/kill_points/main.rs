//! Kill points: a node is ended beside each of its durable writes, and started again.
//!
//! ```text
//! parent ── TOWLINE_KILL_POINT=NAME:TIME ──▶ node (this program) ── acked TASK ──▶ parent
//!        ── started again, checks ─────────▶ node ── has TASK, term N ──────────▶ parent: nothing acknowledged is missing
//! ```
//! The node is its own quorum: what it acknowledged rests on its disk alone. That unsynced writes are lost as well is
//! what `tests/storage` and the tests of the log look after; here the kernel keeps them. Each case must die where it was told to.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a test that cannot go on fails")]

mod node;

use std::{
    collections::BTreeSet,
    env,
    io::Read,
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Command, ExitStatus, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use towline_cluster::kill_points::ALL;

/// A node that has not come to its end by then hangs.
const PATIENCE: Duration = Duration::from_secs(120);
const SIGABRT: i32 = 6;

/// Where the process ends, and in the how manyth passing.
struct Case {
    point: &'static str,
    time: u32,
    /// What the process was doing.
    job: &'static str,
}

const fn case(job: &'static str, point: &'static str, time: u32) -> Case {
    Case { point, time, job }
}

/// Every point, and some more than once: the first run of records is another than the tenth. A folder is founded with eight
/// files, the last of which makes it a node's.
const CASES: [Case; 35] = [
    case("found", "folder-file-drafted", 1),
    case("found", "folder-file-drafted", 3),
    case("found", "folder-file-drafted", 6),
    case("found", "folder-file-renamed", 1),
    case("found", "folder-file-renamed", 4),
    case("found", "folder-file-renamed", 5),
    case("found", "folder-file-renamed", 6),
    case("serve", "folder-file-drafted", 1),
    case("serve", "folder-file-renamed", 1),
    case("serve", "folder-file-renamed", 2),
    case("serve", "blob-drafted", 1),
    case("serve", "blob-synced", 1),
    case("serve", "blob-renamed", 1),
    case("serve", "blob-renamed", 3),
    case("serve", "vote-saved", 1),
    case("serve", "wal-segment-opened", 1),
    case("serve", "wal-segment-made", 1),
    case("serve", "wal-segment-noted", 1),
    case("serve", "wal-run-written", 1),
    case("serve", "wal-run-written", 10),
    case("serve", "wal-run-synced", 1),
    case("serve", "wal-run-synced", 10),
    case("serve", "wal-segment-opened", 2),
    case("serve", "wal-segment-made", 2),
    case("serve", "wal-segment-noted", 2),
    case("serve", "archive-written", 1),
    case("serve", "archive-synced", 1),
    case("serve", "snapshot-drafted", 1),
    case("serve", "snapshot-synced", 1),
    case("serve", "snapshot-renamed", 1),
    case("serve", "wal-purge-marked", 1),
    case("serve", "wal-segment-removed", 1),
    case("serve", "wal-sealed", 1),
    case("again", "wal-end-cut", 1),
    case("again", "vote-saved", 1),
];

fn main() {
    if let Ok(job) = env::var(node::JOB) {
        return node::run(&job);
    }
    let wanted: Vec<String> = env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let missing = ALL.iter().find(|point| CASES.iter().all(|case| case.point != **point));
    assert_eq!(missing, None, "a kill point without a case");
    let cases = CASES.iter().filter(|case| wanted.is_empty() || wanted.iter().any(|part| case.point.contains(part)));
    for case in cases {
        let began = Instant::now();
        kill_and_come_back(case);
        println!("{:6} {:22} {:3}  {:.1} s", case.job, case.point, case.time, began.elapsed().as_secs_f32());
    }
}

fn kill_and_come_back(case: &Case) {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let mut acked = BTreeSet::new();
    if case.job == "again" {
        let first = ran(&data, "serve", Some("wal-run-synced:6"));
        acked.extend(first.words("acked"));
    }
    let job = if case.job == "again" { "serve" } else { case.job };
    let killed = ran(&data, job, Some(&format!("{}:{}", case.point, case.time)));
    assert_eq!(
        killed.status.signal(),
        Some(SIGABRT),
        "{} was not passed {} times: {}",
        case.point,
        case.time,
        killed.complained
    );
    acked.extend(killed.words("acked"));

    let checked = ran(&data, "check", None);
    assert!(checked.status.success(), "after {}: {}", case.point, checked.complained);
    let held = checked.words("has");
    let lost: Vec<&String> = acked.iter().filter(|task| !held.contains(*task)).collect();
    assert!(lost.is_empty(), "{} was acknowledged and is lost: {lost:?}", case.point);
    let made: Vec<String> = killed.words("sent").into_iter().chain(acked).collect();
    let strange: Vec<&String> = held.iter().filter(|task| !made.contains(task)).collect();
    assert!(case.job == "again" || strange.is_empty(), "{}: nobody sent {strange:?}", case.point);

    let again = ran(&data, "check", None);
    assert_eq!(again.words("has"), held, "{}: a start without work changed the state", case.point);
    assert!(term(&again) > term(&checked), "{}: a term came twice: {}", case.point, again.said);
    assert!(term(&checked) > killed.words("term").iter().map(|term| term.parse().unwrap()).max().unwrap_or(0));
}

fn term(ran: &Ran) -> u64 {
    ran.words("term").first().unwrap().parse().unwrap()
}

/// What a node said, and how it ended.
struct Ran {
    status: ExitStatus,
    said: String,
    complained: String,
}

impl Ran {
    /// What stands behind a word, on all lines that begin with it.
    fn words(&self, word: &str) -> BTreeSet<String> {
        self.said.lines().filter_map(|line| line.strip_prefix(word)?.strip_prefix(' ')).map(str::to_owned).collect()
    }
}

fn ran(data: &Path, job: &str, kill_point: Option<&str>) -> Ran {
    let mut command = Command::new(env::current_exe().unwrap());
    command.env(node::JOB, job).env(node::DATA, data).stdin(Stdio::null());
    match kill_point {
        Some(point) => command.env("TOWLINE_KILL_POINT", point),
        None => command.env_remove("TOWLINE_KILL_POINT"),
    };
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut out, mut errors) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let read = move |from: &mut dyn Read| {
        let mut text = String::new();
        from.read_to_string(&mut text).unwrap();
        text
    };
    let said = std::thread::spawn(move || read(&mut out));
    let complained = std::thread::spawn(move || read(&mut errors));
    let began = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if began.elapsed() > PATIENCE => {
                child.kill().unwrap();
                panic!("{job} hangs at {kill_point:?}");
            }
            None => sleep(Duration::from_millis(10)),
        }
    };
    Ran { status, said: said.join().unwrap(), complained: complained.join().unwrap() }
}
