//! Server-sent events, as a server of ours writes them.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use cabana_model::Code;
use reqwest::Response;
use serde::Deserialize;

use super::server::Server;
use crate::failure::Failure;

/// No event of ours is nearly as long: whoever sends more is no server of ours.
const LONGEST: usize = 16 << 20;

pub(super) struct Events<'a> {
    server: &'a Server,
    response: Response,
    rest: Vec<u8>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) name: String,
    pub(super) data: String,
}

/// A chunk of what a command says.
#[derive(Deserialize)]
pub(super) struct Said {
    pub(super) offset: u64,
    text: Option<String>,
    b64: Option<String>,
}

impl Said {
    pub(super) fn bytes(self) -> Result<Vec<u8>, Failure> {
        match (self.text, self.b64) {
            (Some(text), _) => Ok(text.into_bytes()),
            (None, Some(text)) => STANDARD.decode(text).map_err(|error| garbled(&error)),
            (None, None) => Ok(Vec::new()),
        }
    }
}

fn garbled(why: &dyn std::fmt::Display) -> Failure {
    Failure::new(Code::Internal, format!("the server's events are not understood: {why}"))
}

impl Event {
    pub(super) fn read<T: serde::de::DeserializeOwned>(&self) -> Result<T, Failure> {
        serde_json::from_str(&self.data).map_err(|error| garbled(&error))
    }

    /// Of an event that tells an error.
    pub(super) fn refusal(&self) -> Failure {
        Failure::of_told(&serde_json::from_str(&self.data).unwrap_or_default())
    }
}

impl<'a> Events<'a> {
    pub(super) fn new(server: &'a Server, response: Response) -> Self {
        Self { server, response, rest: Vec::new() }
    }

    /// `None` when the server says no more.
    pub(super) async fn next(&mut self) -> Result<Option<Event>, Failure> {
        loop {
            while let Some(block) = take_block(&mut self.rest) {
                if let Some(event) = parse(&block) {
                    return Ok(Some(event));
                }
            }
            if self.rest.len() > LONGEST {
                return Err(garbled(&"one of them has no end"));
            }
            match self.server.piece(&mut self.response).await? {
                Some(piece) => self.rest.extend_from_slice(&piece),
                None => return Ok(None),
            }
        }
    }
}

/// What stands before the first empty line.
fn take_block(rest: &mut Vec<u8>) -> Option<Vec<u8>> {
    let end = rest.windows(2).position(|pair| pair == b"\n\n")?;
    let block = rest.drain(..end + 2).collect();
    Some(block)
}

/// `None` for what only keeps the connection alive.
fn parse(block: &[u8]) -> Option<Event> {
    let (mut name, mut data) = (String::new(), Vec::new());
    for line in String::from_utf8_lossy(block).lines() {
        match line.split_once(':') {
            Some(("event", value)) => name = value.trim_start().to_owned(),
            Some(("data", value)) => data.push(value.strip_prefix(' ').unwrap_or(value).to_owned()),
            _ => {}
        }
    }
    (!name.is_empty()).then(|| Event { name, data: data.join("\n") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_found_wherever_the_pieces_end() {
        let text = ": alive\n\nevent: stdout\ndata: {\"a\":1}\n\nevent: exit\ndata: x\ndata: y\n\n";
        let expected = [("stdout", "{\"a\":1}"), ("exit", "x\ny")];
        for piece in 1..text.len() {
            let (mut rest, mut found) = (Vec::new(), Vec::new());
            for part in text.as_bytes().chunks(piece) {
                rest.extend_from_slice(part);
                while let Some(block) = take_block(&mut rest) {
                    found.extend(parse(&block));
                }
            }
            let found: Vec<_> = found.iter().map(|event| (event.name.as_str(), event.data.as_str())).collect();
            assert_eq!(found, expected, "pieces of {piece}");
        }
    }
}
