use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
};

use cabana_sandbox::{Error, Read, Write, WriteMode};

use super::kit::{Kit, fifo, is_root, path, set_mode};

#[test]
fn a_large_file_comes_in_chunks() {
    let kit = Kit::new();
    let body: Vec<u8> = (0..1_000_000u32).flat_map(u32::to_le_bytes).collect();
    kit.file("big", &body);
    let (info, mut reader) = kit.rooted.read(&path("/big"), Read::default()).unwrap();
    assert_eq!(info.size, body.len() as u64);
    let mut all = Vec::new();
    while let Some(chunk) = reader.next_chunk().unwrap() {
        assert!(chunk.len() <= 256 * 1024);
        all.extend_from_slice(&chunk);
    }
    assert_eq!(all, body);
}

#[test]
fn a_part_is_read_and_the_cap_holds_before_the_first_byte() {
    let kit = Kit::new();
    kit.file("f", "0123456789");
    let read = |what| {
        let (_, mut reader) = kit.rooted.read(&path("/f"), what)?;
        Ok::<_, Error>(reader.next_chunk()?.map(|b| b.to_vec()).unwrap_or_default())
    };
    assert_eq!(read(Read { from: 3, len: Some(4), cap: 4 }).unwrap(), b"3456");
    assert_eq!(read(Read { from: 8, len: Some(100), cap: 4 }).unwrap(), b"89");
    assert_eq!(read(Read { from: 100, len: None, cap: 4 }).unwrap(), b"");
    assert!(matches!(read(Read { from: 0, len: None, cap: 9 }), Err(Error::TooLarge { cap: 9 })));
}

#[test]
fn a_file_that_grows_is_read_to_its_old_size_and_one_that_shrinks_to_its_end() {
    let kit = Kit::new();
    kit.file("f", vec![1; 600_000]);
    let (_, mut reader) = kit.rooted.read(&path("/f"), Read::default()).unwrap();
    let first = reader.next_chunk().unwrap().unwrap().len();
    fs::write(kit.at("f"), vec![1; 900_000]).unwrap();
    let mut sum = first;
    while let Some(chunk) = reader.next_chunk().unwrap() {
        sum += chunk.len();
    }
    assert_eq!(sum, 600_000);
    let (_, mut reader) = kit.rooted.read(&path("/f"), Read::default()).unwrap();
    fs::write(kit.at("f"), "short").unwrap();
    assert_eq!(&reader.next_chunk().unwrap().unwrap()[..], b"short");
    assert!(reader.next_chunk().unwrap().is_none());
}

#[test]
fn pipes_devices_and_directories_are_never_opened() {
    let kit = Kit::new();
    fifo(&kit.at("pipe"));
    kit.link("to-pipe", "pipe");
    kit.dir("d");
    for name in ["/pipe", "/to-pipe"] {
        assert!(matches!(kit.read(name), Err(Error::NotRegular(_))));
        assert!(matches!(kit.replace(name, "x"), Err(Error::NotRegular(_))));
        assert!(matches!(kit.write(name, Write::new(WriteMode::InPlace), "x"), Err(Error::NotRegular(_))));
        assert!(matches!(kit.write(name, Write::new(WriteMode::Append), "x"), Err(Error::NotRegular(_))));
    }
    assert!(matches!(kit.read("/d"), Err(Error::IsDirectory(_))));
    assert!(matches!(kit.replace("/d", "x"), Err(Error::IsDirectory(_))));
    assert!(matches!(kit.replace("/", "x"), Err(Error::IsDirectory(_))));
    if is_root() {
        let (kind, mode) = (rustix::fs::FileType::CharacterDevice, rustix::fs::Mode::from_raw_mode(0o666));
        rustix::fs::mknodat(rustix::fs::CWD, kit.at("null"), kind, mode, rustix::fs::makedev(1, 3)).unwrap();
        assert!(matches!(kit.read("/null"), Err(Error::NotRegular(_))));
        assert!(matches!(kit.replace("/null", "x"), Err(Error::NotRegular(_))));
    }
}

#[test]
fn a_file_under_lease_is_busy_at_once() {
    let kit = Kit::new();
    kit.file("leased", "x");
    let script = "import fcntl,sys\nf=open(sys.argv[1],'r+')\nfcntl.fcntl(f,fcntl.F_SETLEASE,fcntl.F_WRLCK)\n\
                  import signal\nsignal.signal(signal.SIGIO,signal.SIG_IGN)\nprint('held',flush=True)\nsys.stdin.read()";
    let mut holder = Command::new("python3")
        .args(["-c", script])
        .arg(kit.at("leased"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "held\n");
    let before = std::time::Instant::now();
    assert!(matches!(kit.read("/leased"), Err(Error::Busy(_))));
    assert!(matches!(kit.write("/leased", Write::new(WriteMode::InPlace), "y"), Err(Error::Busy(_))));
    assert!(before.elapsed().as_secs() < 5, "a lease is broken only after 45 seconds");
    drop(holder.stdin.take());
    holder.wait().unwrap();
    assert_eq!(kit.read("/leased").unwrap(), b"x");
}

#[test]
fn a_file_that_may_not_be_read_is_denied() {
    if is_root() {
        return;
    }
    let kit = Kit::new();
    kit.file("f", "x");
    set_mode(&kit.at("f"), 0);
    assert!(matches!(kit.read("/f"), Err(Error::Denied(_))));
}

#[test]
fn what_the_kernel_makes_up_is_closed_and_its_links_are_not_followed() {
    let root = cabana_guest::Rooted::new(super::kit::dir_fd(std::path::Path::new("/")), super::kit::HOST);
    let own = format!("/proc/{}", std::process::id());
    let at = path(&format!("{own}/root/etc/passwd"));
    assert!(matches!(root.read(&at, Read::default()), Err(Error::Loop(_))));
    for name in ["status", "cwd", "root", "sys/kernel/hostname"] {
        let at = path(&format!("{own}/{name}"));
        assert!(root.read(&at, Read::default()).is_err() && root.stat(&at).is_err(), "{name}");
    }
    assert!(matches!(root.read(&path("/proc/sys/kernel/hostname"), Read::default()), Err(Error::Denied(_))));
    assert!(matches!(root.list(&path("/proc/sys/net")), Err(Error::Denied(_))));
    assert!(root.list(&path("/")).is_ok());
}
