//! A proxy of the operator's: what is allowed goes through it, whatever the client, and what is refused never reaches it.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
};

use cabana_engine::NetworkSettings;
use cabana_sandbox::NetworkPolicy;
use cabana_testkit::world::{Certificate, World, in_world};

use super::{BOTH, FOUR, FOUR_ADDRESS, OTHER, SIX_ADDRESS, listed, open_with, sites};

const PROXY: &str = "proxy.example";
const PROXY_ADDRESS: &str = "93.184.216.99";

/// A proxy of HTTP that wants a user and keeps what it was asked for.
fn http_proxy(world: &World) -> Arc<Mutex<Vec<String>>> {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let kept = asked.clone();
    world.inside(move || {
        let listener = TcpListener::bind((PROXY_ADDRESS, 3128)).unwrap();
        let world = std::fs::File::open("/proc/thread-self/ns/net").unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (kept, world) = (kept.clone(), world.try_clone().unwrap());
                std::thread::spawn(move || {
                    let kind = Some(rustix::thread::LinkNameSpaceType::Network);
                    rustix::thread::move_into_link_name_space(std::os::fd::AsFd::as_fd(&world), kind).unwrap();
                    serve(stream, &kept)
                });
            }
        });
    });
    asked
}

fn serve(mut stream: TcpStream, kept: &Mutex<Vec<String>>) -> Option<()> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).ok()?;
    kept.lock().unwrap().push(head.lines().next()?.to_owned());
    if !head.contains("Proxy-Authorization: Basic bWU6c2VjcmV0\r\n") {
        return stream.write_all(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n").ok();
    }
    let mut outer = TcpStream::connect(head.split(' ').nth(1)?).ok()?;
    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").ok()?;
    let (mut up_from, mut up_to) = (stream.try_clone().ok()?, outer.try_clone().ok()?);
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut up_from, &mut up_to);
        let _ = up_to.shutdown(std::net::Shutdown::Write);
    });
    let _ = std::io::copy(&mut outer, &mut stream);
    stream.shutdown(std::net::Shutdown::Write).ok()
}

/// Takes the TLS off.
const FRONT: &str = r#"
import asyncio, ssl, sys
address, certificate, key = sys.argv[1:]
async def carry(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data); await writer.drain()
    except OSError: pass
    finally: writer.close()
async def serve(reader, writer):
    back = await asyncio.open_connection(address, 3128)
    await asyncio.gather(carry(reader, back[1]), carry(back[0], writer))
async def main():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); context.load_cert_chain(certificate, key)
    await (await asyncio.start_server(serve, address, 3129, ssl=context)).serve_forever()
asyncio.run(main())
"#;

/// The same behind TLS.
fn https_proxy(world: &World) {
    let Certificate { certificate, key } = world.certificate(&[PROXY]);
    let files = [certificate.to_str().unwrap(), key.to_str().unwrap()];
    world.start("front", &["python3", "-c", FRONT, PROXY_ADDRESS, files[0], files[1]]);
    world.wait_for(&format!("{PROXY_ADDRESS}:3129"));
}

fn settings(world: &World, upstream: &str) -> NetworkSettings {
    NetworkSettings { upstream: Some(upstream.to_owned()), ca: Some(world.authority()), ..NetworkSettings::default() }
}

#[test]
fn what_is_allowed_goes_through_an_upstream_proxy_in_the_clear_and_over_tls() {
    in_world(async |world| {
        sites(&world);
        world.site(PROXY, &[PROXY_ADDRESS]);
        let asked = http_proxy(&world);
        https_proxy(&world);
        for url in ["http://me:secret@proxy.example:3128", "https://me:secret@proxy.example:3129"] {
            let inside = open_with(settings(&world, url), listed()).await;
            asked.lock().unwrap().clear();
            for site in BOTH {
                let got = inside.user(&format!("curl -sS https://{site}/hello.txt")).await.ok();
                assert_eq!(got, "hello from the world", "{url} {site}");
            }
            let wanted =
                [format!("CONNECT {FOUR_ADDRESS}:443 HTTP/1.1"), format!("CONNECT [{SIX_ADDRESS}]:443 HTTP/1.1")];
            assert_eq!(*asked.lock().unwrap(), wanted, "by the address that was judged");
            asked.lock().unwrap().clear();
            inside.user(&format!("curl -sS https://{OTHER}/hello.txt")).await.refused();
            inside.set(NetworkPolicy::Public).await;
            inside.user("curl -sS http://10.77.0.1/").await.refused();
            assert!(asked.lock().unwrap().is_empty(), "the proxy is not asked for what is refused");
            inside.end().await;
        }
    });
}

#[test]
fn a_proxy_that_does_not_let_us_in_is_an_unreachable_server() {
    in_world(async |world| {
        sites(&world);
        world.site(PROXY, &[PROXY_ADDRESS]);
        http_proxy(&world);
        https_proxy(&world);
        let trusted = settings(&world, "http://me:wrong@proxy.example:3128");
        let upstream = Some("https://me:secret@proxy.example:3129".into());
        let untrusted = NetworkSettings { upstream, ..NetworkSettings::default() };
        for settings in [trusted, untrusted] {
            let inside = open_with(settings, NetworkPolicy::Public).await;
            let page = inside.user(&format!("curl -sS -x http://127.0.0.1:65502 http://{FOUR}/")).await.ok();
            assert!(page.contains("Cabana may connect to four.example:80, but it does not answer"), "{page}");
            inside.end().await;
        }
    });
}
