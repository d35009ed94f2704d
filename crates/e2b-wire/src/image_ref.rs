//! How an image of containers is named, in the one spelling that all others mean.

use std::{fmt, str::FromStr};

const REGISTRY: &str = "docker.io";
const LONGEST: usize = 512;

/// `registry/path:tag`, or `registry/path@digest`. Two references that mean the same image are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ImageRef(String);

/// It is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadImageRef;

impl fmt::Display for BadImageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an image is named as in ubuntu:22.04 or registry.example.com/team/image:tag")
    }
}

impl std::error::Error for BadImageRef {}

impl ImageRef {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ImageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for ImageRef {
    type Err = BadImageRef;

    fn from_str(text: &str) -> Result<Self, BadImageRef> {
        if text.len() > LONGEST {
            return Err(BadImageRef);
        }
        let (named, digest) = match text.split_once('@') {
            Some((named, digest)) => (named, Some(digest)),
            None => (text, None),
        };
        // A colon before the last slash is that of a port.
        let (named, tag) = match named.rsplit_once(':') {
            Some((named, tag)) if !tag.contains('/') => (named, Some(tag)),
            _ => (named, None),
        };
        let (registry, path) = match named.split_once('/') {
            Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => (first, rest),
            _ => (REGISTRY, named),
        };
        let registry = if registry == "index.docker.io" { REGISTRY } else { registry }.to_ascii_lowercase();
        let path = match registry == REGISTRY && !path.contains('/') {
            true => format!("library/{path}"),
            false => path.to_owned(),
        };
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        let is_plain = |word: &str| !word.is_empty() && word.bytes().all(plain);
        let is_host = !registry.is_empty() && registry.bytes().all(|byte| plain(byte) || byte == b':');
        let is_path = path.split('/').all(|part| is_plain(part) && part.bytes().all(|byte| !byte.is_ascii_uppercase()));
        let is_digest = |digest: &str| {
            digest.split_once(':').is_some_and(|(kind, hex)| {
                is_plain(kind) && hex.len() >= 32 && hex.bytes().all(|byte| byte.is_ascii_hexdigit())
            })
        };
        if !is_host || !is_path || !tag.is_none_or(is_plain) || !digest.is_none_or(is_digest) {
            return Err(BadImageRef);
        }
        // What it holds is all that counts: the tag beside it is for people.
        Ok(Self(match digest {
            Some(digest) => format!("{registry}/{path}@{}", digest.to_ascii_lowercase()),
            None => format!("{registry}/{path}:{}", tag.unwrap_or("latest")),
        }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> String {
        text.parse::<ImageRef>().unwrap().to_string()
    }

    #[test]
    fn an_image_has_one_spelling() {
        for (text, whole) in [
            ("ubuntu", "docker.io/library/ubuntu:latest"),
            ("ubuntu:22.04", "docker.io/library/ubuntu:22.04"),
            ("library/ubuntu:22.04", "docker.io/library/ubuntu:22.04"),
            ("docker.io/ubuntu:22.04", "docker.io/library/ubuntu:22.04"),
            ("index.docker.io/library/ubuntu:22.04", "docker.io/library/ubuntu:22.04"),
            ("e2bdev/base", "docker.io/e2bdev/base:latest"),
            ("localhost/x", "localhost/x:latest"),
            ("localhost:5000/x:1", "localhost:5000/x:1"),
            ("Registry.Example.com/team/x", "registry.example.com/team/x:latest"),
            ("123.dkr.ecr.us-east-1.amazonaws.com/x:latest", "123.dkr.ecr.us-east-1.amazonaws.com/x:latest"),
        ] {
            assert_eq!(read(text), whole);
        }
        let digest = format!("sha256:{}", "0a".repeat(32));
        assert_eq!(read(&format!("x:1@{digest}")), format!("docker.io/library/x@{digest}"));
        assert_eq!(
            read(&format!("x@{}", digest.to_ascii_uppercase().replace("SHA", "sha"))),
            read(&format!("x:2@{digest}"))
        );
    }

    #[test]
    fn what_names_no_image_is_refused() {
        for bad in
            ["", ":", "a:", "/a", "a/", "a//b", "UPPER", "a b", "a@", "a@sha256:xyz", "a@b@c", "a:b c", "../x/", "ü"]
        {
            assert_eq!(bad.parse::<ImageRef>(), Err(BadImageRef), "{bad:?}");
        }
        assert_eq!("a".repeat(LONGEST + 1).parse::<ImageRef>(), Err(BadImageRef));
    }

    proptest! {
        /// Once more changes nothing, and no text makes it fail otherwise than by saying so.
        #[test]
        fn the_one_spelling_is_its_own(text in "[a-zA-Z0-9.:/@_-]{0,40}|\\PC{0,20}") {
            if let Ok(read) = text.parse::<ImageRef>() {
                prop_assert_eq!(read.as_str().parse::<ImageRef>(), Ok(read.clone()));
            }
        }

        #[test]
        fn who_leaves_out_what_is_usual_means_the_same(name in "[a-z0-9]{1,8}", tag in "[a-z0-9.]{1,8}") {
            let whole = format!("docker.io/library/{name}:{tag}").parse::<ImageRef>();
            prop_assert_eq!(format!("{name}:{tag}").parse::<ImageRef>(), whole.clone());
            prop_assert_eq!(format!("docker.io/{name}:{tag}").parse::<ImageRef>(), whole);
        }
    }
}
