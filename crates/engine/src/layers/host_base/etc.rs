//! Which of the host's `/etc` is shown inside: an allow-list, and of it only what everybody on the host may read.
//!
//! Left out by not being named: accounts and passwords, keys and settings of services, what administrators put there for
//! people (environment, profile.d, gitconfig, npmrc, pip.conf: where tokens and proxies with passwords are), and the
//! names and addresses of the host.

use std::{fs, io, path::Path};

use super::{
    super::writer::Writer,
    skeleton::{copy_public, open_public},
};

const NAMES: &[&str] = &[
    // Programs find each other, their libraries and the certificates of the world.
    "alternatives",
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "pki/ca-trust/extracted",
    "pki/tls/cert.pem",
    "pki/tls/certs",
    "pki/tls/openssl.cnf",
    "ssl/certs",
    "ssl/openssl.cnf",
    // What system this is.
    "debian_version",
    "issue",
    "issue.net",
    "lsb-release",
    "os-release",
    "redhat-release",
    "system-release",
    // Tables of the C library.
    "ethertypes",
    "gai.conf",
    "host.conf",
    "locale.alias",
    "protocols",
    "rpc",
    "services",
    "shells",
    // Shells and terminals.
    "bash.bashrc",
    "bash_completion",
    "bash_completion.d",
    "bashrc",
    "inputrc",
    PROFILE,
    "skel",
    "terminfo",
    "zsh",
    // Becoming another user.
    "login.defs",
    "pam.conf",
    "pam.d",
    "security",
    // Package tools, and what their scripts ask for.
    "adduser.conf",
    "apt/apt.conf",
    "apt/apt.conf.d",
    "apt/keyrings",
    "apt/preferences",
    "apt/preferences.d",
    "apt/sources.list",
    "apt/sources.list.d",
    "apt/trusted.gpg",
    "apt/trusted.gpg.d",
    "debconf.conf",
    "default/useradd",
    "deluser.conf",
    "dpkg",
    "sgml",
    "ucf.conf",
    "xml",
    // Programs that keep a part of themselves here.
    "ImageMagick-6",
    "ImageMagick-7",
    "OpenCL",
    "R",
    "X11",
    "emacs",
    "fonts",
    "ghostscript",
    "glvnd",
    "gprofng.rc",
    "groff",
    "java-11-openjdk",
    "java-17-openjdk",
    "java-21-openjdk",
    "java-25-openjdk",
    "libaudit.conf",
    "libreoffice",
    "iproute2",
    "magic",
    "magic.mime",
    "man_db.conf",
    "manpath.config",
    "maven/logging",
    "maven/m2.conf",
    "maven/toolchains.xml",
    "mime.types",
    "mke2fs.conf",
    "nanorc",
    "openal",
    "papersize",
    "perl",
    "php",
    "python3",
    "python3.10",
    "python3.11",
    "python3.12",
    "python3.13",
    "python3.14",
    "python3.9",
    "screenrc",
    "texmf",
    "vim",
    "vulkan",
    "xattr.conf",
    "xdg",
];

/// What login shells read first.
const PROFILE: &str = "profile";

pub(super) fn copy(host: &Path, writer: &mut Writer<'_>) -> io::Result<()> {
    for name in NAMES {
        let path = Path::new("etc").join(name);
        if *name == PROFILE && profile(host, writer)? {
            continue;
        }
        copy_public(host, &path, writer, &mut |file| !fs::read(file).is_ok_and(|text| holds_credentials(&text)))?;
    }
    Ok(())
}

/// False: it is copied like everything else.
fn profile(host: &Path, writer: &mut Writer<'_>) -> io::Result<bool> {
    let path = format!("etc/{PROFILE}");
    let Some((file, meta)) = open_public(&host.join(&path))? else { return Ok(false) };
    match io::read_to_string(file) {
        Ok(text) if !holds_credentials(text.as_bytes()) => writer.file(&path, by_itself(&text), meta).map(|()| true),
        _ => Ok(false),
    }
}

/// Shells that know whom they run as are not made to ask: that takes longer than most of what an agent runs in a login shell.
fn by_itself(profile: &str) -> String {
    const ASKED: &str = "$(id -u)";
    profile.replace(&format!("\"{ASKED}\""), &format!("\"${{EUID:-{ASKED}}}\""))
}

/// Whether an address in it names a user, as in `https://me:secret@host/`: a package source, a proxy.
pub(crate) fn holds_credentials(text: &[u8]) -> bool {
    let mut rest = text;
    while let Some(at) = rest.windows(3).position(|w| w == b"://") {
        rest = &rest[at + 3..];
        let end =
            rest.iter().position(|b| matches!(b, b'/' | b'"' | b'\'' | b'<' | b'>' | 0..=b' ')).unwrap_or(rest.len());
        if rest[..end].contains(&b'@') {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_with_a_user_holds_credentials() {
        for secret in ["deb https://me:pw@one.test/debian a b", "Proxy \"http://token@proxy.test:80\";", "x://@"] {
            assert!(holds_credentials(secret.as_bytes()), "{secret}");
        }
        for plain in ["deb https://one.test/a@b main", "mail me@one.test", "https://one.test \"a@b\"", "://", ""] {
            assert!(!holds_credentials(plain.as_bytes()), "{plain}");
        }
    }

    #[test]
    fn a_profile_asks_only_where_the_shell_does_not_know() {
        let profile = "if [ \"$(id -u)\" -eq 0 ]; then echo root; else echo user; fi\n";
        let changed = by_itself(profile);
        assert_eq!(changed, "if [ \"${EUID:-$(id -u)}\" -eq 0 ]; then echo root; else echo user; fi\n");
        let said = |shell: &str, text: &str| {
            let ran = std::process::Command::new(shell).args(["-c", text]).output().unwrap();
            String::from_utf8(ran.stdout).unwrap()
        };
        for shell in ["bash", "dash"] {
            assert_eq!(said(shell, &changed), said(shell, profile), "{shell}");
        }
        assert_eq!(by_itself("PATH=/bin\n"), "PATH=/bin\n");
    }

    #[test]
    fn no_name_is_one_that_holds_secrets() {
        let never = [
            "shadow",
            "gshadow",
            "ssh",
            "sudoers",
            "environment",
            "gitconfig",
            "npmrc",
            "pip.conf",
            "machine-id",
            "hosts",
        ];
        let never = never.iter().chain(&[
            "resolv.conf",
            "profile.d",
            "systemd",
            "NetworkManager",
            "cron.d",
            "ssl",
            "apt",
            "docker",
            "pki",
        ]);
        assert!(never.into_iter().all(|name| !NAMES.contains(name)));
    }
}
