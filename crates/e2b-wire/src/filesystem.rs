//! The messages of `filesystem.Filesystem`: entries, and the ways to hear of changes.
//!
//! `WatchDir` answers with a stream. A client that cannot read one makes a watcher and asks for its events again and again.

use std::collections::BTreeMap;

use jiff::Timestamp;

pub use crate::process::Empty;
use crate::{
    permissions::{self, permissions},
    proto::{choices, enums, messages, oneofs},
};

pub const STAT: &str = "/filesystem.Filesystem/Stat";
pub const MAKE_DIR: &str = "/filesystem.Filesystem/MakeDir";
pub const MOVE: &str = "/filesystem.Filesystem/Move";
pub const LIST_DIR: &str = "/filesystem.Filesystem/ListDir";
pub const REMOVE: &str = "/filesystem.Filesystem/Remove";
pub const WATCH_DIR: &str = "/filesystem.Filesystem/WatchDir";
pub const CREATE_WATCHER: &str = "/filesystem.Filesystem/CreateWatcher";
pub const GET_WATCHER_EVENTS: &str = "/filesystem.Filesystem/GetWatcherEvents";
pub const REMOVE_WATCHER: &str = "/filesystem.Filesystem/RemoveWatcher";

messages! {
    /// What `Stat`, `MakeDir` and `Remove` are asked with. `Remove` answers [`Empty`].
    PathRequest {
        path: String,
    }

    MoveRequest {
        source: String,
        destination: String,
    }

    /// What `Stat`, `MakeDir` and `Move` answer.
    EntryResponse {
        entry: Option<EntryInfo>,
    }

    ListDirRequest {
        path: String,
        /// Clients that say nothing mean one level: ask [`ListDirRequest::levels`].
        depth: u32,
    }

    ListDirResponse {
        entries: Vec<EntryInfo>,
    }

    EntryInfo {
        name: String,
        /// Of what a link leads to, if it leads to something.
        r#type: FileType,
        path: String,
        size: i64,
        /// The nine bits of the permissions, of what a link leads to.
        mode: u32,
        /// As [`permissions`] writes them, of the link itself.
        permissions: String,
        owner: String,
        group: String,
        #[serde(alias = "modified_time")]
        modified_time: Option<Timestamp>,
        /// Where a link leads to in the end, as an absolute path.
        #[serde(alias = "symlink_target")]
        symlink_target: Option<String>,
        /// What uploads attached to it.
        metadata: BTreeMap<String, String>,
        #[serde(alias = "is_symlink")]
        is_symlink: bool,
    }

    /// What `WatchDir` and `CreateWatcher` are asked with.
    WatchRequest {
        path: String,
        recursive: bool,
        /// Whether each event says what the entry is now.
        #[serde(alias = "include_entry")]
        include_entry: bool,
        #[serde(alias = "allow_network_mounts")]
        allow_network_mounts: bool,
    }

    FilesystemEvent {
        /// Relative to the directory that is watched.
        name: String,
        r#type: EventType,
        /// There if it was asked for and the entry is still there. Rarely, so that it is kept apart.
        entry: Option<Box<EntryInfo>>,
    }

    CreateWatcherResponse {
        #[serde(alias = "watcher_id")]
        watcher_id: String,
    }

    /// What `GetWatcherEvents` and `RemoveWatcher` are asked with. `RemoveWatcher` answers [`Empty`].
    WatcherRequest {
        #[serde(alias = "watcher_id")]
        watcher_id: String,
    }

    GetWatcherEventsResponse {
        events: Vec<FilesystemEvent>,
    }
}

choices! {
    WatchDirResponse {
        event: WatchDirEvent,
    }
}

oneofs! {
    WatchDirEvent {
        /// From here on nothing is missed.
        start: Start(Empty),
        filesystem: Filesystem(FilesystemEvent),
        keepalive: Keepalive(Empty),
    }
}

enums! {
    FileType {
        Unspecified = 0 "FILE_TYPE_UNSPECIFIED",
        File = 1 "FILE_TYPE_FILE",
        Directory = 2 "FILE_TYPE_DIRECTORY",
        Symlink = 3 "FILE_TYPE_SYMLINK",
    }

    EventType {
        Unspecified = 0 "EVENT_TYPE_UNSPECIFIED",
        Create = 1 "EVENT_TYPE_CREATE",
        Write = 2 "EVENT_TYPE_WRITE",
        Remove = 3 "EVENT_TYPE_REMOVE",
        Rename = 4 "EVENT_TYPE_RENAME",
        Chmod = 5 "EVENT_TYPE_CHMOD",
    }
}

impl ListDirRequest {
    pub fn levels(&self) -> u32 {
        self.depth.max(1)
    }
}

impl FileType {
    /// `mode` is what stat(2) says. Pipes, sockets and devices have no type of their own.
    pub fn of_mode(mode: u32) -> Self {
        match permissions::kind(mode) {
            permissions::FILE => Self::File,
            permissions::DIRECTORY => Self::Directory,
            permissions::LINK => Self::Symlink,
            _ => Self::Unspecified,
        }
    }
}

impl EntryInfo {
    /// Type, mode and permissions of what is no link, by what stat(2) says.
    pub fn with_mode(mut self, mode: u32) -> Self {
        self.r#type = FileType::of_mode(mode);
        self.mode = mode & 0o777;
        self.permissions = permissions(mode);
        self
    }

    /// The same for a link: it looks like what it leads to, which `target` says the mode of if there is something, but for the
    /// permissions, which are its own.
    pub fn with_link(mut self, link: u32, target: Option<u32>) -> Self {
        self = self.with_mode(target.unwrap_or(link));
        self.permissions = permissions(link);
        self.is_symlink = true;
        self
    }
}

impl From<EntryInfo> for EntryResponse {
    fn from(entry: EntryInfo) -> Self {
        Self { entry: Some(entry) }
    }
}

#[cfg(test)]
mod tests {
    use serde::{Serialize, de::DeserializeOwned};
    use serde_json::{Value, json};

    use super::*;

    fn read<T: DeserializeOwned>(json: Value) -> T {
        serde_json::from_value(json).unwrap()
    }

    fn written(message: impl Serialize) -> Value {
        serde_json::to_value(message).unwrap()
    }

    fn entry() -> EntryInfo {
        EntryInfo {
            name: "a.txt".into(),
            path: "/home/user/a.txt".into(),
            size: 5,
            owner: "user".into(),
            group: "user".into(),
            modified_time: Some("2026-11-17T02:00:00.5Z".parse().unwrap()),
            metadata: [("author".to_owned(), "me".to_owned())].into(),
            ..EntryInfo::default()
        }
        .with_mode(0o100_644)
    }

    #[test]
    fn an_entry_is_as_the_sdks_read_it() {
        let json = json!({
            "name": "a.txt", "type": "FILE_TYPE_FILE", "path": "/home/user/a.txt", "size": "5", "mode": 0o644,
            "permissions": "-rw-r--r--", "owner": "user", "group": "user", "modifiedTime": "2026-11-17T02:00:00.500Z",
            "metadata": {"author": "me"},
        });
        assert_eq!(written(entry()), json);
        assert_eq!(read::<EntryInfo>(json.clone()), entry());
        assert_eq!(written(EntryResponse::from(entry())), json!({"entry": json}));
    }

    #[test]
    fn a_link_looks_like_its_target_but_for_its_permissions() {
        let link = EntryInfo { symlink_target: Some("/etc".into()), ..entry() }.with_link(0o120_777, Some(0o041_755));
        assert_eq!((link.r#type, link.mode, &*link.permissions), (FileType::Directory, 0o755, "Lrwxrwxrwx"));
        assert_eq!(written(&link)["symlinkTarget"], "/etc");
        assert_eq!(written(&link)["isSymlink"], true);
        let dangling = entry().with_link(0o120_777, None);
        assert_eq!((dangling.r#type, dangling.mode), (FileType::Symlink, 0o777));
    }

    #[test]
    fn a_pipe_has_no_type_of_its_own() {
        assert_eq!(FileType::of_mode(0o010_600), FileType::Unspecified);
        assert_eq!(written(entry().with_mode(0o010_600)).get("type"), None);
    }

    #[test]
    fn paths_and_depths_are_read() {
        assert_eq!(read::<PathRequest>(json!({"path": "a/b"})).path, "a/b");
        let request: MoveRequest = read(json!({"source": "a", "destination": "b"}));
        assert_eq!((&*request.source, &*request.destination), ("a", "b"));
        for (json, levels) in [(json!({"path": "."}), 1), (json!({"depth": 0}), 1), (json!({"depth": 3}), 3)] {
            assert_eq!(read::<ListDirRequest>(json).levels(), levels);
        }
    }

    #[test]
    fn a_watch_of_the_sdk_is_read() {
        let sent = json!({"path": "/home/user", "recursive": true, "includeEntry": true, "allowNetworkMounts": true});
        let request: WatchRequest = read(sent.clone());
        assert!(request.recursive && request.include_entry && request.allow_network_mounts);
        assert_eq!(written(&request), sent);
        let snake =
            json!({"path": "/home/user", "recursive": true, "include_entry": true, "allow_network_mounts": true});
        assert_eq!(read::<WatchRequest>(snake), request);
        assert!(!read::<WatchRequest>(json!({"path": "x", "recursive": false})).recursive);
    }

    #[test]
    fn events_are_as_the_sdks_read_them() {
        let created = FilesystemEvent { name: "nested/test.txt".into(), r#type: EventType::Create, entry: None };
        let json = json!({"name": "nested/test.txt", "type": "EVENT_TYPE_CREATE"});
        for (event, json) in [
            (WatchDirEvent::Start(Empty {}), json!({"start": {}})),
            (WatchDirEvent::Filesystem(created.clone()), json!({"filesystem": json})),
            (WatchDirEvent::Keepalive(Empty {}), json!({"keepalive": {}})),
        ] {
            assert_eq!(written(WatchDirResponse::from(event.clone())), json);
            assert_eq!(read::<WatchDirResponse>(json), event.into());
        }
        assert_eq!(written(GetWatcherEventsResponse { events: vec![created] }), json!({"events": [json]}));
        for (number, event) in
            [EventType::Create, EventType::Write, EventType::Remove, EventType::Rename, EventType::Chmod]
                .into_iter()
                .enumerate()
        {
            assert_eq!(read::<FilesystemEvent>(json!({"type": number + 1})).r#type, event);
        }
    }

    #[test]
    fn an_event_says_what_the_entry_is_where_that_was_asked_for() {
        let event = FilesystemEvent { entry: Some(Box::new(entry())), ..FilesystemEvent::default() };
        assert_eq!(written(&event), json!({"entry": written(entry())}));
        assert_eq!(read::<FilesystemEvent>(written(&event)), event);
    }

    #[test]
    fn a_watcher_has_an_id() {
        assert_eq!(written(CreateWatcherResponse { watcher_id: "w1".into() }), json!({"watcherId": "w1"}));
        assert_eq!(read::<WatcherRequest>(json!({"watcherId": "w1"})).watcher_id, "w1");
    }

    #[test]
    fn two_events_at_once_are_refused() {
        let both = json!({"start": {}, "keepalive": {}});
        assert!(serde_json::from_value::<WatchDirResponse>(both).is_err());
    }
}
