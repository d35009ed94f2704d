//! The server that is spoken to: where it is, what opens it, and what it says when it refuses.

use std::{env, fs, path::PathBuf, time::Duration};

use cabana_model::Code;
use reqwest::{Client, Method, RequestBuilder, Response, Url, header};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use tower::{BoxError, util::AndThenLayer};

use crate::{
    data,
    failure::{Failure, tell},
    serve::lock::url_of_server,
};

const USUAL: &str = "http://127.0.0.1:7070";
const CONNECTING: Duration = Duration::from_secs(10);
/// Until a connection that says nothing is looked at.
const SILENCE: Duration = Duration::from_secs(30);

pub(super) struct Server {
    http: Client,
    url: Url,
    key: Option<String>,
    /// Another one than the key's own: the operator alone may name it.
    tenant: Option<String>,
}

/// Half of an address: its path, part by part, and what is asked.
#[derive(Clone, Copy)]
pub(super) struct At<'a>(pub(super) &'a [&'a str], pub(super) &'a [(&'a str, &'a str)]);

/// One page of a list.
#[derive(Deserialize)]
pub(super) struct Page {
    next_cursor: Option<String>,
    #[serde(flatten)]
    rest: serde_json::Map<String, Value>,
}

impl Server {
    /// Whether somebody said which one.
    pub(super) fn is_named() -> bool {
        env::var_os("CABANA_URL").is_some_and(|url| !url.is_empty())
    }

    pub(super) fn find(data: Option<PathBuf>) -> Result<Self, Failure> {
        // Another part of the process may have been first, with the same one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let set = |name| env::var(name).ok().filter(|text| !text.is_empty());
        let data = data::of_machine(data);
        let ours = data.as_ref().ok().and_then(|data| url_of_server(data));
        let text = set("CABANA_URL").or_else(|| ours.clone()).unwrap_or_else(|| USUAL.to_owned());
        let url = Url::parse(&text).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        let url = url.ok_or_else(|| Failure::bad(format!("CABANA_URL {text:?}: write it as {USUAL}")))?;
        let is_ours = ours.and_then(|ours| Url::parse(&ours).ok()).is_some_and(|ours| ours == url);
        // The operator's key goes to the operator's own server, and to nobody who merely has its port: so each connection is looked at,
        // since another account may have taken the port since the last one.
        let (key, guarded) = match (set("CABANA_API_KEY"), data) {
            (Some(key), _) => (Some(key), None),
            (None, Ok(data)) if is_ours => (fs::read_to_string(data.join("admin.key")).ok(), Some(data)),
            (None, _) => (None, None),
        };
        let near = is_loopback(&url);
        if url.scheme() == "http" && !near && key.is_some() {
            tell(&format!("warning: the key goes to {url} in the clear; https:// would hide it"));
        }
        let http = Client::builder()
            .connect_timeout(CONNECTING)
            .tcp_keepalive(SILENCE)
            .user_agent(concat!("cabana/", env!("CARGO_PKG_VERSION")))
            .http1_only() // a terminal is an upgrade, which HTTP/2 does not have
            .redirect(reqwest::redirect::Policy::none());
        // No proxy stands between us and our own machine.
        let http = if near { http.no_proxy() } else { http };
        // And without TLS nobody's certificates are looked for: a small container has none, and would be refused for that.
        let http = if near && url.scheme() == "http" { http.tls_certs_only([]) } else { http };
        let http = match guarded {
            Some(data) => http.connector_layer(only_to_server_of(data, text)),
            None => http,
        };
        let http = http.build().map_err(|error| Failure::new(Code::Internal, format!("HTTP: {}", causes(&error))))?;
        Ok(Self { http, url, key: key.map(|key| key.trim().to_owned()), tenant: set("CABANA_TENANT") })
    }

    fn address(&self, At(path, query): At<'_>) -> Url {
        let mut url = self.url.clone();
        if let Ok(mut parts) = url.path_segments_mut() {
            parts.pop_if_empty().extend(path);
        }
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        url
    }

    pub(super) fn request(&self, method: Method, at: At<'_>) -> RequestBuilder {
        let mut request = self.http.request(method, self.address(at));
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        match &self.tenant {
            Some(tenant) => request.header("Cabana-Tenant", tenant),
            None => request,
        }
    }

    /// An answer that is no refusal.
    pub(super) async fn send(&self, request: RequestBuilder) -> Result<Response, Failure> {
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        let status = response.status();
        if status.is_success() || status == reqwest::StatusCode::SWITCHING_PROTOCOLS {
            return Ok(response);
        }
        let text = response.text().await.unwrap_or_default();
        let told: Value = serde_json::from_str(&text).unwrap_or_default();
        if told["error"]["code"].is_null() {
            let why = format!("{} answered {status}, and not as a Cabana server does", self.url);
            return Err(Failure::new(Code::ProviderOffline, why).with_hint("Check CABANA_URL."));
        }
        let failure = Failure::of_told(&told);
        Err(match self.key {
            None if failure.is(Code::Unauthorized) => failure.with_hint(
                "Set CABANA_API_KEY. On the server's own machine, whoever may read admin.key in its data directory needs none.",
            ),
            _ => failure,
        })
    }

    fn unreachable(&self, error: &reqwest::Error) -> Failure {
        let failure =
            Failure::new(Code::ProviderOffline, format!("there is no answer from {}: {}", self.url, causes(error)));
        failure.with_hint("Start a server with `cabana serve`, or set CABANA_URL to where one is.")
    }

    pub(super) async fn get<T: DeserializeOwned>(&self, at: At<'_>) -> Result<T, Failure> {
        self.read(self.send(self.request(Method::GET, at)).await?).await
    }

    pub(super) async fn post<T: DeserializeOwned>(&self, at: At<'_>, body: &impl Serialize) -> Result<T, Failure> {
        self.read(self.send(with_json(self.request(Method::POST, at), body)).await?).await
    }

    pub(super) async fn delete(&self, at: At<'_>) -> Result<(), Failure> {
        self.send(self.request(Method::DELETE, at)).await.map(drop)
    }

    pub(super) async fn read<T: DeserializeOwned>(&self, response: Response) -> Result<T, Failure> {
        let bytes = response.bytes().await.map_err(|error| self.unreachable(&error))?;
        serde_json::from_slice(&bytes).map_err(|error| {
            Failure::new(Code::Internal, format!("the answer of {} is not understood: {error}", self.url))
        })
    }

    /// The next piece of a long answer.
    pub(super) async fn piece(&self, response: &mut Response) -> Result<Option<bytes::Bytes>, Failure> {
        response.chunk().await.map_err(|error| self.unreachable(&error))
    }

    /// All pages of a list, whose rows the answer has under `name`.
    pub(super) async fn all<T: DeserializeOwned>(
        &self,
        name: &str,
        path: &[&str],
        query: &[(&str, &str)],
    ) -> Result<Vec<T>, Failure> {
        let (mut rows, mut cursor) = (Vec::new(), None::<String>);
        loop {
            let mut query = query.to_vec();
            query.push(("limit", "1000"));
            query.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
            let mut page: Page = self.get(At(path, &query)).await?;
            let part = page.rest.remove(name).unwrap_or_default();
            let part: Vec<T> = serde_json::from_value(part)
                .map_err(|error| Failure::new(Code::Internal, format!("{name} of the answer: {error}")))?;
            rows.extend(part);
            match page.next_cursor {
                Some(next) => cursor = Some(next),
                None => return Ok(rows),
            }
        }
    }
}

pub(super) fn with_json(request: RequestBuilder, body: &impl Serialize) -> RequestBuilder {
    // What cannot be written as JSON is nothing that we send.
    let body = serde_json::to_vec(body).unwrap_or_default();
    request.header(header::CONTENT_TYPE, "application/json").body(body)
}

/// Refuses a new connection before anything is sent by it, unless its other end is the server of this data directory.
fn only_to_server_of<C>(
    data: PathBuf,
    url: String,
) -> AndThenLayer<impl FnOnce(C) -> std::future::Ready<Result<C, BoxError>> + Clone> {
    AndThenLayer::new(move |connection| {
        std::future::ready(match url_of_server(&data) {
            Some(found) if found == url => Ok(connection),
            _ => Err(format!("the server of {} is not there any more", data.display()).into()),
        })
    })
}

fn is_loopback(url: &Url) -> bool {
    match url.host_str() {
        Some("localhost") => true,
        Some(host) => {
            let plain = host.trim_start_matches('[').trim_end_matches(']');
            plain.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
        }
        None => false,
    }
}

/// The last cause says most: those above it name addresses and libraries.
fn causes(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    last.to_string()
}
