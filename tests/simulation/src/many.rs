//! Many seeds: each in a process of its own, as many at a time as there are cores.

use std::{
    io::Read,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    thread,
    time::Duration,
};

use clap::Args;
use rustix::time::{ClockId, clock_gettime};
use towline_core::mutants::Mutant;

use crate::{IDLE, WRONG};

/// Seeds that failed once, and run each time from then on.
const FAILED_SEEDS: &str = include_str!("../failed_seeds.txt");
/// A run that takes longer hangs. A usual one takes a few seconds.
const RUN_TAKES_AT_MOST: Duration = Duration::from_secs(120);
/// How often running processes are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Of so many runs at most one may do too little.
const IDLE_ONE_OF: usize = 4;

/// Run fresh seeds, and those that failed before
#[derive(Args)]
pub struct Many {
    /// How many fresh seeds
    #[arg(long, default_value_t = 50)]
    count: usize,
    /// The first of them; drawn if it is not given
    #[arg(long)]
    first: Option<u64>,
    /// Processes at a time; as many as there are cores if it is not given
    #[arg(long)]
    jobs: Option<usize>,
    /// Where the logs of failed runs go
    #[arg(long, default_value = "target/simulation")]
    logs: PathBuf,
}

/// Switch on one bug after the other
#[derive(Args)]
pub struct Mutants {
    /// Only this one
    #[arg(long)]
    only: Option<String>,
    /// Seeds within which it must be found
    #[arg(long, default_value_t = 200)]
    seeds: u64,
    /// Processes at a time; as many as there are cores if it is not given
    #[arg(long)]
    jobs: Option<usize>,
}

/// What came of a seed.
struct Done {
    seed: u64,
    code: Option<i32>,
    said: String,
}

impl Done {
    fn is_idle(&self) -> bool {
        self.code == Some(i32::from(IDLE))
    }

    fn is_wrong(&self) -> bool {
        !self.is_idle() && self.code != Some(0)
    }
}

impl Many {
    /// Runs them.
    ///
    /// # Errors
    /// When a process cannot be started.
    pub fn run(self) -> Result<ExitCode, String> {
        let began = now();
        let first = self.first.unwrap_or_else(|| fastrand::u64(0..1 << 32));
        let failed_before = failed_seeds()?;
        println!("{} fresh seeds from {first}, and {} that failed before", self.count, failed_before.len());
        let (mut counted, mut idle, mut wrong) = (0, 0, Vec::new());
        let wanted = self.count + failed_before.len();
        let mut seeds = failed_before.into_iter().chain(first..);
        let mut pool = Pool::new(self.jobs, None);
        loop {
            while counted + pool.len() < wanted && pool.has_room() {
                pool.start(seeds.next().ok_or("there are no more seeds")?)?;
            }
            let Some(done) = pool.next()? else { break };
            print!("{}", done.said);
            if done.is_idle() {
                println!("seed {} did too little, and does not count", done.seed);
                idle += 1;
                continue;
            }
            counted += 1;
            if done.is_wrong() {
                wrong.push(done);
            }
        }
        for done in &wrong {
            self.keep_log(done)?;
        }
        let took = (now() - began).as_secs_f64();
        println!("{counted} seeds in {took:.0} s: {} wrong, {idle} did too little", wrong.len());
        if idle > wanted.div_ceil(IDLE_ONE_OF) {
            println!("too many runs do too little");
            return Ok(ExitCode::from(WRONG));
        }
        Ok(if wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(WRONG) })
    }

    /// Runs a failed seed again, with a log.
    fn keep_log(&self, done: &Done) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("keep the log of seed {}: {error}", done.seed);
        std::fs::create_dir_all(&self.logs).map_err(failed)?;
        let logs = self.logs.canonicalize().map_err(failed)?;
        let log = logs.join(format!("{}.log", done.seed));
        let mut again = command(done.seed, Some(&log), None)?.spawn().map_err(failed)?;
        let said = wait(&mut again)?;
        let same = if said.1 == done.said {
            "the same again"
        } else {
            "NOT the same again: the simulation is not deterministic"
        };
        println!("seed {} failed; its log is {} ({same})", done.seed, log.display());
        println!("replay it with: make sim SEED={}   and add the seed to tests/simulation/failed_seeds.txt", done.seed);
        Ok(())
    }
}

impl Mutants {
    /// Runs them.
    ///
    /// # Errors
    /// When a process cannot be started.
    pub fn run(self) -> Result<ExitCode, String> {
        let chosen =
            Mutant::ALL.into_iter().filter(|mutant| self.only.as_deref().is_none_or(|only| only == mutant.name()));
        let (mut missed, mut any) = (0, false);
        for mutant in chosen {
            any = true;
            match self.find(mutant)? {
                Some(done) => {
                    let wrong = done.said.lines().find(|line| line.starts_with("WRONG")).unwrap_or("the run hangs");
                    println!("{:<26} found at seed {}: {wrong}", mutant.name(), done.seed);
                    if is_wrong_without(done.seed)? {
                        println!("{:<26} and seed {} is wrong without it", mutant.name(), done.seed);
                        missed += 1;
                    }
                }
                None => {
                    println!("{:<26} NOT FOUND within {} seeds", mutant.name(), self.seeds);
                    missed += 1;
                }
            }
        }
        if !any {
            return Err("there is no such bug".to_owned());
        }
        Ok(if missed == 0 { ExitCode::SUCCESS } else { ExitCode::from(WRONG) })
    }

    fn find(&self, mutant: Mutant) -> Result<Option<Done>, String> {
        let mut pool = Pool::new(self.jobs, Some(mutant.name()));
        let mut seeds = 1..=self.seeds;
        let mut found: Option<Done> = None;
        loop {
            while found.is_none() && pool.has_room() {
                let Some(seed) = seeds.next() else { break };
                pool.start(seed)?;
            }
            let Some(done) = pool.next()? else { return Ok(found) };
            if done.is_wrong() && found.as_ref().is_none_or(|found| done.seed < found.seed) {
                found = Some(done);
            }
        }
    }
}

/// Whether a seed fails with no bug switched on: then it has found none.
fn is_wrong_without(seed: u64) -> Result<bool, String> {
    let mut pool = Pool::new(Some(1), None);
    pool.start(seed)?;
    Ok(pool.next()?.is_none_or(|done| done.is_wrong()))
}

/// The processes that run.
struct Pool {
    jobs: usize,
    mutant: Option<&'static str>,
    running: Vec<(u64, Child, Duration)>,
}

impl Pool {
    fn new(jobs: Option<usize>, mutant: Option<&'static str>) -> Self {
        let cores = || thread::available_parallelism().map_or(1, usize::from);
        Self { jobs: jobs.unwrap_or_else(cores).max(1), mutant, running: Vec::new() }
    }

    fn len(&self) -> usize {
        self.running.len()
    }

    fn has_room(&self) -> bool {
        self.running.len() < self.jobs
    }

    fn start(&mut self, seed: u64) -> Result<(), String> {
        let child = command(seed, None, self.mutant)?.spawn().map_err(|error| format!("start seed {seed}: {error}"))?;
        self.running.push((seed, child, now()));
        Ok(())
    }

    /// The next that ends; none if none runs.
    fn next(&mut self) -> Result<Option<Done>, String> {
        while !self.running.is_empty() {
            for position in 0..self.running.len() {
                let (seed, child, since) = &mut self.running[position];
                let seed = *seed;
                let failed = |error: std::io::Error| format!("wait for seed {seed}: {error}");
                let ended = child.try_wait().map_err(failed)?.is_some();
                let hangs = now().saturating_sub(*since) > RUN_TAKES_AT_MOST;
                if hangs {
                    child.kill().map_err(failed)?;
                }
                if ended || hangs {
                    let (_, mut child, _) = self.running.remove(position);
                    let (code, mut said) = wait(&mut child)?;
                    if hangs {
                        said.push_str(&format!("seed {seed} hangs: it took more than {RUN_TAKES_AT_MOST:?}\n"));
                    }
                    return Ok(Some(Done { seed, code, said }));
                }
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(None)
    }
}

fn command(seed: u64, log: Option<&Path>, mutant: Option<&str>) -> Result<Command, String> {
    let program = std::env::current_exe().map_err(|error| format!("find this program: {error}"))?;
    let mut command = Command::new(program);
    command.args(["run", &seed.to_string()]).env("RUST_BACKTRACE", "0").stdout(Stdio::piped()).stdin(Stdio::null());
    if let Some(log) = log {
        command.arg("--log").arg(log);
    }
    if let Some(mutant) = mutant {
        // With a bug anything may be said.
        command.args(["--mutant", mutant]).stderr(Stdio::null());
    }
    Ok(command)
}

/// What a process that ends says, which is little: a pipe holds it.
fn wait(child: &mut Child) -> Result<(Option<i32>, String), String> {
    let mut said = String::new();
    let failed = |error: std::io::Error| format!("wait for a seed: {error}");
    if let Some(out) = &mut child.stdout {
        out.read_to_string(&mut said).map_err(failed)?;
    }
    Ok((child.wait().map_err(failed)?.code(), said))
}

fn failed_seeds() -> Result<Vec<u64>, String> {
    let lines = FAILED_SEEDS.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let parse = |line: &str| line.parse().map_err(|error| format!("{line:?} in failed_seeds.txt: {error}"));
    lines.filter(|line| !line.is_empty()).map(parse).collect()
}

/// The time as the kernel has it: libc's clocks stand still in this program.
fn now() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or_default(), u32::try_from(time.tv_nsec).unwrap_or_default())
}
