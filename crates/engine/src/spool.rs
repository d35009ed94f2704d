//! The output of one command, in memory that outlives whoever reads it.
//!
//! Bytes go from the command's pipe into a memory file by splice, which moves them or does not: no kill finds them read and
//! not yet written. The file is held by the server and by init, so that either can go on where the other stopped. Its
//! length is the position of the output's end; where the channel changes is noted in the file, before the first byte of the
//! new one. Only the last part is kept: the rest is punched out, and nothing moves.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use cabana_sandbox::{Channel, Position};
use rustix::{
    fs::{FallocateFlags, MemfdFlags, SeekFrom},
    pipe::SpliceFlags,
};

use crate::fault::{self, Point};

/// How much of a command's output is kept where its limits do not say.
pub(crate) const KEPT: u64 = 1 << 20;

/// How much more than that is there before it is cut off: that costs a call.
const SLACK: u64 = 128 << 10;

/// As much as a pipe holds.
pub(crate) const CHUNK: usize = 64 << 10;

/// The file begins with a ring of marks; the output follows.
const MARKS: u64 = 65_536;
const MARK: u64 = 16;
pub(crate) const OUTPUT: u64 = MARKS * MARK;

/// What is kept of each, where all together take too much: what a reader has just asked for, and some changes of the channel.
const KEPT_WHEN_SHORT: u64 = CHUNK as u64;
const MARKS_WHEN_SHORT: u64 = 4096;

/// What a mark says begins where it points to. Nothing is zero: that is a place where no mark was made yet.
const STDOUT: u64 = 1;
const STDERR: u64 = 2;
const TERMINAL: u64 = 3;
const END: u64 = 4;

#[derive(Debug)]
pub(crate) struct Spool {
    memory: Arc<OwnedFd>,
    kept: u64,
    /// All outputs together take too much: little of this one is kept.
    short_of_memory: bool,
    /// The last marks, the oldest first.
    marks: VecDeque<(Position, Channel)>,
    made: u64,
    end: Position,
    sealed: bool,
    /// What lies before is punched out.
    punched: Position,
}

/// The place of the next bytes.
pub(crate) struct Into {
    memory: Arc<OwnedFd>,
    at: u64,
}

impl Into {
    pub(crate) fn splice(mut self, pipe: BorrowedFd<'_>) -> io::Result<usize> {
        Ok(rustix::pipe::splice(pipe, None, &self.memory, Some(&mut self.at), CHUNK, SpliceFlags::NONBLOCK)?)
    }
}

/// A piece of it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) at: Position,
    pub(crate) channel: Channel,
    pub(crate) length: usize,
}

impl Spool {
    pub(crate) fn new(kept: u64) -> io::Result<Self> {
        let memory = rustix::fs::memfd_create(c"output", MemfdFlags::CLOEXEC)?;
        let (marks, made, end, punched) = (VecDeque::new(), 0, 0, 0);
        Ok(Self { memory: Arc::new(memory), kept, short_of_memory: false, marks, made, end, sealed: false, punched })
    }

    /// One that somebody else has written to. Whatever is in the file: it is read as what it should be, and nothing breaks.
    pub(crate) fn open(memory: OwnedFd, kept: u64) -> io::Result<Self> {
        let about = rustix::fs::fstat(&memory)?;
        if rustix::fs::FileType::from_raw_mode(about.st_mode) != rustix::fs::FileType::RegularFile {
            return Err(io::Error::other("the output is not in a file"));
        }
        let end = u64::try_from(about.st_size).unwrap_or(0).saturating_sub(OUTPUT);
        let punched = match rustix::fs::seek(&memory, SeekFrom::Data(OUTPUT)) {
            Ok(first) => first.saturating_sub(OUTPUT).min(end),
            Err(_) => end, // nothing but a hole
        };
        let memory = Arc::new(memory);
        let mut spool =
            Self { memory, kept, short_of_memory: false, marks: VecDeque::new(), made: 0, end, sealed: false, punched };
        spool.read_marks()?;
        Ok(spool)
    }

    /// The ring in the order in which it was written: where positions fall, the oldest mark is.
    fn read_marks(&mut self) -> io::Result<()> {
        let (mut marks, mut block) = (Vec::new(), [0; 4096]);
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
        'ring: for at in (0..OUTPUT).step_by(block.len()) {
            let length = read_at(&self.memory, &mut block, at)?;
            for mark in block[..length].chunks_exact(MARK as usize) {
                let (position, what) = (number(&mark[..8]), number(&mark[8..]));
                if what == 0 {
                    break 'ring;
                }
                marks.push((position, what));
            }
        }
        let oldest = marks.windows(2).position(|pair| pair[1].0 < pair[0].0).map_or(0, |place| place + 1);
        // How often the ring went round is not known, and nobody asks: the next mark goes over the oldest one.
        self.made = if marks.len() as u64 == MARKS { MARKS + oldest as u64 } else { marks.len() as u64 };
        for (position, what) in marks[oldest..].iter().chain(&marks[..oldest]) {
            match channel_of(*what) {
                Some(channel) if *position <= self.end => self.note(*position, channel),
                Some(_) => {} // nothing can begin after the end: it would hide all that comes
                None => self.sealed |= *what == END && *position == self.end,
            }
        }
        Ok(())
    }

    fn note(&mut self, position: Position, channel: Channel) {
        // One that nothing followed yet gives way to the next at the same place.
        while self.marks.back().is_some_and(|(last, _)| *last >= position) {
            self.marks.pop_back();
        }
        self.marks.push_back((position, channel));
    }

    /// Where the output ends by now.
    pub(crate) fn end(&self) -> Position {
        self.end
    }

    /// How much memory the output takes, with its marks, which are in the file and here.
    pub(crate) fn size(&self) -> u64 {
        self.end - self.punched + self.made.min(MARKS) * MARK * 2
    }

    /// How much of it is kept at most.
    pub(crate) fn kept(&self) -> u64 {
        self.kept
    }

    /// From the next bytes on.
    pub(crate) fn set_short_of_memory(&mut self, short: bool) {
        self.short_of_memory = short;
    }

    /// Whether all output of the command is in it: what comes after its exit is somebody else's.
    pub(crate) fn is_sealed(&self) -> bool {
        self.sealed
    }

    /// From where on it can be read.
    fn start(&self) -> Position {
        let marked = self.marks.front().map_or(self.end, |(position, _)| *position);
        self.punched.max(self.end.saturating_sub(self.kept)).max(marked)
    }

    /// Takes what the pipe holds. Zero: nobody will write to it any more. `WouldBlock`: nothing now.
    pub(crate) fn take(&mut self, pipe: BorrowedFd<'_>, channel: Channel) -> io::Result<usize> {
        match self.before(pipe, channel)? {
            Some(into) => self.after_taking(into.splice(pipe)?),
            None => Ok(0),
        }
    }

    /// Where the next bytes of the pipe go: in three steps, for who lets nobody wait for the pipe. A guest can hold its lock.
    /// `None`: nobody will write to it any more.
    pub(crate) fn before(&mut self, pipe: BorrowedFd<'_>, channel: Channel) -> io::Result<Option<Into>> {
        // A ring that a guest fills, by changing channels all the time, ends here: what follows counts as of the last one.
        let has_marks = !self.short_of_memory || self.made < MARKS_WHEN_SHORT;
        if self.marks.back().is_none_or(|(_, last)| *last != channel && has_marks) {
            if !has_bytes(pipe)? {
                return Ok(None);
            }
            self.mark(number_of(channel))?;
            self.note(self.end, channel);
        }
        fault::at(Point::OutputMarked);
        Ok(Some(Into { memory: self.memory.clone(), at: OUTPUT + self.end }))
    }

    /// So many bytes are there now.
    pub(crate) fn after_taking(&mut self, taken: usize) -> io::Result<usize> {
        fault::at(Point::OutputTaken);
        self.end += taken as u64;
        self.punch();
        Ok(taken)
    }

    /// Nothing follows.
    pub(crate) fn seal(&mut self) -> io::Result<()> {
        self.mark(END)?;
        fault::at(Point::OutputSealed);
        self.sealed = true;
        Ok(())
    }

    /// Sixteen bytes that lie in one page: there as a whole or not at all.
    fn mark(&mut self, what: u64) -> io::Result<()> {
        let mut bytes = [0; MARK as usize];
        bytes[..8].copy_from_slice(&self.end.to_le_bytes());
        bytes[8..].copy_from_slice(&what.to_le_bytes());
        if self.made == 0 && self.end == 0 {
            rustix::fs::ftruncate(&self.memory, OUTPUT)?;
        }
        rustix::io::pwrite(&self.memory, &bytes, self.made % MARKS * MARK)?;
        self.made += 1;
        if self.marks.len() as u64 >= MARKS {
            self.marks.pop_front(); // it is the one that was written over
        }
        Ok(())
    }

    fn punch(&mut self) {
        let (kept, slack) = match self.short_of_memory {
            true => (self.kept.min(KEPT_WHEN_SHORT), 1),
            false => (self.kept, SLACK),
        };
        let start = self.end.saturating_sub(kept);
        if start < self.punched + slack {
            return;
        }
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if rustix::fs::fallocate(&self.memory, how, OUTPUT + self.punched, start - self.punched).is_ok() {
            self.punched = start;
        }
        while self.marks.len() > 1 && self.marks[1].0 <= start {
            self.marks.pop_front();
        }
    }

    /// What follows `at`, as far as it is kept: a later position in the answer is a gap.
    pub(crate) fn after(&self, at: Position) -> Option<Piece> {
        let at = at.max(self.start());
        if at >= self.end {
            return None;
        }
        let next = self.marks.partition_point(|(position, _)| *position <= at);
        let (_, channel) = *self.marks.get(next.checked_sub(1)?)?;
        let end = self.marks.get(next).map_or(self.end, |(position, _)| *position).min(self.end);
        Some(Piece { at, channel, length: (end - at).min(CHUNK as u64) as usize })
    }

    pub(crate) fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

/// False when there will never be any; `WouldBlock` when there are none now.
fn has_bytes(pipe: BorrowedFd<'_>) -> io::Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut asked = [PollFd::from_borrowed_fd(pipe, PollFlags::IN)];
    poll(&mut asked, Some(&Timespec::default()))?;
    match asked[0].revents() {
        got if got.contains(PollFlags::IN) => Ok(true),
        got if got.is_empty() => Err(io::ErrorKind::WouldBlock.into()),
        _ => Ok(false),
    }
}

/// The bytes of a piece. Nothing may be taken in between: it could be cut off.
pub(crate) fn read(memory: BorrowedFd<'_>, piece: &Piece) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; piece.length];
    let length = read_at(memory, &mut bytes, OUTPUT + piece.at)?;
    bytes.truncate(length);
    Ok(bytes)
}

fn read_at(file: impl AsFd, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match rustix::io::pread(&file, &mut buffer[filled..], at + filled as u64)? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(filled)
}

fn number_of(channel: Channel) -> u64 {
    match channel {
        Channel::Stdout => STDOUT,
        Channel::Stderr => STDERR,
        Channel::Terminal => TERMINAL,
    }
}

fn channel_of(number: u64) -> Option<Channel> {
    match number {
        STDOUT => Some(Channel::Stdout),
        STDERR => Some(Channel::Stderr),
        TERMINAL => Some(Channel::Terminal),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    fn write(spool: &mut Spool, channel: Channel, bytes: &[u8]) {
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        for part in bytes.chunks(4096) {
            std::fs::File::from(write.try_clone().unwrap()).write_all(part).unwrap();
            assert_eq!(spool.take(read.as_fd(), channel).unwrap(), part.len());
        }
        assert_eq!(spool.take(read.as_fd(), channel).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    fn whole(spool: &Spool, mut at: Position) -> Vec<(Position, Channel, Vec<u8>)> {
        let mut all: Vec<(Position, Channel, Vec<u8>)> = Vec::new();
        while let Some(piece) = spool.after(at) {
            at = piece.at + piece.length as u64;
            let bytes = read(spool.memory(), &piece).unwrap();
            match all.last_mut() {
                Some((_, channel, last)) if *channel == piece.channel => last.extend(bytes),
                _ => all.push((piece.at, piece.channel, bytes)),
            }
        }
        all
    }

    fn again(spool: &Spool, kept: u64) -> Spool {
        Spool::open(spool.memory.try_clone().unwrap(), kept).unwrap()
    }

    #[test]
    fn channels_keep_their_order_also_for_who_opens_it_later() {
        let mut spool = Spool::new(KEPT).unwrap();
        write(&mut spool, Channel::Stdout, b"one");
        write(&mut spool, Channel::Stderr, b"two");
        write(&mut spool, Channel::Stdout, b"three");
        let said = vec![
            (0, Channel::Stdout, b"one".to_vec()),
            (3, Channel::Stderr, b"two".to_vec()),
            (6, Channel::Stdout, b"three".to_vec()),
        ];
        assert_eq!(whole(&spool, 0), said);
        let mut other = again(&spool, KEPT);
        assert_eq!(whole(&other, 0), said);
        write(&mut other, Channel::Stdout, b"!");
        assert_eq!(whole(&other, 10), [(10, Channel::Stdout, b"e!".to_vec())]);
        assert!(!again(&other, KEPT).is_sealed());
        other.seal().unwrap();
        assert!(again(&other, KEPT).is_sealed());
        assert_eq!(whole(&again(&other, KEPT), 0).len(), 3);
    }

    #[test]
    fn only_the_last_part_is_kept_and_the_gap_shows() {
        let mut spool = Spool::new(64 << 10).unwrap();
        let bytes: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
        write(&mut spool, Channel::Stdout, &bytes);
        for spool in [&spool, &again(&spool, 64 << 10), &again(&spool, 1 << 30)] {
            let pieces = whole(spool, 7);
            let (at, _, last) = &pieces[0];
            assert!(*at >= 3_000_000 - (64 << 10) - SLACK - 8192, "{at}");
            assert_eq!(*last, bytes[*at as usize..]);
            assert!(spool.start() > 7);
        }
        let blocks = rustix::fs::fstat(spool.memory()).unwrap().st_blocks as u64 * 512;
        assert!(blocks < (64 << 10) + SLACK + (64 << 10), "{blocks} bytes of memory");
    }

    #[test]
    fn a_flood_of_changes_between_channels_stays_bounded() {
        let mut spool = Spool::new(KEPT).unwrap();
        for number in 0..MARKS as u32 + 1000 {
            write(&mut spool, if number % 2 == 0 { Channel::Stdout } else { Channel::Stderr }, b"x");
        }
        assert!(spool.marks.len() as u64 <= MARKS);
        let (ours, theirs) = (whole(&spool, 0), whole(&again(&spool, KEPT), 0));
        assert!(ours.len() as u64 >= MARKS - 1, "{}", ours.len());
        assert_eq!(ours, theirs);
        let blocks = rustix::fs::fstat(spool.memory()).unwrap().st_blocks as u64 * 512;
        assert!(blocks <= OUTPUT + (128 << 10), "{blocks} bytes of memory");
    }

    #[test]
    fn a_mark_after_the_end_hides_nothing() {
        let memory = rustix::fs::memfd_create(c"test", MemfdFlags::CLOEXEC).unwrap();
        let mark = [&u64::MAX.to_le_bytes()[..], &STDERR.to_le_bytes()].concat();
        rustix::io::pwrite(&memory, &mark, 0).unwrap();
        let mut spool = Spool::open(memory, KEPT).unwrap();
        write(&mut spool, Channel::Stderr, b"more");
        assert_eq!(whole(&spool, 0).concat_bytes(), b"more");
    }

    #[test]
    fn a_command_that_says_nothing_takes_no_memory() {
        let mut spool = Spool::new(KEPT).unwrap();
        assert_eq!(spool.after(0), None);
        assert_eq!(again(&spool, KEPT).after(0), None);
        assert_eq!(rustix::fs::fstat(spool.memory()).unwrap().st_blocks, 0);
        spool.seal().unwrap();
        assert!(again(&spool, KEPT).is_sealed());
    }

    proptest! {
        #[test]
        fn whatever_is_in_the_file_nothing_breaks(bytes in prop::collection::vec(any::<u8>(), 0..600), size in 0u64..200_000, kept in 0u64..100_000, at in any::<u64>()) {
            let memory = rustix::fs::memfd_create(c"test", MemfdFlags::CLOEXEC).unwrap();
            rustix::io::pwrite(&memory, &bytes, 0).unwrap();
            rustix::fs::ftruncate(&memory, size).unwrap();
            let mut spool = Spool::open(memory, kept).unwrap();
            for at in [0, at, spool.end().saturating_sub(1)] {
                if let Some(piece) = spool.after(at) {
                    prop_assert!(piece.length > 0 && piece.at + piece.length as u64 <= spool.end());
                    let _ = read(spool.memory(), &piece);
                }
            }
            write(&mut spool, Channel::Stderr, b"more");
            let last = whole(&spool, spool.end() - 4);
            prop_assert_eq!(last.concat_bytes(), b"more".to_vec());
        }

        #[test]
        fn what_was_written_is_what_is_read_from_anywhere(
            parts in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 1..60)), 1..40),
            from in 0usize..2000,
            reopen_after in 0usize..40,
        ) {
            let mut spool = Spool::new(KEPT).unwrap();
            let mut all = Vec::new();
            for (number, (stderr, bytes)) in parts.iter().enumerate() {
                if number == reopen_after {
                    spool = again(&spool, KEPT);
                }
                write(&mut spool, if *stderr { Channel::Stderr } else { Channel::Stdout }, bytes);
                all.extend_from_slice(bytes);
            }
            let from = from.min(all.len());
            prop_assert_eq!(whole(&spool, from as u64).concat_bytes(), all[from..].to_vec());
            let stderr: Vec<u8> = parts.iter().filter(|(stderr, _)| *stderr).flat_map(|(_, bytes)| bytes.clone()).collect();
            let read: Vec<u8> = whole(&spool, 0).into_iter().filter(|(_, channel, _)| *channel == Channel::Stderr).flat_map(|(_, _, bytes)| bytes).collect();
            prop_assert_eq!(read, stderr);
        }
    }

    trait ConcatBytes {
        fn concat_bytes(&self) -> Vec<u8>;
    }

    impl ConcatBytes for Vec<(Position, Channel, Vec<u8>)> {
        fn concat_bytes(&self) -> Vec<u8> {
            self.iter().flat_map(|(_, _, bytes)| bytes.clone()).collect()
        }
    }
}
