//! Bodies that are packed on their way, and how many of them are at a time.

use std::{
    io::{self, Write},
    sync::Arc,
};

use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, header},
    response::Response,
};
use bytes::{Buf, Bytes};
use cabana_runtime::{Tenant, TenantPermits};
use cabana_sandbox::{Error, Holder, Place, Places, Stream};
use flate2::{
    Compression,
    write::{GzDecoder, GzEncoder},
};
use futures_util::{StreamExt, stream};
use tokio::sync::Semaphore;

/// What a client takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accepted {
    Packed,
    Plain,
    Neither,
}

pub(super) fn accepted(headers: &HeaderMap) -> Accepted {
    let all = headers.get_all(header::ACCEPT_ENCODING);
    let all = all.iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    let (mut gzip, mut identity, mut others) = (None, None, None);
    for one in all {
        let (name, about) = one.split_once(';').unwrap_or((one, ""));
        let quality = about.trim().strip_prefix("q=").and_then(|quality| quality.trim().parse::<f32>().ok());
        let takes = quality.is_none_or(|quality| quality > 0.0);
        match name.trim().to_ascii_lowercase().as_str() {
            "gzip" | "x-gzip" => gzip = Some(takes),
            "identity" => identity = Some(takes),
            "*" => others = Some(takes),
            _ => {}
        }
    }
    match (gzip.or(others).unwrap_or(false), identity.or(others).unwrap_or(true)) {
        (true, _) => Accepted::Packed,
        (false, true) => Accepted::Plain,
        (false, false) => Accepted::Neither,
    }
}

/// Packed at once, in all and of one tenant.
const PACKED_AT_ONCE: usize = 4;
const PACKED_OF_TENANT: usize = 2;

/// Unpacked at once, in all and of one tenant: a little keeps a processor busy for long. The others wait for the next step.
const UNPACKED_AT_ONCE: usize = 2;
const UNPACKED_OF_TENANT: usize = 1;

/// What all packed bodies share, so that those of one tenant leave some to others.
pub(crate) struct Gzip {
    packers: Places,
    unpackers: Arc<Semaphore>,
    unpackers_of_tenants: TenantPermits,
}

impl Default for Gzip {
    fn default() -> Self {
        Self {
            packers: Places::with_each(PACKED_AT_ONCE, PACKED_OF_TENANT),
            unpackers: Arc::new(Semaphore::new(UNPACKED_AT_ONCE)),
            unpackers_of_tenants: TenantPermits::new(UNPACKED_OF_TENANT),
        }
    }
}

impl Gzip {
    /// As it is where too many are packed: that takes more of a processor than all else that a file takes, and a client that is sent it as it
    /// is has it, too.
    pub(super) fn pack(&self, tenant: &Tenant, response: Response) -> Response {
        match self.packers.take(&Holder::tenant(tenant.as_str())) {
            Some(place) => packed(response, place),
            None => response,
        }
    }

    /// What a client has packed. A little can become very much, so it is unpacked step by step, as fast as it is taken, off the
    /// workers that everybody waits for, and up to a bound: beyond it the body is `TooLarge`.
    pub(in crate::e2b) fn unpack(self: &Arc<Self>, tenant: &Tenant, body: Stream<Bytes>) -> Stream<Bytes> {
        self.unpack_within(tenant, body, FREE)
    }

    fn unpack_within(self: &Arc<Self>, tenant: &Tenant, body: Stream<Bytes>, free: u64) -> Stream<Bytes> {
        let unpacker = Unpacker { decoder: GzDecoder::new(Vec::new()), piece: Bytes::new(), packed: 0, plain: 0, free };
        let steps = Steps { gzip: self.clone(), tenant: tenant.clone() };
        let pieces = stream::try_unfold(Some((body, unpacker, steps)), |state| async {
            let Some((mut body, mut unpacker, steps)) = state else { return Ok(None) };
            loop {
                if unpacker.piece.is_empty() {
                    match body.next().await.transpose()? {
                        Some(next) => unpacker.take(next),
                        None => return Ok(Some((steps.run(move || unpacker.finish()).await?, None))),
                    }
                }
                let (stepped, out) = steps.run(move || unpacker.step()).await?;
                unpacker = stepped;
                if !out.is_empty() {
                    return Ok(Some((out, Some((body, unpacker, steps)))));
                }
            }
        });
        pieces.boxed()
    }
}

/// How long it becomes is known at its end.
fn packed(response: Response, place: Place) -> Response {
    let (mut parts, body) = response.into_parts();
    for name in [header::CONTENT_LENGTH, header::ACCEPT_RANGES, header::ETAG] {
        parts.headers.remove(name);
    }
    parts.headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    let packer = GzEncoder::new(Vec::new(), Compression::fast());
    let packed = stream::unfold(Some((body.into_data_stream(), packer, place)), |state| async {
        let (mut body, mut packer, place) = state?;
        loop {
            match body.next().await {
                None => return Some((packer.finish().map(Bytes::from), None)),
                Some(Err(error)) => return Some((Err(io::Error::other(error)), None)),
                Some(Ok(bytes)) => {
                    // Off the workers that everybody waits for.
                    let written = tokio::task::spawn_blocking(move || packer.write_all(&bytes).map(|()| packer));
                    packer = match written.await.map_err(io::Error::other).flatten() {
                        Err(error) => return Some((Err(error), None)),
                        Ok(packer) => packer,
                    };
                    if !packer.get_ref().is_empty() {
                        let out = std::mem::take(packer.get_mut());
                        return Some((Ok(out.into()), Some((body, packer, place))));
                    }
                }
            }
        }
    });
    Response::from_parts(parts, Body::from_stream(packed))
}

/// What one step makes of it at least, unless that ends it. A step is what a thread does at once, and what is held of it.
const STEP: usize = 64 << 10;

/// What a body may become whatever its length, and how many times its length beyond that. Zeros become a thousand times as much.
const FREE: u64 = 512 << 20;
const MAX_RATIO: u64 = 100;

/// The steps of one body.
struct Steps {
    gzip: Arc<Gzip>,
    tenant: Tenant,
}

impl Steps {
    /// Off the workers. Of one tenant one runs, however many of its bodies wait: those of another take turns with it, and not with each body.
    async fn run<T: Send + 'static>(
        &self,
        step: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let of_tenant = self.gzip.unpackers_of_tenants.acquire(&self.tenant).await;
        let of_all = self.gzip.unpackers.clone().acquire_owned().await;
        let of_all = of_all.map_err(|closed| Error::failed("unpacking a body", closed))?;
        let stepped = tokio::task::spawn_blocking(move || {
            let _until_done = (of_tenant, of_all); // also where its client has gone
            step()
        });
        stepped.await.map_err(|error| Error::failed("unpacking a body", error))?
    }
}

struct Unpacker {
    decoder: GzDecoder<Vec<u8>>,
    /// What came last and is not unpacked yet.
    piece: Bytes,
    packed: u64,
    plain: u64,
    free: u64,
}

impl Unpacker {
    fn take(&mut self, piece: Bytes) {
        self.packed += piece.len() as u64;
        self.piece = piece;
    }

    fn step(mut self) -> Result<(Self, Bytes), Error> {
        while !self.piece.is_empty() && self.decoder.get_ref().len() < STEP {
            // One write unpacks no more than the decoder's own buffer holds; `write_all` would unpack all of it.
            match self.decoder.write(&self.piece).map_err(|error| no_gzip(&error))? {
                0 => return Err(no_gzip(&io::ErrorKind::WriteZero.into())),
                taken => self.piece.advance(taken),
            }
        }
        let out = std::mem::take(self.decoder.get_mut());
        self.count(out.len())?;
        Ok((self, out.into()))
    }

    fn finish(mut self) -> Result<Bytes, Error> {
        self.decoder.try_finish().map_err(|error| no_gzip(&error))?;
        let rest = std::mem::take(self.decoder.get_mut());
        self.count(rest.len())?;
        Ok(rest.into())
    }

    fn count(&mut self, more: usize) -> Result<(), Error> {
        self.plain += more as u64;
        let cap = self.free.max(self.packed.saturating_mul(MAX_RATIO));
        if self.plain > cap { Err(Error::TooLarge { cap }) } else { Ok(()) }
    }
}

fn no_gzip(error: &io::Error) -> Error {
    Error::invalid("body", format!("it is no gzip: {error}"))
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            atomic::{AtomicUsize, Ordering},
            mpsc,
        },
        time::Duration,
    };

    use futures_util::TryStreamExt;
    use tokio::time::timeout;
    use tokio_util::task::TaskTracker;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn taken(value: &'static str) -> Accepted {
        accepted(&HeaderMap::from_iter([(header::ACCEPT_ENCODING, HeaderValue::from_static(value))]))
    }

    #[test]
    fn what_a_client_takes_is_what_it_says() {
        assert_eq!(accepted(&HeaderMap::new()), Accepted::Plain);
        assert_eq!(taken("gzip, deflate"), Accepted::Packed);
        assert_eq!(taken("identity"), Accepted::Plain);
        assert_eq!(taken("gzip;q=0"), Accepted::Plain);
        assert_eq!(taken("*"), Accepted::Packed);
        assert_eq!(taken("br, identity;q=0"), Accepted::Neither);
    }

    async fn plain(pieces: Vec<Bytes>) -> Result<Vec<u8>, Error> {
        let body = stream::iter(pieces).map(Ok).boxed();
        let pieces: Vec<Bytes> = Arc::<Gzip>::default().unpack(&Tenant::default(), body).try_collect().await?;
        Ok(pieces.concat())
    }

    #[tokio::test]
    async fn what_was_packed_is_unpacked_however_it_is_cut() {
        let text = b"much of the same ".repeat(5000);
        let mut packer = GzEncoder::new(Vec::new(), Compression::default());
        packer.write_all(&text).unwrap();
        let packed = packer.finish().unwrap();
        for cut in [1, 7, packed.len()] {
            let pieces = packed.chunks(cut).map(Bytes::copy_from_slice).collect();
            assert!(plain(pieces).await.unwrap() == text, "in pieces of {cut}");
        }
        assert!(plain(vec![Bytes::from_static(b"no gzip at all")]).await.is_err());
        assert!(plain(vec![Bytes::copy_from_slice(&packed[..packed.len() / 2])]).await.is_err());
    }

    fn packed_zeros(length: usize) -> Bytes {
        let mut packer = GzEncoder::new(Vec::new(), Compression::best());
        packer.write_all(&vec![0; length]).unwrap();
        packer.finish().unwrap().into()
    }

    #[tokio::test]
    async fn a_little_that_becomes_much_comes_in_small_pieces_and_lets_other_tasks_run() {
        let turns = Arc::new(AtomicUsize::new(0));
        let counted = turns.clone();
        let other = TaskTracker::new().spawn(async move {
            loop {
                counted.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        });
        let body = stream::iter([Ok(packed_zeros(32 << 20))]).boxed();
        let mut body = Arc::<Gzip>::default().unpack(&Tenant::default(), body);
        let mut length = 0;
        while let Some(piece) = body.next().await {
            let piece = piece.unwrap();
            assert!(piece.len() <= 2 * STEP, "{} bytes at once", piece.len());
            length += piece.len();
        }
        assert_eq!(length, 32 << 20);
        assert!(turns.load(Ordering::Relaxed) > 0, "the only worker was held until the end");
        other.abort();
    }

    #[tokio::test]
    async fn a_body_that_becomes_more_than_its_bound_is_refused() {
        let bomb = packed_zeros(4 << 20);
        let whole = async |packed: Bytes, free| {
            let body = stream::iter([Ok(packed)]).boxed();
            Arc::<Gzip>::default().unpack_within(&Tenant::default(), body, free).try_collect::<Vec<Bytes>>().await
        };
        let refused = whole(bomb.clone(), 1 << 20).await;
        assert!(matches!(refused.unwrap_err(), Error::TooLarge { cap } if cap == 1 << 20));
        assert_eq!(whole(bomb, 4 << 20).await.unwrap().iter().map(Bytes::len).sum::<usize>(), 4 << 20);
        // What has its length from its client, and not from the packing, has no bound of ours.
        let noise: Vec<u8> = (0_u32..1 << 16).flat_map(|n| n.wrapping_mul(2_654_435_769).to_le_bytes()).collect();
        let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
        packer.write_all(&noise).unwrap();
        assert!(whole(packer.finish().unwrap().into(), 0).await.unwrap().concat() == noise);
    }

    #[tokio::test]
    async fn many_packed_bodies_of_one_tenant_leave_a_turn_to_another() {
        let gzip = Arc::<Gzip>::default();
        let [one, two] = ["one", "two"].map(|name| Steps { gzip: gzip.clone(), tenant: Tenant::new(name).unwrap() });
        let one = Arc::new(one);
        let (mut ends, slow) = (Vec::new(), TaskTracker::new());
        for _ in 0..10 {
            let (end, ended) = mpsc::channel::<()>();
            let one = one.clone();
            ends.push(end);
            slow.spawn(async move { one.run(move || Ok(ended.recv())).await }); // until the test lets go
        }
        tokio::task::yield_now().await; // all of them have asked for a turn
        let step = timeout(PATIENCE, two.run(|| Ok("done")));
        assert_eq!(step.await.expect("it need not wait for those of another tenant").unwrap(), "done");
        drop(ends);
        slow.close();
        timeout(PATIENCE, slow.wait()).await.expect("all of them have their turn");
    }

    #[test]
    fn files_of_one_tenant_that_are_being_packed_leave_some_to_another() {
        let gzip = Gzip::default();
        let packs = |tenant: &str| {
            let response = gzip.pack(&Tenant::new(tenant).unwrap(), Response::new(Body::from("text")));
            response.headers().contains_key(header::CONTENT_ENCODING).then_some(response)
        };
        let slow: Vec<Response> = (0..10).filter_map(|_| packs("one")).collect();
        assert_eq!(slow.len(), PACKED_OF_TENANT);
        assert!(packs("two").is_some());
        drop(slow);
        assert!(packs("one").is_some(), "what has been sent makes room");
    }
}
