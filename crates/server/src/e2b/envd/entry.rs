//! An entry of a directory in E2B's words.

use cabana_e2b_wire::filesystem::EntryInfo;
use cabana_sandbox::{FileInfo, Kind};

/// As stat(2) says it.
fn bits(kind: Kind, mode: u32) -> u32 {
    let kind = match kind {
        Kind::File => 0o100_000,
        Kind::Directory => 0o040_000,
        Kind::Symlink => 0o120_000,
        Kind::Other => 0,
    };
    kind | mode
}

/// A link looks like what it leads to, but for its permissions.
pub(super) fn entry(info: FileInfo) -> EntryInfo {
    let bare = EntryInfo {
        name: String::from_utf8_lossy(info.path.name()).into_owned(),
        path: info.path.to_string(),
        size: i64::try_from(info.size).unwrap_or(i64::MAX),
        owner: info.owner,
        group: info.group,
        modified_time: info.modified.try_into().ok(),
        metadata: info.tags,
        ..EntryInfo::default()
    };
    let own = bits(info.kind, info.mode);
    match info.link {
        None => bare.with_mode(own),
        Some(link) => {
            let target = link.target.as_ref().map(|(_, kind, mode)| bits(*kind, *mode));
            let leads_to = match link.target {
                Some((path, ..)) => path.to_string(),
                None => String::from_utf8_lossy(&link.text).into_owned(),
            };
            EntryInfo { symlink_target: Some(leads_to), ..bare }.with_link(own, target)
        }
    }
}
