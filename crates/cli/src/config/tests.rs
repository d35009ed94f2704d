//! The table, the file and the order of those who say a value.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{
    file::{self, File},
    kind::Kind,
    resolve::{Flags, Origin, Resolved, resolve},
    serving::Serving,
    show,
    table::{LISTEN, SETTINGS},
};

fn from_file(text: &str) -> Result<Resolved, Vec<String>> {
    resolve(&Flags::new(), &BTreeMap::new(), &file::parse("a.toml", text))
}

fn wrong(text: &str) -> String {
    from_file(text).unwrap_err().join("\n")
}

#[test]
fn without_anything_the_server_is_what_its_parts_are_by_themselves() {
    let serving = Serving::new(&from_file("").unwrap(), "/d".into()).unwrap();
    let mounts = cabana_runtime::MountRules::new::<&str>(&[], vec!["/d".into()]).unwrap();
    let usual = cabana_runtime::Settings { data: Some("/d".into()), mounts, ..cabana_runtime::Settings::default() };
    // But for the dialects, which are in the binary.
    let own = cabana_runtime::Settings { dialects: Default::default(), ..serving.settings.clone() };
    assert_eq!(format!("{own:?}"), format!("{usual:?}"));
    assert_eq!(format!("{:?}", serving.bounds), format!("{:?}", cabana_server::Bounds::default()));
    assert_eq!(format!("{:?}", serving.engine), format!("{:?}", cabana_engine::Config::new("/d")));
    assert_eq!(serving.durability, cabana_store::Durability::Kill);
    assert_eq!(serving.preview_domain, cabana_server::Options::default().preview_domain);
    assert!(serving.tls.is_none() && !serving.insecure);
}

#[test]
fn a_flag_beats_a_variable_beats_the_file_beats_the_default() {
    let file = file::parse("a.toml", "[server]\nlisten = \"127.0.0.1:3\"");
    let flags = Flags::from([("listen", "127.0.0.1:1".to_owned())]);
    let variables = BTreeMap::from([("CABANA_SERVER_LISTEN".to_owned(), "127.0.0.1:2".to_owned())]);
    let listen = |flags: &Flags, variables: &BTreeMap<_, _>, file: &File| {
        let resolved = resolve(flags, variables, file).unwrap();
        let found = resolved.get(&LISTEN).unwrap();
        (found.text.clone().unwrap(), found.from.clone())
    };
    let (no_flags, no_variables, no_file) = (Flags::new(), BTreeMap::new(), File::default());
    assert_eq!(listen(&flags, &variables, &file), ("127.0.0.1:1".into(), Origin::Flag));
    assert_eq!(listen(&no_flags, &variables, &file), ("127.0.0.1:2".into(), Origin::Variable));
    let by_file = Origin::File { path: "a.toml".into(), line: 2 };
    assert_eq!(listen(&no_flags, &no_variables, &file), ("127.0.0.1:3".into(), by_file));
    assert_eq!(listen(&no_flags, &no_variables, &no_file), ("127.0.0.1:7070".into(), Origin::Default));
}

#[test]
fn what_is_not_known_is_told_with_its_line_and_what_may_be_meant() {
    assert_eq!(wrong("[server]\n\nlissten = \"x\""), "a.toml:3: there is no server.lissten; is `listen` meant?");
    assert_eq!(wrong("# hi\n[sever]"), "a.toml:2: there is no section [sever]; is `server` meant?");
    assert!(wrong("[limits]\nzzz = 1").contains("there are memory, cpus"));
    assert!(wrong("server = 1").contains("write [server]"));
    assert!(wrong("[server]\nlisten = ").starts_with("a.toml:2: "));
    let variables = BTreeMap::from([("CABANA_SERVER_LISTN".to_owned(), "x".to_owned())]);
    let told = resolve(&Flags::new(), &variables, &File::default()).unwrap_err().join("\n");
    assert_eq!(told, "there is no variable CABANA_SERVER_LISTN; is `CABANA_SERVER_LISTEN` meant?");
}

#[test]
fn all_that_is_wrong_is_told_at_once() {
    let told =
        wrong("[server]\nlisten = \"here\"\nmx = 1\nmax_body = 4\n[limits]\nexec_timeout = \"soon\"\npids = \"many\"");
    for says in [
        "a.toml:2: server.listen",
        "a.toml:3: there is no",
        "a.toml:4: server.max_body: give it a unit",
        "a.toml:6: ",
        "a.toml:7: ",
    ] {
        assert!(told.contains(says), "{says} is not in {told}");
    }
}

#[test]
fn a_secret_is_neither_shown_nor_told() {
    let resolved = from_file("[network]\nupstream_proxy = \"http://me:hunter2@proxy:1\"").unwrap();
    let shown = show::text(&resolved) + &show::json(&resolved);
    assert!(shown.contains("upstream_proxy") && !shown.contains("hunter2"), "{shown}");
    let serving = Serving::new(&resolved, "/d".into()).unwrap();
    assert!(!format!("{serving:?}").contains("hunter2"));
}

#[test]
fn settings_that_do_not_go_together_are_refused() {
    for (text, says) in [
        ("[server]\ntls_cert = \"a\"", "server.tls_key"),
        ("[server]\ntls_key = \"a\"", "server.tls_cert"),
        ("[server]\nmax_connections = 0", "zero"),
        ("[network]\nmode = \"off\"\nallow = [\"a.com\"]", "network.allow"),
        ("[limits]\nmemory = \"1K\"", "too little"),
        ("[limits]\npids = 5000000000", "too large"),
        ("[limits]\nexec_timeout = \"2h\"", "exec_timeout_max"),
        ("[server]\ndialect = \"no_such\"", "there is no \"no_such\"; there are"),
    ] {
        let told = Serving::new(&from_file(text).unwrap(), "/d".into()).unwrap_err();
        assert!(told.contains(says), "{text}: {told}");
    }
}

#[test]
fn rules_alone_make_an_allowlist() {
    let serving = Serving::new(&from_file("[network]\nallow = [\"a.com\", \"*.b.com:443\"]").unwrap(), "/d".into());
    let allowed = cabana_sandbox::NetworkPolicy::Allow(vec!["a.com".into(), "*.b.com:443".into()]);
    assert_eq!(serving.unwrap().settings.sandbox.network, allowed);
}

/// Something that the setting takes.
fn value(kind: Kind) -> BoxedStrategy<String> {
    let none = Just("none".to_owned());
    match kind {
        Kind::Address => (any::<u32>(), any::<u16>())
            .prop_map(|(ip, port)| format!("{}:{port}", std::net::Ipv4Addr::from(ip)))
            .boxed(),
        Kind::File => "[^\\n\\r]{1,20}".boxed(),
        Kind::DomainOrNone => prop_oneof!["[a-z0-9-]{1,9}(\\.[a-z]{2,5}){0,2}", none].boxed(),
        Kind::Switch => any::<bool>().prop_map(|on| on.to_string()).boxed(),
        Kind::Number => any::<u32>().prop_map(|n| n.to_string()).boxed(),
        Kind::NumberOrNone => prop_oneof![any::<u32>().prop_map(|n| n.to_string()), none].boxed(),
        Kind::Size => "[0-9]{1,4}[KMGT]i?B?".boxed(),
        Kind::SizeOrNone => prop_oneof!["[0-9]{1,4}[KMGT]", none].boxed(),
        Kind::ProcessorsOrNone => prop_oneof!["[1-9]{1,2}\\.[0-9]{1,3}", none].boxed(),
        Kind::Time => "[1-9][0-9]{0,4}(ms|s|m|h|d)".boxed(),
        Kind::TimeOrNone => prop_oneof!["[1-9][0-9]{0,4}(s|d)", none].boxed(),
        Kind::Choice(choices) => prop::sample::select(choices).prop_map(str::to_owned).boxed(),
        Kind::List => prop::collection::vec("[a-z0-9.*:\"\\\\]{1,9}", 1..4).prop_map(|parts| parts.join(",")).boxed(),
        Kind::Name => "[a-z0-9_]{1,20}".boxed(),
        Kind::Secret => "https?://[a-z]{1,9}".boxed(),
    }
}

proptest! {
    #[test]
    fn what_is_shown_reads_back(
        texts in SETTINGS.iter().map(|setting| prop::option::of(value(setting.kind))).collect::<Vec<_>>()
    ) {
        let given = SETTINGS.iter().zip(texts).filter_map(|(setting, text)| Some((setting.variable.to_owned(), text?)));
        let first = resolve(&Flags::new(), &given.collect(), &File::default()).unwrap();
        let again = from_file(&show::text(&first)).unwrap();
        for (first, again) in first.0.iter().zip(&again.0) {
            if first.setting.kind != Kind::Secret {
                prop_assert_eq!(&first.text, &again.text, "{}", first.setting.key());
            }
        }
    }
}
