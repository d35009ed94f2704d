//! What an archive does not hold, or a file system could not take, by name.

use std::fmt::Display;

/// More are counted, and not named: a guest can make any number.
const MAX_TOLD: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct LeftOut {
    told: Vec<String>,
    more: u64,
}

impl LeftOut {
    pub(crate) fn add(&mut self, what: String) {
        match self.told.len() < MAX_TOLD {
            true => self.told.push(what),
            false => self.more += 1,
        }
    }

    pub(crate) fn append(&mut self, others: Self) {
        others.told.into_iter().for_each(|what| self.add(what));
        self.more += others.more;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.told.is_empty()
    }

    pub(crate) fn into_lines(self) -> Vec<String> {
        let Self { mut told, more } = self;
        if more > 0 {
            told.push(format!("{more} more"));
        }
        told
    }
}

/// A path and what is the matter with it.
pub(crate) fn named(path: &[u8], why: impl Display) -> String {
    format!("{:?}: {why}", String::from_utf8_lossy(path))
}
