//! What init makes of a server that says whatever it likes, and a broker of a guest. Only what keeps and reads: nothing is
//! started, signalled or ended here.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

use super::{broker, caller, keep::Keeper, read_long};
use crate::{
    fuzzing::script::{Script, leave_nothing_open},
    kernel::sys::Secret,
    wire::{Ended, ExecPlan, FromInit, LONG, PROTOCOL, Stillness, ToInit},
};

/// Commands that begin, end and are forgotten, with descriptors of any kind; servers that come and go. Whatever is handed
/// over is what it says it is.
pub fn hostile_server(bytes: &[u8]) {
    leave_nothing_open(|| act(Script(bytes)));
}

fn act(mut script: Script<'_>) {
    let place = |path| rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let null = rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let (Ok(root), Ok(terminals), Ok(null)) = (place(c"/"), place(c"/dev"), null) else { return };
    let mut keeper = Keeper::new(root, terminals, null, Secret::default());
    let mut now = 0;
    for _ in 0..64 {
        if script.is_over() {
            break;
        }
        match script.byte() % 8 {
            0 => {
                let (bytes, fds) = (script.text(), script.descriptors());
                hear(&mut keeper, bytes, fds);
            }
            1 | 2 => begin(&mut keeper, &mut script),
            3 => keeper.note(&FromInit::Started { exec: script.number(), pid: script.number() as u32 }),
            4 => {
                let ended = Ended { status: 0, timed_out: false, wall_ns: 0, cpu_us: 0, peak_kib: 0 };
                keeper.note(&FromInit::Exited { exec: script.number(), ended });
            }
            5 => keeper.take_over(), // what commands say is taken by a child: not by this process's
            6 => {
                now = (now + (script.number() >> 2)).min(u64::MAX >> 2); // a machine is not up for that long
                keeper.tidy(now, true);
                let _ = keeper.next_deadline(now);
            }
            _ => hand_over(&mut keeper, &mut script),
        }
    }
}

/// As `Init::take_requests` and `Init::handle` do it, but for what acts on processes.
fn hear(keeper: &mut Keeper, bytes: &[u8], mut fds: Vec<OwnedFd>) {
    let long = match bytes == LONG && !fds.is_empty() {
        true => match read_long(fds.remove(0).as_fd()) {
            Some(long) => long,
            None => return,
        },
        false => bytes.to_vec(),
    };
    match ToInit::decode(&long) {
        Ok(ToInit::Exec(body)) => {
            let Ok(plan) = ExecPlan::decode(body) else { return };
            let kept = fds.split_off(plan.descriptors().min(fds.len()));
            plan.forgotten.iter().for_each(|exec| keeper.forget(*exec));
            keeper.begin(&plan, kept);
        }
        Ok(ToInit::Keep { token }) => keeper.keep(token, fds),
        Ok(ToInit::CloseInput { exec }) => keeper.close_input(exec),
        Ok(ToInit::Forget { exec }) => keeper.forget(exec),
        _ => {}
    }
}

fn begin(keeper: &mut Keeper, script: &mut Script<'_>) {
    let bits = script.byte();
    let plan = ExecPlan {
        exec: script.number(),
        id: u128::from(script.number()),
        kept: script.number() << 10,
        forgotten: Vec::new(),
        uid: 0,
        gid: 0,
        groups: Vec::new(),
        terminal: bits & 1 != 0,
        stdin: bits & 2 != 0,
        timeout_ns: 0,
        open_files: 0,
        cwd: c"/",
        programs: vec![c"/bin/true"],
        argv: vec![c"true"],
        env: Vec::new(),
    };
    let fds = match bits & 12 {
        12 => script.descriptors(),
        _ => (0..plan.kept_descriptors()).filter_map(|_| script.descriptor()).collect(),
    };
    keeper.begin(&plan, fds);
}

fn hand_over(keeper: &mut Keeper, script: &mut Script<'_>) {
    let said = [&[16][..], &PROTOCOL.to_le_bytes(), script.text()].concat();
    let Ok(ToInit::Hello { protocol: PROTOCOL, token }) = ToInit::decode(&said) else { return };
    if !keeper.knows(token) {
        return;
    }
    let Ok(all) = keeper.hand_over(Stillness::Going) else { return };
    let Some((FromInit::Welcome { execs, .. }, first)) = all.first() else { panic!("no welcome comes first") };
    assert_eq!((*execs as usize, first.len()), (all.len() - 1, 4));
    for (message, fds) in &all[1..] {
        let FromInit::Kept(kept) = message else { panic!("{message:?} among what was kept") };
        assert_eq!(kept.kinds().count(), fds.len());
        assert_eq!(FromInit::decode(&message.encode()), Ok(*message));
    }
}

/// Registers, paths and the text of a process's state, as a guest would have them.
pub fn broker(bytes: &[u8]) {
    let mut script = Script(bytes);
    let number = script.number() as i64 + if script.byte() == 0 { libc::SYS_fchmodat } else { 0 };
    let args = std::array::from_fn(|_| script.number());
    broker::check_call(number, args);
    broker::check_path(script.text());
    caller::check_status(script.0);
}
