//! When schedules are due. Pure: the time is given.
//!
//! A line of a crontab is about the clock on the wall in its zone. A time that this clock skips fires as much later as it was
//! moved; a time that comes twice fires the first time.

use chrono::{DateTime, Datelike, NaiveDate, Timelike, Utc};
use croner::{Cron, CronPattern};
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

/// Longest one.
const LONGEST_MS: u64 = 10 * 366 * 24 * 3_600_000;

/// Times that are tried for one that is behind another: an hour that comes twice has 3,600 of them.
const MAX_TRIES: usize = 4_000;

/// Days that are looked through for one that a line of a crontab means: each date comes on each day of the week within 40 years, also
/// over a year such as 2100, which is no leap year. A line that means none is not looked for any further.
const MAX_DAYS: usize = 41 * 366;

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
                let never = || format!("{pattern:?} means no day that there is: the 30th of February never comes");
                first_day(&cron.pattern).ok_or_else(never)?;
                Ok(Clock::Cron(Box::new(cron), zone))
            }
            Schedule::Every { period_ms } if *period_ms < SHORTEST_MS => {
                Err(format!("every {period_ms} ms is too often: 1s is the shortest time"))
            }
            Schedule::Every { period_ms } if *period_ms > LONGEST_MS => {
                Err(format!("every {period_ms} ms is too rare: ten years is the longest time"))
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
                    on_wall = behind(cron, on_wall)?;
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
                    on_wall = ahead(cron, on_wall)?;
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

/// A day of those that a line means at all, if there is one within [`MAX_DAYS`] of the first of its years.
fn first_day(pattern: &CronPattern) -> Option<NaiveDate> {
    let year = (1970..=croner::YEAR_UPPER_LIMIT).find(|year| pattern.year_match(*year).unwrap_or(false))?;
    day(pattern, NaiveDate::from_ymd_opt(year, 1, 1)?, NaiveDate::succ_opt)
}

/// The nearest day that a line means, from one on.
fn day(pattern: &CronPattern, from: NaiveDate, step: fn(&NaiveDate) -> Option<NaiveDate>) -> Option<NaiveDate> {
    let is_meant = |day: &NaiveDate| {
        let weekday = croner::Weekday::from_days_from_sunday(day.weekday().num_days_from_sunday());
        pattern.year_match(day.year()).unwrap_or(false)
            && pattern.month_match(day.month()).unwrap_or(false)
            && pattern.day_match(day.year(), day.month(), day.day(), weekday).unwrap_or(false)
    };
    std::iter::successors(Some(from), step).take(MAX_DAYS).find(is_meant)
}

/// The first time on the wall behind another. The crate would look for a day that never comes through three thousand years: so the
/// day is found here, and the crate finds the time in it.
fn behind(cron: &Cron, after: DateTime<Utc>) -> Option<DateTime<Utc>> {
    let today = day(&cron.pattern, after.date_naive(), NaiveDate::succ_opt)?;
    let in_day = |day: NaiveDate| {
        let (midnight, last) = (day.and_hms_opt(0, 0, 0)?.and_utc(), edge(&cron.pattern, day, true)?);
        let (from, inclusive) = if after < midnight { (midnight, true) } else { (after, false) };
        (last > after).then(|| cron.find_next_occurrence(&from, inclusive).ok())?
    };
    in_day(today).or_else(|| in_day(day(&cron.pattern, today.succ_opt()?, NaiveDate::succ_opt)?))
}

/// The last time on the wall before another.
fn ahead(cron: &Cron, before: DateTime<Utc>) -> Option<DateTime<Utc>> {
    let today = day(&cron.pattern, before.date_naive(), NaiveDate::pred_opt)?;
    let in_day = |day: NaiveDate| {
        let (end, first) = (day.and_hms_opt(23, 59, 59)?.and_utc(), edge(&cron.pattern, day, false)?);
        let (from, inclusive) = if before > end { (end, true) } else { (before, false) };
        (first < before).then(|| cron.find_previous_occurrence(&from, inclusive).ok())?
    };
    in_day(today).or_else(|| in_day(day(&cron.pattern, today.pred_opt()?, NaiveDate::pred_opt)?))
}

/// The first time of a line on a day that it means, or the last one.
fn edge(pattern: &CronPattern, day: NaiveDate, last: bool) -> Option<DateTime<Utc>> {
    let of = |most: u32, is: &dyn Fn(u32) -> bool| {
        if last { (0..most).rev().find(|one| is(*one)) } else { (0..most).find(|one| is(*one)) }
    };
    let hour = of(24, &|hour| pattern.hour_match(hour).unwrap_or(false))?;
    let minute = of(60, &|minute| pattern.minute_match(minute).unwrap_or(false))?;
    let second = of(60, &|second| pattern.second_match(second).unwrap_or(false))?;
    Some(day.and_hms_opt(hour, minute, second)?.and_utc())
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
    fn a_line_that_means_no_day_is_refused_and_a_rare_one_is_found() {
        for never in ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 0 30 2 *"] {
            let schedule = Schedule::Cron { pattern: never.into(), zone: "UTC".into() };
            let Err(refused) = Clock::new(&schedule) else { panic!("{never} is taken") };
            assert!(refused.contains("means no day that there is"), "{refused}");
        }
        let leap = cron("30 1 29 2 *", "UTC");
        assert_eq!(next(&leap, "2096-03-01T00:00:00Z"), at("2104-02-29T01:30:00Z"), "2100 is no leap year");
        assert_eq!(leap.previous(at("2028-02-29T01:30:00Z").0), Some(at("2024-02-29T01:30:00Z").0));
        let over = cron("0 0 0 1 1 * 2020", "UTC");
        assert_eq!(over.next(at("2026-01-01T00:00:00Z").0), None, "its year is over, and no other is looked for");
        assert_eq!(over.previous(at("2026-01-01T00:00:00Z").0), Some(at("2020-01-01T00:00:00Z").0));
    }

    #[test]
    fn a_time_of_the_same_day_comes_before_those_of_the_next_one() {
        let twice = cron("15,45 9-10 * * *", "UTC");
        for (after, expected) in [
            ("2026-01-01T09:14:59Z", "2026-01-01T09:15:00Z"),
            ("2026-01-01T09:15:00Z", "2026-01-01T09:45:00Z"),
            ("2026-01-01T10:44:00Z", "2026-01-01T10:45:00Z"),
            ("2026-01-01T10:45:00Z", "2026-01-02T09:15:00Z"),
            ("2026-01-31T23:59:59Z", "2026-02-01T09:15:00Z"),
        ] {
            assert_eq!(next(&twice, after), at(expected), "after {after}");
            assert_eq!(twice.previous(at(expected).0 + 1), Some(at(expected).0), "{expected} itself");
        }
        assert_eq!(twice.previous(at("2026-01-02T09:15:00Z").0), Some(at("2026-01-01T10:45:00Z").0));
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
