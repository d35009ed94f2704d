//! psql, with a database server of the test's own. It begins in the clear and then speaks TLS.

use std::fs;

use cabana_testkit::world::{Certificate, World, in_world};

use super::{BOTH, FOUR, FOUR_ADDRESS, OTHER, SIX, allowing, listed, open, sites};
use crate::inside::host;

fn database(world: &World) {
    let versions = fs::read_dir("/usr/lib/postgresql").expect("postgresql is installed").flatten();
    let programs = versions.map(|version| version.path().join("bin")).find(|bin| bin.join("postgres").exists());
    let programs = programs.expect("the server of postgresql is installed");
    let program = |name: &str| programs.join(name).to_str().unwrap().to_owned();
    let home = world.dir().join("postgres");
    fs::create_dir(&home).unwrap();
    let Certificate { certificate, key } = world.certificate(&[FOUR, SIX, OTHER]);
    fs::copy(certificate, home.join("server.crt")).unwrap();
    fs::copy(key, home.join("server.key")).unwrap();
    host("chmod", &["600", home.join("server.key").to_str().unwrap()]);
    host("chown", &["-R", "postgres:postgres", home.to_str().unwrap()]);
    let at = |name: &str| home.join(name).to_str().unwrap().to_owned();
    let postgres = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--pdeathsig=KILL"];
    let initdb = [program("initdb"), "--no-sync".into(), "-A".into(), "trust".into(), "-D".into(), at("data")];
    let words: Vec<&str> = postgres.into_iter().chain(initdb.iter().map(String::as_str)).collect();
    host(words[0], &words[1..]);
    fs::write(home.join("data/pg_hba.conf"), "hostssl all all all trust\n").unwrap();
    let settings = [
        "listen_addresses=*".to_owned(),
        "fsync=off".to_owned(),
        "ssl=on".to_owned(),
        format!("ssl_cert_file={}", at("server.crt")),
        format!("ssl_key_file={}", at("server.key")),
        format!("unix_socket_directories={}", home.display()),
    ];
    let (server, data) = (program("postgres"), at("data"));
    let mut words: Vec<&str> = postgres.to_vec();
    words.extend([server.as_str(), "-D", &data]);
    words.extend(settings.iter().flat_map(|setting| ["-c", setting.as_str()]));
    world.start("postgres", &words);
    world.wait_for(&format!("{FOUR_ADDRESS}:5432"));
}

fn ask(site: &str) -> String {
    let place = format!(
        "host={site} user=postgres dbname=postgres sslmode=verify-full sslrootcert=$SSL_CERT_FILE connect_timeout=30"
    );
    format!("psql -X -At \"{place}\" -c 'select 6*7'")
}

#[test]
fn psql_asks_an_allowed_database_and_no_other() {
    in_world(async |world| {
        sites(&world);
        database(&world);
        let inside = open(&world, listed()).await;
        for policy in allowing() {
            inside.set(policy).await;
            for site in BOTH {
                // The server may still be about to start.
                let script = format!("for i in $(seq 60); do {} && break; sleep 0.5; done", ask(site));
                assert_eq!(inside.user(&script).await.ok(), "42", "{site}");
            }
        }
        let told = inside.user(&ask(OTHER)).await.refused();
        assert!(told.contains("could not translate host name \"other.example\""), "{told}");
        inside.end().await;
    });
}
