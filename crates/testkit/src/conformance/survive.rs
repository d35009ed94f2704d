//! What only some providers can: old output again, and bytes to a port inside.

use std::sync::Arc;

use bytes::Bytes;
use cabana_sandbox::{Event, Output, Reattached, Status};
use futures_util::TryStreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{
    command::Running,
    stage::{Stage, pattern},
    verdict::{Failure, Outcome, ensure, same},
};

pub(super) async fn output_is_replayed_from_any_position(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let spec = room.shell("seq 1 1000; until [ -e go ]; do sleep 0.02; done; echo late; exit 2");
    let id = spec.id;
    let mut first = room.start(&stage, spec).await?;
    first.says("\n1000\n").await?;
    let whole = first.text.clone();
    drop(first);

    let Reattached::Running(process) = room.sandbox.reattach(&id, 0).await? else {
        return Err(Failure::new("a running command is not found as running"));
    };
    let mut again = Running::new(&stage, process);
    again.says("\n1000\n").await?;
    same!(again.text, whole, "from the beginning while it runs");
    room.write("go", "").await?;
    same!(again.exit().await?.status, Status::Code(2));
    let whole = whole + "late\n";

    for from in [0, 1, 1000, whole.len() - 1, whole.len()] {
        let Reattached::Exited(exit, outputs) = room.sandbox.reattach(&id, from as u64).await? else {
            return Err(Failure::new("an ended command is not found as ended"));
        };
        same!(exit.status, Status::Code(2));
        let outputs: Vec<Output> = outputs.try_collect().await?;
        let mut end = from as u64;
        for output in &outputs {
            same!(output.at, end, "each chunk begins where the last one ended");
            end += output.bytes.len() as u64;
        }
        let bytes: Vec<Bytes> = outputs.into_iter().map(|output| output.bytes).collect();
        same!(bytes.concat(), whole.as_bytes()[from..], "from {from}");
    }
    Ok(())
}

const ECHO: &str = r"
import socket
s = socket.socket()
s.bind(('127.0.0.1', 0))
s.listen()
print('port', s.getsockname()[1], flush=True)
while True:
    c, _ = s.accept()
    while d := c.recv(65536):
        c.sendall(d)
    c.close()
";

pub(super) async fn connect_reaches_a_port_inside(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    match room.sh(&stage, "command -v python3").await?.status {
        Status::Code(0) => {}
        Status::Code(_) => {
            println!("the base has no python3 to listen with");
            return Ok(());
        }
        other => return Err(Failure::new(format_args!("looking for python3 ended with {other:?}"))),
    }
    let mut server = room.start(&stage, room.argv(&["python3", "-c", ECHO])).await?;
    server.says("\n").await?;
    let port: u16 = server.text.trim().trim_start_matches("port ").parse()?;
    for _ in 0..3 {
        let stream = stage.soon("the connection", room.sandbox.connect(port)).await??;
        let (mut reader, mut writer) = tokio::io::split(stream);
        let content = pattern(1024 * 1024);
        let writing = async {
            writer.write_all(&content).await?;
            writer.shutdown().await?;
            Ok::<_, Failure>(())
        };
        let reading = async {
            let mut back = Vec::new();
            reader.read_to_end(&mut back).await?;
            Ok(back)
        };
        let both = futures_util::future::try_join(writing, reading);
        let ((), back) = stage.soon("all of it back", both).await??;
        ensure!(back == content, "other bytes came back: {} of {}", back.len(), content.len());
    }
    server.process.control.signal(9, cabana_sandbox::Target::Tree).await?;
    while let Some(Event::Output(_)) = server.next().await? {}
    Ok(())
}

pub(super) async fn connect_to_a_closed_port_is_an_error(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    match stage.soon("the refusal", room.sandbox.connect(1)).await? {
        Ok(_) => ensure!(false, "a port where nobody listens was reached"),
        Err(error) => ensure!(error.to_string().contains('1'), "the error does not name the port: {error}"),
    }
    Ok(())
}
