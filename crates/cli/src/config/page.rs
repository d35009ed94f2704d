//! The page about all settings.

use super::{
    file::USUAL,
    table::{SETTINGS, sections},
};

pub(crate) fn markdown() -> String {
    let mut page = format!(
        "# Configuration\n\n\
         <!-- Written by `cabana config page`. A test holds it to the settings that there are. -->\n\n\
         `cabana serve` takes each setting from its flag, else from its variable, else from the file, else the default. The \
         file is `{USUAL}`, which need not be there, or the one that `--config FILE` names, which must. A key that is not \
         known is an error that names its line.\n\n\
         ```sh\n\
         cabana config check    # what is wrong, and where; exit code 0 if nothing is\n\
         cabana config show     # each value, and where it comes from\n\
         ```\n\n\
         What `config show` prints is a file that says the same; secrets are left out of it. Sizes are written as `512M` or \
         `2G`, in powers of 1024; times as `500ms`, `30s`, `2m`, `1h` or `30d`. A list is an array of texts in the file, and has \
         commas in a variable; its flag may be repeated. Limits are those of a sandbox that names none of its own.\n"
    );
    for section in sections() {
        page += &format!("\n## [{section}]\n\n| setting | default | takes | meaning |\n|---|---|---|---|\n");
        for setting in SETTINGS.iter().filter(|setting| setting.section == section) {
            let default = setting.default.map_or("not set".to_owned(), |default| format!("`{default}`"));
            page += &format!(
                "| `{}`<br>`--{}`<br>`{}` | {default} | {} | {} |\n",
                setting.name,
                setting.flag,
                setting.variable,
                setting.kind.shape(),
                setting.meaning
            );
        }
    }
    page + "\n## Example\n\n```toml\n[server]\nlisten = \"0.0.0.0:7070\"\ntls_cert = \"/etc/cabana/chain.pem\"\n\
            tls_key = \"/etc/cabana/key.pem\"\n\n[network]\nmode = \"allowlist\"\nallow = [\"api.example.com:443\", \
            \"*.example.net:443\"]\n\n[limits]\nmemory = \"2G\"\ncpus = 2\npids = 512\n```\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_says_what_the_table_says() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guides/configuration.md");
        let there = std::fs::read_to_string(path).unwrap();
        assert!(
            there == markdown(),
            "docs/guides/configuration.md is old: cabana config page > docs/guides/configuration.md"
        );
    }

    #[test]
    fn the_example_of_the_page_is_a_good_file() {
        let page = markdown();
        let example = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        assert_eq!(super::super::file::parse("example", example).said.len(), 8);
    }
}
