//! A server that answers a byte with a byte: on loopback for the floor, and somewhere outside for a sandbox. Outside is a
//! network namespace of its own, behind a virtual cable, with an address that a policy takes for public.

use std::{
    io::{BufRead, BufReader},
    net::{Ipv4Addr, SocketAddrV4},
    path::Path,
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, ensure};

/// The two ends of the cable. Nobody else on this machine goes there: its network is as small as can be.
const HERE: &str = "11.255.254.1/30";
const THERE: Ipv4Addr = Ipv4Addr::new(11, 255, 254, 2);

pub(crate) struct Server {
    process: Child,
    pub(crate) at: SocketAddrV4,
}

impl Server {
    pub(crate) fn on_loopback(program: &Path) -> Result<Self> {
        Self::start(Command::new(program), Ipv4Addr::LOCALHOST)
    }

    /// The namespace and the cable end with the server.
    pub(crate) fn outside(program: &Path) -> Result<Self> {
        let mut command = Command::new("unshare");
        command.arg("--net").arg(program);
        let server = Self::start(command, THERE)?;
        let pid = server.process.id().to_string();
        let cable = format!("cabana{pid}");
        let there = ["nsenter", "--net", "--target", &pid];
        run(&["ip", "link", "add", &cable, "type", "veth", "peer", "name", "eth0", "netns", &pid])?;
        run(&["ip", "address", "add", HERE, "dev", &cable])?;
        run(&["ip", "link", "set", &cable, "up"])?;
        run(&[&there[..], &["ip", "address", "add", &format!("{THERE}/30"), "dev", "eth0"]].concat())?;
        run(&[&there[..], &["ip", "link", "set", "eth0", "up"]].concat())?;
        Ok(server)
    }

    fn start(mut command: Command, address: Ipv4Addr) -> Result<Self> {
        command.arg("serve").stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = command.spawn().context("the server of the bench does not start")?;
        let said = process.stdout.take().context("the server of the bench has no output")?;
        let mut server = Self { process, at: SocketAddrV4::new(address, 0) };
        let mut port = String::new();
        BufReader::new(said).read_line(&mut port)?;
        server.at.set_port(port.trim().parse().with_context(|| format!("the server of the bench says {port:?}"))?);
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already; then nothing is left to end.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn run(words: &[&str]) -> Result<()> {
    let done = Command::new(words[0]).args(&words[1..]).output().with_context(|| format!("cannot run {}", words[0]))?;
    ensure!(done.status.success(), "{}: {}", words.join(" "), String::from_utf8_lossy(&done.stderr).trim());
    Ok(())
}
