//! `--mount host:inside[:ro]`: what of this machine may be shown, and where.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use cabana_engine::check_view;
use cabana_sandbox::{Error, SandboxPath, Source, View};

use crate::{data, failure::Failure};

pub(super) fn views(mounts: &[OsString], data: &Path) -> Result<Vec<View>, Failure> {
    let data = data::real(data);
    let mut views: Vec<View> = Vec::new();
    for mount in mounts {
        let view = view(mount, &data)?;
        if views.iter().any(|other| other.at == view.at) {
            return Err(refused(mount, &format!("{} is the target of two mounts", view.at)));
        }
        views.push(view);
    }
    Ok(views)
}

fn view(mount: &OsStr, data: &Path) -> Result<View, Failure> {
    let Some((host, inside, writable)) = split(mount) else {
        return Err(refused(mount, "write it as HOST:INSIDE or HOST:INSIDE:ro"));
    };
    let at = target(inside).map_err(|why| refused(mount, &why))?;
    let source = source(Path::new(host)).map_err(|why| refused(mount, &why))?;
    let view = View { source: Source::Host(source), at, writable };
    // The engine asks the same; here it can be said which of the mounts is meant.
    check_view(&view, data).map_err(|error| match error {
        Error::Invalid { why, .. } | Error::MountDenied(why) => refused(mount, &why),
        other => other.into(),
    })?;
    Ok(view)
}

/// From the end, so that a path of the host may hold colons.
fn split(mount: &OsStr) -> Option<(&OsStr, &OsStr, bool)> {
    let bytes = mount.as_bytes();
    let (bytes, writable) = match (bytes.strip_suffix(b":ro"), bytes.strip_suffix(b":rw")) {
        (Some(rest), _) => (rest, false),
        (None, Some(rest)) => (rest, true),
        (None, None) => (bytes, true),
    };
    let colon = bytes.iter().rposition(|b| *b == b':')?;
    let (host, inside) = (&bytes[..colon], &bytes[colon + 1..]);
    (!host.is_empty() && !inside.is_empty()).then(|| (OsStr::from_bytes(host), OsStr::from_bytes(inside), writable))
}

fn source(host: &Path) -> Result<PathBuf, String> {
    host.canonicalize().map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => format!("{} does not exist on this machine", host.display()),
        _ => format!("{}: {e}", host.display()),
    })
}

fn target(inside: &OsStr) -> Result<SandboxPath, String> {
    let bytes = inside.as_bytes();
    let plain = if bytes.len() > 1 { bytes.strip_suffix(b"/").unwrap_or(bytes) } else { bytes };
    SandboxPath::new(plain).map_err(|e| format!("the path inside {e}"))
}

fn refused(mount: &OsStr, why: &str) -> Failure {
    Failure::bad(format!("--mount {}: {why}", mount.to_string_lossy()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const DATA: &str = "/srv/cabana-data-that-is-not-there";

    fn ask(mount: &str) -> Result<Vec<View>, Failure> {
        views(&[mount.into()], Path::new(DATA))
    }

    #[test]
    fn a_directory_is_shown_where_it_really_lies() {
        let home = tempfile::tempdir().unwrap();
        let real = home.path().canonicalize().unwrap().join("a:b");
        fs::create_dir(&real).unwrap();
        let link = home.path().join("link");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        for (end, writable) in [("", true), (":rw", true), (":ro", false)] {
            let views = ask(&format!("{}:/workspace{end}", link.display())).unwrap();
            assert_eq!(
                views,
                [View { source: Source::Host(real.clone()), at: "/workspace".parse().unwrap(), writable }]
            );
        }
        assert!(ask(&format!("{}:/workspace/", real.display())).is_ok(), "a colon in the path of the host");
    }

    #[test]
    fn what_is_not_written_as_a_mount_is_refused() {
        for bad in ["", "/tmp", ":", "/tmp:", ":/a", "/tmp:ro", "/tmp:a", "/tmp:./a", "/tmp:/a/../b", "/nowhere:/a"] {
            assert!(ask(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_system_is_never_shown() {
        for path in [
            "/",
            "/etc",
            "/etc/passwd",
            "/usr",
            "/bin",
            "/proc",
            "/proc/1",
            "/sys",
            "/dev",
            "/dev/null",
            "/run",
            "/var",
            "/root",
            "/tmp/..",
        ] {
            if Path::new(path).exists() {
                assert!(ask(&format!("{path}:/a")).is_err(), "{path}");
            }
        }
    }

    #[test]
    fn the_data_directory_is_never_shown_nor_what_holds_it() {
        let home = tempfile::tempdir().unwrap();
        let data = home.path().join("x/data");
        fs::create_dir_all(data.join("layers")).unwrap();
        let ask = |path: &Path| views(&[format!("{}:/a", path.display()).into()], &data);
        assert!(ask(home.path()).is_err());
        assert!(ask(&data).is_err());
        assert!(ask(&data.join("layers")).is_err());
        fs::create_dir(home.path().join("y")).unwrap();
        assert!(ask(&home.path().join("y")).is_ok());
    }

    #[test]
    fn no_mount_hides_what_a_sandbox_has_of_its_own() {
        for inside in ["/", "/proc", "/proc/sys", "/sys", "/dev", "/dev/shm", "/etc/passwd", "/usr"] {
            assert!(ask(&format!("/tmp:{inside}")).is_err(), "{inside}");
        }
        assert!(ask("/tmp:/devices").is_ok());
    }

    #[test]
    fn a_socket_is_no_mount_and_a_target_is_used_once() {
        let home = tempfile::tempdir().unwrap();
        let socket = home.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert!(ask(&format!("{}:/a", socket.display())).is_err());
        assert!(views(&["/tmp:/a".into(), "/tmp:/a/".into()], Path::new(DATA)).is_err());
    }
}
