//! Who holds processes still at their exits (`PTRACE_O_TRACEEXIT`), as strace does.
//!
//! A process that is held so ends when its tracer lets it go, or has ended itself, and by no signal. Two that hold each other would
//! never end, whoever kills them, and the sandbox with them. So no such tracer is held by another: then there is no circle of them,
//! since a process that is born held holds nobody yet.

use crate::kernel::proc;

#[derive(Default)]
pub(super) struct ExitTracers(Vec<Process>);

#[derive(Clone, Copy, PartialEq, Eq)]
struct Process {
    pid: i32,
    began: u64,
}

impl Process {
    fn of(thread: i32) -> Option<Self> {
        let pid = proc::process_of(thread)?;
        Some(Self { pid, began: proc::began(pid)? })
    }
}

impl ExitTracers {
    /// Whether the thread may hold the other one so; from then on it counts as one who does.
    pub(super) fn admit(&mut self, tracer: i32, tracee: i32) -> bool {
        self.0.retain(|known| proc::began(known.pid) == Some(known.began));
        let (Some(tracer), Some(tracee)) = (Process::of(tracer), Process::of(tracee)) else { return false };
        if self.0.contains(&tracee) {
            return false;
        }
        if !self.0.contains(&tracer) {
            self.0.push(tracer);
        }
        true
    }
}
