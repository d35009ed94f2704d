//! Lists: columns for people, JSON for programs.

use std::io::Write;

use serde::Serialize;

use crate::failure::plain;

/// Whoever closed our output knows enough.
pub(crate) fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

pub(crate) fn json(rows: &impl Serialize) {
    print(&(escaped(&serde_json::to_string_pretty(rows).unwrap_or_default()) + "\n"));
}

/// JSON in which a terminal obeys nothing: of control characters, only those below a space have to be escaped. They are in
/// strings alone.
fn escaped(json: &str) -> String {
    json.chars().fold(String::with_capacity(json.len()), |mut text, c| {
        match c {
            '\u{7f}'..='\u{9f}' => text.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => text.push(c),
        }
        text
    })
}

/// The last column is as wide as it is.
pub(crate) fn columns<const N: usize>(head: [&str; N], rows: impl Iterator<Item = [String; N]>) {
    let rows: Vec<[String; N]> =
        std::iter::once(head.map(str::to_owned)).chain(rows.map(|row| row.map(|cell| plain(&cell)))).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    print(&text);
}

/// A command as one would type it.
pub(super) fn line(argv: &[String]) -> String {
    let bare = |word: &str| !word.is_empty() && word.chars().all(|c| c.is_alphanumeric() || "_-./:=@%+,".contains(c));
    let quoted = |word: &String| if bare(word) { word.clone() } else { format!("'{}'", word.replace('\'', "'\\''")) };
    argv.iter().map(quoted).collect::<Vec<_>>().join(" ")
}
