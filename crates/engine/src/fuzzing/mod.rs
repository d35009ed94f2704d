//! What the fuzz targets throw bytes at: the messages between server, spawner and init, what each of these makes of another
//! that has turned hostile, the text of the filter's rules, and what container images say of themselves.

mod hostile_init;
mod memory_file;
pub(crate) mod script;

pub use self::{hostile_init::hostile_init, memory_file::memory_file};
pub use crate::{
    init::fuzzing::{broker, hostile_server},
    spawner::fuzzing::{hostile_spawner, spawner},
};
use crate::{
    layers,
    walls::{Arch, Policy, compile},
    wire::{ExecPlan, FromInit, SetupPlan, Spawned, ToInit, ToSpawner},
};

/// Every decoder gets the bytes. What is understood, said again, is understood as the same.
pub fn messages(bytes: &[u8]) {
    if let Ok(heard) = SetupPlan::decode(bytes) {
        assert_eq!(SetupPlan::decode(&heard.encode()), Ok(heard));
    }
    if let Ok(heard) = ToSpawner::decode(bytes) {
        assert_eq!(ToSpawner::decode(&heard.encode()), Ok(heard));
    }
    if let Ok(heard) = Spawned::decode(bytes) {
        assert_eq!(Spawned::decode(&heard.encode()), Ok(heard));
    }
    if let Ok(heard) = FromInit::decode(bytes) {
        assert_eq!(FromInit::decode(&heard.encode()), Ok(heard));
    }
    if let Ok(heard) = ExecPlan::decode(bytes) {
        exec(&heard, bytes);
    }
    match ToInit::decode(bytes) {
        Ok(ToInit::Exec(body)) => {
            if let Ok(heard) = ExecPlan::decode(body) {
                exec(&heard, body);
            }
        }
        Ok(heard @ ToInit::Signal { exec, signal, tree }) => {
            assert_eq!(ToInit::decode(&ToInit::signal(exec, signal, tree)), Ok(heard));
        }
        Ok(heard @ ToInit::Socket { tag, v6 }) => assert_eq!(ToInit::decode(&ToInit::socket(tag, v6)), Ok(heard)),
        Ok(heard @ ToInit::Still(stillness)) => assert_eq!(ToInit::decode(&ToInit::still(stillness)), Ok(heard)),
        Ok(heard @ ToInit::Keep { token }) => assert_eq!(ToInit::decode(&ToInit::keep(token)), Ok(heard)),
        Ok(heard @ ToInit::Hello { protocol, token }) => {
            assert_eq!(ToInit::decode(&ToInit::hello(protocol, token)), Ok(heard));
        }
        Ok(heard @ ToInit::CloseInput { exec }) => assert_eq!(ToInit::decode(&ToInit::close_input(exec)), Ok(heard)),
        Ok(heard @ ToInit::Forget { exec }) => assert_eq!(ToInit::decode(&ToInit::forget(exec)), Ok(heard)),
        Ok(ToInit::EndAll) => assert_eq!(ToInit::decode(&ToInit::end_all()), Ok(ToInit::EndAll)),
        Err(_) => {}
    }
}

/// A command's message has one spelling: what init runs is what was said, byte for byte.
fn exec(heard: &ExecPlan<'_>, body: &[u8]) {
    let said = heard.encode();
    assert_eq!(said[1..], *body);
    assert!(!heard.argv.is_empty() && !heard.programs.is_empty());
    assert!((1..=3).contains(&heard.descriptors()));
}

/// What is taken as a policy makes a program for each architecture that the kernel takes: every jump ends within it, and
/// every way through it ends in a verdict.
pub fn filter_rules(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(policy) = Policy::parse(text) else { return };
    for arch in [Arch::X86_64, Arch::AARCH64] {
        let program = compile(arch, &policy).program([u64::MAX; 2]);
        for (at, instruction) in program.iter().enumerate() {
            let furthest = match instruction.code & 0x07 {
                JUMP if instruction.code == JUMP_ALWAYS => at + 1 + instruction.k as usize,
                JUMP => at + 1 + usize::from(instruction.jt.max(instruction.jf)),
                RETURN => at,
                _ => at + 1,
            };
            assert!(furthest < program.len(), "instruction {at} leads out of the program");
        }
    }
}

const JUMP: u16 = 0x05;
const JUMP_ALWAYS: u16 = 0x05;
const RETURN: u16 = 0x06;

/// The JSON of an image: index, manifest, configuration, and what `docker save` writes.
pub fn image_manifest(bytes: &[u8]) {
    layers::read_image(bytes);
}
