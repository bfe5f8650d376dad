//! What goes wrong: one fault after the other, the node that leads more often than the others.

use std::time::Duration;

use towline_core::NodeId;

use crate::{
    ambush::{self, Ambush, Sprung},
    disk::{Damage, Room},
    host::{End, Host, Standing, Still},
    ledger::Shared,
    world,
};

/// Between the ends of two faults, in milliseconds: long enough for some work.
const PAUSE_MS: std::ops::Range<u64> = 100..900;

/// A leader is alone for so long, in milliseconds: an election takes one, and the end of its session another.
const ISOLATED_FOR_MS: std::ops::Range<u64> = 2_800..4_500;
/// A disk is full for so long, in milliseconds.
const FULL_FOR_MS: std::ops::Range<u64> = 500..3_500;
/// Wall clocks that are set by days are set so far in all, in milliseconds: tasks are kept for a week.
const DAYS_MS: std::ops::Range<i64> = 25 * 3_600_000..50 * 3_600_000;
/// A process that ended because its disk was full is started again after so long, in milliseconds.
const SUPERVISED_MS: std::ops::Range<u64> = 200..1_000;

/// The order of faults, and those that are not over.
pub struct Nemesis {
    rng: fastrand::Rng,
    /// A clock may be set by days.
    days: bool,
    /// The machine whose disk damages content, if one does: the other copies are good.
    rotten: Option<usize>,
    next: Duration,
    over: Vec<(Duration, Cure)>,
    ambush: Option<Ambush>,
}

/// How a fault ends.
enum Cure {
    Start(usize),
    /// A process must not start on a damaged log, and starts once it is repaired.
    Repair(usize, Damage),
    GoOn(usize),
    Mend(Vec<(usize, usize)>),
    Calm,
    FastDisk(usize),
    Compact(usize),
    MakeRoom(usize),
}

impl Nemesis {
    /// One that has not begun.
    pub fn new(seed: u64) -> Self {
        let (over, next) = (Vec::new(), world::now());
        Self { rng: fastrand::Rng::with_seed(seed), days: false, rotten: None, next, over, ambush: None }
    }

    /// Lets a wall clock be set by days, once.
    pub fn may_set_days(&mut self) {
        self.days = true;
    }

    /// Lets the disk of one machine damage content.
    pub fn may_damage_content(&mut self, machine: usize) {
        self.rotten = Some(machine);
    }

    /// Begins from here on.
    pub fn begin(&mut self) {
        self.next = world::now();
    }

    /// Ends faults that are over, and lets others begin.
    pub fn tick(&mut self, hosts: &mut [Host], shared: &Shared) {
        self.end_some(hosts, shared);
        self.watch_ambush(hosts);
        let now = world::now();
        if self.next <= now && self.ambush.is_none() {
            self.next = now + Duration::from_millis(self.rng.u64(PAUSE_MS));
            if let Some(what) = self.hit(hosts, shared) {
                tracing::info!(what, "fault");
                shared.ledger().counts.faults += 1;
            }
        }
    }

    /// Ends faults that are over.
    pub fn end_some(&mut self, hosts: &mut [Host], shared: &Shared) {
        let now = world::now();
        while let Some(position) = self.over.iter().position(|(at, _)| *at <= now) {
            let (_, cure) = self.over.remove(position);
            self.cure(cure, hosts, shared);
        }
    }

    /// Ends all faults.
    pub fn heal(&mut self, hosts: &mut [Host], shared: &Shared) {
        if let Some(ambush) = self.ambush.take() {
            self.leave_ambush(&ambush);
        }
        for (at, cure) in std::mem::take(&mut self.over) {
            // A node that was started on a damaged log at this very moment has not had the time to look at it.
            if let Cure::Repair(number, _) = &cure
                && at > world::now()
            {
                hosts[*number].end(End::Killed);
            }
            self.cure(cure, hosts, shared);
        }
    }

    fn watch_ambush(&mut self, hosts: &mut [Host]) {
        let Some(ambush) = self.ambush.take() else { return };
        match ambush.look(hosts) {
            Sprung::Waits => self.ambush = Some(ambush),
            Sprung::Over => self.leave_ambush(&ambush),
            Sprung::Hit => {
                tracing::info!(voter = ambush.voter + 1, "loses power as it has voted");
                self.cure_in(20..100, Cure::Start(ambush.voter));
                self.cure_in(20..150, Cure::GoOn(ambush.leader));
                let ms = self.cure_in(ambush::CUT_FOR_MS..ambush::CUT_FOR_MS + 1, Cure::Mend(ambush.cuts()));
                self.next = world::now() + Duration::from_millis(ms);
            }
        }
    }

    fn leave_ambush(&mut self, ambush: &Ambush) {
        self.over.push((world::now(), Cure::GoOn(ambush.leader)));
        self.over.push((world::now(), Cure::Mend(ambush.cuts())));
    }

    fn lay_ambush(&mut self, hosts: &mut [Host]) -> Option<String> {
        let leader = leader(hosts)?;
        let ambush = self.ambush.insert(Ambush::lay(leader, hosts, &mut self.rng)?);
        Some(format!("node {} is stopped until node {} has voted", ambush.leader + 1, ambush.voter + 1))
    }

    /// A process has ended by itself: it must have had a reason.
    pub fn ended(&mut self, number: usize, reason: &str, hosts: &mut [Host], shared: &Shared) {
        tracing::info!(number, reason, "ended by itself");
        let host = &mut hosts[number];
        host.end(End::Killed);
        let is_full = world::with(|world| world.disk(number)).room() == Room::None;
        if host.standing == Standing::Joining || (is_full && reason.contains("no storage space")) {
            self.cure_in(SUPERVISED_MS, Cure::Start(number));
            return;
        }
        let was_removed = host.node.is_some_and(|node| {
            let shows = |host: &Host| host.handle().is_some_and(|handle| handle.local(|state| state.is_removed(node)));
            hosts.iter().any(shows) || shared.ledger().is_removed(node)
        });
        let host = &mut hosts[number];
        let has_reason = if host.is_damaged { reason.contains("is damaged at byte") } else { was_removed };
        if !has_reason {
            shared.ledger().wrong(format!("node {} ended: {reason}", number + 1));
        }
    }

    fn cure(&mut self, cure: Cure, hosts: &mut [Host], shared: &Shared) {
        match cure {
            Cure::Start(number) => {
                if !hosts[number].is_up() && hosts[number].standing != Standing::Empty {
                    tracing::info!(number, "starts again");
                    self.start_again(number, hosts, shared);
                }
            }
            Cure::Compact(number) => {
                self.compact(number, hosts);
            }
            Cure::MakeRoom(number) => world::with(|world| world.disk(number)).set_room(Room::Enough),
            Cure::Repair(number, damage) => {
                let place = damage.place();
                if hosts[number].is_up() {
                    shared.ledger().wrong(format!("node {} runs on a log that is damaged at {place}", number + 1));
                }
                damage.repair();
                hosts[number].is_damaged = false;
                hosts[number].end(End::Killed);
                self.start_again(number, hosts, shared);
            }
            Cure::GoOn(number) => hosts[number].go_on(),
            Cure::Mend(cuts) => {
                let now = world::now();
                world::with(|world| cuts.into_iter().for_each(|cut| world.net.mend(cut, now, &mut world.rng)));
            }
            Cure::Calm => world::with(|world| {
                world.net.slow = Duration::ZERO;
                world.net.lost_per_mille = 0;
            }),
            Cure::FastDisk(number) => world::with(|world| world.slow_disk(number, Duration::ZERO)),
        }
    }

    fn start_again(&mut self, number: usize, hosts: &mut [Host], shared: &Shared) {
        let is_member = |host: &&Host| host.standing == Standing::Member && host.is_up();
        let members: Vec<usize> = hosts.iter().filter(is_member).map(|host| host.number).collect();
        let member = self.rng.choice(members).unwrap_or_default();
        hosts[number].start_again(member, shared);
    }

    /// Begins a fault. Returns what it is.
    fn hit(&mut self, hosts: &mut [Host], shared: &Shared) -> Option<String> {
        let victim = self.victim(hosts)?;
        match self.rng.u8(0..100) {
            0..14 => Some(self.kill(victim, hosts)),
            14..29 => self.cut_power(victim, hosts),
            29..32 => Some(self.isolate(victim, hosts)),
            32..46 => Some(self.cut(victim, hosts)),
            46..56 => Some(self.still(victim, hosts)),
            56..60 => Some(self.trouble()),
            60..64 => Some(self.break_connections(victim, hosts)),
            64..70 => Some(self.slow_disk(victim)),
            70..74 => Some(self.set_clock(victim, shared)),
            74..80 => self.hand_over(victim, hosts),
            80..82 => self.compact(victim, hosts),
            82..89 => self.leave_behind(victim, hosts),
            89..93 => self.lay_ambush(hosts),
            93..97 => Some(self.fill_disks(victim, hosts)),
            _ => self.damage(victim, hosts, shared),
        }
    }

    /// A node that is up and not still, the leader in one case of two.
    fn victim(&mut self, hosts: &[Host]) -> Option<usize> {
        let up: Vec<usize> =
            hosts.iter().filter(|host| host.is_up() && !host.is_still()).map(|host| host.number).collect();
        let leader = self.rng.bool().then(|| leader(hosts)).flatten().filter(|leader| up.contains(leader));
        leader.or_else(|| self.rng.choice(&up).copied())
    }

    fn cure_in(&mut self, ms: std::ops::Range<u64>, cure: Cure) -> u64 {
        let ms = self.rng.u64(ms);
        self.over.push((world::now() + Duration::from_millis(ms), cure));
        ms
    }

    /// Lets some faults have their whole time for themselves: another one often ends what the first one began.
    fn maybe_wait(&mut self, ms: u64) {
        if self.rng.bool() {
            self.next = world::now() + Duration::from_millis(ms + self.rng.u64(PAUSE_MS));
        }
    }

    fn kill(&mut self, victim: usize, hosts: &mut [Host]) -> String {
        hosts[victim].end(End::Killed);
        let down = self.down();
        let ms = self.cure_in(down, Cure::Start(victim));
        format!("node {} is killed for {ms} ms", victim + 1)
    }

    /// Often so short that nobody has missed it yet.
    fn down(&mut self) -> std::ops::Range<u64> {
        if self.rng.bool() { 2..150 } else { 150..1_500 }
    }

    /// Within a session, beyond one, or so long that another leader has given everything away.
    fn long(&mut self) -> std::ops::Range<u64> {
        [100..900, 1_400..2_600, 1_400..2_600, 2_600..4_000][self.rng.usize(0..4)].clone()
    }

    /// Of one machine, some, or all.
    fn cut_power(&mut self, victim: usize, hosts: &mut [Host]) -> Option<String> {
        let others = self.rng.u8(0..4);
        let mut lost = Vec::new();
        for (number, host) in hosts.iter_mut().enumerate() {
            let hit = number == victim || others == 3 || (others == 2 && self.rng.bool());
            if hit && host.is_up() {
                let bytes = host.end(End::PowerCut);
                let down = self.down();
                self.cure_in(down, Cure::Start(number));
                lost.push(format!("node {} ({bytes} bytes lost)", number + 1));
            }
        }
        Some(format!("without power: {}", lost.join(", ")))
    }

    /// The leader alone on its side, for so long that another one has given its tasks away.
    fn isolate(&mut self, victim: usize, hosts: &[Host]) -> String {
        let victim = leader(hosts).unwrap_or(victim);
        let others = (0..hosts.len()).filter(|other| *other != victim);
        let cuts: Vec<_> = others.flat_map(|other| [(other, victim), (victim, other)]).collect();
        world::with(|world| cuts.iter().for_each(|cut| world.net.cut(*cut)));
        let ms = self.cure_in(ISOLATED_FOR_MS, Cure::Mend(cuts));
        self.next = world::now() + Duration::from_millis(ms);
        format!("node {} is alone for {ms} ms", victim + 1)
    }

    fn cut(&mut self, victim: usize, hosts: &[Host]) -> String {
        let (into, out) = [(true, true), (true, true), (true, false), (false, true)][self.rng.usize(0..4)];
        let one = self.rng.u8(0..3) == 0;
        let others: Vec<usize> = (0..hosts.len()).filter(|other| *other != victim).collect();
        let only = self.rng.choice(&others).copied();
        let hit = others.into_iter().filter(|other| !one || Some(*other) == only);
        let pairs = hit.flat_map(|other| [(into, (other, victim)), (out, (victim, other))]);
        let cuts: Vec<_> = pairs.filter(|(is_cut, _)| *is_cut).map(|(_, cut)| cut).collect();
        world::with(|world| cuts.iter().for_each(|cut| world.net.cut(*cut)));
        let long = self.long();
        let ms = self.cure_in(long, Cure::Mend(cuts));
        self.maybe_wait(ms);
        let from = if one { "another" } else { "all others" };
        format!("node {} is cut from {from} for {ms} ms (in {into}, out {out})", victim + 1)
    }

    fn still(&mut self, victim: usize, hosts: &mut [Host]) -> String {
        let still = if self.rng.u8(0..3) == 0 { Still::Asleep } else { Still::Stopped };
        hosts[victim].stand_still(still);
        let long = self.long();
        let ms = self.cure_in(long, Cure::GoOn(victim));
        self.maybe_wait(ms);
        format!("node {} is {still:?} for {ms} ms", victim + 1)
    }

    fn trouble(&mut self) -> String {
        let (slow, lost) = (self.rng.u64(0..80), self.rng.u32(0..100));
        world::with(|world| {
            world.net.slow = Duration::from_millis(slow);
            world.net.lost_per_mille = lost;
        });
        let ms = self.cure_in(300..2_000, Cure::Calm);
        format!("packets take up to {slow} ms longer and {lost} of 1000 are lost, for {ms} ms")
    }

    fn break_connections(&mut self, victim: usize, hosts: &[Host]) -> String {
        for other in 0..hosts.len() {
            world::with(|world| world.net.break_between(victim, other));
        }
        format!("connections of node {} break", victim + 1)
    }

    fn slow_disk(&mut self, victim: usize) -> String {
        let by = self.rng.u64(5..200);
        world::with(|world| world.slow_disk(victim, Duration::from_millis(by)));
        let ms = self.cure_in(500..3_000, Cure::FastDisk(victim));
        format!("syncs of node {} take up to {by} ms longer for {ms} ms", victim + 1)
    }

    fn set_clock(&mut self, victim: usize, shared: &Shared) -> String {
        let by = if std::mem::take(&mut self.days) {
            shared.ledger().a_day_passes();
            self.rng.i64(DAYS_MS)
        } else {
            self.rng.i64(-3_600_000..3_600_000)
        };
        world::with(|world| world.set_clock(victim, by));
        format!("the wall clock of node {} is set by {by} ms", victim + 1)
    }

    /// One disk is full, or all are; of some there is enough left for what Raft itself writes.
    fn fill_disks(&mut self, victim: usize, hosts: &[Host]) -> String {
        let all = self.rng.u8(0..4) == 0;
        let room = [Room::Little, Room::Less, Room::None, Room::None][self.rng.usize(0..4)];
        for number in (0..hosts.len()).filter(|number| all || *number == victim) {
            world::with(|world| world.disk(number)).set_room(room);
            self.cure_in(FULL_FOR_MS, Cure::MakeRoom(number));
        }
        let whose = if all { "all nodes have".to_owned() } else { format!("node {} has", victim + 1) };
        format!("{whose} little room on the disk: {room:?}")
    }

    fn hand_over(&mut self, victim: usize, hosts: &[Host]) -> Option<String> {
        let handle = hosts[victim].handle()?;
        hosts[victim].spawn(async move {
            handle.hand_over().await;
        });
        Some(format!("node {} hands over, if it leads", victim + 1))
    }

    fn compact(&mut self, victim: usize, hosts: &[Host]) -> Option<String> {
        let handle = hosts[victim].handle()?;
        hosts[victim].spawn(async move {
            if let Err(error) = handle.compact().await {
                tracing::info!(%error, "no snapshot");
            }
        });
        Some(format!("node {} makes a snapshot and purges its log", victim + 1))
    }

    /// A node is away while the others purge their logs: it is sent a snapshot when it is back.
    fn leave_behind(&mut self, victim: usize, hosts: &mut [Host]) -> Option<String> {
        hosts[victim].end(if self.rng.bool() { End::Killed } else { End::PowerCut });
        let ms = self.cure_in(1_000..2_500, Cure::Start(victim));
        for other in hosts.iter().filter(|host| host.is_up()) {
            self.cure_in(ms * 2 / 3..ms, Cure::Compact(other.number));
        }
        self.maybe_wait(ms);
        Some(format!("node {} is away for {ms} ms while the others purge their logs", victim + 1))
    }

    fn damage(&mut self, victim: usize, hosts: &mut [Host], shared: &Shared) -> Option<String> {
        if let Some(machine) = self.rotten.filter(|_| self.rng.bool()) {
            let place = world::with(|world| world.disk(machine)).damage_content()?;
            return Some(format!("the disk of node {} damages {place}", machine + 1));
        }
        let damage = world::with(|world| world.disk(victim)).damage()?;
        hosts[victim].end(End::Killed);
        hosts[victim].is_damaged = true;
        self.start_again(victim, hosts, shared);
        let place = damage.place();
        self.cure_in(20..200, Cure::Repair(victim, damage));
        Some(format!("the disk of node {} damages {place}", victim + 1))
    }
}

/// The machine whose node leads, as most see it.
pub fn leader(hosts: &[Host]) -> Option<usize> {
    let known: Vec<NodeId> = hosts.iter().filter_map(|host| host.handle()?.status().leader).collect();
    let most = known.iter().max_by_key(|node| known.iter().filter(|other| other == node).count())?;
    hosts.iter().find(|host| host.handle().is_some_and(|handle| handle.node_id() == *most)).map(|host| host.number)
}
