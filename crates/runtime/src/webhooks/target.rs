//! The address of a webhook. What two readers could read differently is none.

use cabana_egress::{Host, NotReached};

const LONGEST: usize = 2000;

const NO_PUBLIC_NAME: &str = "there is no such host name, or it leads to an address that is not public: only the operator can allow that, \
                              with webhooks.allow";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(super) secure: bool,
    pub(super) host: Host,
    pub(super) port: u16,
    /// As it was written: what the header `Host` says.
    pub(crate) authority: String,
    /// With what is asked, from the first slash on.
    pub(super) path: String,
}

impl Target {
    pub(crate) fn read(url: &str) -> crate::Result<Self> {
        Self::parse(url).map_err(|why| crate::Error::invalid("url", why))
    }

    fn parse(url: &str) -> Result<Self, String> {
        if url.len() > LONGEST {
            return Err(format!("is longer than {LONGEST} characters"));
        }
        if !url.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte)) {
            return Err(
                "holds a character that an address cannot have: write it as %XX, and a host name in punycode".into()
            );
        }
        let (scheme, rest) = url.split_once("://").ok_or("must begin with https:// or http://")?;
        let secure = match scheme.to_ascii_lowercase().as_str() {
            "https" => true,
            "http" => false,
            _ => return Err("must begin with https:// or http://".into()),
        };
        let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err("holds a user or a password: deliveries are signed instead, with the webhook's secret".into());
        }
        if path.contains('#') {
            return Err("holds a fragment, which nobody would be sent".into());
        }
        let (host, port) = Host::parse_authority(authority).map_err(|why| format!("has no good host: {why}"))?;
        let port = port.unwrap_or(if secure { 443 } else { 80 });
        if port < 1024 && port != 80 && port != 443 {
            return Err(format!("names port {port}: only 80, 443 and those from 1024 on are for the web"));
        }
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Self { secure, host, port, authority: authority.to_owned(), path })
    }

    /// Why it was not reached, as its tenant may know it: which inner names the operator has, and what they stand for, is in no answer.
    pub(super) fn unreached(&self, why: &NotReached) -> String {
        let is_name = matches!(self.host, Host::Name(_));
        match why {
            NotReached::Missing | NotReached::LookupFailed | NotReached::Refused(_) if is_name => NO_PUBLIC_NAME.into(),
            why => why.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_address_has_a_host_a_port_and_a_path() {
        for (url, host, port, path) in [
            ("https://a.com", "a.com", 443, "/"),
            ("http://a.com/", "a.com", 80, "/"),
            ("HTTPS://A.com:8443/b/c?d=e%20", "a.com", 8443, "/b/c?d=e%20"),
            ("https://a.com?x=1", "a.com", 443, "/?x=1"),
            ("http://[2606::1]:8080/x", "2606::1", 8080, "/x"),
            // All of them are what they are.
            ("http://2130706433:8080/", "127.0.0.1", 8080, "/"),
            ("http://0x7f.1/", "127.0.0.1", 80, "/"),
            ("http://0177.0.0.1/", "127.0.0.1", 80, "/"),
            ("http://[::ffff:127.0.0.1]/", "::ffff:127.0.0.1", 80, "/"),
        ] {
            let target = Target::parse(url).unwrap();
            assert_eq!(
                (target.host.to_string(), target.port, target.path.as_str()),
                (host.into(), port, path),
                "{url}"
            );
        }
    }

    #[test]
    fn what_is_no_address_for_a_webhook_is_refused_with_why() {
        for (url, says) in [
            ("", "https://"),
            ("a.com/hook", "https://"),
            ("ftp://a.com/", "https://"),
            ("file:///etc/passwd", "https://"),
            ("javascript:alert(1)", "https://"),
            ("https://", "no good host"),
            ("https:///path", "no good host"),
            ("https://user:password@a.com/", "password"),
            ("https://a.com@127.0.0.1/", "password"),
            ("https://a.com/#part", "fragment"),
            ("https://a.com#@127.0.0.1/", "fragment"),
            ("https://a.com\\@127.0.0.1/", "character"),
            ("https://a.com/a b", "character"),
            ("https://a.com/\r\nHost: b", "character"),
            ("https://bücher.example/", "punycode"),
            ("https://a.com:0/", "port"),
            ("https://a.com:70000/", "port"),
            ("https://a.com:/", "port"),
            ("https://a.com:+443/", "port"),
            ("https://a.com:22/", "port 22"),
            ("http://a.com:25/", "port 25"),
            ("https://[::1/", "IPv6"),
            ("https://[fe80::1%25eth0]/", "IPv6"),
            ("https://1.2.3.4.5/", "number"),
            ("https://-a.com/", "host"),
            ("https://a..com/", "host"),
        ] {
            let told = Target::parse(url).unwrap_err();
            assert!(told.contains(says), "{url}: {told}");
        }
        assert!(Target::parse(&format!("https://a.com/{}", "a".repeat(LONGEST))).unwrap_err().contains("longer"));
    }

    proptest! {
        #[test]
        fn whatever_is_given_nothing_breaks_and_what_is_taken_is_one_line(url in "\\PC{0,60}|https?://[a-z0-9.:@/?#\\[\\]%]{0,40}") {
            if let Ok(target) = Target::parse(&url) {
                prop_assert!(target.path.starts_with('/') && target.path.is_ascii());
                prop_assert!(!target.authority.contains(['/', '@', '?', '#', ' ']));
            }
        }
    }
}
