//! An authority of the world's own, servers with its certificates, and files over HTTPS.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{World, run};

/// Files of a server: its certificate and its key.
pub struct Certificate {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl World {
    /// The authority's own certificate; made at the first call.
    pub fn authority(&self) -> PathBuf {
        let (certificate, key) = (self.dir().join("ca.pem"), self.dir().join("ca.key"));
        if !certificate.exists() {
            let words =
                "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=world";
            let mut words: Vec<&str> = words.split(' ').collect();
            words.extend(["-keyout", text(&key), "-out", text(&certificate)]);
            run(&words);
        }
        certificate
    }

    pub fn certificate(&self, names: &[&str]) -> Certificate {
        let (authority, own) = (self.authority(), self.dir().join(names[0]));
        let (request, extensions) = (own.with_extension("csr"), own.with_extension("ext"));
        let made = Certificate { certificate: own.with_extension("crt"), key: own.with_extension("key") };
        let alternative: Vec<String> = names.iter().map(|name| format!("DNS:{name}")).collect();
        fs::write(&extensions, format!("subjectAltName={}\n", alternative.join(","))).expect("a file");
        let asking = "openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=server -keyout";
        let mut words: Vec<&str> = asking.split(' ').collect();
        words.extend([text(&made.key), "-out", text(&request)]);
        run(&words);
        let authority_key = self.dir().join("ca.key");
        let words = ["openssl", "x509", "-req", "-days", "2", "-CAcreateserial"];
        let files = [
            ("-in", &request),
            ("-CA", &authority),
            ("-CAkey", &authority_key),
            ("-extfile", &extensions),
            ("-out", &made.certificate),
        ];
        let files = files.iter().flat_map(|(flag, path)| [*flag, text(path)]);
        run(&words.into_iter().chain(files).collect::<Vec<_>>());
        made
    }

    /// Serves a directory over HTTPS, on all addresses of the world and port 443. `site` is any of its addresses.
    pub fn https(&self, files: &Path, site: &str, names: &[&str]) {
        let Certificate { certificate, key } = self.certificate(names);
        let log = format!("https-{}", names[0]);
        self.start(&log, &["python3", "-c", HTTPS, text(files), text(&certificate), text(&key)]);
        self.wait_for(&format!("{site}:443"));
    }
}

const HTTPS: &str = include_str!("https.py");

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}
