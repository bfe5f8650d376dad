//! What the numbers were measured on, and what processes used: read from `/proc`.

use std::{fs, path::Path, time::Duration};

use serde::Serialize;

/// `USER_HZ`: what the kernel counts CPU time in for user space, the same on every architecture that we build for.
const TICKS_PER_SECOND: u64 = 100;

/// The machine and how busy it was.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Machine {
    pub(super) cpu: String,
    pub(super) cores: usize,
    pub(super) memory_mb: u64,
    pub(super) kernel: String,
    /// Type of the file system that the data lies on.
    pub(super) file_system: String,
    /// Whether this binary was optimised.
    pub(super) optimised: bool,
    /// Runnable processes over the last minute, before the first point.
    pub(super) load_before: f64,
}

impl Machine {
    pub(super) fn of_this(data: &Path) -> Self {
        Self {
            cpu: field("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_mb: kilobytes("/proc/meminfo", "MemTotal") / 1024,
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            file_system: file_system(data),
            optimised: !cfg!(debug_assertions),
            load_before: load(),
        }
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { cpu, cores, memory_mb, kernel, file_system, optimised, load_before } = self;
        let build = if *optimised { "optimised" } else { "not optimised" };
        write!(f, "{cores} cores of {cpu}, {memory_mb} MB, Linux {kernel}, data on {file_system}; binary {build}; ")?;
        write!(f, "load {load_before:.2}")
    }
}

/// Runnable processes over the last minute.
pub(super) fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|load| load.parse().ok()).unwrap_or(0.0)
}

/// CPU time that processes have used since they started; one that has ended counts nothing.
pub(super) fn cpu_of(pids: &[u32]) -> Duration {
    let ticks: u64 = pids.iter().map(|pid| ticks_of(*pid).unwrap_or(0)).sum();
    Duration::from_millis(ticks * 1_000 / TICKS_PER_SECOND)
}

/// Memory of a process that is in RAM, in kilobytes.
pub(super) fn rss_kb(pid: u32) -> u64 {
    kilobytes(&format!("/proc/{pid}/status"), "VmRSS")
}

/// Files and sockets that a process has open.
pub(super) fn open_files(pid: u32) -> u64 {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |files| files.count() as u64)
}

/// Threads of a process.
pub(super) fn threads(pid: u32) -> u64 {
    field(&format!("/proc/{pid}/status"), "Threads").and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// User and system time are the 14th and 15th field; the second, the program's name in brackets, may hold blanks.
fn ticks_of(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, behind_name) = text.rsplit_once(')')?;
    let mut fields = behind_name.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

fn field(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_once(':').map(|(_, value)| value.trim().to_owned())
}

fn kilobytes(file: &str, name: &str) -> u64 {
    let value = field(file, name).unwrap_or_default();
    value.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// The mount with the longest path that the folder lies in.
fn file_system(data: &Path) -> String {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let holding = mounts.lines().filter_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (point, kind) = (fields.next()?, fields.next()?);
        data.starts_with(point).then(|| (point.len(), kind.to_owned()))
    });
    holding.max_by_key(|(length, _)| *length).map_or_else(|| "unknown".to_owned(), |(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_memory_and_the_machine_is_known() {
        assert!(rss_kb(std::process::id()) > 100);
        assert!(ticks_of(std::process::id()).is_some());
        assert!(open_files(std::process::id()) > 2 && threads(std::process::id()) > 0);
        let machine = Machine::of_this(Path::new("/"));
        assert!(machine.memory_mb > 0 && machine.cores > 0 && !machine.kernel.is_empty(), "{machine}");
        assert_ne!(machine.file_system, "unknown");
    }
}
