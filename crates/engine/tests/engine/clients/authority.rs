//! An authority of the operator's own: trusted where it was set, and nowhere else.

use std::fs;

use cabana_engine::{Config, Engine, NetworkSettings, TemplateSource};
use cabana_sandbox::{Base, Code, NetworkPolicy, Overrides, Provider, SandboxId, SandboxSpec};
use cabana_testkit::world::in_world;

use super::{FOUR, open_with, sites};
use crate::{
    inside::{shell, tiny_root},
    stage,
};

#[test]
fn without_the_setting_the_worlds_certificates_are_not_trusted() {
    in_world(async |world| {
        sites(&world);
        let inside = open_with(NetworkSettings::default(), NetworkPolicy::Public).await;
        let told = inside.user(&format!("curl -sS https://{FOUR}/hello.txt")).await.refused();
        assert!(told.contains("certificate"), "{told}");
        assert_eq!(inside.user("ls -A / | grep cabana; env | grep CERT || true").await.ok(), "");
        inside.end().await;
    });
}

#[test]
fn the_bases_own_authorities_stay_trusted_and_programs_find_all_in_one_file() {
    in_world(async |world| {
        let settings = NetworkSettings { ca: Some(world.authority()), ..NetworkSettings::default() };
        let inside = open_with(settings, NetworkPolicy::Off).await;
        let count = |file: &str| format!("grep -c 'BEGIN CERTIFICATE' {file}");
        let number = async |file: &str| inside.user(&count(file)).await.ok().parse::<u32>().unwrap();
        let base = number("/etc/ssl/certs/ca-certificates.crt").await;
        assert_eq!(number("$SSL_CERT_FILE").await, base + 1);
        assert_eq!(number("$NODE_EXTRA_CA_CERTS").await, 1);
        for name in ["CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT", "REQUESTS_CA_BUNDLE"] {
            assert_eq!(inside.user(&format!("printenv {name}")).await.ok(), "/.cabana/certificates.pem");
        }
        assert!(!inside.user("cat /proc/self/mountinfo").await.ok().contains("certificates"), "it is no mount");
        inside.user("echo >>$SSL_CERT_FILE").await.refused();
        inside.end().await;
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_trusts_it_too_and_its_layers_stay_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let ca = dir.path().join("ca.pem");
    make_authority(&ca);
    let network = NetworkSettings { ca: Some(ca), ..NetworkSettings::default() };
    let data = dir.path().join("data");
    let engine = Engine::open(Config { network, ..stage::config(data.clone()) }).await.unwrap();
    let root = dir.path().join("root");
    tiny_root(&root);
    fs::create_dir_all(root.join("etc/ssl/certs")).unwrap();
    // A hostile one: the link must lead to the template's own file, not to the host's.
    fs::write(root.join("etc/secret"), "of the template\n").unwrap();
    std::os::unix::fs::symlink("/etc/secret", root.join("etc/ssl/certs/ca-certificates.crt")).unwrap();
    let source = TemplateSource::Directory(root);
    engine.templates().add("tiny", &source, &Overrides::default(), &mut |_| {}).unwrap();
    let spec = SandboxSpec::new(Base::Named("tiny".into()));
    let id = SandboxId::random();
    let sandbox = engine.create(&id, &spec).await.unwrap();
    let all = shell(&*sandbox, "root", "cat $SSL_CERT_FILE").await.ok();
    assert!(all.starts_with("of the template") && all.contains("BEGIN CERTIFICATE"), "{all}");
    engine.stop(&id).await.unwrap();
    engine.close().await;
    // A start without the setting takes it away again; nothing of it is left in the sandbox's own layer.
    let engine = Engine::open(stage::config(data)).await.unwrap();
    let sandbox = engine.start(&id).await.unwrap();
    assert_eq!(shell(&*sandbox, "root", "ls -a /; echo $SSL_CERT_FILE").await.ok().matches("cabana").count(), 0);
    assert!(engine.remove_unused_layers().unwrap() >= 1, "the layer of the certificates is not used any more");
    engine.destroy(&id).await.unwrap();
    engine.close().await;
}

fn make_authority(at: &std::path::Path) {
    let at = at.to_str().unwrap();
    let words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test -keyout";
    let key = format!("{at}.key");
    let words: Vec<&str> = words.split(' ').chain([key.as_str(), "-out", at]).collect();
    crate::inside::host("openssl", &words);
}

#[tokio::test]
async fn settings_that_cannot_be_used_are_refused_with_what_is_wrong_and_without_the_password() {
    let dir = tempfile::tempdir().unwrap();
    let (empty, none) = (dir.path().join("empty.pem"), dir.path().join("none.pem"));
    fs::write(&empty, "no certificate\n").unwrap();
    let ca = |path: &std::path::Path| NetworkSettings { ca: Some(path.into()), ..NetworkSettings::default() };
    let upstream = |url: &str| NetworkSettings { upstream: Some(url.into()), ..NetworkSettings::default() };
    for (settings, why) in [
        (ca(&empty), "holds no certificate"),
        (ca(&none), "No such file"),
        (ca(dir.path()), "it is no file"),
        (upstream("ftp://me:hunter2@proxy"), "must begin with http://"),
        (upstream("http://me:hunter2@"), "there must be a host"),
        (upstream("http://me:hunter%2@proxy"), "is not understood"),
    ] {
        assert!(!format!("{settings:?}").contains("hunter"), "{settings:?}");
        let config = Config { network: settings, ..stage::config(dir.path().join("data")) };
        let refused = Engine::open(config).await.err().expect("it is refused");
        assert_eq!(refused.code(), Code::BadRequest);
        assert!(refused.to_string().contains(why) && !refused.to_string().contains("hunter"), "{refused}");
        assert!(!dir.path().join("data").exists(), "nothing is made");
    }
}
