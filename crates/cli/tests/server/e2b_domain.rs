//! By TLS and by name, as E2B's clients come where nothing else is said: `--dev-tls` makes what that needs.

use std::{fs, process::Command};

use futures_util::StreamExt;
use reqwest::{Certificate, Client, ClientBuilder, Response, Version};
use serde_json::{Value, json};

use crate::stage::{PATIENCE, Server, good, until};

const DOMAIN: &str = "sbx.test";

/// A server with names, and a client that trusts it and finds every name of it at this machine.
struct Named {
    server: Server,
    port: String,
}

impl Named {
    fn start() -> Self {
        let server = Server::start_with(&["--dev-tls", "--preview-domain", DOMAIN]);
        let port = server.url.rsplit(':').next().unwrap().to_owned();
        assert!(server.url.starts_with("https://"));
        Self { server, port }
    }

    fn authority(&self) -> Certificate {
        Certificate::from_pem(&fs::read(self.server.data().join("dev-tls/ca.pem")).unwrap()).unwrap()
    }

    fn client(&self, names: &[&str]) -> ClientBuilder {
        let _ = crate::stage::client(); // it brings the provider of TLS
        let here = format!("127.0.0.1:{}", self.port).parse().unwrap();
        let builder = Client::builder().tls_certs_only([self.authority()]);
        names.iter().fold(builder, |builder, name| builder.resolve(name, here))
    }

    fn at(&self, name: &str, path: &str) -> String {
        format!("https://{name}:{}{path}", self.port)
    }

    async fn made(&self, more: Value) -> Value {
        let name = format!("api.{DOMAIN}");
        let mut asked = json!({ "templateID": "base", "timeout": 300, "secure": true });
        asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let request = self.client(&[&name]).build().unwrap().post(self.at(&name, "/sandboxes"));
        good(request.header("X-API-KEY", &self.server.key).json(&asked).send().await.unwrap()).await
    }
}

#[tokio::test]
async fn every_name_below_the_domain_leads_to_its_place() {
    let named = Named::start();
    let made = named.made(json!({})).await;
    assert_eq!(made["domain"], format!("{DOMAIN}:{}", named.port));
    let (id, token) = (made["sandboxID"].as_str().unwrap(), made["envdAccessToken"].as_str().unwrap());
    let [agent, port, shared] =
        [format!("49983-{id}.{DOMAIN}"), format!("8000-{id}.{DOMAIN}"), format!("sandbox.{DOMAIN}")];
    let client = named.client(&[&agent, &port, &shared]).build().unwrap();
    let start = json!({ "process": { "cmd": "python3", "args": ["-m", "http.server", "8000"] }, "stdin": false });
    let body = [&[0][..], &u32::try_from(start.to_string().len()).unwrap().to_be_bytes(), start.to_string().as_bytes()]
        .concat();
    let begun = client.post(named.at(&agent, "/process.Process/Start")).header("X-Access-Token", token);
    let begun = begun.header("content-type", "application/connect+json").body(body).send().await.unwrap();
    assert_eq!((begun.status().as_u16(), begun.version()), (200, Version::HTTP_2));
    let visit = || client.get(named.at(&port, "/")).send();
    until(|| async { visit().await.unwrap().status().is_success().then_some(()) }).await;
    let by_header = client.get(named.at(&shared, "/")).header("E2b-Sandbox-Id", id).header("E2b-Sandbox-Port", "8000");
    assert_eq!(by_header.send().await.unwrap().status(), 200);
    // What SDKs are told is all that they need, and it names this very file.
    let said = named.server.said().join("\n");
    let authority = named.server.data().join("dev-tls/ca.pem").display().to_string();
    for word in [format!("E2B_DOMAIN={DOMAIN}:{}", named.port), format!("SSL_CERT_FILE={authority}")] {
        assert!(said.contains(&word), "{said}");
    }
    assert!(said.contains(&format!("NODE_EXTRA_CA_CERTS={authority}")));
}

/// Until it breaks off.
async fn broken(response: Response) -> String {
    let mut body = response.bytes_stream();
    let reading = async {
        loop {
            match body.next().await {
                Some(Ok(_)) => {}
                Some(Err(error)) => return format!("{error:?}"),
                None => return "it came to its end".to_owned(),
            }
        }
    };
    tokio::time::timeout(PATIENCE, reading).await.unwrap()
}

#[tokio::test]
async fn a_stream_of_a_killed_sandbox_is_reset_and_the_others_of_its_connection_are_not() {
    let named = Named::start();
    for http2 in [false, true] {
        let (first, second) = (named.made(json!({})).await, named.made(json!({})).await);
        let agent = |made: &Value| format!("49983-{}.{DOMAIN}", made["sandboxID"].as_str().unwrap());
        let (one, two) = (agent(&first), agent(&second));
        let client = named.client(&[&one, &two]);
        let client = if http2 { client } else { client.http1_only() }.build().unwrap();
        let start = json!({ "process": { "cmd": "sleep", "args": ["600"] }, "stdin": false }).to_string();
        let body = [&[0][..], &u32::try_from(start.len()).unwrap().to_be_bytes(), start.as_bytes()].concat();
        let begin = |name: &str, token: &Value| {
            let request = client.post(named.at(name, "/process.Process/Start")).body(body.clone());
            request.header("X-Access-Token", token.as_str().unwrap()).header("content-type", "application/connect+json")
        };
        let stream = begin(&one, &first["envdAccessToken"]).send().await.unwrap();
        let version = stream.version();
        assert_eq!(version, if http2 { Version::HTTP_2 } else { Version::HTTP_11 });
        let others = begin(&two, &second["envdAccessToken"]).send().await.unwrap();
        let end = format!("{}/sandboxes/{}", named.server.url, first["sandboxID"].as_str().unwrap());
        let killed = named.client(&[]).build().unwrap().delete(end).header("X-API-KEY", &named.server.key);
        assert_eq!(killed.send().await.unwrap().status(), 204);
        let how = broken(stream).await;
        assert!(how.contains("Reset") || how.contains("reset"), "{version:?}: {how}");
        let health = client.get(named.at(&two, "/health")).send().await.unwrap();
        assert_eq!((health.status().as_u16(), others.status().as_u16()), (204, 200));
        drop(others);
    }
}

#[tokio::test]
async fn what_it_made_serves_again_and_vouches_for_nothing_else() {
    let mut named = Named::start();
    let read = |named: &Named| fs::read(named.server.data().join("dev-tls/ca.pem")).unwrap();
    let first = read(&named);
    named.server.stop();
    named.server.run();
    assert_eq!(read(&named), first);
    let port = named.server.url.rsplit(':').next().unwrap().to_owned();
    let named = Named { port, ..named };
    let other = named.client(&["other.test", "deep.er.sbx.test"]).build().unwrap();
    for name in ["other.test", "deep.er.sbx.test"] {
        other.get(named.at(name, "/livez")).send().await.unwrap_err();
    }
    let local = named.client(&[]).build().unwrap();
    for name in ["127.0.0.1", "localhost"] {
        assert_eq!(local.get(named.at(name, "/livez")).send().await.unwrap().status(), 200);
    }
    let mut openssl = Command::new("openssl");
    let shown =
        openssl.args(["x509", "-noout", "-text", "-in"]).arg(named.server.data().join("dev-tls/ca.pem")).output();
    let shown = String::from_utf8(shown.unwrap().stdout).unwrap();
    let permitted = shown.split("Permitted:").nth(1).unwrap();
    assert!(permitted.contains("DNS:sbx.test") && permitted.contains("IP:127.0.0.1"), "{shown}");
}

#[test]
fn settings_that_contradict_it_are_told() {
    for (flags, word) in [
        (&["--dev-tls", "--preview-domain", "localhost"][..], "cabana.localhost"),
        (&["--dev-tls", "--preview-domain", "none"], "preview_domain"),
        (&["--dev-tls", "--tls-cert", "a", "--tls-key", "b"], "tls_cert"),
    ] {
        let data = tempfile::tempdir().unwrap();
        let serve =
            Command::new(env!("CARGO_BIN_EXE_cabana")).arg("serve").args(flags).arg("--data").arg(data.path()).output();
        let serve = serve.unwrap();
        assert!(!serve.status.success());
        assert!(String::from_utf8_lossy(&serve.stderr).contains(word), "{serve:?}");
    }
}
