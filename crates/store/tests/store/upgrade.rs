//! A store that an older version wrote: it is brought up to date, and everything in it is there.
//!
//! `upgrade/N` is what version N left behind: its database as SQL, and its journal with what was not folded into it. Before a
//! step is added to the schema, `CABANA_BLESS=1` writes the folder of the version that there is. Where several steps came at
//! once, it makes the versions between them of the one before, by its step alone.

use std::{fs, path::Path, path::PathBuf};

use cabana_model::{
    CallId, KeyId, Life, Outcome, Role, SandboxId, SandboxState, Scope, SnapshotId, SnapshotState, TaskId, TaskState,
    Time,
};
use cabana_store::{
    AboutSnapshot, By, Claim, Done, Durability, Error, Inline, NewKey, NewSnapshot, NewTask, Page, Store, TaskEnd,
    Transition,
};
use rusqlite::{Connection, types::Value};
use uuid::Uuid;

use crate::stage::{call, chain, claim, done, entry, open, tenant};

fn folder(version: usize) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/store/upgrade/{version}"))
}

fn database(dir: &Path) -> PathBuf {
    dir.join("db/cabana.db")
}

/// What today's store makes.
fn today() -> usize {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()));
    let db = Connection::open(database(dir.path())).unwrap();
    db.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap()
}

/// Ids that are the same whenever a folder is written: the half that was folded, and the half that was not.
fn id(half: u128, number: u128) -> Uuid {
    Uuid::from_u128(0x0198_0000_0000_7000_8000_0000_0000_0000 + (half << 32) + number)
}

fn at(second: i64) -> Time {
    Time::from_second(1_700_000_000 + second).unwrap()
}

fn sandbox(half: u128, number: u128) -> SandboxId {
    SandboxId::new(format!("sandbox{half}number{number}")).unwrap()
}

/// Something in every table, by the public interface alone.
async fn fill(store: &Store, half: u128) {
    let one = tenant("one");
    let key = NewKey {
        id: KeyId::from(id(half, 1)),
        tenant: one.clone(),
        role: Role::Admin,
        name: "a name".into(),
        subject: Some("somebody".into()),
        any_subject: false,
        digest: [half as u8 + 1; 32],
        created: at(1),
        expires: Some(at(1_000_000_000)),
    };
    store.add_key(key, None).await.unwrap();
    store.secret("links", [7; 32]).await.unwrap();
    let scope = Scope::chat_of("app", "user", &format!("chat {half}")).unwrap();
    for (number, scope) in [(1, Some(scope)), (2, None)] {
        let user = scope.as_ref().and_then(Scope::named_user);
        let (id, physical) = (sandbox(half, number), sandbox(half, 10 + number));
        let claim = Claim { id, physical, scope, user, ..claim(&one, 0) };
        store.claim(Claim { spec: "{\"a\":1}".into(), at: at(2), ..claim }).await.unwrap();
    }
    let (physical, to) = (sandbox(half, 11), Life { state: SandboxState::Running, phase: None });
    let (active, due, by) = (at(3), None, By::Itself);
    let next = Transition { physical, version: 1, to, why: "asked for".into(), at: at(3), active, due, by };
    store.transition(next).await.unwrap();
    let with = |number: u128| cabana_store::NewCall {
        id: CallId::from(id(half, 10 + number)),
        key: KeyId::from(id(half, 1)),
        sandbox: Some(sandbox(half, 1)),
        user: Some("user".into()),
        made: true,
        once: Some([half as u8 * 16 + number as u8; 32]),
        at: at(4),
        ..call(&one)
    };
    let (ended, left_open) = (with(1), with(2));
    store.reserve(ended.clone()).await.unwrap();
    store.reserve(left_open).await.unwrap();
    let output = Some(Inline { stdout: b"said".as_slice().into(), stderr: b"\xff".as_slice().into() });
    let entry_at = |call| cabana_store::Entry { at: at(5), ..entry(call) };
    store.record(Done { output, entry: entry_at(&ended), ..done(&ended) }).await.unwrap();
    for number in [1, 2] {
        let task = NewTask {
            id: TaskId::from(id(half, 20 + number)),
            tenant: one.clone(),
            call: ended.id,
            key: ended.key,
            sandbox: sandbox(half, 1),
            argv: vec!["sleep".into(), "1".into()],
            about: None,
            at: at(6),
        };
        store.add_task(task.clone()).await.unwrap();
        if number == 1 {
            let (exit, inline) = (Some("{\"exit_code\":0}".into()), None);
            let end = TaskEnd { id: task.id, state: TaskState::Succeeded, exit, inline, at: at(7) };
            store.end_task(end, entry_at(&ended)).await.unwrap();
        }
    }
    let snapshot = NewSnapshot {
        tenant: one,
        id: SnapshotId::from(id(half, 31)),
        physical: SnapshotId::from(id(half, 32)),
        sandbox: sandbox(half, 1),
        about: AboutSnapshot::default(),
        at: at(8),
    };
    store.claim_snapshot(snapshot).await.unwrap();
}

/// All that `fill` wrote, read by the public interface.
async fn is_whole(store: &Store, half: u128) {
    let one = tenant("one");
    let key = store.key(&[half as u8 + 1; 32]).await.unwrap().unwrap();
    assert_eq!((key.id, key.role, key.subject.as_deref()), (KeyId::from(id(half, 1)), Role::Admin, Some("somebody")));
    assert_eq!(store.secret("links", [8; 32]).await.unwrap(), [7; 32], "what signs its links is the same");
    let record = store.sandbox(&one, &sandbox(half, 1)).await.unwrap().unwrap();
    assert_eq!((record.state, record.why.as_str(), record.version), (SandboxState::Running, "asked for", 2));
    assert_eq!((&*record.spec, record.created, record.changed), ("{\"a\":1}", at(2), at(3)));
    assert_eq!(store.by_scope(&one, record.scope.as_ref().unwrap()).await.unwrap().unwrap(), record);
    assert_eq!(record.user.as_deref(), Some("user"));
    let chat = format!("chat {half}");
    assert_eq!(store.by_chat(&one, "app", &chat).await.unwrap(), [record]);
    let whose = |user| (Some(user), Some(sandbox(half, 1)));
    for (user, sandbox) in [whose("user"), whose("other")] {
        let (user, sandbox, page) = (user, sandbox.as_ref(), || Page::first(10));
        let calls = store.calls(&one, user, sandbox, page()).await.unwrap().len();
        let tasks = store.tasks(&one, user, sandbox, None, page()).await.unwrap().len();
        assert_eq!((calls, tasks), if user == Some("user") { (2, 2) } else { (0, 0) });
    }
    let plain = store.sandbox(&one, &sandbox(half, 2)).await.unwrap().unwrap();
    assert_eq!((plain.state, plain.scope), (SandboxState::Provisioning, None));
    let call = store.call(&one, CallId::from(id(half, 11))).await.unwrap().unwrap();
    assert_eq!(call.outcome, Some(Outcome::Answered("{\"exit\":0}".into())));
    let open: Vec<_> = store.open_calls().await.unwrap().into_iter().map(|call| call.id).collect();
    assert!(open.contains(&CallId::from(id(half, 12))) && !open.contains(&CallId::from(id(half, 11))));
    let ended = store.task(&one, TaskId::from(id(half, 21))).await.unwrap().unwrap();
    assert_eq!((ended.state, ended.ended, ended.argv.len()), (TaskState::Succeeded, Some(at(7)), 2));
    let open: Vec<_> = store.open_tasks().await.unwrap().into_iter().map(|task| task.id).collect();
    assert!(open.contains(&TaskId::from(id(half, 22))));
    let snapshots = store.all_snapshots().await.unwrap();
    let snapshot = snapshots.iter().find(|one| one.id == SnapshotId::from(id(half, 31))).unwrap();
    assert_eq!((snapshot.physical, snapshot.state), (SnapshotId::from(id(half, 32)), SnapshotState::Making));
}

/// As the version of that time left it.
fn left_by(version: usize) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("db")).unwrap();
    let sql = fs::read_to_string(folder(version).join("cabana.sql"))
        .unwrap_or_else(|error| panic!("there is no store of version {version} to upgrade ({error}): see upgrade.rs"));
    let db = Connection::open(database(dir.path())).unwrap();
    db.pragma_update(None, "journal_mode", "wal").unwrap();
    db.execute_batch(&sql).unwrap();
    drop(db);
    fs::copy(folder(version).join("journal"), dir.path().join("db/journal")).unwrap();
    dir
}

#[tokio::test]
async fn a_store_of_each_earlier_version_is_whole_after_the_upgrade() {
    let one = tenant("one");
    for version in 1..today() {
        let dir = left_by(version);
        // The second time there is nothing more to do.
        for _ in 0..2 {
            let store = open(dir.path());
            for half in [0, 1] {
                is_whole(&store, half).await;
            }
            let rows = chain(&store, &one).await;
            assert_eq!(rows.len(), 4, "version {version}");
            let head = store.ledger_head(&one).await.unwrap().unwrap();
            cabana_store::ledger::verify(rows.into_iter(), None, Some(&head)).unwrap();
            assert_eq!(store.sandboxes(&one, None, None, Page::first(10)).await.unwrap().len(), 4);
            store.close().await;
        }
        // And it can be written to, as if it had been made today.
        let store = open(dir.path());
        fill(&store, 2).await;
        is_whole(&store, 2).await;
        store.close().await;
        assert_eq!(schema_of(dir.path()), schema_of_today(), "version {version}");
    }
}

fn schema_of(dir: &Path) -> Vec<String> {
    let db = Connection::open(database(dir)).unwrap();
    let mut statement = db.prepare("SELECT coalesce(sql, name) FROM sqlite_master ORDER BY name").unwrap();
    let rows = statement.query_map([], |row| row.get(0)).unwrap();
    rows.collect::<rusqlite::Result<_>>().unwrap()
}

fn schema_of_today() -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()));
    schema_of(dir.path())
}

/// They were known by their parts with hyphens between them, whatever hyphens are in the parts.
#[tokio::test]
async fn chats_with_hyphens_in_their_parts_are_found_after_the_upgrade() {
    let chats = [
        ("a-b", "u", "c"),
        ("a", "u-v", "c-d"),
        ("a", "50%", "c"),
        ("a%", "u", "c%2D"),
        ("a", "u", "c"),
        ("x", "u-v", "y"),
    ];
    let one = tenant("one");
    let of = |(app, user, chat)| Scope::chat_of(app, user, chat).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for (number, chat) in chats.into_iter().enumerate() {
        store.claim(Claim { scope: Some(of(chat)), ..claim(&one, number as i64) }).await.unwrap();
    }
    // What no scope says, the key says that made it; of what is gone nobody knows whose it was.
    let anns = KeyId::now();
    let (tenant, role, name, subject) = (one.clone(), Role::Use, "a name".into(), Some("ann".into()));
    let (any_subject, digest, created, expires) = (false, [9; 32], at(1), None);
    let key = NewKey { id: anns, tenant, role, name, subject, any_subject, digest, created, expires };
    store.add_key(key, None).await.unwrap();
    let made = Claim { key: anns, id: sandbox(0, 99), ..claim(&one, 99) };
    store.claim(made.clone()).await.unwrap();
    let gone = |key| cabana_store::NewCall { key, sandbox: Some(sandbox(0, 98)), ..call(&one) };
    let (by_her, by_another) = (gone(anns), gone(KeyId::now()));
    for call in [&by_her, &by_another] {
        store.reserve(call.clone()).await.unwrap();
    }
    store.close().await;
    let db = Connection::open(database(dir.path())).unwrap();
    for (app, user, chat) in &chats[..5] {
        let (key, plain) = (of((app, user, chat)).key().to_owned(), format!("{app}-{user}-{chat}"));
        let sql = "UPDATE sandboxes SET value = ?2, scope = json_set(scope, '$.value', ?2) WHERE value = ?1";
        assert_eq!(db.execute(sql, [key, plain]).unwrap(), 1);
    }
    for (table, column) in [
        ("sandboxes", "user"),
        ("calls", "user"),
        ("calls", "made"),
        ("tasks", "user"),
        ("snapshots", "user"),
        ("keys", "any_subject"),
    ] {
        db.execute_batch(&format!("ALTER TABLE {table} DROP COLUMN {column}")).unwrap();
    }
    db.pragma_update(None, "user_version", 11).unwrap();
    drop(db);
    let store = open(dir.path());
    for chat in chats {
        let record = store.by_scope(&one, &of(chat)).await.unwrap();
        let record = record.unwrap_or_else(|| panic!("{chat:?} is not found"));
        assert_eq!((record.scope, record.user.as_deref()), (Some(of(chat)), Some(chat.1)));
    }
    assert_eq!(store.sandbox(&one, &made.id).await.unwrap().unwrap().user.as_deref(), Some("ann"));
    for (call, user) in [(by_her, "ann"), (by_another, "")] {
        assert_eq!(store.call(&one, call.id).await.unwrap().unwrap().user.as_deref(), Some(user));
    }
}

#[tokio::test]
async fn a_store_of_a_later_version_is_refused_and_left_as_it_is() {
    let dir = left_by(1);
    let later = today() + 1;
    Connection::open(database(dir.path())).unwrap().pragma_update(None, "user_version", later).unwrap();
    let before = fs::read(database(dir.path())).unwrap();
    let refused = Store::open(dir.path(), Durability::Kill).err().unwrap();
    assert_eq!(refused, Error::Schema { found: later as i64, known: today() as i64 });
    assert_eq!(refused.code().as_str(), "data_dir_version");
    assert_eq!(fs::read(database(dir.path())).unwrap(), before);
}

/// `CABANA_BLESS=1` writes the folder of today's version, if there is none.
#[tokio::test]
async fn todays_version_can_be_left_for_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    fill(&store, 0).await;
    store.close().await;
    let sql = dump(&database(dir.path()));
    let store = open(dir.path());
    fill(&store, 1).await;
    // Whoever is killed now leaves this.
    let journal = fs::read(dir.path().join("db/journal")).unwrap();
    store.close().await;
    assert!(!sql.is_empty());
    let to = folder(today());
    let bless = std::env::var_os("CABANA_BLESS").is_some();
    for version in (2..today()).filter(|version| bless && !folder(*version).exists()) {
        make_from_the_one_before(version);
    }
    if bless && !to.exists() {
        assert!(!journal.is_empty(), "the machine was too slow: once more");
        fs::create_dir_all(&to).unwrap();
        fs::write(to.join("cabana.sql"), sql).unwrap();
        fs::write(to.join("journal"), journal).unwrap();
    }
}

fn make_from_the_one_before(version: usize) {
    let dir = left_by(version - 1);
    let steps = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/schema");
    let number = |path: &PathBuf| path.file_stem().unwrap().to_str().unwrap().parse::<usize>().unwrap();
    let mut steps: Vec<PathBuf> = fs::read_dir(steps).unwrap().map(|step| step.unwrap().path()).collect();
    steps.sort_by_key(number);
    let db = Connection::open(database(dir.path())).unwrap();
    db.execute_batch(&fs::read_to_string(&steps[version - 1]).unwrap()).unwrap();
    db.pragma_update(None, "user_version", version).unwrap();
    drop(db);
    let to = folder(version);
    fs::create_dir_all(&to).unwrap();
    fs::write(to.join("cabana.sql"), dump(&database(dir.path()))).unwrap();
    fs::copy(folder(version - 1).join("journal"), to.join("journal")).unwrap();
}

fn dump(path: &Path) -> String {
    let db = Connection::open(path).unwrap();
    let version: i64 = db.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    let mut sql = format!("PRAGMA user_version = {version};\n");
    let mut of_schema =
        db.prepare("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY type DESC, name").unwrap();
    let schema: Vec<(String, String)> =
        of_schema.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap().collect::<Result<_, _>>().unwrap();
    // What is there is put back as it was: nothing is counted a second time.
    let (triggers, schema): (Vec<_>, Vec<_>) =
        schema.into_iter().partition(|(_, text)| text.starts_with("CREATE TRIGGER"));
    for (_, text) in &schema {
        sql += &format!("{text};\n");
    }
    for (table, _) in schema.iter().filter(|(_, text)| text.starts_with("CREATE TABLE")) {
        let mut rows = db.prepare(&format!("SELECT * FROM {table}")).unwrap();
        let columns = rows.column_count();
        let mut rows = rows.query([]).unwrap();
        while let Some(row) = rows.next().unwrap() {
            let values: Vec<String> = (0..columns).map(|column| literal(&row.get(column).unwrap())).collect();
            sql += &format!("INSERT INTO {table} VALUES ({});\n", values.join(", "));
        }
    }
    for (_, text) in &triggers {
        sql += &format!("{text};\n");
    }
    sql
}

fn literal(value: &Value) -> String {
    match value {
        Value::Null => "NULL".into(),
        Value::Integer(number) => number.to_string(),
        Value::Real(number) => number.to_string(),
        Value::Text(text) => format!("'{}'", text.replace('\'', "''")),
        Value::Blob(bytes) => format!("x'{}'", bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()),
    }
}
