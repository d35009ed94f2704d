//! Looking for something in what a command said.

use std::time::Duration;

use bytes::Bytes;
use cabana_model::Tenant;
use cabana_sandbox::Error::TimedOut;
use cabana_store::{Log, Stream};
use regex::bytes::{Regex, RegexBuilder};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit},
    task::spawn_blocking,
    time::{Instant, timeout_at},
};

use crate::{
    Error, MemoryCharge, Result, Runtime, Text, memory::json_len, runtime::SEARCHES_AT_ONCE, text::whole_characters,
};

/// A line that was looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// From one on.
    pub number: u64,
    /// Of its first byte in the stream.
    pub offset: u64,
    /// Without its end, and not all of one that is very long.
    pub text: Bytes,
}

/// What was found, and whether there may be more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    pub lines: Vec<Line>,
    pub more: bool,
}

/// As much of a line as is looked at: one without an end is no reason to hold all of it.
const LONGEST: usize = 64 << 10;
const CHUNK: u64 = 256 << 10;
/// Of what a pattern compiles to. An expression that the fast ways give up takes a step for each of its states and each byte of a
/// line, and nothing can interrupt it there: this and [`LONGEST`] bound how long one line takes.
const MAX_COMPILED: usize = 256 << 10;
const MAX_CACHE: usize = 1 << 20;
/// For a whole search, from when it is asked for. It is looked at between lines, and between parts of an output.
const BUDGET: Duration = Duration::from_secs(10);
/// Of all lines that are found, as JSON: an answer is written and read as a whole.
const MAX_FOUND_BYTES: usize = 4 << 20;
/// Of all tenants: each has a thread, and the rest of the server needs some, too.
static SEARCHES: Semaphore = Semaphore::const_new(32);

impl Runtime {
    /// Reads a part at a time, however long the output is. The expression is the caller's, so it runs on a thread of its own, as one of
    /// the searches that a tenant may have; when its time is used up, there may be more. What is found is charged.
    pub async fn search_output(
        &self,
        tenant: &Tenant,
        log: &Log,
        stream: Stream,
        pattern: &str,
        most: usize,
    ) -> Result<(Found, MemoryCharge)> {
        let deadline = Instant::now() + BUDGET;
        let Ok(permit) = timeout_at(deadline, self.0.searches.acquire(tenant)).await else {
            return Err(Error::TooManySearches(SEARCHES_AT_ONCE));
        };
        let Ok(of_all) = timeout_at(deadline, SEARCHES.acquire()).await else {
            return Err(TimedOut("as many searches were under way all the time as there may be").into());
        };
        let mut memory = self.list_memory(tenant);
        if !memory.grow(MAX_FOUND_BYTES) {
            return Err(Error::ListsTooLarge);
        }
        let (pattern, permits) = (pattern.to_owned(), (permit, of_all.ok()));
        let mut lines =
            on_thread(move || Ok(Lines::new(compiled(&pattern)?, most, Some(deadline)).holding(permits))).await?;
        let (stdout, stderr) = log.lengths();
        let total = if stream == Stream::Stdout { stdout } else { stderr };
        let mut at = 0;
        while at < total && !lines.found.more {
            let bytes = log.read(stream, at..total.min(at + CHUNK)).await?;
            if bytes.is_empty() {
                break; // the rest was not kept
            }
            at += bytes.len() as u64;
            lines = on_thread(move || {
                lines.push(&bytes);
                Ok(lines)
            })
            .await?;
        }
        let found = on_thread(move || Ok(lines.end())).await?;
        memory.shrink(found.lines.iter().map(|line| size_of::<Line>() + line.text.len()).sum());
        Ok((found, memory))
    }
}

async fn on_thread<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    spawn_blocking(work).await.map_err(|error| cabana_sandbox::Error::failed("search an output", error))?
}

fn compiled(pattern: &str) -> Result<Regex> {
    let built = RegexBuilder::new(pattern).size_limit(MAX_COMPILED).dfa_size_limit(MAX_CACHE).build();
    built.map_err(|error| Error::invalid("pattern", error.to_string()))
}

/// Puts lines together again that chunks cut.
struct Lines {
    pattern: Regex,
    most: usize,
    number: u64,
    /// Where the line begins that has not ended yet.
    offset: u64,
    begun: Vec<u8>,
    /// How long that line is, also what is not held of it.
    length: u64,
    found: Found,
    /// Of the lines that were found, as JSON.
    bytes: usize,
    /// No line is looked at after it.
    deadline: Option<Instant>,
    /// As long as a thread may be at it, whoever still waits for the answer.
    _permits: Permits,
}

/// Of its tenant, and of all.
type Permits = (Option<OwnedSemaphorePermit>, Option<SemaphorePermit<'static>>);

impl Lines {
    fn new(pattern: Regex, most: usize, deadline: Option<Instant>) -> Self {
        Self {
            pattern,
            most,
            number: 1,
            offset: 0,
            begun: Vec::new(),
            length: 0,
            found: Found::default(),
            bytes: 0,
            deadline,
            _permits: (None, None),
        }
    }

    fn holding(self, permits: Permits) -> Self {
        Self { _permits: permits, ..self }
    }

    fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// The next part of the output. A line without an end is read for as long as there is time, too.
    fn push(&mut self, mut bytes: &[u8]) {
        if self.is_late() {
            self.found.more = true;
            return;
        }
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n')
            && !self.found.more
        {
            self.add(&bytes[..end]);
            self.ended(1);
            bytes = &bytes[end + 1..];
        }
        self.add(bytes);
    }

    fn add(&mut self, part: &[u8]) {
        let room = LONGEST - self.begun.len();
        self.begun.extend_from_slice(&part[..part.len().min(room)]);
        self.length += part.len() as u64;
    }

    fn ended(&mut self, line_end: u64) {
        if self.is_late() {
            self.found.more = true;
            return;
        }
        let cut = self.length > self.begun.len() as u64;
        if self.pattern.is_match(&self.begun) {
            // A copy: a short line must not hold on to the room that a long one had before it.
            let text = Bytes::copy_from_slice(&self.begun);
            let text = if cut { whole_characters(text, false, true) } else { text };
            let bytes = json_len(&Text(text.clone()));
            match self.found.lines.len() < self.most && self.bytes + bytes <= MAX_FOUND_BYTES {
                true => {
                    self.bytes += bytes;
                    self.found.lines.push(Line { number: self.number, offset: self.offset, text });
                }
                false => self.found.more = true,
            }
        }
        self.begun.clear();
        self.number += 1;
        self.offset += self.length + line_end;
        self.length = 0;
    }

    fn end(mut self) -> Found {
        if self.length > 0 && !self.found.more {
            self.ended(0);
        }
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn found(pattern: &str, most: usize, chunks: &[&[u8]]) -> Found {
        let mut lines = Lines::new(compiled(pattern).unwrap(), most, None);
        chunks.iter().for_each(|chunk| lines.push(chunk));
        lines.end()
    }

    #[test]
    fn a_line_is_told_with_its_number_and_place() {
        let told = found("b+", 9, &[b"a\nbb", b"b\n", b"\nab"]);
        let line = |number, offset, text: &'static str| Line { number, offset, text: text.into() };
        assert_eq!(told, Found { lines: vec![line(2, 2, "bbb"), line(4, 7, "ab")], more: false });
        assert_eq!(found("^$", 9, &[b"a\n\nb"]).lines.len(), 1);
        assert!(found(".", 1, &[b"a\nb\n"]).more && !found(".", 2, &[b"a\nb\n"]).more);
        assert_eq!(found("x", 9, &[&vec![b'x'; 3 * LONGEST]]).lines[0].text.len(), LONGEST);
        let long = [vec![b'x'; LONGEST], vec![b'\n']].concat().repeat(100);
        let told = found("x", 1000, &[&long]);
        assert!(told.more && told.lines.len() == MAX_FOUND_BYTES / LONGEST - 1, "each with its name");
    }

    #[test]
    fn a_line_counts_as_what_it_takes_as_json() {
        let long = [vec![1; LONGEST], vec![b'\n']].concat().repeat(100);
        let told = found(".", 1000, &[&long]);
        assert!(told.more && told.lines.len() == MAX_FOUND_BYTES / (6 * LONGEST));
    }

    #[test]
    fn a_short_line_does_not_hold_the_room_of_a_long_one() {
        let output = [vec![b'x'; LONGEST - 1], b"\na\n".to_vec()].concat().repeat(100);
        let told = found("^a$", 1000, &[&output]);
        assert_eq!(told.lines.len(), 100);
        for line in told.lines {
            // Nobody else has its bytes, so this is the room that they take.
            let room = line.text.try_into_mut().unwrap().capacity();
            assert!(room < 100, "{room} bytes for one");
        }
    }

    #[test]
    fn a_line_without_an_end_is_read_until_the_time_is_over() {
        let mut lines = Lines::new(compiled("x").unwrap(), 9, Some(Instant::now() + BUDGET));
        lines.push(b"y");
        assert!(!lines.found.more && lines.length == 1);
        lines.deadline = Some(Instant::now());
        lines.push(b"y");
        assert!(lines.found.more && lines.length == 1, "what comes then is not looked at");
    }

    #[test]
    fn a_pattern_that_is_none_or_too_much_is_refused() {
        for bad in ["(", "a{1000}{1000}{1000}", "1[01]{20000}x"] {
            assert_eq!(compiled(bad).unwrap_err().code(), cabana_model::Code::BadRequest, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn where_chunks_are_cut_makes_no_difference(text in "[ab\n]{0,60}", cuts in prop::collection::vec(0usize..60, 0..5)) {
            let mut places: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            places.extend([0, text.len()]);
            places.sort_unstable();
            let chunks: Vec<&[u8]> = places.windows(2).map(|two| &text.as_bytes()[two[0]..two[1]]).collect();
            let told = found("b", usize::MAX, &chunks);
            let expected: Vec<_> = text.lines().filter(|line| line.contains('b')).collect();
            prop_assert_eq!(told.lines.iter().map(|line| std::str::from_utf8(&line.text).unwrap()).collect::<Vec<_>>(), expected);
            for line in told.lines {
                prop_assert_eq!(&text.as_bytes()[line.offset as usize..][..line.text.len()], &line.text[..]);
            }
        }
    }
}
