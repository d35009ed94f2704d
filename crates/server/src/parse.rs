//! Reads what clients send as JSON: long bodies off the workers that everybody waits for, a few at a time, and none that is made of
//! more values than any request needs.

use bytes::Bytes;
use cabana_runtime::{Code, MemoryCharge, Tenant, Turns};

use crate::error::Refused;

/// What is no longer than this is read in less time than it takes to wake another thread.
const AT_ONCE: usize = 64 << 10;
/// Of one body. Each takes many times as much memory as the two or three bytes that it can be sent with.
const MAX_VALUES: usize = 64 << 10;

/// A body that is there as a whole.
pub(crate) struct Received {
    pub(crate) bytes: Bytes,
    /// Whose it is, where that is known.
    pub(crate) tenant: Option<Tenant>,
    /// Its part of the memory for bodies, until it was read.
    pub(crate) memory: Option<MemoryCharge>,
}

/// Who may read a long body now.
pub(crate) struct Parsers(Turns);

impl Default for Parsers {
    fn default() -> Self {
        Self(Turns::new(2, 4))
    }
}

impl Parsers {
    /// What `parse` makes of it.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        body: Received,
        parse: impl FnOnce(&[u8]) -> T + Send + 'static,
    ) -> Result<T, Refused> {
        if body.bytes.len() <= AT_ONCE {
            return Ok(parse(&body.bytes));
        }
        let ended = || Refused::new(Code::ServerBusy, "the server is ending");
        let turn = self.0.take(body.tenant.as_ref()).await;
        let read = tokio::task::spawn_blocking(move || {
            let _until_read = (turn, body.memory); // also where the client has gone
            if has_more_values(&body.bytes, MAX_VALUES) {
                let why = format!("has more than {MAX_VALUES} values");
                return Err(Refused::invalid("body", why));
            }
            Ok(parse(&body.bytes))
        });
        read.await.map_err(|_| ended())?
    }
}

/// By its commas and brackets outside of texts. What is no JSON is found out by who reads it.
fn has_more_values(json: &[u8], most: usize) -> bool {
    let (mut values, mut in_text, mut rest) = (0, false, json.iter());
    while let Some(byte) = rest.next() {
        match byte {
            b'"' => in_text = !in_text,
            b'\\' if in_text => drop(rest.next()),
            b',' | b'[' | b'{' if !in_text => values += 1,
            _ => {}
        }
        if values > most {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use std::thread::{self, ThreadId};

    use super::*;

    fn body(bytes: impl Into<Bytes>) -> Received {
        Received { bytes: bytes.into(), tenant: Tenant::new("one").ok(), memory: None }
    }

    async fn thread_that_reads(length: usize) -> ThreadId {
        let read = Parsers::default().read(body(vec![b' '; length]), |_| thread::current().id()).await;
        read.unwrap_or_else(|refused| panic!("{:?}", refused.told()))
    }

    #[tokio::test]
    async fn long_bodies_are_read_off_the_workers() {
        assert_eq!(thread_that_reads(AT_ONCE).await, thread::current().id());
        assert_ne!(thread_that_reads(AT_ONCE + 1).await, thread::current().id());
    }

    #[tokio::test]
    async fn a_body_of_very_many_values_is_refused_unread() {
        let list = |values: usize| format!("[{}]", vec!["\"\""; values].join(","));
        let parsers = Parsers::default();
        let read = parsers.read(body(list(MAX_VALUES)), |_| ()).await;
        assert!(read.is_ok(), "the control");
        let read = parsers.read(body(list(MAX_VALUES + 1)), |_| panic!("it is read")).await;
        assert!(read.is_err_and(|refused: Refused| refused.told().0 == 400));
    }

    #[test]
    fn what_stands_in_texts_is_no_value() {
        let many = ",[{".repeat(100);
        let json = format!(r#"{{"a": "{many}\"{many}\\", "b": 1}}"#);
        assert!(serde_json::from_str::<serde_json::Value>(&json).is_ok());
        assert!(!has_more_values(json.as_bytes(), 2) && has_more_values(json.as_bytes(), 1));
    }
}
