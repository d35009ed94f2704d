//! Paths inside a sandbox: what is taken has one spelling, and no way up.

#![no_main]

use cabana_sandbox::SandboxPath;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    // Two paths, since most rules are about two.
    let cut = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let (first, second) = (&bytes[..cut], bytes.get(cut + 1..).unwrap_or_default());
    let Ok(path) = SandboxPath::new(first) else { return };
    check(&path);
    assert_eq!(path.as_bytes(), first);
    if let Ok(below) = path.below(second) {
        check(&below);
        assert!(below.is_in(&path) && !path.is_in(&below), "{below} is not below {path}");
        assert_eq!(below.relative().as_os_str().as_encoded_bytes(), &below.as_bytes()[1..]);
    }
    if let Ok(child) = path.join(second) {
        check(&child);
        assert_eq!((child.parent(), child.name()), (Some(path.clone()), second));
    }
    if let Ok(other) = SandboxPath::new(second) {
        // By the parts, which is what being inside means.
        let inside = path.as_path().starts_with(other.as_path());
        assert_eq!(path.is_in(&other), inside, "{path} in {other}");
    }
});

fn check(path: &SandboxPath) {
    let bytes = path.as_bytes();
    assert!(bytes.starts_with(b"/") && !bytes.contains(&0) && bytes.len() < 4096);
    let odd = |part: &[u8]| matches!(part, b"" | b"." | b"..") || part.len() > 255;
    assert!(path.is_root() || !bytes[1..].split(|byte| *byte == b'/').any(odd), "{path}");
    assert_eq!(path.parent().is_none(), path.is_root());
    if let Some(parent) = path.parent() {
        check(&parent);
        assert_eq!(parent.join(path.name()).as_ref(), Ok(path));
    }
}
