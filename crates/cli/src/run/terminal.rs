//! Our own terminal, while the command has one of its own: raw, and as it was afterwards.

use cabana_sandbox::TermSize;
use rustix::{
    io::{self, Result},
    stdio::{stdin, stdout},
    termios::{OptionalActions, QueueSelector, Termios, isatty, tcflush, tcgetattr, tcgetwinsize, tcsetattr},
};

pub(super) fn is_input() -> bool {
    isatty(stdin())
}

/// There is one only if both ends of us are terminals.
pub(crate) fn size() -> Option<TermSize> {
    if !isatty(stdin()) || !isatty(stdout()) {
        return None;
    }
    let size = tcgetwinsize(stdout()).ok()?;
    // Nobody has told a fresh terminal its size.
    let or = |n: u16, usual| if n == 0 { usual } else { n };
    Some(TermSize { cols: or(size.ws_col, 80), rows: or(size.ws_row, 24) })
}

/// Bytes as they are, in both directions. Dropping it gives back what was, also when a panic unwinds.
pub(crate) struct RawMode {
    before: Termios,
}

impl RawMode {
    pub(crate) fn enter() -> Result<Self> {
        let before = tcgetattr(stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdin(), OptionalActions::Drain, &raw)?;
        Ok(Self { before })
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // What a program inside made the terminal answer, and nobody has read, would be typed into the shell that comes next.
        while let Err(io::Errno::INTR) = tcsetattr(stdin(), OptionalActions::Flush, &self.before) {}
        // Of what waited because there was no room for it, the line above has only made room.
        let _ = tcflush(stdin(), QueueSelector::IFlush);
    }
}
