//! git, over https and over ssh.

use std::{fs, path::Path};

use cabana_testkit::world::{World, in_world};

use super::{BOTH, FOUR_ADDRESS, OTHER, allowing, listed, open, sites};
use crate::inside::{Inside, host};

/// A bare repository with one commit, which any web server can serve.
fn repository(files: &Path) {
    let script = format!(
        "set -e; cd {}; git init -q -b main work; cd work; echo 'hello from a commit' >word; git add word; \
         git -c user.name=a -c user.email=a@b commit -qm word; cd ..; git clone -q --bare work repository.git; \
         cd repository.git; git update-server-info",
        files.display()
    );
    host("env", &["-i", "PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/nonexistent", "sh", "-c", &script]);
}

#[test]
fn git_clones_over_https_from_an_allowed_site_and_from_no_other() {
    in_world(async |world| {
        repository(&sites(&world));
        let inside = open(&world, listed()).await;
        for (round, policy) in allowing().into_iter().enumerate() {
            inside.set(policy).await;
            for site in BOTH {
                let into = format!("/tmp/{site}-{round}");
                inside.user(&format!("git clone -q https://{site}/repository.git {into}")).await.ok();
                assert_eq!(inside.user(&format!("cat {into}/word")).await.ok(), "hello from a commit");
            }
        }
        let told = inside.user(&format!("git clone -q https://{OTHER}/repository.git /tmp/other")).await.refused();
        assert!(told.contains("Could not resolve host: other.example"), "{told}");
        inside.end().await;
    });
}

/// An ssh server on all addresses of the world, and the key that opens it.
fn ssh_server(world: &World) -> String {
    let dir = world.dir().join("ssh");
    fs::create_dir(&dir).unwrap();
    let at = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    for key in ["host", "user"] {
        host("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f", &at(key)]);
    }
    // As its start script does: it wants an empty directory to lock itself into.
    fs::create_dir_all("/run/sshd").unwrap();
    let config = format!(
        "Port 22\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nStrictModes no\nUsePAM no\n\
         PermitRootLogin prohibit-password\nPasswordAuthentication no\n",
        at("host"),
        at("user.pub")
    );
    fs::write(at("config"), config).unwrap();
    world.start("sshd", &["/usr/sbin/sshd", "-D", "-e", "-f", &at("config")]);
    world.wait_for(&format!("{FOUR_ADDRESS}:22"));
    fs::read_to_string(at("user")).unwrap()
}

async fn give_key(inside: &Inside, key: &str) {
    inside.user(&format!("umask 077; mkdir -p ~/.ssh; cat >~/.ssh/id_ed25519 <<'EOF'\n{key}EOF")).await.ok();
}

#[test]
fn git_clones_over_ssh_from_an_allowed_site_and_from_no_other() {
    in_world(async |world| {
        let files = sites(&world);
        repository(&files);
        let key = ssh_server(&world);
        let inside = open(&world, listed()).await;
        give_key(&inside, &key).await;
        let options = "GIT_SSH_COMMAND='ssh -o StrictHostKeyChecking=accept-new -o BatchMode=yes -o ConnectTimeout=30'";
        let clone = |site: &str, into: &str| {
            format!("{options} git clone -q ssh://root@{site}{}/repository.git {into}", files.display())
        };
        for (round, policy) in allowing().into_iter().enumerate() {
            inside.set(policy).await;
            for site in BOTH {
                let into = format!("/tmp/{site}-{round}");
                inside.user(&clone(site, &into)).await.ok();
                assert_eq!(inside.user(&format!("cat {into}/word")).await.ok(), "hello from a commit");
            }
        }
        let told = inside.user(&clone(OTHER, "/tmp/other")).await.refused();
        assert!(told.contains("Could not resolve hostname other.example"), "{told}");
        inside.end().await;
    });
}
