//! Puts the dialects into the binary: each file of the folder, by its name. No source names one.

use std::{env, fs, path::Path};

fn main() {
    let folder = Path::new(&env::var("CARGO_MANIFEST_DIR").expect("cargo says where we are")).join("../../dialects");
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut paths: Vec<_> =
        fs::read_dir(&folder).expect("the folder of dialects").flatten().map(|e| e.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "toml"));
    paths.sort();
    let rows: String = paths
        .iter()
        .map(|path| {
            println!("cargo::rerun-if-changed={}", path.display());
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            let text = fs::read_to_string(path).expect("a dialect is a text");
            format!("    ({name:?}, {text:?}),\n")
        })
        .collect();
    let made = Path::new(&env::var("OUT_DIR").expect("cargo says where to write")).join("dialects.rs");
    fs::write(made, format!("&[\n{rows}]\n")).expect("what is made can be written");
}
