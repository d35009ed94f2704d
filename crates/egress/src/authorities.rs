//! Certificates that are trusted, from the text in which they are passed around.

use std::sync::Arc;

use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
};

/// Where distributions keep the authorities that they trust.
const BUNDLES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// Whom a server or a proxy that is spoken to over TLS must be certified by.
#[derive(Clone, Debug)]
pub struct Authorities(RootCertStore);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthoritiesError {
    #[error("it holds no certificate; give a file with `-----BEGIN CERTIFICATE-----` in it")]
    None,
    #[error("its certificate number {0} cannot be read: the text between BEGIN and END is damaged")]
    Damaged(usize),
    #[error("its certificate number {0} is none that could certify another")]
    Unusable(usize),
}

impl Authorities {
    /// Nobody.
    pub fn none() -> Authorities {
        Authorities(RootCertStore::empty())
    }

    /// As the system keeps those that it trusts, in PEM. As much of it as there is: a host may have none.
    pub fn of_system() -> Vec<u8> {
        let mut bundles = BUNDLES.iter().filter_map(|path| std::fs::read(path).ok());
        bundles.next().unwrap_or_default()
    }

    /// Every certificate must be a good one: a setting that is half understood is worse than none.
    pub fn parse(pem: &[u8]) -> Result<Authorities, AuthoritiesError> {
        let mut trusted = RootCertStore::empty();
        for (number, certificate) in (1..).zip(CertificateDer::pem_slice_iter(pem)) {
            let certificate = certificate.map_err(|_| AuthoritiesError::Damaged(number))?;
            trusted.add(certificate).map_err(|_| AuthoritiesError::Unusable(number))?;
        }
        if trusted.is_empty() { Err(AuthoritiesError::None) } else { Ok(Authorities(trusted)) }
    }

    /// Adds what can be read of a system's bundle, in which some are always odd.
    #[must_use]
    pub fn and_those_of(mut self, pem: &[u8]) -> Authorities {
        self.0.add_parsable_certificates(CertificateDer::pem_slice_iter(pem).flatten());
        self
    }

    pub(crate) fn client(&self) -> Result<Arc<ClientConfig>, rustls::Error> {
        let versions = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let trusting = versions.with_safe_default_protocol_versions()?.with_root_certificates(self.0.clone());
        Ok(Arc::new(trusting.with_no_client_auth()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_without_a_good_certificate_is_refused() {
        assert_eq!(Authorities::parse(b"").unwrap_err(), AuthoritiesError::None);
        assert_eq!(Authorities::parse(b"hello\n").unwrap_err(), AuthoritiesError::None);
        let key = b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        assert_eq!(Authorities::parse(key).unwrap_err(), AuthoritiesError::None);
        let rubbish = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert_eq!(Authorities::parse(rubbish).unwrap_err(), AuthoritiesError::Unusable(1));
        let cut_off = b"-----BEGIN CERTIFICATE-----\nAAAA\n";
        assert_eq!(Authorities::parse(cut_off).unwrap_err(), AuthoritiesError::Damaged(1));
    }
}
