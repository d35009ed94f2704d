//! The regular expression of a search, which is a stranger's.
//!
//! Where the fast ways of matching give an expression up, what is left takes a step for each of its states and each byte, and nothing
//! can interrupt it. So it is given little to look at in one go, and between two goes the time is looked at.

use std::time::Instant;

use cabana_sandbox::{Error, Result};
use grep_matcher::{ByteSet, LineMatchKind, LineTerminator, Match, Matcher, NoCaptures, NoError};
use grep_regex::{RegexMatcher, RegexMatcherBuilder};

/// Of what it compiles to, which is about fifty bytes for a state.
const MAX_COMPILED: usize = 256 * 1024;
/// Of what is kept of states that were met.
const MAX_CACHE: usize = 10 * 1024 * 1024;
/// As many whole lines as fit are looked at in one go, and of a longer line the beginning alone.
const MAX_LOOK: usize = 64 * 1024;

pub(crate) struct Pattern {
    regex: RegexMatcher,
    /// Nothing matches any more after it.
    deadline: Option<Instant>,
}

impl Pattern {
    pub(crate) fn new(pattern: &str, deadline: Option<Instant>) -> Result<Self> {
        let regex = RegexMatcherBuilder::new()
            .line_terminator(Some(b'\n'))
            .size_limit(MAX_COMPILED)
            .dfa_size_limit(MAX_CACHE)
            .build(pattern)
            .map_err(|e| Error::invalid("grep", e.to_string()))?;
        Ok(Self { regex, deadline })
    }

    fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }
}

/// The searcher asks for lines that may match, and then whether a line does.
impl Matcher for Pattern {
    type Captures = NoCaptures;
    type Error = NoError;

    fn find_at(&self, line: &[u8], at: usize) -> Result<Option<Match>, NoError> {
        if at > MAX_LOOK || self.is_late() { Ok(None) } else { self.regex.find_at(looked_at(line), at) }
    }

    fn new_captures(&self) -> Result<NoCaptures, NoError> {
        Ok(NoCaptures::new())
    }

    fn shortest_match_at(&self, line: &[u8], at: usize) -> Result<Option<usize>, NoError> {
        if at > MAX_LOOK || self.is_late() { Ok(None) } else { self.regex.shortest_match_at(looked_at(line), at) }
    }

    fn non_matching_bytes(&self) -> Option<&ByteSet> {
        self.regex.non_matching_bytes()
    }

    fn line_terminator(&self) -> Option<LineTerminator> {
        self.regex.line_terminator()
    }

    fn find_candidate_line(&self, lines: &[u8]) -> Result<Option<LineMatchKind>, NoError> {
        let mut at = 0;
        while at < lines.len() && !self.is_late() {
            let (looked_at, next) = piece(&lines[at..]);
            match self.regex.find_candidate_line(looked_at)? {
                None => at += next,
                Some(LineMatchKind::Confirmed(place)) => return Ok(Some(LineMatchKind::Confirmed(at + place))),
                Some(LineMatchKind::Candidate(place)) => return Ok(Some(LineMatchKind::Candidate(at + place))),
            }
        }
        Ok(None)
    }
}

fn looked_at(line: &[u8]) -> &[u8] {
    &line[..line.len().min(MAX_LOOK)]
}

/// What is looked at next, and where what comes after it begins.
fn piece(lines: &[u8]) -> (&[u8], usize) {
    let first = looked_at(lines);
    if first.len() == lines.len() {
        return (lines, lines.len());
    }
    match first.iter().rposition(|byte| *byte == b'\n') {
        Some(end) => (&first[..=end], end + 1),
        None => {
            let rest = lines[first.len()..].iter().position(|byte| *byte == b'\n');
            (first, rest.map_or(lines.len(), |end| first.len() + end + 1))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_whole_lines_or_the_beginning_of_a_long_one() {
        let long = "x".repeat(3 * MAX_LOOK);
        let text = format!("a\n{long}\nb\n");
        let (mut at, mut seen) = (0, Vec::new());
        while at < text.len() {
            let (looked_at, next) = piece(&text.as_bytes()[at..]);
            seen.push((looked_at.len(), next));
            at += next;
        }
        assert_eq!(seen, [(2, 2), (MAX_LOOK, 3 * MAX_LOOK + 1), (2, 2)]);
    }

    #[test]
    fn an_expression_with_many_states_is_refused() {
        assert!(Pattern::new(r"\w+ [[:alpha:]]{1,20}", None).is_ok());
        assert!(matches!(Pattern::new("1[01]{20000}x", None), Err(Error::Invalid { .. })));
    }
}
