//! Certificates for a first try: an authority of this server's own, and one certificate for every name below the domain.
//!
//! Clients that insist on TLS and on names can so be pointed at a server without anybody to ask for a certificate. Whoever trusts
//! the authority trusts it for these names alone: it can vouch for no others.

use std::{
    fs::{self, OpenOptions},
    io::{self, ErrorKind, Write},
    net::{IpAddr, Ipv4Addr},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use cabana_model::Code;
use cabana_server::Tls;
use jiff::{Timestamp, ToSpan as _, tz::TimeZone};
use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, Issuer, KeyPair, KeyUsagePurpose, NameConstraints, SanType, date_time_ymd,
};
use serde::{Deserialize, Serialize};
use tokio_util::task::TaskTracker;

use crate::failure::Failure;

/// How long both are valid, in days. Clients refuse certificates that are good for much more than a year.
const VALID: i64 = 397;
/// What is left of it when they are made anew.
const LEFT: i64 = 30;
/// How often a server looks that goes on for that long.
const LOOKS: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Clone)]
pub(super) struct DevTls {
    home: PathBuf,
    domain: String,
}

/// What the files beside it hold.
#[derive(Serialize, Deserialize, PartialEq)]
struct About {
    domain: String,
    until: Timestamp,
}

impl DevTls {
    pub(super) fn new(data: &Path, domain: String) -> Self {
        Self { home: data.join("dev-tls"), domain }
    }

    /// Of the authority: what clients are to trust.
    pub(super) fn authority(&self) -> PathBuf {
        self.home.join("ca.pem")
    }

    pub(super) fn chain(&self) -> PathBuf {
        self.home.join("cert.pem")
    }

    pub(super) fn key(&self) -> PathBuf {
        self.home.join("key.pem")
    }

    /// They are there, for this domain, and for a while. True: they were made now.
    pub(super) fn provide(&self, now: Timestamp) -> Result<bool, Failure> {
        if self.is_good(now) {
            return Ok(false);
        }
        self.make(now).map_err(|error| {
            Failure::new(Code::Internal, format!("making certificates in {}: {error}", self.home.display()))
        })?;
        Ok(true)
    }

    fn is_good(&self, now: Timestamp) -> bool {
        let about = fs::read(self.about()).ok().and_then(|text| serde_json::from_slice::<About>(&text).ok());
        let all_there = [self.authority(), self.chain(), self.key()].iter().all(|path| path.is_file());
        all_there && about.is_some_and(|about| about.domain == self.domain && days_after(now, LEFT) < about.until)
    }

    fn about(&self) -> PathBuf {
        self.home.join("about.json")
    }

    /// What they are about is written last: where that is missing, they are made again.
    fn make(&self, now: Timestamp) -> io::Result<()> {
        fs::create_dir_all(&self.home)?;
        match fs::remove_file(self.about()) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let until = days_after(now, VALID);
        let drawn = KeyPair::generate().map_err(io::Error::other)?;
        let authority = authority(&self.domain, now, until);
        let of_authority = authority.self_signed(&drawn).map_err(io::Error::other)?;
        // Its key is needed for this one certificate, and is kept nowhere: nobody can take it.
        let issuer = Issuer::new(authority, drawn);
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let own = own(&self.domain, now, until).map_err(io::Error::other)?;
        let own = own.signed_by(&key, &issuer).map_err(io::Error::other)?;
        write(&self.authority(), &of_authority.pem(), 0o644)?;
        write(&self.key(), &key.serialize_pem(), 0o600)?;
        write(&self.chain(), &format!("{}{}", own.pem(), of_authority.pem()), 0o644)?;
        let about = About { domain: self.domain.clone(), until };
        write(&self.about(), &serde_json::to_string(&about)?, 0o644)
    }

    /// For a server that goes on for longer than they do. Clients have to be told of the new authority.
    pub(super) fn renew(self, tls: Tls) {
        TaskTracker::new().spawn(async move {
            loop {
                tokio::time::sleep(LOOKS).await;
                match self.provide(Timestamp::now()) {
                    Ok(false) => {}
                    Ok(true) => match tls.read_again(&self.chain(), &self.key()) {
                        Ok(_) => {
                            tracing::warn!(ca = %self.authority().display(), "the certificates were made anew: clients have to trust the new authority");
                        }
                        Err(error) => tracing::error!(%error, "the new certificates cannot be read"),
                    },
                    Err(failure) => tracing::error!(%failure, "the certificates could not be made anew"),
                }
            }
        });
    }
}

fn days_after(now: Timestamp, days: i64) -> Timestamp {
    now.checked_add((24 * days).hours()).unwrap_or(Timestamp::MAX)
}

fn authority(domain: &str, now: Timestamp, until: Timestamp) -> CertificateParams {
    let mut params = dated(CertificateParams::default(), now, until);
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("Cabana, for {domain} alone"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let names = [domain, "localhost"].map(|name| GeneralSubtree::DnsName(name.to_owned()));
    let here = GeneralSubtree::IpAddress(CidrSubnet::from_v4_prefix(Ipv4Addr::LOCALHOST.octets(), 32));
    let permitted_subtrees = names.into_iter().chain([here]).collect();
    params.name_constraints = Some(NameConstraints { permitted_subtrees, excluded_subtrees: Vec::new() });
    params
}

fn own(domain: &str, now: Timestamp, until: Timestamp) -> Result<CertificateParams, rcgen::Error> {
    let names = [domain.to_owned(), format!("*.{domain}"), "localhost".to_owned()];
    let mut params = dated(CertificateParams::new(names)?, now, until);
    params.subject_alt_names.push(SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)));
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, domain);
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    Ok(params)
}

/// By whole days, from the one before: clocks differ.
fn dated(mut params: CertificateParams, from: Timestamp, until: Timestamp) -> CertificateParams {
    let day = |time: Timestamp| {
        let date = time.to_zoned(TimeZone::UTC).date();
        date_time_ymd(date.year().into(), date.month().unsigned_abs(), date.day().unsigned_abs())
    };
    (params.not_before, params.not_after) = (day(days_after(from, -1)), day(until));
    params
}

/// Whole or not at all, and readable by nobody else for no moment where it is to be so.
fn write(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let draft = path.with_extension("new");
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&draft)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(draft, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn they_are_made_once_and_again_before_they_end_or_for_another_domain() {
        let home = tempfile::tempdir().unwrap();
        let (of, now) = (|domain: &str| DevTls::new(home.path(), domain.to_owned()), Timestamp::now());
        let one = of("sbx.test");
        let read = || [one.authority(), one.chain(), one.key()].map(|path| fs::read_to_string(path).unwrap());
        assert!(one.provide(now).unwrap() && !one.provide(now).unwrap());
        let first = read();
        assert!(!one.provide(days_after(now, VALID - LEFT - 1)).unwrap());
        assert_eq!(read(), first);
        assert!(one.provide(days_after(now, VALID - LEFT)).unwrap());
        let second = read();
        assert!(second.iter().zip(&first).all(|(new, old)| new != old));
        assert!(of("other.test").provide(now).unwrap());
        assert_ne!(read(), second);
        assert_eq!(fs::metadata(one.key()).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!read().concat().contains("ca.key"));
        Tls::read(&one.chain(), &one.key()).unwrap();
    }

    #[test]
    fn one_that_was_half_made_is_made_again() {
        let home = tempfile::tempdir().unwrap();
        let (one, now) = (DevTls::new(home.path(), "sbx.test".to_owned()), Timestamp::now());
        assert!(one.provide(now).unwrap());
        fs::remove_file(one.key()).unwrap();
        assert!(one.provide(now).unwrap());
        fs::write(one.about(), "{").unwrap();
        assert!(one.provide(now).unwrap() && !one.provide(now).unwrap());
    }
}
