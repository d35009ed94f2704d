//! Changes below a directory, as they happen.

use axum::{extract::Request, response::Response};
use cabana_e2b_wire::{
    connect::{Code, Error},
    filesystem::{Empty, EventType, FilesystemEvent, WatchDirEvent, WatchDirResponse, WatchRequest},
};
use cabana_runtime::{
    Code as Ours,
    acts::files::{At, Watch},
};
use cabana_sandbox::{Change, Depth, FileInfo, SandboxPath, WatchEvent};
use futures_util::{StreamExt, stream, stream::BoxStream};

use super::{
    super::rpc::{self, Ending, Sending},
    Files, entry, of_path,
};

/// What is told of a directory, in the order in which it happened.
pub(super) type Told = BoxStream<'static, Result<FilesystemEvent, Ending>>;

pub(super) async fn stream(files: &Files<'_>, request: Request) -> Response {
    let sending = Sending::of(&request);
    let begun = async {
        let asked: WatchRequest = rpc::asked(files.app, request).await?;
        let seat = rpc::seat(files.app, files.guest).await?;
        Ok::<_, Error>((seat, watch(files, &asked).await?))
    };
    match begun.await {
        Ok((seat, told)) => {
            let start = std::future::ready(Ok(WatchDirEvent::Start(Empty {})));
            let events = stream::once(start).chain(told.map(|event| event.map(WatchDirEvent::Filesystem)));
            let events = events.map(|event| event.map(WatchDirResponse::from));
            sending.send(seat, WatchDirResponse::from(WatchDirEvent::Keepalive(Empty {})), events)
        }
        Err(error) => rpc::ended(&error),
    }
}

/// Nothing is missed once it returns.
pub(super) async fn watch(files: &Files<'_>, asked: &WatchRequest) -> Result<Told, Error> {
    let at = files.at(&asked.path).await?;
    let dir = files.info(&at).await.map_err(|error| of_path(&error, &at))?;
    if !super::is_dir(&dir) {
        return Err(Error::new(Code::InvalidArgument, format!("path {} is not a directory", dir.path)));
    }
    let at = At { path: dir.path.to_string(), ..at };
    let depth = if asked.recursive { Depth::Below } else { Depth::Here };
    let watch = Watch { at: at.clone(), depth, describes: asked.include_entry };
    let (_, told) = files.app.runtime.look(files.guest.ask(), watch).await.map_err(|error| of_path(&error, &at))?;
    let told = told.flat_map(move |event| {
        let told = match event {
            Ok((event, info)) => happened(&dir.path, event, info),
            Err(error) if error.code() == Ours::SandboxGone => vec![Err(Ending::Gone)],
            Err(error) => vec![Err(of_path(&error, &at).into())],
        };
        stream::iter(told)
    });
    Ok(told.boxed())
}

fn happened(dir: &SandboxPath, event: WatchEvent, info: Option<FileInfo>) -> Vec<Result<FilesystemEvent, Ending>> {
    let tell = |kind: EventType, path: &SandboxPath, info: Option<FileInfo>| {
        let name = path.as_path().strip_prefix(dir.as_path()).unwrap_or(path.as_path());
        let name = name.to_string_lossy().into_owned();
        Ok(FilesystemEvent { name, r#type: kind, entry: info.map(|info| Box::new(entry(info))) })
    };
    match event {
        WatchEvent::Changed(change, path) => {
            let kind = match change {
                Change::Create => EventType::Create,
                Change::Write => EventType::Write,
                Change::Remove => EventType::Remove,
                Change::Chmod => EventType::Chmod,
            };
            vec![tell(kind, &path, info)]
        }
        // The old name goes, and the new one comes.
        WatchEvent::Renamed(from, to) => {
            vec![tell(EventType::Rename, &from, None), tell(EventType::Create, &to, info)]
        }
        WatchEvent::Overflow => {
            vec![Err(Error::new(Code::ResourceExhausted, "more changed than could be told: look again").into())]
        }
    }
}
