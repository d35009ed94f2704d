//! One delivery: signed, sent, and judged by the status of the answer. What else is answered nobody reads.

use std::{
    net::IpAddr,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use cabana_egress::Dialer;
use cabana_model::Time;
use hmac::{Hmac, Mac};
use http_body_util::Full;
use hyper::{Request, body::Bytes, client::conn::http1, ext::on_informational, header};
use hyper_util::rt::TokioIo;
use sha2::Sha256;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::target::Target;

/// For all of it.
const PATIENCE: Duration = Duration::from_secs(10);
/// The head of an answer.
const HEAD: usize = 16 << 10;
/// Informational ones before an answer: each is a few bytes of a stranger, and is parsed.
const MAX_INFORMATIONAL: usize = 16;
/// Of what is told about a try.
const LONGEST: usize = 300;

pub(super) struct Letter<'a> {
    pub(super) event: &'a str,
    pub(super) kind: &'a str,
    pub(super) body: &'a str,
    pub(super) secret: &'a str,
    pub(super) at: Time,
}

/// Whether it has arrived, and what was answered or why nothing was.
pub(super) async fn post(
    dialer: &Dialer,
    to: &Target,
    letter: &Letter<'_>,
    judge: impl Fn(IpAddr) -> Result<(), String>,
) -> (bool, String) {
    let sent = timeout(PATIENCE, exchange(dialer, to, letter, judge)).await;
    let (delivered, mut said) = match sent {
        Ok(Ok(status)) => (status.is_success(), status.to_string()),
        Ok(Err(why)) => (false, why),
        Err(_) => (false, format!("there was no answer within {} seconds", PATIENCE.as_secs())),
    };
    said.truncate(said.floor_char_boundary(LONGEST));
    (delivered, said)
}

async fn exchange(
    dialer: &Dialer,
    to: &Target,
    letter: &Letter<'_>,
    judge: impl Fn(IpAddr) -> Result<(), String>,
) -> Result<hyper::StatusCode, String> {
    let mut request = Request::post(&to.path)
        .header(header::HOST, &to.authority)
        .header(header::USER_AGENT, concat!("cabana/", env!("CARGO_PKG_VERSION")))
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::CONNECTION, "close")
        .header("cabana-event-id", letter.event)
        .header("cabana-event-type", letter.kind)
        .header("cabana-signature", signature(letter.secret, letter.at, letter.body))
        .body(Full::new(Bytes::copy_from_slice(letter.body.as_bytes())))
        .map_err(|error| error.to_string())?;
    let stream = dialer.dial(&to.host, to.port, to.secure, judge).await.map_err(|why| to.unreached(&why))?;
    let no_answer = |error: hyper::Error| format!("there was no whole answer: {error}");
    let mut builder = http1::Builder::new();
    builder.max_buf_size(HEAD);
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(no_answer)?;
    let (informational, babbles) = (AtomicUsize::new(0), CancellationToken::new());
    let too_many = babbles.clone();
    on_informational(&mut request, move |_| {
        if informational.fetch_add(1, Ordering::Relaxed) >= MAX_INFORMATIONAL {
            too_many.cancel();
        }
    });
    // The connection is driven here and ends here: a redirect is not followed, and a body not read.
    let mut answer = std::pin::pin!(sender.send_request(request));
    let answer = tokio::select! {
        biased;
        () = babbles.cancelled() => None,
        answer = &mut answer => Some(answer),
        _ = connection => Some(answer.await), // which knows why it ended
    };
    // They may have come with their end.
    let Some(answer) = answer.filter(|_| !babbles.is_cancelled()) else {
        return Err(format!(
            "there was no whole answer: more than {MAX_INFORMATIONAL} informational responses came before it"
        ));
    };
    answer.map(|answer| answer.status()).map_err(no_answer)
}

/// Of the time and the very bytes: nobody who heard it once can say it again later.
fn signature(secret: &str, at: Time, body: &str) -> String {
    let at = at.as_second();
    // Any length of a key is a good one.
    let mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).map(|mac| mac.chain_update(format!("{at}.")));
    let digest = mac.map(|mac| mac.chain_update(body).finalize().into_bytes()).unwrap_or_default();
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("t={at},v1={hex}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signature_is_the_hmac_of_time_and_body() {
        // printf '1800000000.{}' | openssl dgst -sha256 -hmac whsec_test
        let at = Time::from_second(1_800_000_000).unwrap();
        let signed = signature("whsec_test", at, "{}");
        let (time, digest) = signed.split_once(",v1=").unwrap();
        assert_eq!(time, "t=1800000000");
        assert_eq!(digest, "482e6337ac5272392d375c6fdc4d52a7e615dc2facedab0ffe155ddfd6a56e66");
        assert_ne!(signature("whsec_other", at, "{}"), signed);
        assert_ne!(signature("whsec_test", at, "{ }"), signed);
    }
}
