//! Snapshots of stopped sandboxes, with few files and with many, and sandboxes that begin from one.

use std::time::Instant;

use anyhow::Result;
use cabana_sandbox::Base;

use crate::{
    rhythm::{Rhythm, Turns, nanoseconds},
    subject::{Subject, run},
};

pub(crate) const MANY: usize = 100_000;
pub(crate) const FORKS: usize = 10;

/// Each time of another sandbox, since a snapshot takes the files out of the sandbox's own layer.
pub(crate) async fn stopped(subject: &Subject, files: usize, samples: usize) -> Result<Vec<f64>> {
    let mut turns = Turns::of_long(samples);
    while turns.next().await {
        let sandbox = subject.create().await?;
        run(sandbox.as_ref(), &["/usr/bin/python3", "-c", &make(files)]).await?;
        subject.stop(sandbox.as_ref()).await?;
        let start = Instant::now();
        subject.snapshot(sandbox.as_ref()).await?;
        turns.tell(nanoseconds(start));
        subject.destroy(sandbox.as_ref()).await?;
    }
    Ok(turns.told())
}

/// So many sandboxes one after the other, each until it is ready: from a snapshot with some files, or from nothing.
pub(crate) async fn forks(subject: &Subject, from_snapshot: bool, rhythm: Rhythm) -> Result<Vec<f64>> {
    let base = if from_snapshot { Some(some_snapshot(subject).await?) } else { None };
    let mut turns = rhythm.turns();
    while turns.next().await {
        let mut made = Vec::with_capacity(FORKS);
        let start = Instant::now();
        for _ in 0..FORKS {
            made.push(match &base {
                Some(base) => subject.create_from(base).await?,
                None => subject.create().await?,
            });
        }
        turns.tell(nanoseconds(start));
        for sandbox in made {
            subject.destroy(sandbox.as_ref()).await?;
        }
    }
    Ok(turns.told())
}

async fn some_snapshot(subject: &Subject) -> Result<Base> {
    let sandbox = subject.create().await?;
    run(sandbox.as_ref(), &["/usr/bin/python3", "-c", &make(1000)]).await?;
    subject.stop(sandbox.as_ref()).await?;
    let base = subject.snapshot(sandbox.as_ref()).await?;
    subject.destroy(sandbox.as_ref()).await?;
    Ok(base)
}

/// A thousand files to a directory.
fn make(files: usize) -> String {
    format!(
        "import os
for number in range({files}):
    if number % 1000 == 0: os.makedirs(f'/home/user/{{number}}'); os.chdir(f'/home/user/{{number}}')
    open(str(number), 'w').close()"
    )
}
