//! A call that is followed to its end, also past the end of a connection or of the server.

use std::{
    cell::{Cell, OnceCell},
    time::Duration,
};

use cabana_model::Code;
use reqwest::RequestBuilder;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::Exit;
use crate::{
    failure::Failure,
    remote::{
        output::{Output, Stuck},
        server::{At, Server},
        sse::Events,
    },
};

/// For a server that is started again.
const PATIENCE: Duration = Duration::from_secs(30);
const BREATH: Duration = Duration::from_millis(300);

pub(super) struct Following<'a> {
    pub(super) server: &'a Server,
    /// Known once it has begun.
    pub(super) call: &'a OnceCell<String>,
    /// Whether it is to end as soon as it is known.
    pub(super) ending: &'a Cell<bool>,
}

impl Following<'_> {
    /// The same request gives the same call, from its beginning: what was shown is not shown again.
    pub(super) async fn until_the_end(self, request: impl Fn() -> RequestBuilder) -> Result<Exit, Stuck> {
        let mut output = Output::ours()?;
        let mut lost: Option<Instant> = None;
        loop {
            let why = match self.server.send(request()).await {
                Ok(response) => {
                    lost = None;
                    match self.read(Events::new(self.server, response), &mut output).await {
                        Err(Stuck::Failed(failure)) if failure.is(Code::ProviderOffline) => failure,
                        ended => return ended,
                    }
                }
                Err(failure) if failure.is(Code::ProviderOffline) && self.call.get().is_some() => failure,
                Err(failure) => return Err(failure.into()),
            };
            if lost.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                return Err(why.into());
            }
            sleep(BREATH).await;
        }
    }

    async fn read(&self, mut events: Events<'_>, output: &mut Output) -> Result<Exit, Stuck> {
        #[derive(Deserialize)]
        struct Started {
            call_id: String,
        }
        while let Some(event) = events.next().await? {
            match event.name.as_str() {
                "start" => {
                    let Started { call_id } = event.read()?;
                    let call = self.call.get_or_init(|| call_id);
                    if self.ending.get() {
                        cancel(self.server, Some(call)).await;
                    }
                }
                "exit" => return Ok(event.read()?),
                "error" => return Err(event.refusal().into()),
                _ => drop(output.show(&event).await?),
            }
        }
        Err(Failure::new(Code::ProviderOffline, "the server ended before the command did").into())
    }
}

/// It has ended, or will: either way there is nothing more to do.
pub(super) async fn cancel(server: &Server, call: Option<&String>) {
    if let Some(call) = call {
        let _ = server.post::<Value>(At(&["v1", "calls", call, "cancel"], &[]), &()).await;
    }
}
