//! The signals that we get and the command should.

use std::{fs, future::poll_fn, io, task::Poll};

use cabana_sandbox::Target;
use rustix::process::Signal as Number;
use tokio::signal::unix::{Signal, SignalKind, signal};

pub(crate) const KILL: i32 = Number::KILL.as_raw();
pub(crate) const PIPE: i32 = Number::PIPE.as_raw();
pub(crate) const WINCH: i32 = Number::WINCH.as_raw();

const DEADLY: [Number; 4] = [Number::INT, Number::TERM, Number::HUP, Number::QUIT];
const OTHERS: [Number; 3] = [Number::USR1, Number::USR2, Number::WINCH];

pub(crate) struct Signals(Vec<(i32, Signal)>);

impl Signals {
    /// Those that were ignored when we started stay so: nohup and `&` of a script ask for it.
    pub(crate) fn listen() -> io::Result<Self> {
        let ignored = ignored();
        let wanted = DEADLY.iter().chain(&OTHERS).map(|number| number.as_raw());
        let wanted = wanted.filter(|number| ignored & (1 << (number - 1)) == 0);
        wanted.map(|number| Ok((number, signal(SignalKind::from_raw(number))?))).collect::<io::Result<_>>().map(Self)
    }

    pub(crate) async fn next(&mut self) -> i32 {
        poll_fn(|context| {
            let came =
                self.0.iter_mut().find_map(|(number, signal)| signal.poll_recv(context).is_ready().then_some(*number));
            came.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Before there is a command, the others mean nothing.
    pub(crate) async fn deadly(&mut self) -> i32 {
        loop {
            let number = self.next().await;
            if DEADLY.iter().any(|deadly| deadly.as_raw() == number) {
                return number;
            }
        }
    }
}

/// What a terminal sends to all in front of it goes to the whole tree; what somebody sends to one process, to the one.
pub(super) fn target(number: i32) -> Target {
    let by_terminal = [Number::INT, Number::QUIT, Number::HUP].iter().any(|signal| signal.as_raw() == number);
    if by_terminal { Target::Tree } else { Target::Leader }
}

/// Whether somebody who sends it twice wants the end.
pub(super) fn insists(number: i32) -> bool {
    number == Number::INT.as_raw() || number == Number::TERM.as_raw()
}

fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap_or_default();
    u64::from_str_radix(mask.trim(), 16).unwrap_or(0)
}
