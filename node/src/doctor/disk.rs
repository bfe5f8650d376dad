//! The disk of the data folder: how much room it has, and how long an entry of the log takes to be on it.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::{Check, Patient, Planned, planned};

const AREA: &str = "disk";
/// Below this the log may be full before somebody has read the warning.
const LITTLE_ROOM: u64 = 5 << 30;
/// Below this there is no room for one more snapshot beside the log.
const NO_ROOM: u64 = 512 << 20;
/// Every committed command waits for two of these, one after the other.
const SLOW_SYNC: Duration = Duration::from_millis(20);
/// A leader that is held up so long loses its keep-alives, and with them its place.
const TOO_SLOW_SYNC: Duration = Duration::from_millis(250);
/// So many are measured: the median is not one that another process held up.
const SYNCS: usize = 9;
/// About one entry of the log.
const ENTRY_BYTES: usize = 4096;
/// The file that is written and removed again.
const FILE: &str = ".doctor";

pub(super) fn plan(patient: &Patient) -> Vec<Planned> {
    let data = patient.config.node.data.clone();
    vec![planned(AREA, data.display().to_string(), async move {
        let looked = tokio::task::spawn_blocking(move || look(&data)).await;
        looked.unwrap_or_else(|error| vec![Check::fail(AREA, "data", error.to_string(), "look again")])
    })]
}

fn look(data: &Path) -> Vec<Check> {
    let folder = there(data);
    let shown = data.display().to_string();
    vec![room(&shown, &folder), sync(&shown, &folder)]
}

/// The folder, or before the first start the nearest one above that is there.
fn there(data: &Path) -> PathBuf {
    data.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("/")).to_owned()
}

fn room(shown: &str, folder: &Path) -> Check {
    let mend = "make room on that disk, or set node.data to a folder of another one while the node is stopped, and move its content";
    match rustix::fs::statvfs(folder) {
        Ok(disk) => judge_room(shown, disk.f_bavail.saturating_mul(disk.f_frsize), mend),
        Err(error) => Check::fail(AREA, shown, format!("free space of {}: {error}", folder.display()), mend),
    }
}

fn judge_room(shown: &str, free: u64, mend: &str) -> Check {
    let detail = format!("{:.1} GiB free", free as f64 / f64::from(1 << 30));
    match free {
        0..NO_ROOM => Check::fail(AREA, shown, detail, mend),
        NO_ROOM..LITTLE_ROOM => Check::warn(AREA, shown, detail, mend),
        LITTLE_ROOM.. => Check::ok(AREA, shown, detail),
    }
}

fn sync(shown: &str, folder: &Path) -> Check {
    match measured(folder) {
        Ok(times) => judge_sync(shown, times),
        Err(error) => {
            let mend = format!("let the user of the node write there: chown -R USER {}", folder.display());
            Check::fail(AREA, shown, format!("write into {}: {error}", folder.display()), mend)
        }
    }
}

fn judge_sync(shown: &str, mut times: Vec<Duration>) -> Check {
    times.sort();
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    let longest = times.last().copied().unwrap_or_default();
    let detail = format!("fsync takes {median:.1?}, {longest:.1?} at most");
    let mend = "set node.data to a folder on a local SSD; no network disk, and none that others write to all the time";
    match median {
        _ if median >= TOO_SLOW_SYNC => Check::fail(AREA, shown, detail, mend),
        _ if median >= SLOW_SYNC => Check::warn(AREA, shown, detail, mend),
        _ => Check::ok(AREA, shown, detail),
    }
}

fn measured(folder: &Path) -> io::Result<Vec<Duration>> {
    let path = folder.join(format!("{FILE}-{}", std::process::id()));
    let written = File::create(&path).and_then(|file| times(&file));
    let removed = fs::remove_file(&path);
    let times = written?;
    removed.map(|()| times)
}

fn times(mut file: &File) -> io::Result<Vec<Duration>> {
    let mut times = Vec::with_capacity(SYNCS);
    for _ in 0..SYNCS {
        file.write_all(&[0x5a; ENTRY_BYTES])?;
        let start = Instant::now();
        file.sync_data()?;
        times.push(start.elapsed());
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn little_room_is_a_warning_and_none_a_failure() {
        for (free, verdict) in [(0, Verdict::Fail), (NO_ROOM, Verdict::Warn), (LITTLE_ROOM, Verdict::Ok)] {
            let check = judge_room("data", free, "mend");
            assert_eq!((check.verdict, check.mend.is_some()), (verdict, verdict != Verdict::Ok), "{free}");
        }
    }

    #[test]
    fn a_slow_disk_is_judged_by_its_median() {
        let ms = Duration::from_millis;
        assert_eq!(judge_sync("data", vec![ms(900), ms(1), ms(2)]).verdict, Verdict::Ok, "one was held up");
        assert_eq!(judge_sync("data", vec![ms(30), ms(30), ms(1)]).verdict, Verdict::Warn);
        assert_eq!(judge_sync("data", vec![ms(300), ms(300), ms(1)]).verdict, Verdict::Fail);
    }

    #[test]
    fn a_folder_that_is_not_there_yet_is_looked_at_above_and_nothing_is_left_behind() {
        let folder = tempfile::tempdir().unwrap();
        let checks = look(&folder.path().join("not/yet"));
        assert_eq!(checks.len(), 2);
        assert!(checks[1].detail.contains("fsync takes"), "{checks:?}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_told() {
        // Nobody writes there, root included.
        let check = sync("data", Path::new("/proc"));
        assert_eq!(check.verdict, Verdict::Fail);
        assert!(check.mend.unwrap().contains("chown"));
    }
}
