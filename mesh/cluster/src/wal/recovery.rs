//! What the log holds when it is opened: reads every segment, cuts a torn end, refuses damage.

use std::{
    collections::VecDeque,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use towline_core::mutants::{self, Mutant};

use super::{
    Place, Segment, Standing, Writer, begun_of,
    disk::{Disk, DiskFile},
    record::{ALIGNMENT, Frame, RECORD_MARK, Record, SEGMENT_HEADER, decode_segment_header},
};
use crate::{kill_points, raft::StoreError};

/// What the log held when it was opened.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Recovered {
    pub(crate) vote: Option<Bytes>,
    pub(crate) committed: Option<Bytes>,
    pub(crate) purged: Option<(u64, Bytes)>,
    /// Behind `purged`, without a gap.
    pub(crate) entries: VecDeque<(Place, Bytes)>,
}

impl Writer {
    pub(super) fn recover(dir: &Path, disk: Arc<dyn Disk>) -> Result<(Writer, Recovered), StoreError> {
        let failed = |action, path: &Path| {
            let path = path.to_owned();
            move |source| StoreError::File { action, path, source }
        };
        let mut segments = VecDeque::new();
        let mut recovered = Recovered::default();
        let mut end = 0;
        let paths = segment_paths(disk.as_ref(), dir)?;
        let newest = paths.last().map(|(sequence, _)| *sequence);
        let begun = newest_begun(disk.as_ref(), dir)?;
        if let Some(begun) = begun.filter(|begun| newest.is_none_or(|newest| newest < *begun)) {
            return Err(damaged(&super::segment_path(dir, begun), 0, "it was written here and is gone"));
        }
        let mut cut = None;
        for (sequence, path) in paths {
            let bytes = disk.read(&path).map_err(failed("read", &path))?;
            let Some(base) = decode_segment_header(&bytes, sequence) else {
                let was_made = begun.is_some_and(|begun| sequence <= begun);
                if Some(sequence) == newest && !was_made && find_record(&bytes, 0, |_| None, |_| true).is_none() {
                    tracing::warn!(path = %path.display(), "removing a segment that a crash left half made");
                    disk.remove(&path).map_err(failed("remove", &path))?;
                    break;
                }
                return Err(damaged(&path, 0, "its header is not valid"));
            };
            if !segments.is_empty() && base != end {
                let reason = format!("it begins at {base}, and the segment before it ends at {end}");
                return Err(damaged(&path, 0, &reason));
            }
            let mut segment = Segment { sequence, path, base, last_entry: None };
            let length = read_segment(&mut segment, &bytes, &mut recovered)?;
            end = base + (length - SEGMENT_HEADER) as u64;
            cut = Some(length as u64);
            segments.push_back(segment);
        }
        recovered.finish().map_err(|reason| damaged(dir, 0, &reason))?;

        let file = match (segments.back(), cut) {
            (Some(newest), Some(length)) => {
                let file = open_cut(disk.as_ref(), newest, length)?;
                if begun.is_none() {
                    super::note_begun(disk.as_ref(), dir, newest.sequence).map_err(failed("note", dir))?;
                }
                file
            }
            (None, _) | (_, None) => {
                let sequence = newest.unwrap_or(1);
                let (segment, file) =
                    super::begin_segment(disk.as_ref(), dir, sequence, 0).map_err(failed("begin", dir))?;
                segments.push_back(segment);
                file
            }
        };
        let allocated = cut.unwrap_or(SEGMENT_HEADER as u64);
        let standing = Standing {
            vote: recovered.vote.clone(),
            committed: recovered.committed.clone(),
            purged: recovered.purged.clone(),
        };
        let dir = dir.to_owned();
        let places = recovered.entries.iter().map(|(place, _)| (place.id.index, *place)).collect();
        let writer = Writer {
            disk,
            dir,
            segments,
            file,
            end,
            durable: end,
            allocated,
            standing,
            buffer: Vec::new(),
            staged: Vec::new(),
            places: Arc::new(Mutex::new(places)),
        };
        Ok((writer, recovered))
    }
}

/// Opens the newest segment behind its last good record: what lies there was never confirmed and must not come back.
/// Syncing it also makes durable what a crash left in the page cache, since it is now relied upon.
fn open_cut(disk: &dyn Disk, segment: &Segment, length: u64) -> Result<Box<dyn DiskFile>, StoreError> {
    let failed = |source| StoreError::File { action: "cut the torn end of", path: segment.path.clone(), source };
    let mut file = disk.open(&segment.path).map_err(failed)?;
    file.truncate(length).map_err(failed)?;
    kill_points::pass("wal-end-cut");
    file.sync().map_err(failed)?;
    Ok(file)
}

/// The newest segment that was ever made here; none in a folder of a version that did not note it.
fn newest_begun(disk: &dyn Disk, dir: &Path) -> Result<Option<u64>, StoreError> {
    let paths = disk.list(dir).map_err(|source| StoreError::File { action: "list", path: dir.to_owned(), source })?;
    Ok(paths.iter().filter_map(|path| begun_of(path)).max())
}

/// The segments of a folder, oldest first, without a gap.
fn segment_paths(disk: &dyn Disk, dir: &Path) -> Result<Vec<(u64, PathBuf)>, StoreError> {
    let paths = disk.list(dir).map_err(|source| StoreError::File { action: "list", path: dir.to_owned(), source })?;
    let mut segments: Vec<(u64, PathBuf)> =
        paths.into_iter().filter_map(|path| Some((sequence_of(&path)?, path))).collect();
    segments.sort();
    let gap = segments.windows(2).find(|pair| pair[1].0 != pair[0].0 + 1);
    match gap {
        Some(pair) => Err(damaged(&pair[0].1, 0, "the segment behind it is missing")),
        None => Ok(segments),
    }
}

fn sequence_of(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.strip_prefix("wal-")?.strip_suffix(".log")?.parse().ok()
}

/// Takes the records of a segment; returns how many bytes of the file are good.
fn read_segment(segment: &mut Segment, bytes: &[u8], recovered: &mut Recovered) -> Result<usize, StoreError> {
    let mut position = SEGMENT_HEADER;
    loop {
        let offset = segment.base + (position - SEGMENT_HEADER) as u64;
        let Some(frame) = Frame::read(bytes, position, Some(offset)) else {
            check_torn(segment, bytes, position, offset)?;
            return Ok(position);
        };
        let damaged = |reason: String| damaged(&segment.path, position as u64, &reason);
        let payload = Bytes::copy_from_slice(&bytes[frame.payload.clone()]);
        match Record::decode(frame.kind, payload).map_err(damaged)? {
            Record::Entry { id, body } => {
                let length = frame.next - position;
                let place = Place { id, segment: segment.sequence, position: position as u64, length };
                segment.last_entry = segment.last_entry.max(Some(id.index));
                recovered.take_entry(place, body).map_err(damaged)?;
            }
            Record::Vote(vote) => recovered.vote = Some(vote),
            Record::Committed(committed) => recovered.committed = Some(committed),
            Record::Truncate { after } => recovered.drop_behind(after),
            Record::Purge { upto, log_id } => {
                recovered.purged = Some((upto, log_id));
                recovered.drop_purged();
            }
            Record::Mark => {}
        }
        position = frame.next;
    }
}

/// Reads a segment that follows a valid header, as far as it is good.
pub(crate) fn read_bytes(bytes: &[u8]) -> Result<usize, StoreError> {
    let mut segment = Segment { sequence: 1, path: PathBuf::from("segment"), base: 0, last_entry: None };
    let mut recovered = Recovered::default();
    let length = read_segment(&mut segment, bytes, &mut recovered)?;
    recovered.finish().map_err(|reason| damaged(&segment.path, 0, &reason))?;
    Ok(length)
}

/// A bad record is a torn end, unless a record behind it proves that the disk had confirmed it.
fn check_torn(segment: &Segment, bytes: &[u8], position: usize, offset: u64) -> Result<(), StoreError> {
    let offset_at = |at: usize| Some(segment.base + (at - SEGMENT_HEADER) as u64);
    let proof = find_record(bytes, position + ALIGNMENT, offset_at, |frame| frame.durable > offset);
    if let Some(proof) = proof.filter(|_| !mutants::on(Mutant::TailCutInSyncedData)) {
        let reason = format!("the record is not valid, and one at byte {proof} says that it was durable");
        return Err(damaged(&segment.path, position as u64, &reason));
    }
    let torn = bytes.iter().skip(position).filter(|byte| **byte != 0).count();
    if torn > 0 {
        tracing::warn!(path = %segment.path.display(), position, torn, "cutting the torn end of the log");
    }
    Ok(())
}

/// The first position, from a given one on, of a valid record that is looked for, with the offset that belongs there: an
/// entry may hold bytes that look like a record.
fn find_record(
    bytes: &[u8],
    from: usize,
    offset_at: impl Fn(usize) -> Option<u64>,
    wanted: impl Fn(&Frame) -> bool,
) -> Option<usize> {
    let candidates = (from..bytes.len()).step_by(ALIGNMENT).filter(|at| bytes[*at..].starts_with(&RECORD_MARK));
    candidates.into_iter().find(|at| Frame::read(bytes, *at, offset_at(*at)).is_some_and(|frame| wanted(&frame)))
}

fn damaged(path: &Path, offset: u64, reason: &str) -> StoreError {
    StoreError::Damaged { path: path.to_owned(), offset, reason: reason.to_owned() }
}

impl Recovered {
    fn take_entry(&mut self, place: Place, body: Bytes) -> Result<(), String> {
        let index = place.id.index;
        match self.entries.back() {
            Some((last, _)) if index > last.id.index + 1 => {
                return Err(format!("entry {index} follows entry {}", last.id.index));
            }
            Some(_) | None => {}
        }
        while self.entries.back().is_some_and(|(last, _)| last.id.index >= index) {
            self.entries.pop_back();
        }
        self.entries.push_back((place, body));
        Ok(())
    }

    fn drop_behind(&mut self, after: Option<u64>) {
        while self.entries.back().is_some_and(|(last, _)| after.is_none_or(|after| last.id.index > after)) {
            self.entries.pop_back();
        }
    }

    fn drop_purged(&mut self) {
        let Some((upto, _)) = &self.purged else { return };
        while self.entries.front().is_some_and(|(first, _)| first.id.index <= *upto) {
            self.entries.pop_front();
        }
    }

    /// Checks that the entries follow what was purged. Only at the end: the oldest segment may hold entries whose
    /// purge is recorded in a later one.
    fn finish(&mut self) -> Result<(), String> {
        self.drop_purged();
        match (&self.purged, self.entries.front()) {
            (Some((upto, _)), Some((first, _))) if first.id.index != upto + 1 => {
                Err(format!("entries begin at {}, and those up to {upto} were purged", first.id.index))
            }
            (Some(_) | None, Some(_) | None) => Ok(()),
        }
    }
}
