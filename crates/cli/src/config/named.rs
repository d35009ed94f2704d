//! Profiles and dialects: tables with names of their own, in the file and in the binary.

use std::collections::BTreeMap;

use cabana_model::{Dialect, Profile};
use cabana_sandbox::Limits;
use serde::{Deserialize, Serialize};
use toml::Spanned;

/// Each file of the folder `dialects`, by its name.
static BUILT_IN: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/dialects.rs"));

/// The sections that hold such tables.
pub(crate) const SECTIONS: [&str; 2] = ["profiles", "dialects"];

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Named {
    pub(crate) profiles: BTreeMap<String, Profile>,
    /// One of the file stands for a built-in one of the same name, as a whole.
    pub(crate) dialects: BTreeMap<String, Dialect>,
}

/// With where each stands, for whoever has to correct it. What the other sections say is read elsewhere.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Tables {
    profiles: BTreeMap<String, Spanned<Profile>>,
    dialects: BTreeMap<String, Spanned<Dialect>>,
}

/// What a file says, and what is wrong with it.
pub(crate) fn parse(path: &str, text: &str, line_of: impl Fn(usize) -> usize) -> (Named, Vec<String>) {
    let tables: Tables = match toml::from_str(text) {
        Ok(tables) => tables,
        Err(error) => {
            let line = error.span().map_or(1, |span| line_of(span.start));
            return (Named::default(), vec![format!("{path}:{line}: {}", error.message())]);
        }
    };
    let (mut named, mut wrong) = (Named::default(), Vec::new());
    for (name, profile) in tables.profiles {
        let line = line_of(profile.span().start);
        wrong.extend(bad_profile(&name, profile.get_ref()).map(|why| format!("{path}:{line}: profiles.{name}: {why}")));
        named.profiles.insert(name, profile.into_inner());
    }
    for (name, dialect) in tables.dialects {
        let line = line_of(dialect.span().start);
        wrong.extend(bad_dialect(&name, dialect.get_ref()).map(|why| format!("{path}:{line}: dialects.{name}: {why}")));
        named.dialects.insert(name, dialect.into_inner());
    }
    (named, wrong)
}

fn bad_name(name: &str) -> Option<String> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let good = (1..=64).contains(&name.len()) && name.chars().all(plain);
    (!good).then(|| "a name has at most 64 of a-z, 0-9 and _".to_owned())
}

fn bad_profile(name: &str, profile: &Profile) -> Option<String> {
    let impossible = || {
        let narrow = |number: Option<u64>| number.map(|number| u32::try_from(number).unwrap_or(u32::MAX));
        let limits = Limits {
            memory: profile.defaults.memory_bytes,
            cpu_milli: narrow(profile.defaults.cpu_milli),
            pids: narrow(profile.defaults.pids),
            disk: profile.defaults.disk_bytes,
            ..Limits::NONE
        };
        limits.check().err().map(|error| error.to_string())
    };
    bad_name(name).or_else(|| profile.check().err().map(|error| error.to_string())).or_else(impossible)
}

fn bad_dialect(name: &str, dialect: &Dialect) -> Option<String> {
    let of_profiles = dialect.profiles.iter();
    let bad_one = || {
        of_profiles
            .clone()
            .find_map(|(name, profile)| Some(format!("the profile {name}: {}", bad_profile(name, profile)?)))
    };
    bad_name(name).or_else(|| dialect.check().err().map(|error| error.to_string())).or_else(bad_one)
}

/// All that there are: those of the file, and beside them the built-in ones.
pub(crate) fn dialects(of_file: &Named) -> Result<BTreeMap<String, Dialect>, String> {
    let mut all = BTreeMap::new();
    for (name, text) in BUILT_IN {
        let dialect: Dialect = toml::from_str(text).map_err(|error| format!("dialects/{name}.toml: {error}"))?;
        if let Some(why) = bad_dialect(name, &dialect) {
            return Err(format!("dialects/{name}.toml: {why}"));
        }
        all.insert((*name).to_owned(), dialect);
    }
    all.extend(of_file.dialects.clone());
    Ok(all)
}

/// As a file would say it.
pub(crate) fn text(named: &Named) -> String {
    match *named == Named::default() {
        true => String::new(),
        false => toml::to_string(named).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use cabana_model::{Field, NetworkMode};

    use super::{super::file, *};

    fn wrong(text: &str) -> String {
        file::parse("a.toml", text).wrong.join("\n")
    }

    #[test]
    fn every_built_in_dialect_is_sound() {
        let all = dialects(&Named::default()).unwrap();
        assert_eq!(all.len(), BUILT_IN.len());
        for name in ["fastgpt", "langbot", "commonground", "xbot"] {
            assert!(all.contains_key(name), "{name}");
        }
    }

    #[test]
    fn presets_are_those_of_the_systems_that_they_are_for() {
        let all = dialects(&Named::default()).unwrap();
        let idle = |name: &str| all[name].lifecycle.idle_sec;
        assert_eq!([idle("fastgpt"), idle("langbot"), idle("commonground")], [Some(300), Some(300), Some(1800)]);
        assert_eq!(all["commonground"].lifecycle.hard_sec, Some(21_600));
        assert_eq!(all["fastgpt"].texts.busy.as_deref(), Some("虚拟机正在初始化,请稍后重试"));
        assert_eq!(all["commonground"].texts.busy.as_deref(), Some("sandbox is busy; try again later"));
    }

    #[test]
    fn langbots_four_profiles_are_there_with_their_numbers_and_locks() {
        let all = dialects(&Named::default()).unwrap();
        let of = |name: &str| {
            let profile = &all["langbot"].profiles[name];
            let given = &profile.defaults;
            let mib = given.memory_bytes.unwrap() >> 20;
            (
                given.network.unwrap(),
                given.cpu_milli.unwrap(),
                mib,
                given.pids.unwrap(),
                profile.most.timeout_sec.unwrap(),
            )
        };
        assert_eq!(all["langbot"].profiles.len(), 4);
        assert_eq!(of("default"), (NetworkMode::Off, 1000, 512, 128, 120));
        assert_eq!(of("offline_readonly"), (NetworkMode::Off, 500, 256, 64, 60));
        assert_eq!(of("network_basic"), (NetworkMode::Public, 1000, 512, 128, 120));
        assert_eq!(of("network_extended"), (NetworkMode::Public, 2000, 1024, 256, 300));
        let locked = [Field::Network, Field::MountMode, Field::ReadOnlyRoot];
        assert_eq!(all["langbot"].profiles["offline_readonly"].locked, locked);
        assert_eq!(all["langbot"].profiles["network_extended"].defaults.read_only_root, Some(false));
    }

    #[test]
    fn a_profile_that_contradicts_itself_is_told_with_its_line() {
        let above = "[server]\n\n[profiles.small]\ndefaults = { memory_bytes = 99_999_999 }\nmost = { memory_bytes = 9_999_999 }";
        assert_eq!(
            wrong(above),
            "a.toml:3: profiles.small: it gives memory_bytes 99999999, and its own `most` is 9999999"
        );
        let locked = "[profiles.small]\nlocked = [\"network\"]";
        assert!(wrong(locked).starts_with("a.toml:1: profiles.small: it locks network"), "{}", wrong(locked));
        let unknown = "[profiles.small]\nlocked = []\ndefauts = {}";
        assert!(wrong(unknown).starts_with("a.toml:3: unknown field `defauts`"), "{}", wrong(unknown));
        let kind = "[profiles.small]\ndefaults = { network = \"fast\" }";
        assert!(wrong(kind).starts_with("a.toml:2: unknown variant `fast`"), "{}", wrong(kind));
        let tiny = "[profiles.small]\ndefaults = { memory_bytes = 1 }";
        assert!(wrong(tiny).contains("too little"), "{}", wrong(tiny));
        assert!(wrong("[profiles.\"a b\"]").contains("a name has"));
        assert!(wrong("profiles = 1").starts_with("a.toml:1: "));
        let usual = "[dialects.mine]\nprofile = \"none\"";
        assert_eq!(wrong(usual), "a.toml:1: dialects.mine: its usual profile \"none\" is none of its profiles");
    }

    #[test]
    fn one_of_the_file_stands_for_a_built_in_one() {
        let file =
            file::parse("a.toml", "[dialects.langbot.texts]\nbusy = \"wait\"\n[profiles.mine.most]\ntimeout_sec = 5");
        assert!(file.wrong.is_empty(), "{:?}", file.wrong);
        let all = dialects(&file.named).unwrap();
        assert!(all["langbot"].profiles.is_empty() && all["langbot"].texts.busy.as_deref() == Some("wait"));
        assert_eq!(file.named.profiles["mine"].most.timeout_sec, Some(5));
        let again = file::parse("b.toml", &text(&file.named));
        assert_eq!((again.wrong, again.named), (Vec::new(), file.named), "what is shown reads back");
    }
}
