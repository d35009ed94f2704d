//! Ids and names: what is taken fits its rule to the letter, and reads back as itself.

#![no_main]

use cabana_sandbox::{LayerId, SandboxId, User};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let all = |allowed: &str| text.chars().all(|c| allowed.contains(c));
    const LOWER: &str = "abcdefghijklmnopqrstuvwxyz0123456789";
    let fits = (8..=32).contains(&text.len()) && all(LOWER);
    assert_eq!(SandboxId::new(text).map(|id| id.to_string()).ok(), fits.then(|| text.to_owned()));
    let fits = text.len() == 64 && all("0123456789abcdef");
    assert_eq!(text.parse::<LayerId>().map(|id| id.to_string()).ok(), fits.then(|| text.to_owned()));
    if let Ok(user) = User::new(text) {
        assert_eq!(user.as_str(), text);
        assert!(!text.is_empty() && !text.starts_with('-') && !text.contains(['/', ':', '\0', '\n', ' ', '\\']));
    }
});
