use std::{fs, io};

use cabana_guest::IdMap;
use cabana_sandbox::Code;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::DataDir;

/// JSON of any shape, with the words that images use.
fn any_json() -> impl Strategy<Value = Value> {
    let word = prop_oneof![
        Just("linux".to_owned()),
        Just("amd64".to_owned()),
        Just("application/vnd.oci.image.manifest.v1+json".to_owned()),
        Just("application/vnd.oci.image.index.v1+json".to_owned()),
        Just("application/vnd.oci.image.config.v1+json".to_owned()),
        Just("application/vnd.oci.image.layer.v1.tar+gzip".to_owned()),
        Just(format!("sha256:{}", "a".repeat(64))),
        Just("../x".to_owned()),
        any::<String>(),
    ];
    let key = prop_oneof![
        Just("schemaVersion"),
        Just("manifests"),
        Just("config"),
        Just("layers"),
        Just("mediaType"),
        Just("digest"),
        Just("size"),
        Just("platform"),
        Just("os"),
        Just("architecture"),
        Just("rootfs"),
        Just("diff_ids"),
        Just("Config"),
        Just("Layers"),
        Just("RepoTags"),
        Just("Env"),
        Just("User"),
        Just("WorkingDir"),
    ];
    let leaf =
        prop_oneof![Just(Value::Null), Just(json!(2)), any::<i64>().prop_map(Value::from), word.prop_map(Value::from)];
    leaf.prop_recursive(5, 64, 8, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map(key.clone().prop_map(str::to_owned), inner, 0..8).prop_map(Value::from_iter),
        ]
    })
}

proptest! {
    #[test]
    fn no_json_makes_a_reader_panic(value in any_json()) {
        read_all(value.to_string().as_bytes());
    }

    #[test]
    fn no_bytes_make_a_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        read_all(&bytes);
    }

    #[test]
    fn no_cut_of_a_manifest_makes_a_reader_panic(cut in 0usize..700, byte: u8) {
        let mut text = an_index().to_string().into_bytes();
        let place = cut % text.len();
        text[place] = byte;
        read_all(&text);
        read_all(&text[..place]);
    }
}

fn descriptor(digit: char, architecture: &str, variant: Option<&str>) -> Value {
    json!({
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "digest": format!("sha256:{}", digit.to_string().repeat(64)),
        "size": 7,
        "platform": { "os": "linux", "architecture": architecture, "variant": variant },
    })
}

fn an_index() -> Value {
    let ours = manifest::our_architecture();
    json!({ "schemaVersion": 2, "manifests": [descriptor('a', "vax", None), descriptor('b', ours, Some("v3")), descriptor('c', ours, None)] })
}

#[test]
fn an_index_gives_what_every_machine_of_our_kind_can_run() {
    let all = manifest::index(an_index().to_string().as_bytes()).unwrap();
    assert!(choose::for_us(all.clone()).unwrap().digest.ends_with('c'));
    assert!(choose::for_us(all[..2].to_vec()).unwrap().digest.ends_with('b'));
    assert!(choose::for_us(all[..1].to_vec()).unwrap_err().contains("linux/vax"));
    assert!(choose::for_us(Vec::new()).is_err());
}

#[test]
fn only_sha256_is_a_digest_here() {
    for bad in ["", "sha256:", "sha256", &format!("sha256:{}", "A".repeat(64)), &format!("sha256:{}", "a".repeat(63))] {
        assert!(Digest::parse(bad).is_err(), "{bad}");
    }
    let long = format!("sha512:{}", "a".repeat(128));
    assert!(Digest::parse(&long).err().unwrap().contains("sha512"));
    let good = format!("sha256:{}", "0f".repeat(32));
    assert_eq!(format!("sha256:{}", Digest::parse(&good).unwrap().hex()), good);
}

#[test]
fn paths_of_a_saved_image_stay_in_its_archive() {
    for bad in ["../x", "/etc/passwd", "a/../../x", "", "a//b", "./a", "a\0b"] {
        for saved in [json!([{ "Config": bad, "Layers": [] }]), json!([{ "Config": "c.json", "Layers": [bad] }])] {
            assert!(manifest::saved(saved.to_string().as_bytes()).is_err(), "{saved}");
        }
    }
}

#[test]
fn a_variable_that_is_none_is_not_shown() {
    let config = json!({ "os": "linux", "architecture": "amd64", "rootfs": {}, "config": { "Env": ["=secret"] } });
    let why = manifest::config(config.to_string().as_bytes()).err().unwrap();
    assert!(!why.contains("secret"), "{why}");
}

/// As GNU tar writes a file that is one hole.
fn hole(name: &str, length: u64) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.set_path(name).unwrap();
    header.set_mode(0o644);
    header.set_size(0);
    header.set_entry_type(tar::EntryType::GNUSparse);
    let gnu = header.as_gnu_mut().unwrap();
    gnu.realsize.copy_from_slice(format!("{length:011o}\0").as_bytes());
    header.set_cksum();
    header.as_bytes().to_vec()
}

#[test]
fn all_layers_together_have_a_limit() {
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(100_000);
    tar.append_data(&mut header, "large", io::Read::take(io::repeat(0), 100_000)).unwrap();
    assert_eq!(the_third_is_refused(&tar.into_inner().unwrap()).code(), Code::TooLarge);
}

#[test]
fn the_entries_of_all_layers_together_have_a_limit() {
    let mut tar = tar::Builder::new(Vec::new());
    for number in 0..4 {
        tar.append_data(&mut tar::Header::new_gnu(), format!("{number}"), io::empty()).unwrap();
    }
    let error = the_third_is_refused(&tar.into_inner().unwrap());
    assert_eq!(error.code(), Code::ArchiveInvalid);
    assert!(error.to_string().contains("with layer 3 the image has more than 10 entries"), "{error}");
}

#[test]
fn the_length_of_sparse_files_counts_to_the_limit_of_all_layers_together() {
    let tar = [hole("one", 50_000), hole("two", 50_000), vec![0; 1024]].concat();
    assert_eq!(the_third_is_refused(&tar).code(), Code::TooLarge);
}

/// Where all layers together may have 250,000 bytes and ten entries.
fn the_third_is_refused(tar: &[u8]) -> Error {
    let dir = tempfile::tempdir().unwrap();
    let data = DataDir::open(dir.path().join("data")).unwrap();
    let store = Store::open(&data, IdMap { base: 0x7ffe_0000, count: 65_536 }).unwrap();
    let image = dir.path().join("image");
    fs::create_dir(&image).unwrap();
    let packed = zstd::encode_all(tar, 1).unwrap();
    assert!(packed.len() < 1000);
    fs::write(image.join("layer"), packed).unwrap();
    let layout = Layout::of_docker(File::open(&image).unwrap());
    let layers = |count| (0..count).map(|_| Packed { blob: layout.plain("layer").unwrap(), tar: None }).collect();
    let unpack = |count| {
        let into = store.draft().unwrap();
        unpack::unpack("image", layers(count), &store, &into.root, Most { bytes: 250_000, entries: 10 }, &mut |_| {})
    };
    unpack(2).unwrap();
    let error = unpack(3).unwrap_err();
    assert_eq!(fs::read_dir(data.layers()).unwrap().count(), 0);
    error
}
