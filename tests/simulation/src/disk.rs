//! A disk that keeps what was synced, and of everything else what chance leaves at a power cut.
//!
//! A file has what a reader sees, and the writes since its last sync. A power cut takes some of them back: all, none, those
//! behind some byte, or single sectors. Names that were given or taken are kept up to some point since their folder was
//! synced. A process that is killed loses nothing: the kernel has it. A full disk takes half of a write that needs room.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use towline_cluster::seams::{BlobDisk, BlobFile, Disk, DiskFile, DiskReader, Space};

use crate::world;

/// What a disk writes as a whole.
const SECTOR: usize = 512;
/// Bytes that are damaged together.
const DAMAGED: usize = 8;
/// Total bytes of every disk, and what is free as long as room is no subject.
const ROOM: u64 = 1 << 40;
/// Free bytes of a disk that takes no new work: less than the reserve of a node, and more than half of it.
const LITTLE: u64 = 100 * 1024 * 1024;
/// Free bytes of a disk that takes what Raft itself writes: less than half of the reserve.
const LESS: u64 = 50 * 1024 * 1024;

/// The disk of one machine; a clone is the same disk.
#[derive(Clone)]
pub struct SimDisk(Arc<Mutex<State>>);

struct State {
    rng: fastrand::Rng,
    files: BTreeMap<PathBuf, Inode>,
    /// Names as the folders on disk have them.
    durable: BTreeMap<PathBuf, Inode>,
    /// What was done to names since, in order.
    renames: Vec<NameChange>,
    room: Room,
    /// Whether room can be reserved: not every file system can.
    reserves: bool,
    /// How many files were put in the place of a snapshot.
    snapshots: u32,
}

/// How much room a disk has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// Enough for everything.
    Enough,
    /// Less than a node keeps for the log.
    Little,
    /// Less than half of that.
    Less,
    /// None.
    None,
}

enum NameChange {
    Give(PathBuf, Inode),
    Take(PathBuf),
    Move(PathBuf, PathBuf),
}

type Inode = Arc<Mutex<Content>>;

#[derive(Default)]
struct Content {
    /// As the disk has it.
    synced: Vec<u8>,
    /// As a reader sees it.
    seen: Vec<u8>,
    unsynced: Vec<Change>,
    /// Up to here everything was synced before the last write began, so that write proves it.
    proven: usize,
    /// Up to where it was before that: what is left to prove if that write is lost.
    proven_before: usize,
    /// Up to here there is room, whatever else the disk has.
    reserved: usize,
    /// When it was written last, as a reader sees it and as the disk has it.
    modified: (Duration, Duration),
}

enum Change {
    Write { at: usize, bytes: Vec<u8> },
    Cut(usize),
}

/// What a power cut leaves of what was not synced.
#[derive(Debug, Clone, Copy)]
enum Left {
    Nothing,
    Everything,
    /// What was written first, up to some byte.
    Front,
    /// Single sectors.
    Sectors,
}

impl SimDisk {
    /// An empty disk.
    pub fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (files, durable) = (BTreeMap::new(), BTreeMap::new());
        let (renames, room, reserves) = (Vec::new(), Room::Enough, rng.bool());
        Self(Arc::new(Mutex::new(State { rng, files, durable, renames, room, reserves, snapshots: 0 })))
    }

    /// From here on it has this much room.
    pub fn set_room(&self, room: Room) {
        self.lock().room = room;
    }

    /// How much room it has.
    pub fn room(&self) -> Room {
        self.lock().room
    }

    /// How many snapshots were written to it, built or installed.
    pub fn snapshots(&self) -> u32 {
        self.lock().snapshots
    }

    /// Whether a power cut would leave this file whole.
    pub fn keeps(&self, path: &Path) -> bool {
        let state = self.lock();
        state.durable.get(path).is_some_and(|inode| {
            let content = content(inode);
            content.unsynced.is_empty() && !content.synced.is_empty()
        })
    }

    /// Everything on it is gone.
    pub fn wipe(&self) {
        let mut state = self.lock();
        state.files.clear();
        state.durable.clear();
        state.renames.clear();
    }

    /// The power is cut. Returns how many bytes were lost.
    pub fn cut_power(&self) -> usize {
        let mut state = self.lock();
        let State { rng, files, durable, renames, .. } = &mut *state;
        let kept = rng.usize(0..=renames.len());
        for change in renames.drain(..).take(kept) {
            change.apply(durable);
        }
        let lost = durable.values().map(|inode| content(inode).cut_power(rng)).sum();
        files.clone_from(durable);
        lost
    }

    /// Damages eight bytes of what the log itself proves to be synced, if there is enough of it: no record ends with as many
    /// that mean nothing. Returns what puts it right.
    pub fn damage(&self) -> Option<Damage> {
        let mut state = self.lock();
        let log = |(path, _): &(&PathBuf, &Inode)| path.extension().is_some_and(|ending| ending == "log");
        let (path, inode) = state.files.iter().rev().find(log).map(|(path, inode)| (path.clone(), inode.clone()))?;
        let mut content = content(&inode);
        // Behind the header of the segment and its first records.
        let range = SECTOR..content.proven.saturating_sub(DAMAGED);
        if range.len() < SECTOR {
            return None;
        }
        let at = state.rng.usize(range) / DAMAGED * DAMAGED;
        content.flip(at);
        drop(content);
        Some(Damage { path, inode, at })
    }

    /// Damages eight bytes of some content beside the log, for good. Returns where.
    pub fn damage_content(&self) -> Option<String> {
        let mut state = self.lock();
        let is_content = |path: &Path| path.iter().any(|name| name == "blobs");
        let files = state.files.iter().filter(|(path, _)| is_content(path));
        let files: Vec<_> = files.map(|(path, inode)| (path.clone(), inode.clone())).collect();
        let (path, inode) = state.rng.choice(files)?;
        let mut content = content(&inode);
        let at = state.rng.usize(0..content.seen.len().max(1));
        content.flip(at);
        Some(format!("byte {at} of {}", path.display()))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn inode(&self, path: &Path) -> io::Result<Inode> {
        self.lock().files.get(path).cloned().ok_or_else(|| not_found(path))
    }
}

/// Bytes that do not read as they were written.
pub struct Damage {
    path: PathBuf,
    inode: Inode,
    at: usize,
}

impl Damage {
    /// Where it is.
    pub fn place(&self) -> String {
        format!("byte {} of {}", self.at, self.path.display())
    }

    /// Puts them right.
    pub fn repair(self) {
        content(&self.inode).flip(self.at);
    }
}

fn content(inode: &Inode) -> MutexGuard<'_, Content> {
    inode.lock().unwrap_or_else(PoisonError::into_inner)
}

fn not_found(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{} is not there", path.display()))
}

impl NameChange {
    fn apply(self, names: &mut BTreeMap<PathBuf, Inode>) {
        match self {
            NameChange::Give(path, inode) => {
                names.insert(path, inode);
            }
            NameChange::Take(path) => {
                names.remove(&path);
            }
            NameChange::Move(from, to) => {
                if let Some(inode) = names.remove(&from) {
                    names.insert(to, inode);
                }
            }
        }
    }
}

impl Content {
    fn change(&mut self, change: Change) {
        self.modified.0 = world::wall();
        change.apply(&mut self.seen);
        self.unsynced.push(change);
    }

    fn flip(&mut self, at: usize) {
        for bytes in [&mut self.seen, &mut self.synced] {
            bytes.iter_mut().skip(at).take(DAMAGED).for_each(|byte| *byte ^= 0x10);
        }
    }

    fn sync(&mut self) {
        self.unsynced.clear();
        self.synced.clone_from(&self.seen);
        self.modified.1 = self.modified.0;
    }

    fn cut_power(&mut self, rng: &mut fastrand::Rng) -> usize {
        let changes = std::mem::take(&mut self.unsynced);
        self.modified.0 = self.modified.1;
        if changes.is_empty() {
            return 0;
        }
        let left = [Left::Nothing, Left::Nothing, Left::Everything, Left::Front, Left::Sectors][rng.usize(0..5)];
        let written: usize = changes.iter().map(Change::len).sum();
        let mut room = match left {
            Left::Nothing => 0,
            Left::Everything | Left::Sectors => written,
            Left::Front => rng.usize(0..=written),
        };
        let mut kept = 0;
        for change in changes {
            match change {
                Change::Cut(length) if room > 0 => Change::Cut(length).apply(&mut self.synced),
                Change::Cut(_) => {}
                Change::Write { at, bytes } if matches!(left, Left::Sectors) => {
                    for (number, sector) in bytes.chunks(SECTOR).enumerate() {
                        if rng.bool() {
                            kept += sector.len();
                            put(&mut self.synced, at + number * SECTOR, sector);
                        }
                    }
                }
                Change::Write { at, bytes } => {
                    let length = bytes.len().min(room);
                    room -= length;
                    kept += length;
                    put(&mut self.synced, at, &bytes[..length]);
                }
            }
        }
        self.seen.clone_from(&self.synced);
        let proven = if kept < written { self.proven_before } else { self.proven };
        self.proven = proven.min(self.synced.len());
        written - kept
    }
}

impl Change {
    fn len(&self) -> usize {
        match self {
            Change::Write { bytes, .. } => bytes.len(),
            Change::Cut(_) => 1,
        }
    }

    fn apply(&self, to: &mut Vec<u8>) {
        match self {
            Change::Write { at, bytes } => put(to, *at, bytes),
            Change::Cut(length) => to.truncate(*length),
        }
    }
}

fn put(to: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    if to.len() < at + bytes.len() {
        to.resize(at + bytes.len(), 0);
    }
    to[at..at + bytes.len()].copy_from_slice(bytes);
}

impl Disk for SimDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.lock();
        if state.files.contains_key(path) {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{} is there", path.display())));
        }
        if state.room == Room::None {
            return Err(full());
        }
        let inode = Inode::default();
        state.files.insert(path.to_owned(), inode.clone());
        state.renames.push(NameChange::Give(path.to_owned(), inode.clone()));
        Ok(Box::new(SimFile { disk: self.clone(), inode }))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(SimFile { disk: self.clone(), inode: self.inode(path)? }))
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        Ok(content(&self.inode(path)?).seen.clone())
    }

    fn read_ranges(&self, path: &Path, ranges: &[(u64, usize)]) -> io::Result<Vec<Vec<u8>>> {
        let inode = self.inode(path)?;
        let content = content(&inode);
        let read = |(at, length): &(u64, usize)| {
            let at = usize::try_from(*at).map_err(io::Error::other)?;
            let bytes = content.seen.get(at..at + length);
            bytes.map(<[u8]>::to_vec).ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))
        };
        ranges.iter().map(read).collect()
    }

    fn reader(&self, path: &Path) -> io::Result<Box<dyn DiskReader>> {
        Ok(Box::new(SimFile { disk: self.clone(), inode: self.inode(path)? }))
    }

    fn size(&self, path: &Path) -> io::Result<u64> {
        Ok(content(&self.inode(path)?).seen.len() as u64)
    }

    /// A folder is there as long as there is something in it.
    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        let state = self.lock();
        let inside = state.files.keys().filter_map(|path| path.strip_prefix(dir).ok());
        let names: BTreeSet<PathBuf> = inside.filter_map(|path| Some(dir.join(path.components().next()?))).collect();
        Ok(names.into_iter().collect())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.lock();
        state.files.remove(path).ok_or_else(|| not_found(path))?;
        state.renames.push(NameChange::Take(path.to_owned()));
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.lock();
        let inode = state.files.remove(from).ok_or_else(|| not_found(from))?;
        state.files.insert(to.to_owned(), inode);
        state.snapshots += u32::from(to.ends_with("state.snapshot"));
        state.renames.push(NameChange::Move(from.to_owned(), to.to_owned()));
        Ok(())
    }

    /// All folders of a machine are synced at once: each of them is synced behind each of its changes.
    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        let mut state = self.lock();
        let State { durable, renames, .. } = &mut *state;
        renames.drain(..).for_each(|change| change.apply(durable));
        Ok(())
    }

    fn space(&self, _: &Path) -> io::Result<Space> {
        let free = match self.lock().room {
            Room::Enough => ROOM,
            Room::Little => LITTLE,
            Room::Less => LESS,
            Room::None => 0,
        };
        Ok(Space { free, total: ROOM, read_only: false })
    }
}

impl BlobDisk for SimDisk {
    fn make_dir(&self, dir: &Path) -> io::Result<bool> {
        Ok(!self.lock().files.keys().any(|path| path.starts_with(dir)))
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        let inside: Vec<PathBuf> = self.lock().files.keys().filter(|path| path.starts_with(dir)).cloned().collect();
        inside.iter().try_for_each(|path| self.remove(path))
    }

    fn open_to_read(&self, path: &Path) -> io::Result<Box<dyn BlobFile>> {
        Ok(Box::new(SimFile { disk: self.clone(), inode: self.inode(path)? }))
    }

    fn modified(&self, path: &Path) -> io::Result<Duration> {
        Ok(content(&self.inode(path)?).modified.0)
    }

    fn touch(&self, path: &Path) -> io::Result<()> {
        content(&self.inode(path)?).modified.0 = world::wall();
        Ok(())
    }
}

struct SimFile {
    disk: SimDisk,
    inode: Inode,
}

fn full() -> io::Error {
    io::ErrorKind::StorageFull.into()
}

impl DiskReader for SimFile {
    fn read_at(&self, into: &mut [u8], position: u64) -> io::Result<()> {
        let at = usize::try_from(position).map_err(io::Error::other)?;
        let content = content(&self.inode);
        let bytes = at.checked_add(into.len()).and_then(|end| content.seen.get(at..end));
        into.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

impl DiskFile for SimFile {
    fn write_at(&mut self, bytes: &[u8], position: u64) -> io::Result<()> {
        let at = usize::try_from(position).map_err(io::Error::other)?;
        let is_full = self.disk.room() == Room::None;
        let mut content = content(&self.inode);
        let lacks_room = is_full && at + bytes.len() > content.seen.len().max(content.reserved);
        let written = if lacks_room { &bytes[..bytes.len() / 2] } else { bytes };
        if content.unsynced.is_empty() && !written.is_empty() {
            content.proven_before = content.proven;
            content.proven = content.synced.len();
        }
        content.change(Change::Write { at, bytes: written.to_vec() });
        if lacks_room { Err(full()) } else { Ok(()) }
    }

    fn sync(&mut self) -> io::Result<()> {
        content(&self.inode).sync();
        Ok(())
    }

    fn allocate(&mut self, position: u64, bytes: u64) -> io::Result<()> {
        let (room, reserves) = {
            let state = self.disk.lock();
            (state.room, state.reserves)
        };
        if !reserves {
            return Ok(());
        }
        if room == Room::None {
            return Err(full());
        }
        let end = usize::try_from(position + bytes).map_err(io::Error::other)?;
        let mut content = content(&self.inode);
        content.reserved = content.reserved.max(end);
        Ok(())
    }

    fn truncate(&mut self, bytes: u64) -> io::Result<()> {
        let length = usize::try_from(bytes).map_err(io::Error::other)?;
        let mut content = content(&self.inode);
        content.reserved = content.reserved.min(length);
        content.change(Change::Cut(length));
        Ok(())
    }
}

impl BlobFile for SimFile {
    fn size(&self) -> io::Result<u64> {
        Ok(content(&self.inode).seen.len() as u64)
    }

    fn read_at(&self, position: u64, length: usize) -> io::Result<Vec<u8>> {
        let at = usize::try_from(position).map_err(io::Error::other)?;
        let content = content(&self.inode);
        let bytes = content.seen.get(at..at + length).map(<[u8]>::to_vec);
        bytes.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

impl fmt::Debug for SimFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimFile")
    }
}
