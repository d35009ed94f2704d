//! Forms of several parts (RFC 7578), one after the other: no more of one is held than it takes to see where it ends.

use bytes::{Bytes, BytesMut};
use cabana_sandbox::{Error, Result, Stream};
use futures_util::StreamExt;

/// Of the lines before a part.
const LONGEST_HEAD: usize = 16 << 10;
const LONGEST_BOUNDARY: usize = 200;
/// What a part is called that is taken.
const FILE: &str = "file";
/// Of all that is passed over in a form: it is written nowhere, so no other bound counts it.
const MAX_PASSED: usize = 64 << 10;

pub(super) struct Form {
    body: Stream<Bytes>,
    held: BytesMut,
    /// What stands before each part, and behind the last.
    delimiter: Vec<u8>,
    passed: usize,
}

/// What the lines before a part say.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) name: String,
    pub(super) filename: Option<String>,
}

impl Form {
    /// `None`: the content type is no form's.
    pub(super) fn new(content_type: &str, body: Stream<Bytes>) -> Option<Self> {
        let (kind, parameters) = content_type.split_once(';')?;
        let boundary = parameter(parameters, "boundary")?;
        let is_form = kind.trim().eq_ignore_ascii_case("multipart/form-data");
        if !is_form || boundary.is_empty() || boundary.len() > LONGEST_BOUNDARY {
            return None;
        }
        // Before the first delimiter there may be no line: then this is its end.
        let held = BytesMut::from(&b"\r\n"[..]);
        Some(Self { body, held, delimiter: format!("\r\n--{boundary}").into_bytes(), passed: 0 })
    }

    /// The next file, behind what is left of the part before. Parts with other names are passed over.
    pub(super) async fn next_file(&mut self) -> Result<Option<Head>> {
        loop {
            let head = self.next().await?;
            if head.as_ref().is_none_or(|head| head.name == FILE) {
                return Ok(head);
            }
        }
    }

    async fn next(&mut self) -> Result<Option<Head>> {
        while let Some(piece) = self.piece().await? {
            self.pass(piece.len())?;
        }
        drop(self.held.split_to(self.delimiter.len()));
        self.need(2).await?;
        if self.held.starts_with(b"--") {
            return Ok(None);
        }
        let end = loop {
            if let Some(end) = find(&self.held, b"\r\n\r\n") {
                break end;
            }
            if self.held.len() > LONGEST_HEAD {
                return Err(bad("the head of a part is too long"));
            }
            self.more().await?;
        };
        let lines = self.held.split_to(end + 4);
        let head = head(&String::from_utf8_lossy(&lines))?;
        if head.name != FILE {
            self.pass(lines.len())?;
        }
        Ok(Some(head))
    }

    fn pass(&mut self, bytes: usize) -> Result<()> {
        self.passed += bytes;
        if self.passed > MAX_PASSED {
            return Err(bad("more than 64 KiB of it belong to no file"));
        }
        Ok(())
    }

    /// A piece of the part; `None` at its end, in front of the delimiter.
    pub(super) async fn piece(&mut self) -> Result<Option<Bytes>> {
        loop {
            match find(&self.held, &self.delimiter) {
                Some(0) => return Ok(None),
                Some(end) => return Ok(Some(self.held.split_to(end).freeze())),
                None => {}
            }
            // The end of it may be the beginning of a delimiter.
            let sure = self.held.len().saturating_sub(self.delimiter.len() - 1);
            if sure > 0 {
                return Ok(Some(self.held.split_to(sure).freeze()));
            }
            self.more().await?;
        }
    }

    async fn need(&mut self, bytes: usize) -> Result<()> {
        while self.held.len() < bytes {
            self.more().await?;
        }
        Ok(())
    }

    async fn more(&mut self) -> Result<()> {
        let bytes = self.body.next().await.ok_or_else(|| bad("it ends in the middle of a part"))??;
        self.held.extend_from_slice(&bytes);
        Ok(())
    }
}

fn bad(why: &str) -> Error {
    Error::invalid("body", why)
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    let mut from = 0;
    while let Some(at) = bytes[from..].iter().position(|byte| *byte == wanted[0]) {
        from += at;
        if bytes[from..].starts_with(wanted) {
            return Some(from);
        }
        from += 1;
    }
    None
}

fn head(lines: &str) -> Result<Head> {
    let disposition = lines.split("\r\n").find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case("content-disposition").then(|| value.trim())
    });
    let (_, parameters) =
        disposition.and_then(|value| value.split_once(';')).ok_or_else(|| bad("a part has no name"))?;
    let name = parameter(parameters, "name").ok_or_else(|| bad("a part has no name"))?;
    Ok(Head { name, filename: parameter(parameters, "filename") })
}

/// `; name="value"`, where a value may hold what separates others.
fn parameter(text: &str, wanted: &str) -> Option<String> {
    let mut rest = text;
    loop {
        let (name, behind) = rest.split_once('=')?;
        let (value, behind) = match behind.strip_prefix('"') {
            Some(quoted) => unquoted(quoted)?,
            None => {
                let end = behind.find(';').unwrap_or(behind.len());
                (behind[..end].trim().to_owned(), &behind[end..])
            }
        };
        if name.trim_matches([';', ' ', '\t']).eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        rest = behind;
    }
}

/// Clients write a quote as `\"` or as `%22`.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let (mut value, mut letters) = (String::new(), text.char_indices());
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Some((value.replace("%22", "\""), &text[at + 1..])),
            '\\' => match letters.next()?.1 {
                escaped @ ('"' | '\\') => value.push(escaped),
                other => value.extend(['\\', other]),
            },
            letter => value.push(letter),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    async fn read(text: &str, cut: usize) -> Result<Vec<(Head, String)>> {
        let pieces: Vec<_> = text.as_bytes().chunks(cut).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
        let mut form = Form::new("multipart/form-data; boundary=xx", stream::iter(pieces).boxed()).unwrap();
        let mut parts = Vec::new();
        while let Some(head) = form.next().await? {
            let mut bytes = Vec::new();
            while let Some(piece) = form.piece().await? {
                bytes.extend_from_slice(&piece);
            }
            parts.push((head, String::from_utf8(bytes).unwrap()));
        }
        Ok(parts)
    }

    #[tokio::test]
    async fn parts_are_the_same_however_they_are_cut() {
        let form = "--xx\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/a; b/\\\"c%22.txt\"\r\n\
                    Content-Type: text/plain\r\n\r\none\r\n--x\r\n\r\n--xx\r\ncontent-disposition: form-data; name=x\r\n\r\n\r\n--xx--\r\n";
        for cut in 1..form.len() {
            let parts = read(form, cut).await.unwrap();
            let first = Head { name: "file".into(), filename: Some("/a; b/\"c\".txt".into()) };
            let second = Head { name: "x".into(), filename: None };
            assert_eq!(parts, [(first, "one\r\n--x\r\n".to_owned()), (second, String::new())], "in pieces of {cut}");
        }
    }

    #[tokio::test]
    async fn what_breaks_off_is_no_form() {
        let form = "--xx\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\none\r\n--xx--";
        for end in 0..form.len() - 1 {
            assert!(read(&form[..end], 5).await.is_err(), "cut at {end}");
        }
        assert!(read("--xx\r\n\r\nno name\r\n--xx--", 5).await.is_err());
    }

    #[tokio::test]
    async fn what_belongs_to_no_file_has_a_bound() {
        let part = |name: &str, length| {
            format!("--xx\r\nContent-Disposition: form-data; name={name}\r\n\r\n{}\r\n", "a".repeat(length))
        };
        let files = async |text: String| {
            let body = stream::iter([Ok(Bytes::from(text))]).boxed();
            let mut form = Form::new("multipart/form-data; boundary=xx", body).unwrap();
            let mut files = 0;
            while form.next_file().await?.is_some() {
                while form.piece().await?.is_some() {}
                files += 1;
            }
            Ok::<_, Error>(files)
        };
        let file = part("file", MAX_PASSED + 1);
        assert_eq!(files(format!("{}{file}{file}--xx--", part("x", 60 << 10))).await.unwrap(), 2);
        assert!(files(format!("{}{file}--xx--", part("x", MAX_PASSED + 1))).await.is_err(), "one long part");
        assert!(files(format!("{}{file}--xx--", part("x", 0).repeat(2000))).await.is_err(), "many empty parts");
        assert!(files(format!("{}{file}--xx--", "a".repeat(MAX_PASSED + 1))).await.is_err(), "before the first part");
    }

    #[test]
    fn only_a_form_is_one() {
        for kind in ["multipart/form-data", "multipart/form-data; boundary=", "text/plain; boundary=xx", ""] {
            assert!(Form::new(kind, stream::empty().boxed()).is_none(), "{kind}");
        }
        assert!(Form::new("multipart/form-data; charset=utf-8; boundary=\"x x\"", stream::empty().boxed()).is_some());
    }
}
