//! Every setting, once: the file, the variables, the flags of `serve` and the page about them come from here.

use super::kind::Kind;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) section: &'static str,
    pub(crate) name: &'static str,
    pub(crate) flag: &'static str,
    pub(crate) variable: &'static str,
    pub(crate) kind: Kind,
    /// As it would be written. `None` is not set.
    pub(crate) default: Option<&'static str>,
    pub(crate) meaning: &'static str,
}

impl Setting {
    pub(crate) fn key(&self) -> String {
        format!("{}.{}", self.section, self.name)
    }
}

macro_rules! settings {
    ($($id:ident: $section:literal $name:literal $flag:literal $variable:literal $kind:expr, $default:expr, $meaning:literal;)*) => {
        $(pub(crate) static $id: Setting = Setting {
            section: $section,
            name: $name,
            flag: $flag,
            variable: $variable,
            kind: $kind,
            default: $default,
            meaning: $meaning,
        };)*
        pub(crate) static SETTINGS: &[&Setting] = &[$(&$id),*];
    };
}

/// What becomes of a sandbox whose time has come.
const ACTIONS: &[&str] = &["stop", "pause", "delete"];

settings! {
    LISTEN: "server" "listen" "listen" "CABANA_SERVER_LISTEN" Kind::Address, Some("127.0.0.1:7070"),
        "Where to listen. An address that other machines reach needs TLS, or `insecure_http`";
    TLS_CERT: "server" "tls_cert" "tls-cert" "CABANA_SERVER_TLS_CERT" Kind::File, None,
        "The certificate and those above it, in PEM";
    TLS_KEY: "server" "tls_key" "tls-key" "CABANA_SERVER_TLS_KEY" Kind::File, None,
        "The certificate's key, in PEM";
    DEV_TLS: "server" "dev_tls" "dev-tls" "CABANA_SERVER_DEV_TLS" Kind::Switch, Some("false"),
        "Serve by TLS with a certificate that the server makes itself, for `preview_domain` and every name below it. Clients are \
         told which file to trust: for a first try, and for tests";
    INSECURE_HTTP: "server" "insecure_http" "insecure-http" "CABANA_SERVER_INSECURE_HTTP" Kind::Switch, Some("false"),
        "Listen where others can reach it without TLS: because something in front of it does that";
    PREVIEW_DOMAIN: "server" "preview_domain" "preview-domain" "CABANA_SERVER_PREVIEW_DOMAIN" Kind::DomainOrNone, Some("localhost"),
        "Ports of sandboxes are at {port}-{sandbox}.DOMAIN too: every name below it must lead here. With `dev_tls` it is \
         cabana.localhost where nothing is said";
    MAX_CONNECTIONS: "server" "max_connections" "max-connections" "CABANA_SERVER_MAX_CONNECTIONS" Kind::Number, Some("4096"),
        "How many connections there may be at once";
    MAX_STREAMS: "server" "max_streams" "max-streams" "CABANA_SERVER_MAX_STREAMS" Kind::Number, Some("2048"),
        "How many streams and terminals one tenant may have open at once";
    MAX_BODY: "server" "max_body" "max-body" "CABANA_SERVER_MAX_BODY" Kind::Size, Some("4M"),
        "How large a request may be that is read as a whole. Files are not: they are streamed";
    DIALECT: "server" "dialect" "dialect" "CABANA_SERVER_DIALECT" Kind::Name, None,
        "The dialect of sandboxes that name none: a preset of lifecycle, texts and profiles, built in or of [dialects.NAME]";
    DATA: "engine" "data" "data" "CABANA_DATA" Kind::File, None,
        "Where layers, templates, sandboxes and the record of everything lie. Not set: /var/lib/cabana as root, else \
         $XDG_DATA_HOME/cabana";
    SPARES: "engine" "spares" "spares" "CABANA_ENGINE_SPARES" Kind::Number, Some("2"),
        "How many sandboxes are begun ahead, so that the next one is there at once. Each costs some hundred KiB";
    DURABILITY: "engine" "durability" "durability" "CABANA_ENGINE_DURABILITY" Kind::Choice(&["kill", "full"]), Some("kill"),
        "What an acknowledged change survives: the end of any of our processes (kill), or the loss of power too (full), which is slower";
    MODE: "network" "mode" "net" "CABANA_NETWORK_MODE" Kind::Choice(&["off", "allowlist", "public", "host"]), Some("public"),
        "Which network a sandbox has that names none: none; what `allow` lists; the public one, without this machine and its \
         inner networks; or all that this machine itself can reach";
    ALLOW: "network" "allow" "allow" "CABANA_NETWORK_ALLOW" Kind::List, None,
        "What the mode allowlist lets through: names, *.names, addresses and networks, each with :port if wanted. Given alone, \
         it sets the mode";
    UPSTREAM_PROXY: "network" "upstream_proxy" "upstream-proxy" "CABANA_NETWORK_UPSTREAM_PROXY" Kind::Secret, None,
        "A proxy that everything from inside goes through: http://, https:// or socks5://, with user:password@ if it wants one. \
         Better not as a flag: others see arguments";
    CA: "network" "ca" "ca" "CABANA_NETWORK_CA" Kind::File, None,
        "Certificates to trust inside, beside the usual ones: a file in PEM";
    OWN_ADDRESSES: "network" "own_addresses" "own-addresses" "CABANA_NETWORK_OWN_ADDRESSES" Kind::List, None,
        "Public addresses of this machine that none of its interfaces has, as those that a cloud translates to it: sandboxes reach them \
         no more than its others";
    ENCRYPTED_HELLO: "network" "encrypted_hello" "encrypted-hello" "CABANA_NETWORK_ENCRYPTED_HELLO" Kind::Choice(&["pass", "refuse"]), Some("pass"),
        "What happens under an allow-list to a TLS hello that hides the name of its site in an encrypted one (ECH). Browsers send what \
         looks like one to every site: with `refuse` they reach none by its name";
    MOUNTS_ALLOW: "mounts" "allow" "mounts-allow" "CABANA_MOUNTS_ALLOW" Kind::List, None,
        "Which directories of this machine sandboxes may have mounted, with all that is below: PATH, or PATH:ro for read-only \
         alone. {tenant} in it stands for whoever asks. Not set: none";
    MEMORY: "limits" "memory" "memory" "CABANA_LIMITS_MEMORY" Kind::SizeOrNone, Some("none"),
        "How much memory a sandbox may use that names no limits of its own";
    CPUS: "limits" "cpus" "cpus" "CABANA_LIMITS_CPUS" Kind::ProcessorsOrNone, Some("none"),
        "How many processors it may use";
    PIDS: "limits" "pids" "pids" "CABANA_LIMITS_PIDS" Kind::NumberOrNone, Some("4096"),
        "How many processes and threads it may have at once";
    DISK: "limits" "disk" "disk" "CABANA_LIMITS_DISK" Kind::SizeOrNone, Some("none"),
        "How much its own files may take on the disk";
    INODES: "limits" "inodes" "inodes" "CABANA_LIMITS_INODES" Kind::NumberOrNone, Some("none"),
        "How many files and directories of its own it may have";
    OPEN_FILES: "limits" "open_files" "open-files" "CABANA_LIMITS_OPEN_FILES" Kind::NumberOrNone, Some("none"),
        "How many files one process inside may have open";
    IO: "limits" "io" "io" "CABANA_LIMITS_IO" Kind::SizeOrNone, Some("none"),
        "How much it may read from the disk in a second, and as much write";
    EXEC_TIMEOUT: "limits" "exec_timeout" "exec-timeout" "CABANA_LIMITS_EXEC_TIMEOUT" Kind::Time, Some("2m"),
        "How long a command may take that is waited for and names no time";
    EXEC_TIMEOUT_MAX: "limits" "exec_timeout_max" "exec-timeout-max" "CABANA_LIMITS_EXEC_TIMEOUT_MAX" Kind::Time, Some("1h"),
        "The longest time that a command may ask for";
    OUTPUT: "limits" "output" "output" "CABANA_LIMITS_OUTPUT" Kind::Size, Some("256M"),
        "How much of one command's output is kept. What is beyond it is counted";
    QUOTA_SANDBOXES: "quotas" "sandboxes" "quotas-sandboxes" "CABANA_QUOTAS_SANDBOXES" Kind::NumberOrNone, Some("none"),
        "How many sandboxes a tenant may have, also those that rest, where no quota of its own says otherwise";
    QUOTA_RUNNING: "quotas" "running" "quotas-running" "CABANA_QUOTAS_RUNNING" Kind::NumberOrNone, Some("none"),
        "How many of them may run or be paused at once";
    QUOTA_CPUS: "quotas" "cpus" "quotas-cpus" "CABANA_QUOTAS_CPUS" Kind::ProcessorsOrNone, Some("none"),
        "How many processors those that run may take together. Each needs a limit of its own then";
    QUOTA_MEMORY: "quotas" "memory" "quotas-memory" "CABANA_QUOTAS_MEMORY" Kind::SizeOrNone, Some("none"),
        "How much memory those that run may take together. Each needs a limit of its own then";
    QUOTA_DISK: "quotas" "disk" "quotas-disk" "CABANA_QUOTAS_DISK" Kind::SizeOrNone, Some("none"),
        "How much all of them may take on the disk together. Each needs a limit of its own then";
    QUOTA_CALLS_PER_SEC: "quotas" "calls_per_sec" "quotas-calls-per-sec" "CABANA_QUOTAS_CALLS_PER_SEC" Kind::NumberOrNone, Some("none"),
        "How many calls may begin in a second";
    QUOTA_CONCURRENT_CALLS: "quotas" "concurrent_calls" "quotas-concurrent-calls" "CABANA_QUOTAS_CONCURRENT_CALLS" Kind::NumberOrNone, Some("none"),
        "How many calls may be under way at once";
    QUOTA_TASKS: "quotas" "tasks" "quotas-tasks" "CABANA_QUOTAS_TASKS" Kind::NumberOrNone, Some("none"),
        "How many commands may run in the background at once";
    QUOTA_STORED: "quotas" "stored" "quotas-stored" "CABANA_QUOTAS_STORED" Kind::SizeOrNone, Some("none"),
        "How much may be kept: files of sandboxes, volumes, snapshots and outputs, as measured every half minute";
    QUOTA_LEDGER: "quotas" "ledger" "quotas-ledger" "CABANA_QUOTAS_LEDGER" Kind::SizeOrNone, Some("8G"),
        "How much may be recorded of a tenant's calls: rows of the ledger, of calls and of tasks";
    IDLE: "lifecycle" "idle" "idle" "CABANA_LIFECYCLE_IDLE" Kind::TimeOrNone, Some("5m"),
        "How long nothing may have happened in a sandbox before it is put to rest: no call, task, terminal, traffic of a port, lease";
    IDLE_ACTION: "lifecycle" "idle_action" "idle-action" "CABANA_LIFECYCLE_IDLE_ACTION" Kind::Choice(ACTIONS), Some("stop"),
        "What becomes of it then: its processes end and its files stay (stop), its memory stays too (pause), or it goes (delete)";
    HARD: "lifecycle" "hard" "hard" "CABANA_LIFECYCLE_HARD" Kind::TimeOrNone, Some("none"),
        "The longest that a sandbox may run at a stretch, whatever happens in it; with `delete`, the longest that it may be there";
    HARD_ACTION: "lifecycle" "hard_action" "hard-action" "CABANA_LIFECYCLE_HARD_ACTION" Kind::Choice(ACTIONS), Some("stop"),
        "What becomes of it then";
    ARCHIVE_AFTER: "lifecycle" "archive_after" "archive-after" "CABANA_LIFECYCLE_ARCHIVE_AFTER" Kind::TimeOrNone, Some("none"),
        "How long after its last use a stopped sandbox is packed away. The next call brings it back";
    DELETE_AFTER: "lifecycle" "delete_after" "delete-after" "CABANA_LIFECYCLE_DELETE_AFTER" Kind::TimeOrNone, Some("none"),
        "How long after its last use a sandbox that does not run is deleted";
    REAP_INTERVAL: "lifecycle" "reap_interval" "reap-interval" "CABANA_LIFECYCLE_REAP_INTERVAL" Kind::Time, Some("1m"),
        "At the latest so long after the last time, the server looks after sandboxes whose time has come; sooner where one is due";
    REAP_BATCH: "lifecycle" "reap_batch" "reap-batch" "CABANA_LIFECYCLE_REAP_BATCH" Kind::Number, Some("50"),
        "How many of them are looked up at a time";
    TEMPLATE_MAX: "images" "template_max" "template-max" "CABANA_IMAGES_TEMPLATE_MAX" Kind::Size, Some("16G"),
        "How much an archive may hold, once it is unpacked and with the holes of its files, that is sent to become a template";
    IMAGES_MAP: "images" "map" "images-map" "CABANA_IMAGES_MAP" Kind::List, None,
        "Which templates stand for images of containers in builds of E2B's SDKs: IMAGE=TEMPLATE, as in ubuntu:22.04=base. \
         e2bdev/base is base unless it is named here";
    E2B_SECURE: "e2b" "secure" "e2b-secure" "CABANA_E2B_SECURE" Kind::Choice(&["always", "as_asked"]), Some("always"),
        "Whether the agent of a sandbox that E2B's clients make asks for its token: always, or where the client says `secure`. Without it \
         a client that knows the sandbox's id runs commands in it";
    KEEP_OUTPUTS: "retention" "outputs" "retention-outputs" "CABANA_RETENTION_OUTPUTS" Kind::TimeOrNone, Some("30d"),
        "How long it is kept what ended calls and tasks said. `none` is for ever, here and below";
    KEEP_CALLS: "retention" "calls" "retention-calls" "CABANA_RETENTION_CALLS" Kind::TimeOrNone, Some("90d"),
        "How long ended calls and tasks can be asked for. The ledger has them longer";
    KEEP_LEDGER: "retention" "ledger" "retention-ledger" "CABANA_RETENTION_LEDGER" Kind::TimeOrNone, Some("none"),
        "How long rows of ledgers are kept. Whole days go, and the ledger says so";
    KEEP_SNAPSHOTS: "retention" "snapshots" "retention-snapshots" "CABANA_RETENTION_SNAPSHOTS" Kind::TimeOrNone, Some("none"),
        "How long a snapshot is kept that no sandbox was made from";
    KEEP_TEMPLATES: "retention" "templates" "retention-templates" "CABANA_RETENTION_TEMPLATES" Kind::TimeOrNone, Some("none"),
        "How long a template is kept that no sandbox was made from";
    GC_INTERVAL: "retention" "interval" "retention-interval" "CABANA_RETENTION_INTERVAL" Kind::Time, Some("1h"),
        "How often what was kept long enough is removed. `cabana gc` does it at once";
    MIN_FREE: "retention" "min_free" "retention-min-free" "CABANA_RETENTION_MIN_FREE" Kind::SizeOrNone, Some("1G"),
        "How much of the disk of the data directory stays free, but no more than a fiftieth of it, and as large a part of its inodes: with less left, nothing new is made";
    LOG_FORMAT: "log" "format" "log-format" "CABANA_LOG_FORMAT" Kind::Choice(&["text", "json"]), Some("text"),
        "How the lines of the log are written to standard error: for people, or one JSON object each";
    LOG_LEVEL: "log" "level" "log-level" "CABANA_LOG_LEVEL" Kind::Choice(&["off", "error", "warn", "info", "debug", "trace"]), Some("info"),
        "What is worth a line. With `debug`, each call is";
    WEBHOOKS_ALLOW: "webhooks" "allow" "webhooks-allow" "CABANA_WEBHOOKS_ALLOW" Kind::List, None,
        "Which addresses a webhook may have that are not public: addresses and networks, each with :port if wanted";
    TELEMETRY_ENDPOINT: "telemetry" "endpoint" "telemetry-endpoint" "CABANA_TELEMETRY_ENDPOINT" Kind::Secret, None,
        "Where traces go: the address of a collector that speaks OTLP over HTTP, as http://127.0.0.1:4318";
}

/// Each section, in order.
pub(crate) fn sections() -> impl Iterator<Item = &'static str> + Clone {
    let mut last = "";
    SETTINGS.iter().filter_map(move |setting| {
        let new = setting.section != last;
        last = setting.section;
        new.then_some(setting.section)
    })
}

/// For whoever mistyped: the one that looks most like it.
pub(crate) fn nearest(word: &str, among: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    const ALIKE: f64 = 0.7;
    let judged = among.map(|known| (strsim::jaro_winkler(word, known), known));
    judged.filter(|(alike, _)| *alike > ALIKE).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_flags_and_variables_follow_one_rule() {
        for setting in SETTINGS {
            let variable = format!("CABANA_{}_{}", setting.section, setting.name).to_uppercase();
            match setting.name {
                // The public name of the one setting that every verb has.
                "data" => assert_eq!(setting.variable, "CABANA_DATA"),
                _ => assert_eq!(setting.variable, variable),
            }
            match setting.name {
                // As `cabana run` calls it.
                "mode" => assert_eq!(setting.flag, "net"),
                "map" => assert_eq!(setting.flag, "images-map"),
                // Alone, their names would say too little.
                name if ["e2b", "log", "mounts", "quotas", "retention", "telemetry", "webhooks"]
                    .contains(&setting.section) =>
                {
                    assert_eq!(setting.flag, format!("{}-{}", setting.section, name.replace('_', "-")));
                }
                name => assert_eq!(setting.flag, name.replace('_', "-")),
            }
        }
        let unique =
            |of: fn(&&&Setting) -> &'static str| SETTINGS.iter().map(|s| of(&s)).collect::<BTreeSet<_>>().len();
        assert_eq!(unique(|s| s.flag), SETTINGS.len());
        assert_eq!(unique(|s| s.variable), SETTINGS.len());
    }

    #[test]
    fn every_default_is_a_value_that_it_takes() {
        for setting in SETTINGS {
            if let Some(default) = setting.default {
                assert_eq!(setting.kind.check(default), Ok(()), "{}", setting.key());
            }
        }
    }
}
