//! A part of a list: so many, after the one where the last part ended.

/// The cursor is made by `cursor()` of the last row that was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    pub limit: u32,
    pub after: Option<String>,
}

/// Rows carry small outputs, so even a part that somebody asked to be huge stays small.
const MOST: u32 = 1000;

impl Page {
    pub fn first(limit: u32) -> Self {
        Self { limit, after: None }
    }

    pub(crate) fn rows(&self) -> u32 {
        self.limit.min(MOST)
    }
}
