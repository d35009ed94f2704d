//! `filesystem.Filesystem`: names, and who changes them. What files hold is plain HTTP.

mod kept_events;
mod watch;
mod watchers;

use axum::{extract::Request, http::HeaderMap, response::Response};
use cabana_e2b_wire::{
    connect::{Code, Error},
    filesystem::{self as wire, Empty, EntryResponse, ListDirRequest, ListDirResponse, MoveRequest, PathRequest},
};
use cabana_runtime::{
    Code as Ours, Error as Failed,
    acts::files::{Alter, At, Stat, Step, Tree, TreeEntries},
};
use cabana_sandbox::{FileInfo, Kind, User};

pub(crate) use self::watchers::Watchers;
use super::{
    super::{guest::Guest, refused::connect_error},
    admission::Admission,
    entry::entry,
    place::{at, user_of},
    rpc,
};
use crate::{App, long_answer};

/// Of a list. Whoever has more below a directory asks for fewer levels.
const MOST: usize = 100_000;
const MAX_BYTES: usize = 32 << 20;

/// `None`: there is no such method.
pub(super) async fn serve(app: &App, guest: &Guest, request: Request) -> Option<Response> {
    let files = Files { app, guest, headers: request.headers().clone() };
    Some(match request.uri().path() {
        wire::STAT => rpc::unary(app, request, async |asked| files.stat(asked).await).await,
        wire::MAKE_DIR => rpc::unary(app, request, async |asked| files.make_dir(asked).await).await,
        wire::MOVE => rpc::unary(app, request, async |asked| files.rename(asked).await).await,
        wire::LIST_DIR => rpc::respond(app, request, async |asked| files.list(asked).await).await,
        wire::REMOVE => rpc::unary(app, request, async |asked| files.remove(asked).await).await,
        wire::WATCH_DIR => watch::stream(&files, request).await,
        wire::CREATE_WATCHER => rpc::unary(app, request, async |asked| watchers::create(&files, asked).await).await,
        wire::GET_WATCHER_EVENTS => {
            rpc::respond(app, request, async |asked| watchers::events(app, guest, asked).await).await
        }
        wire::REMOVE_WATCHER => rpc::unary(app, request, async |asked| watchers::remove(app, guest, &asked)).await,
        _ => return None,
    })
}

/// The files of a sandbox, as whoever asks sees them.
struct Files<'a> {
    app: &'a App,
    guest: &'a Guest,
    headers: HeaderMap,
}

impl Files<'_> {
    fn user(&self) -> Result<Option<User>, Error> {
        user_of(&self.headers)
    }

    async fn at(&self, path: &str) -> Result<At, Error> {
        Ok(at(self.app, self.guest, Admission::Token, self.user()?, path).await?)
    }

    async fn info(&self, at: &At) -> Result<FileInfo, Failed> {
        Ok(self.app.runtime.look(self.guest.ask(), Stat(at.clone())).await?.1)
    }

    async fn alter(&self, at: &At, step: Step) -> Result<(), Failed> {
        self.app.runtime.call(self.guest.ask(), Alter { at: at.clone(), step }).await?.answer().await
    }

    async fn told(&self, at: &At) -> Result<EntryResponse, Error> {
        let info = self.info(at).await.map_err(|error| of_path(&error, at))?;
        Ok(entry(info).into())
    }

    async fn stat(&self, asked: PathRequest) -> Result<EntryResponse, Error> {
        let at = self.at(&asked.path).await?;
        self.told(&at).await
    }

    async fn make_dir(&self, asked: PathRequest) -> Result<EntryResponse, Error> {
        let at = self.at(&asked.path).await?;
        match self.info(&at).await {
            Ok(info) if is_dir(&info) => {
                return Err(Error::new(Code::AlreadyExists, format!("directory already exists: {}", info.path)));
            }
            Ok(info) => {
                let why = format!("path already exists but it is not a directory: {}", info.path);
                return Err(Error::new(Code::InvalidArgument, why));
            }
            Err(error) if error.code() == Ours::NotFound => {}
            Err(error) => return Err(of_path(&error, &at)),
        }
        let step = Step::MakeDir { perm: 0o755, parents: true };
        self.alter(&at, step).await.map_err(|error| of_path(&error, &at))?;
        self.told(&at).await
    }

    /// Directories above the new name are made where they are missing.
    async fn rename(&self, asked: MoveRequest) -> Result<EntryResponse, Error> {
        let from = self.at(&asked.source).await?;
        let to = self.at(&asked.destination).await?;
        let step = || Step::Move { to: to.path.clone() };
        let mut moved = self.alter(&from, step()).await;
        if let Err(error) = &moved
            && error.code() == Ours::NotFound
            && self.info(&from).await.is_ok()
            && let Some((above, _)) = to.path.rsplit_once('/')
        {
            let above = At { path: above.to_owned(), ..to.clone() };
            let made = self.alter(&above, Step::MakeDir { perm: 0o755, parents: true }).await;
            made.map_err(|error| of_path(&error, &above))?;
            moved = self.alter(&from, step()).await;
        }
        moved.map_err(|error| of_path(&error, &from))?;
        self.told(&to).await
    }

    async fn list(&self, asked: ListDirRequest) -> Result<Response, Error> {
        let at = self.at(&asked.path).await?;
        let tree = Tree { at: at.clone(), levels: asked.levels(), most: MOST, most_bytes: MAX_BYTES };
        let listed = async {
            let (_, TreeEntries { entries, memory }) = self.app.runtime.look(self.guest.ask(), tree).await?;
            let list = move || ListDirResponse { entries: entries.into_iter().map(entry).collect() };
            long_answer::json(memory, list).await
        };
        listed.await.map_err(|error| of_path(&error, &at))
    }

    /// What is not there is removed already.
    async fn remove(&self, asked: PathRequest) -> Result<Empty, Error> {
        let at = self.at(&asked.path).await?;
        match self.alter(&at, Step::Remove { tree: true }).await {
            Err(error) if error.code() != Ours::NotFound => Err(of_path(&error, &at)),
            _ => Ok(Empty {}),
        }
    }
}

fn is_dir(info: &FileInfo) -> bool {
    let target = info.link.as_ref().and_then(|link| link.target.as_ref());
    target.map_or(info.kind, |(_, kind, _)| *kind) == Kind::Directory
}

/// In the words that clients look for.
fn of_path(error: &Failed, at: &At) -> Error {
    match error.code() {
        Ours::NotFound => Error::new(Code::NotFound, format!("path not found: {}", at.path)),
        Ours::NotDirectory => Error::new(Code::InvalidArgument, format!("path is not a directory: {}", at.path)),
        _ => connect_error(error),
    }
}
