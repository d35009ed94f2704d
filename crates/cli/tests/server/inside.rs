//! A web server inside a sandbox, and ways to it.

use reqwest::{
    Client, Method, RequestBuilder,
    header::{HOST, HeaderMap},
    redirect::Policy,
};
use serde_json::{Value, json};
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream, connect_async,
    tungstenite::{Error, client::IntoClientRequest, handshake::client::Response},
};

use crate::stage::{Server, good, until};

pub(crate) type Socket = WebSocketStream<MaybeTlsStream<tokio::net::TcpStream>>;

/// The sandbox of this scope, in which it listens on the port 8000.
pub(crate) async fn listening(server: &Server, scope: &str) -> String {
    let sandbox = server.ensure(scope).await["id"].as_str().unwrap().to_owned();
    let script = include_str!("inside.py");
    let argv = json!({ "argv": ["python3", "-c", script, "8000"], "background": true });
    good(server.post(&format!("/v1/sandboxes/{sandbox}/exec"), &argv).send().await.unwrap()).await;
    until(|| async { at_path(server, &sandbox, "echo").send().await.unwrap().status().is_success().then_some(()) })
        .await;
    sandbox
}

/// Redirects are looked at, and not followed.
pub(crate) fn client() -> Client {
    let _ = rustls::crypto::ring::default_provider().install_default(); // another test may have been first
    Client::builder().redirect(Policy::none()).build().unwrap()
}

/// By path, with the key.
pub(crate) fn at_path(server: &Server, sandbox: &str, path: &str) -> RequestBuilder {
    by_path(server, sandbox, path).bearer_auth(&server.key)
}

/// By path, with nothing.
pub(crate) fn by_path(server: &Server, sandbox: &str, path: &str) -> RequestBuilder {
    client().get(format!("{}/p/{sandbox}/8000/{path}", server.url))
}

/// By host name, with nothing.
pub(crate) fn by_host(server: &Server, method: Method, sandbox: &str, path: &str) -> RequestBuilder {
    client().request(method, format!("{}/{path}", server.url)).header(HOST, host_of(server, sandbox))
}

pub(crate) fn host_of(server: &Server, sandbox: &str) -> String {
    let port = server.url.rsplit(':').next().unwrap();
    format!("8000-{sandbox}.localhost:{port}")
}

/// What the inside saw of a header, each time it came.
pub(crate) fn seen<'a>(told: &'a Value, name: &str) -> Vec<&'a str> {
    let pairs = told["headers"].as_array().unwrap();
    pairs.iter().filter(|pair| pair[0] == name).map(|pair| pair[1].as_str().unwrap()).collect()
}

pub(crate) fn all<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a str> {
    headers.get_all(name).iter().map(|value| value.to_str().unwrap()).collect()
}

pub(crate) async fn open_socket(
    server: &Server,
    path: &str,
    headers: &[(&'static str, &str)],
) -> Result<(Socket, Response), Error> {
    let mut request = format!("{}{path}", server.url.replace("http", "ws")).into_client_request().unwrap();
    for (name, value) in headers {
        request.headers_mut().insert(*name, value.parse().unwrap());
    }
    connect_async(request).await
}
