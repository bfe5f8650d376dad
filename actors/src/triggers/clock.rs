//! When schedules are due. Pure: the time is given.
//!
//! A line of a crontab is about the clock on the wall in its zone. A time that this clock skips fires as much later as it was
//! moved; a time that comes twice fires the first time.

use chrono::{DateTime, Datelike, NaiveDate, Timelike, Utc};
use croner::Cron;
use jiff::{civil, tz::TimeZone};
use std::str::FromStr;
use towline_core::{Missed, Schedule, Timestamp};

/// A time this long ago is not missed but late: an owner was lost and another took over, or a machine is busy.
const LATE_MS: u64 = 60_000;

/// Times that [`Missed::All`] makes up for; those before them are skipped. A week of a cluster's absence must not become a
/// thousand tasks at once.
const MAX_MADE_UP: usize = 100;

/// Shortest time between two of a schedule.
pub(crate) const SHORTEST_MS: u64 = 1_000;

/// Times that are tried for one that is behind another: an hour that comes twice has 3,600 of them.
const MAX_TRIES: usize = 4_000;

/// A schedule that was read.
pub(crate) enum Clock {
    /// A line of a crontab, and its zone.
    Cron(Box<Cron>, TimeZone),
    /// Each multiple of this many milliseconds since 1970.
    Every(u64),
    /// Once.
    At(u64),
}

/// What is to be done at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// Nothing before this time; none: never again.
    Wait(Option<Timestamp>),
    /// Fire for this time; so many before it start nothing.
    Fire { at: Timestamp, skipped: u64 },
    /// This time and those before it, so many, start nothing.
    Skip { at: Timestamp, skipped: u64 },
}

impl Clock {
    /// Reads a schedule.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn new(schedule: &Schedule) -> Result<Self, String> {
        match schedule {
            Schedule::Cron { pattern, zone } => {
                let cron = Cron::from_str(pattern).map_err(|error| {
                    format!("{pattern:?} is no line of a crontab, as in \"30 7 * * MON-FRI\": {error}")
                })?;
                let zone = TimeZone::get(zone)
                    .map_err(|_| format!("{zone:?} is no time zone: write its name, as in Europe/Berlin or UTC"))?;
                Ok(Clock::Cron(Box::new(cron), zone))
            }
            Schedule::Every { period_ms } if *period_ms < SHORTEST_MS => {
                Err(format!("every {period_ms} ms is too often: 1s is the shortest time"))
            }
            Schedule::Every { period_ms } => Ok(Clock::Every(*period_ms)),
            Schedule::At { at } => Ok(Clock::At(at.0)),
        }
    }

    /// What is to be done at `now`, where `since` is the last time that is behind.
    pub(crate) fn due(&self, missed: Missed, since: Timestamp, now: Timestamp) -> Due {
        let Some(first) = self.next(since.0) else { return Due::Wait(None) };
        if first > now.0 {
            return Due::Wait(Some(Timestamp(first)));
        }
        let newest = self.previous(now.0.saturating_add(1)).filter(|newest| *newest >= first).unwrap_or(first);
        let before = |at: u64| self.count(since.0, at);
        match missed {
            Missed::All => {
                let mut oldest = newest;
                for _ in 1..MAX_MADE_UP {
                    match self.previous(oldest).filter(|earlier| *earlier >= first) {
                        Some(earlier) => oldest = earlier,
                        None => break,
                    }
                }
                Due::Fire { at: Timestamp(oldest), skipped: before(oldest) }
            }
            Missed::Once => Due::Fire { at: Timestamp(newest), skipped: before(newest) },
            Missed::Skip if now.0 - newest <= LATE_MS => Due::Fire { at: Timestamp(newest), skipped: before(newest) },
            Missed::Skip => Due::Skip { at: Timestamp(newest), skipped: before(newest) + 1 },
        }
    }

    /// The first time behind another.
    fn next(&self, after: u64) -> Option<u64> {
        match self {
            Clock::Every(period) => Some((after / period + 1).saturating_mul(*period)),
            Clock::At(at) => Some(*at).filter(|at| *at > after),
            Clock::Cron(cron, zone) => {
                let mut on_wall = on_wall(zone, after)?;
                (0..MAX_TRIES).find_map(|_| {
                    on_wall = cron.find_next_occurrence(&on_wall, false).ok()?;
                    instant(zone, on_wall).filter(|at| *at > after)
                })
            }
        }
    }

    /// The last time before another.
    fn previous(&self, before: u64) -> Option<u64> {
        match self {
            Clock::Every(period) => Some(before.checked_sub(1)? / period * period),
            Clock::At(at) => Some(*at).filter(|at| *at < before),
            Clock::Cron(cron, zone) => {
                // The clock on the wall may have been set back: then times that look later are before.
                let mut on_wall = on_wall(zone, before.saturating_add(LATE_MS * 60))?;
                (0..MAX_TRIES).find_map(|_| {
                    on_wall = cron.find_previous_occurrence(&on_wall, false).ok()?;
                    instant(zone, on_wall).filter(|at| *at < before)
                })
            }
        }
    }

    /// How many times there are between two, both not counted; no more than are worth it to be counted.
    fn count(&self, after: u64, before: u64) -> u64 {
        if let Clock::Every(period) = self {
            return (before.saturating_sub(1) / period).saturating_sub(after / period);
        }
        let mut at = after;
        let between = std::iter::from_fn(|| {
            at = self.next(at).filter(|next| *next < before)?;
            Some(at)
        });
        between.take(MAX_TRIES).count() as u64
    }
}

/// The clock on the wall at a moment, as if it were one of UTC.
fn on_wall(zone: &TimeZone, at: u64) -> Option<DateTime<Utc>> {
    let at = jiff::Timestamp::from_millisecond(i64::try_from(at).ok()?).ok()?;
    let wall = zone.to_datetime(at);
    let part = |value: i8| u32::try_from(value).ok();
    let date = NaiveDate::from_ymd_opt(wall.year().into(), part(wall.month())?, part(wall.day())?)?;
    Some(date.and_hms_opt(part(wall.hour())?, part(wall.minute())?, part(wall.second())?)?.and_utc())
}

/// The moment at which the clock on the wall shows this for the first time.
fn instant(zone: &TimeZone, on_wall: DateTime<Utc>) -> Option<u64> {
    let part = |value: u32| i8::try_from(value).ok();
    let date = civil::Date::new(i16::try_from(on_wall.year()).ok()?, part(on_wall.month())?, part(on_wall.day())?);
    let wall = date.ok()?.at(part(on_wall.hour())?, part(on_wall.minute())?, part(on_wall.second())?, 0);
    u64::try_from(zone.to_timestamp(wall).ok()?.as_millisecond()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        Timestamp(u64::try_from(text.parse::<jiff::Timestamp>().unwrap().as_millisecond()).unwrap())
    }

    fn cron(pattern: &str, zone: &str) -> Clock {
        Clock::new(&Schedule::Cron { pattern: pattern.into(), zone: zone.into() }).unwrap()
    }

    fn next(clock: &Clock, after: &str) -> Timestamp {
        Timestamp(clock.next(at(after).0).unwrap())
    }

    #[test]
    fn a_line_of_a_crontab_is_about_the_clock_on_the_wall_of_its_zone() {
        let mornings = cron("30 7 * * MON-FRI", "Europe/Berlin");
        assert_eq!(next(&mornings, "2026-01-09T12:00:00Z"), at("2026-01-12T06:30:00Z"), "over a weekend in winter");
        assert_eq!(next(&mornings, "2026-07-01T00:00:00Z"), at("2026-07-01T05:30:00Z"), "in summer");
    }

    #[test]
    fn a_time_that_the_wall_skips_fires_later_and_one_that_comes_twice_fires_once() {
        let nights = cron("30 2 * * *", "Europe/Berlin");
        assert_eq!(next(&nights, "2026-03-28T12:00:00Z"), at("2026-03-29T01:30:00Z"), "02:30 is 03:30 that night");
        let (first, again) = (at("2026-10-25T00:30:00Z"), at("2026-10-26T01:30:00Z"));
        assert_eq!(next(&nights, "2026-10-24T12:00:00Z"), first);
        assert_eq!(Timestamp(nights.next(first.0).unwrap()), again);
        let quarters = cron("*/15 * * * *", "Europe/Berlin");
        assert_eq!(
            next(&quarters, "2026-10-25T01:10:00Z"),
            at("2026-10-25T02:00:00Z"),
            "the second pass fires nothing"
        );
    }

    #[test]
    fn what_was_missed_is_skipped_or_made_up_for_by_one_or_all() {
        let hourly = Clock::Every(3_600_000);
        let (since, now) = (at("2026-01-01T00:00:00Z"), at("2026-01-01T05:30:00Z"));
        let (first, last) = (at("2026-01-01T01:00:00Z"), at("2026-01-01T05:00:00Z"));
        assert_eq!(hourly.due(Missed::Skip, since, now), Due::Skip { at: last, skipped: 5 });
        assert_eq!(hourly.due(Missed::Once, since, now), Due::Fire { at: last, skipped: 4 });
        assert_eq!(hourly.due(Missed::All, since, now), Due::Fire { at: first, skipped: 0 });
        let on_time = at("2026-01-01T05:00:30Z");
        assert_eq!(hourly.due(Missed::Skip, since, on_time), Due::Fire { at: last, skipped: 4 });
        assert_eq!(hourly.due(Missed::Skip, last, now), Due::Wait(Some(at("2026-01-01T06:00:00Z"))));
        let minutely = cron("* * * * *", "UTC");
        let Due::Fire { at: oldest, skipped } = minutely.due(Missed::All, since, now) else { panic!("it is due") };
        assert_eq!((oldest, skipped), (at("2026-01-01T03:51:00Z"), 230), "no more than 100 are made up for");
    }

    #[test]
    fn once_is_once() {
        let moment = at("2026-01-01T00:00:00Z");
        let once = Clock::new(&Schedule::At { at: moment }).unwrap();
        assert_eq!(once.due(Missed::Skip, Timestamp(0), moment), Due::Fire { at: moment, skipped: 0 });
        assert_eq!(once.due(Missed::Skip, moment, Timestamp(moment.0 + 5)), Due::Wait(None));
    }

    #[test]
    fn what_cannot_be_read_says_why() {
        let refused = |schedule: Schedule| Clock::new(&schedule).err().unwrap();
        let cron = |pattern: &str, zone: &str| Schedule::Cron { pattern: pattern.into(), zone: zone.into() };
        assert!(refused(cron("61 * * * *", "UTC")).contains("no line of a crontab"));
        assert!(refused(cron("0 7 * * *", "Middle/Earth")).contains("no time zone"));
        assert!(refused(Schedule::Every { period_ms: 10 }).contains("too often"));
    }
}
