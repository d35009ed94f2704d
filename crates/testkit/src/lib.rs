//! For tests only: the definition of the sandbox interface, and a provider to test against.
//!
//! [`conformance`] is a list of cases that every provider passes; the words in `cabana-sandbox` explain what these cases
//! define. [`Fake`] is a provider that lives in memory. It has real files and real states and no commands, and passes the
//! cases that need none. [`Fault`] breaks it in one place each: a suite that misses one of them has a hole. [`world`] is a
//! network to test against, with real servers in namespaces of the test's own. [`Receiver`] is told things by HTTP.
//! [`SlowDisk`] holds back what one sandbox asks of its disk.

pub mod conformance;
mod fake;
mod receiver;
mod slow_disk;
pub mod world;

pub use fake::{Fake, Fault};
pub use receiver::{Answer, Got, Receiver};
pub use slow_disk::SlowDisk;
