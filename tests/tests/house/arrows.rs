//! The arrows between the crates point one way, and each heavy dependency has one home.
//!
//! A new crate fails here until it has a row: whoever adds one says what it may lean on.

use crate::workspace::{Kind, Package, packages};

struct Row {
    name: &'static str,
    /// The crates of this workspace that it may use in what it ships.
    may_use: &'static [&'static str],
}

const TABLE: &[Row] = &[
    Row { name: "cabana-fault", may_use: &[] },
    Row { name: "cabana-model", may_use: &[] },
    Row { name: "cabana-e2b-wire", may_use: &[] },
    Row { name: "cabana-sandbox", may_use: &["cabana-model"] },
    Row { name: "cabana-store", may_use: &["cabana-fault", "cabana-model"] },
    Row { name: "cabana-testkit", may_use: &["cabana-sandbox", "cabana-model"] },
    Row { name: "cabana-guest", may_use: &["cabana-sandbox", "cabana-model"] },
    Row { name: "cabana-egress", may_use: &["cabana-sandbox", "cabana-model"] },
    Row {
        name: "cabana-engine",
        may_use: &["cabana-egress", "cabana-guest", "cabana-sandbox", "cabana-fault", "cabana-model"],
    },
    Row {
        name: "cabana-runtime",
        may_use: &["cabana-store", "cabana-egress", "cabana-sandbox", "cabana-fault", "cabana-model"],
    },
    Row { name: "cabana-server", may_use: &["cabana-runtime", "cabana-e2b-wire", "cabana-sandbox", "cabana-model"] },
    Row {
        name: "cabana",
        may_use: &[
            "cabana-server",
            "cabana-runtime",
            "cabana-e2b-wire",
            "cabana-store",
            "cabana-engine",
            "cabana-guest",
            "cabana-sandbox",
            "cabana-fault",
            "cabana-model",
        ],
    },
    Row {
        name: "cabana-bench",
        may_use: &["cabana-engine", "cabana-guest", "cabana-sandbox", "cabana-model", "cabana-store"],
    },
    Row {
        name: "cabana-tests",
        may_use: &["cabana-engine", "cabana-guest", "cabana-sandbox", "cabana-fault", "cabana-model"],
    },
];

/// For tests only: it holds fakes that lie on purpose.
const TESTKIT: &str = "cabana-testkit";

/// Who may name a concrete provider. Everybody else knows the interface.
const NAMES_PROVIDERS: &[&str] = &["cabana", "cabana-bench", "cabana-tests"];
const PROVIDERS: &[&str] = &["cabana-engine", "cabana-providers"];

/// A crate from outside that has one home, so that it can be replaced in one place.
const HOMES: &[(&str, &[&str])] = &[
    ("anyhow", &["cabana", "cabana-bench"]), // libraries have errors with kinds
    ("axum", &["cabana-server"]),
    ("axum-extra", &["cabana-server"]),
    ("bollard", &["cabana-providers"]),
    ("rmcp", &["cabana-mcp"]),
    ("rusqlite", &["cabana-store"]),
    ("utoipa", &["cabana-server"]),
    ("utoipa-axum", &["cabana-server"]),
];

fn breaches(packages: &[Package]) -> Vec<String> {
    let mut breaches = Vec::new();
    for package in packages {
        let Some(row) = TABLE.iter().find(|row| row.name == package.name) else {
            breaches.push(format!("{} has no row in the table of arrows", package.name));
            continue;
        };
        let ours = packages.iter().map(|package| &package.name).collect::<Vec<_>>();
        for dependency in package.dependencies.iter().filter(|dependency| ours.contains(&&dependency.name)) {
            let in_tests = dependency.kind == Kind::Dev && dependency.name == TESTKIT;
            if !in_tests && !row.may_use.contains(&dependency.name.as_str()) {
                breaches.push(format!("{} may not use {} ({:?})", package.name, dependency.name, dependency.kind));
            }
        }
    }
    breaches
}

fn testkit_breaches(packages: &[Package]) -> Vec<String> {
    uses(packages)
        .filter(|(_, dependency, kind)| *dependency == TESTKIT && *kind != Kind::Dev)
        .map(|(package, _, _)| format!("{package} ships the testkit"))
        .collect()
}

fn provider_breaches(packages: &[Package]) -> Vec<String> {
    uses(packages)
        .filter(|(package, dependency, _)| PROVIDERS.contains(dependency) && !NAMES_PROVIDERS.contains(package))
        .map(|(package, dependency, _)| format!("{package} names the provider {dependency}"))
        .collect()
}

fn home_breaches(packages: &[Package]) -> Vec<String> {
    uses(packages)
        .filter(|(package, dependency, _)| {
            HOMES.iter().any(|(name, homes)| name == dependency && !homes.contains(package))
        })
        .map(|(package, dependency, _)| format!("{dependency} is not at home in {package}"))
        .collect()
}

fn uses(packages: &[Package]) -> impl Iterator<Item = (&str, &str, Kind)> {
    packages.iter().flat_map(|package| {
        package.dependencies.iter().map(|dependency| (&*package.name, &*dependency.name, dependency.kind))
    })
}

fn assert_none(breaches: &[String]) {
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
}

#[test]
fn the_arrows_point_one_way() {
    assert_none(&breaches(&packages()));
}

#[test]
fn the_testkit_is_only_ever_a_dev_dependency() {
    assert_none(&testkit_breaches(&packages()));
}

#[test]
fn only_the_binary_names_a_concrete_provider() {
    assert_none(&provider_breaches(&packages()));
}

#[test]
fn each_heavy_dependency_lives_in_its_one_home() {
    assert_none(&home_breaches(&packages()));
}

mod a_rule_can_fail {
    use super::*;
    use crate::workspace::Dependency;

    fn package(name: &str, dependencies: &[(&str, Kind)]) -> Package {
        let dependency = |(name, kind): &(&str, Kind)| Dependency { name: (*name).into(), kind: *kind };
        Package {
            name: name.into(),
            manifest: "Cargo.toml".into(),
            dependencies: dependencies.iter().map(dependency).collect(),
        }
    }

    #[test]
    fn an_arrow_that_points_back_is_a_breach() {
        let packages = [
            package("cabana-model", &[("cabana-sandbox", Kind::Normal)]),
            package("cabana-sandbox", &[("cabana-model", Kind::Normal)]),
        ];
        assert_eq!(breaches(&packages), ["cabana-model may not use cabana-sandbox (Normal)"]);
    }

    #[test]
    fn an_arrow_that_points_back_in_tests_is_a_breach_too() {
        let packages = [package("cabana-guest", &[("cabana-engine", Kind::Dev)]), package("cabana-engine", &[])];
        assert_eq!(breaches(&packages), ["cabana-guest may not use cabana-engine (Dev)"]);
    }

    #[test]
    fn a_crate_without_a_row_is_a_breach() {
        assert_eq!(breaches(&[package("cabana-new", &[])]), ["cabana-new has no row in the table of arrows"]);
    }

    #[test]
    fn the_testkit_in_what_ships_is_a_breach_and_in_tests_is_none() {
        let ships = [package("cabana-engine", &[(TESTKIT, Kind::Normal)]), package(TESTKIT, &[])];
        assert_eq!(testkit_breaches(&ships), ["cabana-engine ships the testkit"]);
        assert_eq!(breaches(&ships), ["cabana-engine may not use cabana-testkit (Normal)"]);
        let tests = [package("cabana-engine", &[(TESTKIT, Kind::Dev)]), package(TESTKIT, &[])];
        assert!(testkit_breaches(&tests).is_empty() && breaches(&tests).is_empty());
    }

    #[test]
    fn a_library_that_names_the_engine_is_a_breach() {
        let packages = [package("cabana-guest", &[("cabana-engine", Kind::Normal)])];
        assert_eq!(provider_breaches(&packages), ["cabana-guest names the provider cabana-engine"]);
    }

    #[test]
    fn a_heavy_dependency_away_from_home_is_a_breach() {
        let packages = [
            package("cabana-store", &[("rusqlite", Kind::Normal)]),
            package("cabana-engine", &[("rusqlite", Kind::Dev)]),
        ];
        assert_eq!(home_breaches(&packages), ["rusqlite is not at home in cabana-engine"]);
    }
}
