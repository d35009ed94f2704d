//! Those who watch the same directory share one watch: the kernel has few of them to give, for all tenants together.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use cabana_model::{Code, SandboxId, Tenant};
use cabana_sandbox::{Depth, Files, SandboxPath, Stream, User, WatchEvent};
use futures_util::{StreamExt, stream, stream::BoxStream};
use tokio::sync::{OnceCell, broadcast};

use crate::{Error, Result, Runtime, acts::files::Rights, kernel_watches::KernelWatches};

/// How many the kernel gives one user.
const MAX_USER_INSTANCES: &str = "/proc/sys/fs/inotify/max_user_instances";
/// Where the kernel does not say: what it has at first.
const USUAL: usize = 128;
/// However many it gives: each has two descriptors.
const MOST: usize = 2048;
/// Who has fewer finds a place among the last ones, too.
const FEW: usize = 2;
/// As many events as a slow reader may be behind before it is told that it missed some.
const BEHIND: usize = 1024;

/// What is watched, and by whom inside.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Watched {
    pub(crate) physical: SandboxId,
    pub(crate) user: Option<User>,
    pub(crate) rights: Rights,
    pub(crate) dir: SandboxPath,
    pub(crate) depth: Depth,
}

#[derive(Clone)]
enum Told {
    Event(WatchEvent),
    Broken { code: Code, message: String },
}

/// Empty until the watch is armed.
type Shared = Arc<OnceCell<broadcast::Sender<Told>>>;

#[derive(Default)]
pub(crate) struct Watches {
    watches: Mutex<HashMap<Watched, (Tenant, Shared)>>,
    /// Read when the first is asked for.
    places: OnceLock<Places>,
    kernel: Arc<KernelWatches>,
}

/// Directories that are watched at a time.
#[derive(Clone, Copy)]
struct Places {
    all: usize,
    /// By one tenant.
    each: usize,
    /// For tenants who have few.
    reserved: usize,
}

impl Places {
    /// The rest is for other services of the machine.
    fn of(max_user_instances: usize) -> Self {
        let all = (max_user_instances / 4 * 3).min(MOST);
        Self { all, each: all / 4, reserved: all / 3 }
    }

    fn read() -> Self {
        let text = std::fs::read_to_string(MAX_USER_INSTANCES).ok();
        Self::of(text.and_then(|text| text.trim().parse().ok()).unwrap_or(USUAL))
    }
}

impl Watches {
    fn all<T>(&self, act: impl FnOnce(&mut HashMap<Watched, (Tenant, Shared)>) -> T) -> T {
        act(&mut self.watches.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn shared(&self, tenant: &Tenant, what: &Watched) -> Result<Shared> {
        self.all(|all| {
            // Nobody waits any more for one that was never armed.
            all.retain(|_, (_, shared)| shared.initialized() || Arc::strong_count(shared) > 1);
            if let Some((_, shared)) = all.get(what) {
                return Ok(shared.clone());
            }
            let each = all.values().filter(|(of, _)| of == tenant).count();
            let places = self.places.get_or_init(Places::read);
            let most = if each < FEW { places.all } else { places.all - places.reserved };
            if each >= places.each || all.len() >= most {
                return Err(Error::TooManyWatches);
            }
            let shared = Shared::default();
            all.insert(what.clone(), (tenant.clone(), shared.clone()));
            Ok(shared)
        })
    }

    /// `None` when it has ended meanwhile.
    fn join(&self, what: &Watched, shared: &Shared) -> Option<broadcast::Receiver<Told>> {
        self.all(|all| match all.get(what) {
            Some((_, there)) if Arc::ptr_eq(there, shared) => shared.get().map(broadcast::Sender::subscribe),
            _ => None,
        })
    }

    /// False while somebody listens, unless it is broken.
    fn leave(&self, what: &Watched, tell: &broadcast::Sender<Told>, broken: bool) -> bool {
        self.all(|all| {
            let ends = broken || tell.receiver_count() == 0;
            let ours = |(_, shared): &(Tenant, Shared)| shared.get().is_some_and(|there| there.same_channel(tell));
            if ends && all.get(what).is_some_and(ours) {
                all.remove(what);
            }
            ends
        })
    }
}

impl Runtime {
    /// Armed once it returns.
    pub(crate) async fn watch(
        &self,
        tenant: &Tenant,
        what: Watched,
        files: &dyn Files,
    ) -> Result<BoxStream<'static, Result<WatchEvent>>> {
        loop {
            let shared = self.0.watches.shared(tenant, &what)?;
            let mut first = None; // holds the watch until we have joined it
            let arm = async {
                let events = files.watch_within(&what.dir, what.depth, self.0.watches.kernel.of(tenant)).await?;
                let (tell, hear) = broadcast::channel(BEHIND);
                first = Some(hear);
                let (runtime, what, telling) = (self.clone(), what.clone(), tell.clone());
                self.0.tasks.spawn(async move { runtime.tell_watchers(&what, &telling, events).await });
                Ok::<_, Error>(tell)
            };
            shared.get_or_try_init(|| arm).await?;
            if let Some(hear) = self.0.watches.join(&what, &shared) {
                return Ok(heard(hear));
            }
        }
    }

    /// As long as somebody listens.
    async fn tell_watchers(&self, what: &Watched, tell: &broadcast::Sender<Told>, mut events: Stream<WatchEvent>) {
        loop {
            let next = tokio::select! {
                next = events.next() => next,
                () = tell.closed() => match self.0.watches.leave(what, tell, false) {
                    true => return,
                    false => continue,
                },
                () = self.0.closing.cancelled() => {
                    self.0.watches.leave(what, tell, true);
                    return;
                }
            };
            let told = match next {
                Some(Ok(event)) => Told::Event(event),
                Some(Err(error)) => Told::Broken { code: error.code(), message: error.to_string() },
                None => Told::Broken { code: Code::SandboxGone, message: "there is nothing left to watch".to_owned() },
            };
            let broken = matches!(told, Told::Broken { .. });
            let _ = tell.send(told); // the last one may have just left
            if broken {
                self.0.watches.leave(what, tell, true);
                return;
            }
        }
    }
}

fn heard(hear: broadcast::Receiver<Told>) -> BoxStream<'static, Result<WatchEvent>> {
    let events = stream::unfold(Some(hear), |hear| async {
        let mut hear = hear?;
        match hear.recv().await {
            Ok(Told::Event(event)) => Some((Ok(event), Some(hear))),
            Ok(Told::Broken { code, message }) => Some((Err(Error::Recorded { code, message }), None)),
            Err(broadcast::error::RecvError::Lagged(_)) => Some((Ok(WatchEvent::Overflow), Some(hear))),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    });
    events.boxed()
}
