//! Processes of the host that a test starts. They end with the test, also where it is killed, and have no descriptor of the
//! runner that would keep it waiting for them.

use std::process::{Child, Command, Stdio};

/// A program of the host that is killed when the thread that started it ends.
pub(crate) fn tied_command(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", program]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// One that sleeps, and has nothing to do with what the test attacks.
pub(crate) struct Bystander(Child);

impl Bystander {
    pub(crate) fn new(name: &str) -> Self {
        Self(tied_command("bash").args(["-c", "exec -a \"$0\" sleep 36000", name]).spawn().unwrap())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn lives(&mut self) -> bool {
        self.0.try_wait().is_ok_and(|ended| ended.is_none())
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
