//! Places at which a test lets this process be killed, to see that nothing is lost or half done.
//!
//! Each crate names its own with [`points!`], and passes them by `at`. `CABANA_FAULT=name@3` kills the process when it passes
//! `name` for the third time. Only tests build with the feature `armed`; in what is shipped a place is no code at all.

/// Makes `Point`, `at` to pass one, and `ALL`, their names.
#[macro_export]
macro_rules! points {
    ($($name:ident = $text:literal: $why:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Point { $(#[doc = $why] $name,)* }

        /// The names of all places at which a test can let the process be killed.
        pub const ALL: &[&str] = &[$($text,)*];

        /// Ends this process if a test asked for it.
        #[inline]
        pub(crate) fn at(point: Point) {
            $crate::pass(match point { $(Point::$name => $text,)* });
        }
    };
}

/// Ends this process if a test asked for it here.
#[cfg(feature = "armed")]
pub fn pass(place: &'static str) {
    use std::sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    };
    static ASKED: OnceLock<Option<(String, u32)>> = OnceLock::new();
    static PASSED: AtomicU32 = AtomicU32::new(0);
    let asked = ASKED.get_or_init(|| {
        let asked = std::env::var("CABANA_FAULT").ok()?;
        let (name, time) = asked.split_once('@')?;
        Some((name.to_owned(), time.parse().ok()?))
    });
    let Some((name, time)) = asked else { return };
    if name == place && PASSED.fetch_add(1, Ordering::AcqRel) + 1 == *time {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        loop {
            std::thread::park(); // the signal is on its way
        }
    }
}

#[cfg(not(feature = "armed"))]
#[inline(always)]
pub fn pass(_: &'static str) {}

/// `CABANA_FAULT_PROTOCOL`: which protocol a server of another time says it speaks.
pub fn protocol() -> Option<u32> {
    #[cfg(feature = "armed")]
    return std::env::var("CABANA_FAULT_PROTOCOL").ok()?.parse().ok();
    #[cfg(not(feature = "armed"))]
    None
}

/// Whether a test moves the clock: then nothing sleeps for long without a look at it.
pub fn has_clock() -> bool {
    cfg!(feature = "armed") && std::env::var_os("CABANA_FAULT_CLOCK").is_some()
}

/// `CABANA_FAULT_CLOCK`: a file that says by how many seconds the clock of a test is ahead. What cannot be read is none.
pub fn clock_ahead() -> i64 {
    #[cfg(feature = "armed")]
    {
        static FILE: std::sync::OnceLock<Option<std::path::PathBuf>> = std::sync::OnceLock::new();
        let file = FILE.get_or_init(|| std::env::var_os("CABANA_FAULT_CLOCK").map(Into::into));
        let text = file.as_ref().and_then(|file| std::fs::read_to_string(file).ok());
        text.and_then(|text| text.trim().parse().ok()).unwrap_or_default()
    }
    #[cfg(not(feature = "armed"))]
    0
}
