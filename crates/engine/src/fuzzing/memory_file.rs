//! The memory file of a command's output, with anything in it: whoever opens it reads what is there as what it should be,
//! goes on writing behind it, and the next one reads the same.

use std::{io::Write, os::fd::AsFd};

use cabana_sandbox::{Channel, Position};

use super::script::Script;
use crate::spool::{self, CHUNK, OUTPUT, Spool};

pub fn memory_file(bytes: &[u8]) {
    let mut script = Script(bytes);
    let Some(file) = script.memory_file() else { return };
    match script.byte() {
        255 => drop(rustix::fs::ftruncate(&file, script.number() >> 1)),
        254 => drop(rustix::fs::ftruncate(&file, i64::MAX as u64)),
        _ => {}
    }
    let kept = script.number() << 10;
    let Ok(again) = file.try_clone() else { return };
    let Ok(mut spool) = Spool::open(again, kept) else { return };
    read_all(&spool, 0);
    for _ in 0..32 {
        if script.is_over() {
            break;
        }
        match script.byte() % 5 {
            0 => drop(spool.after(script.number()).inspect(|piece| check(&spool, piece, 0))),
            1 => drop(spool.seal()),
            2 => {
                let Ok(again) = file.try_clone() else { return };
                let Ok(other) = Spool::open(again, kept) else { return };
                assert_eq!(other.end(), spool.end());
                spool = other;
            }
            _ => write(&mut spool, &mut script),
        }
    }
    read_all(&spool, spool.end().saturating_sub(2 * CHUNK as u64));
}

/// What is written can be read back, right behind what was there.
fn write(spool: &mut Spool, script: &mut Script<'_>) {
    let channel = [Channel::Stdout, Channel::Stderr, Channel::Terminal][usize::from(script.byte() % 3)];
    let bytes = script.text();
    let Ok((read, write)) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC) else { return };
    if std::fs::File::from(write).write_all(bytes).is_err() {
        return;
    }
    let before = spool.end();
    let Ok(taken) = spool.take(read.as_fd(), channel) else { return };
    assert!(taken <= bytes.len());
    assert_eq!(spool.end(), before + taken as u64);
    let Some(piece) = spool.after(before).filter(|_| taken > 0) else { return };
    if piece.at == before {
        assert_eq!((piece.channel, piece.length), (channel, taken));
        assert_eq!(spool::read(spool.memory(), &piece).ok().as_deref(), Some(&bytes[..taken]));
    }
}

/// It gets to the end, in pieces that are not empty.
fn read_all(spool: &Spool, mut at: Position) {
    for _ in 0..64 {
        let Some(piece) = spool.after(at) else { return };
        check(spool, &piece, at);
        at = piece.at + piece.length as u64;
    }
}

fn check(spool: &Spool, piece: &spool::Piece, asked: Position) {
    assert!(piece.at >= asked && piece.length > 0 && piece.length <= CHUNK);
    assert!(piece.at + piece.length as u64 <= spool.end());
    assert!(spool.size() <= spool.end() + 2 * OUTPUT, "the output, and its marks twice");
    if let Ok(bytes) = spool::read(spool.memory(), piece) {
        assert!(bytes.len() <= piece.length);
    }
}
