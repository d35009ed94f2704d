//! `cabana template` at a server: the same verbs, over the interface.

use std::{io::stdin, os::fd::AsFd, path::Path};

use cabana_model::Code;
use reqwest::{Body, Method, header};
use serde::Deserialize;
use serde_json::Value;
use tokio::fs::File;

use super::{
    progress::{Bar, done},
    server::{At, Server},
    table,
    upload::body,
};
use crate::{
    failure::Failure,
    run::variables,
    template::{Add, Args, Verb, show, show_all},
};

#[derive(Deserialize)]
struct Templates {
    templates: Vec<Value>,
}

pub(super) async fn work(args: Args, server: &Server) -> Result<(), Failure> {
    match args.verb {
        Verb::Add(add) => send(add, server).await,
        Verb::Build(build) => {
            let why =
                "a server starts no programs of its machine, so it builds no template: build it where the server is";
            let hint = format!("Run there: cabana --data DIR template build {}", build.recipe);
            Err(Failure::new(Code::Unsupported, why).with_hint(hint))
        }
        Verb::Ls { json } => {
            let Templates { templates } = server.get(At(&["v1", "templates"], &[])).await?;
            show_all(&templates, json);
            Ok(())
        }
        Verb::Inspect { name, json } => {
            show(&server.get(At(&["v1", "templates", &name], &[])).await?, json);
            Ok(())
        }
        Verb::Rm { name } => {
            server.delete(At(&["v1", "templates", &name], &[])).await?;
            table::print(&format!("{name}\n"));
            Ok(())
        }
    }
}

async fn send(add: Add, server: &Server) -> Result<(), Failure> {
    let env = variables(&add.env)?;
    if add.reference.is_some() {
        return Err(Failure::bad("--ref: a server takes tars alone, and no images with names"));
    }
    let bar = Bar::start(&add.name, length(&add.from)?.unwrap_or(0));
    let (tar, length) = opened(&add.from, &bar).await?;
    check_free(&add.name, server).await?;
    let mut query = vec![("name", add.name.as_str())];
    query.extend(add.user.as_deref().map(|user| ("user", user)));
    query.extend(add.workdir.as_deref().map(|dir| ("workdir", dir)));
    query.extend(add.sudo.then_some(("sudo", "true")));
    query.extend(add.start.as_deref().map(|start| ("start", start)));
    query.extend(add.ready.as_deref().map(|ready| ("ready", ready)));
    let mut request = server.request(Method::POST, At(&["v1", "templates"], &query));
    request = request.header(header::CONTENT_TYPE, "application/x-tar").body(tar);
    if let Some(length) = length {
        request = request.header(header::CONTENT_LENGTH, length);
    }
    if !env.is_empty() {
        request = request.header("Cabana-Env", serde_json::to_vec(&env).unwrap_or_default());
    }
    server.send(request).await?;
    drop(bar);
    done(1, length.unwrap_or(0));
    Ok(())
}

/// Before much is sent for nothing.
async fn check_free(name: &str, server: &Server) -> Result<(), Failure> {
    match server.get::<Value>(At(&["v1", "templates", name], &[])).await {
        Ok(_) => {
            let why = format!("there is a template {name} already: remove it first or choose another name");
            Err(Failure::new(Code::TemplateExists, why))
        }
        Err(failure) if failure.is(Code::TemplateNotFound) => Ok(()),
        Err(failure) => Err(failure),
    }
}

/// Of what is no file, nobody knows it.
fn length(from: &str) -> Result<Option<u64>, Failure> {
    if from == "-" {
        return Ok(None);
    }
    let bad = |why: &str| Failure::bad(format!("--from {from}: {why}"));
    if from.starts_with("debian:") {
        return Err(bad(
            "a server makes no Debian: pipe `mmdebstrap SUITE -` to --from -, or add it where the server is",
        ));
    }
    if ["oci:", "docker-archive:"].iter().any(|image| from.starts_with(image)) {
        return Err(bad("a server takes no image in layers: add it where the server is, or export a container of it"));
    }
    let info = Path::new(from).metadata().map_err(|error| bad(&error.to_string()))?;
    match info.is_dir() {
        true => Err(bad("a directory is not sent as it is: pipe `tar --numeric-owner -C DIR -c .` to --from -")),
        false => Ok(info.is_file().then_some(info.len())),
    }
}

async fn opened(from: &str, bar: &Bar) -> Result<(Body, Option<u64>), Failure> {
    let file = match from {
        "-" => stdin().as_fd().try_clone_to_owned().map(|stdin| File::from_std(stdin.into())),
        from => File::open(from).await,
    };
    let file = file.map_err(|error| Failure::bad(format!("--from {from}: {error}")))?;
    Ok((body(file, bar), length(from)?))
}
