//! A part of a list: so many, after the one where the last part ended.

/// The cursor is made by `cursor()` of the last row that was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    pub limit: u32,
    pub after: Option<String>,
}

const MOST: u32 = 1000;
/// Rows carry small outputs and long words: a part ends where it has so many bytes, though there are more rows.
pub(crate) const MAX_BYTES: usize = 4 << 20;

/// What can be counted for it.
pub trait RowSize {
    /// About how many bytes it takes.
    fn size(&self) -> usize;
}

impl Page {
    pub fn first(limit: u32) -> Self {
        Self { limit, after: None }
    }

    pub(crate) fn rows(&self) -> u32 {
        self.limit.min(MOST)
    }

    /// Whether these rows are all that a part has, so that there may be more.
    pub fn is_full<T: RowSize>(&self, rows: &[T]) -> bool {
        rows.len() >= self.rows() as usize || rows.iter().map(T::size).sum::<usize>() >= MAX_BYTES
    }
}

/// As many rows as a part has.
pub(crate) fn collect<T: RowSize, E>(rows: impl Iterator<Item = Result<T, E>>) -> Result<Vec<T>, E> {
    let (mut part, mut bytes) = (Vec::new(), 0);
    for row in rows {
        let row = row?;
        bytes += row.size();
        part.push(row);
        if bytes >= MAX_BYTES {
            break;
        }
    }
    Ok(part)
}

/// Of a list of words.
pub(crate) fn size_of_words(words: &[String]) -> usize {
    words.iter().map(|word| word.len() + size_of::<String>()).sum()
}
