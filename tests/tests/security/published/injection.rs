//! Names, arguments and variables that mean something to a shell, a parser of options, or a format with lengths and lines.

use cabana_sandbox::{Alter, ExecSpec, SandboxPath, Search, run, write_all};
use futures_util::{StreamExt, TryStreamExt, stream};

use super::stage::{python, shell};
use crate::{
    archives::tar_of,
    inside::{Inside, named, path},
};

/// CVE-2026-33718: a path of a request in a command of a shell. Each name would make the file `/tmp/ran` if anything evaluated it.
#[tokio::test]
async fn file_names_are_never_shell_code() {
    let names = [
        "$(touch ${TMPDIR-}ran)",
        "`touch ran`",
        ";touch ran;",
        "|touch ran|",
        "&touch ran&",
        "a\ntouch ran\n",
        "'$(touch ran)'",
        "\"$(touch ran)\"",
        "--checkpoint-action=exec=sh ran",
        "--use-compress-program=touch ran",
        "-rf",
        "@@u",
        "%F",
        "{{ran}}",
        "${jndi:x}",
        "*",
        "~root",
        "-exec touch ran ;",
    ];
    let inside = Inside::new().await;
    inside.user("mkdir /tmp/t && cd /tmp && eval 'touch ran' && ls ran && rm ran").await.ok(); // what they would do if they could
    for user in ["root", "user"] {
        let files = inside.files(user);
        for name in names {
            let at = path(&format!("/tmp/t/{name}"));
            write_all(&*files, &at, "x").await.unwrap();
            files.stat(&at).await.unwrap();
            let moved = path(&format!("/tmp/t/moved {name}"));
            files.alter(Alter::Rename(at.clone(), moved.clone())).await.unwrap();
            files.alter(Alter::SetMode(moved.clone(), 0o644)).await.unwrap();
            files.alter(Alter::Rename(moved, at.clone())).await.unwrap();
            let spec = ExecSpec::argv(["/bin/cat", "--", &String::from_utf8_lossy(at.as_bytes())], path("/tmp/t"));
            assert_eq!(inside.command(user, spec).await.ok(), "x", "{name}");
            files.alter(Alter::MakeDir(path(&format!("/tmp/t/dir {name}")), 0o755)).await.unwrap();
            let there = ExecSpec::shell("pwd", path(&format!("/tmp/t/dir {name}")));
            assert!(inside.command(user, there).await.ok().ends_with(name.trim()), "{name}");
        }
        files.list(&path("/tmp/t")).await.unwrap().try_collect::<Vec<_>>().await.unwrap();
        let packed: Vec<_> = files.pack(&path("/tmp/t")).await.unwrap().try_collect().await.unwrap();
        let body = stream::once(async move { Ok(packed.concat().into()) }).boxed();
        files.alter(Alter::MakeDir(path("/tmp/again"), 0o755)).await.unwrap();
        files.unpack(&path("/tmp/again"), body).await.unwrap();
        for globs in names.map(|name| vec![name.to_owned()]) {
            let what = Search {
                root: path("/tmp/t"),
                grep: Some(globs[0].replace(['$', '(', ')', '{', '}', '*', '|'], ".")),
                globs,
                ignore_files: false,
                max_hits: 10,
                budget: std::time::Duration::from_secs(5),
            };
            if let Ok(hits) = files.search(what).await {
                hits.filter_map(|part| async { part.ok() }).count().await;
            }
        }
        let ran = inside
            .root("find / -xdev -name ran -newer /tmp/t 2>/dev/null; ls -d /tmp/ran /ran /root/ran 2>/dev/null; true")
            .await;
        assert_eq!(ran.out, "", "as {user}");
        files.alter(Alter::RemoveAll(path("/tmp/again"))).await.unwrap();
        inside.root("rm -rf /tmp/t && mkdir -m 777 /tmp/t").await.ok();
    }
    inside.end().await;
}

/// CVE-2024-32462, CVE-2020-17367: the first words of a command were read as options of what starts it.
#[tokio::test]
async fn argv_is_never_parsed_as_options() {
    let inside = Inside::new().await;
    let show = "import sys; print('|'.join(sys.argv[1:]))";
    let odd = [
        "--",
        "--bind",
        "/",
        "/",
        "--user=root",
        "-c",
        "id",
        "--workdir",
        "/root",
        "@@",
        "@@u",
        "%f",
        "--share-net",
        "",
        "-",
    ];
    let words: Vec<&str> = ["/usr/bin/python3", "-c", show].into_iter().chain(odd).collect();
    let said = inside.command("user", ExecSpec::argv(words, SandboxPath::root())).await.ok();
    assert_eq!(said, odd.join("|"));
    for program in ["--bind", "-c", "--", "--user=root", "-"] {
        let spec =
            ExecSpec { user: Some(named("user")), ..ExecSpec::argv([program, "/bin/id", "-u"], SandboxPath::root()) };
        let refused = run(&*inside.sandbox, spec, 100).await.map(|ran| ran.stdout.head);
        assert!(refused.is_err(), "{program} is no program: {refused:?}");
    }
    inside.end().await;
}

/// CVE-2026-23953, CVE-2022-4318: a line break in a value began another line of a file that was made of it.
#[tokio::test]
async fn newlines_in_environment_values_stay_values() {
    let inside = Inside::new().await;
    let files = "cat /etc/passwd /etc/group /etc/environment /etc/hosts /etc/hostname 2>/dev/null; true";
    let before = inside.root(files).await.ok();
    let odd = "x\nevil:x:0:0::/:/bin/sh\nlxc.hook.pre-start = /bin/sh\r\nPATH=/tmp\0".trim_end_matches('\0');
    for name in ["HOME", "USER", "SHELL", "LANG", "TERM", "ORDINARY"] {
        let show = format!("import os; print(repr(os.environ['{name}'])); print(os.environ['PATH'])");
        let spec = ExecSpec { env: [(name.to_owned(), odd.to_owned())].into(), ..python(&show) };
        let said = inside.command("user", spec).await.ok();
        assert_eq!(
            said.lines().next().map(str::to_owned),
            Some(format!("{odd:?}").replace('"', "'")),
            "it arrives as it is"
        );
        assert!(!said.ends_with("PATH=/tmp"), "{said}");
        assert_eq!(inside.root(files).await.ok(), before, "{name}");
    }
    for name in ["A\nB", "A=B", "", "A B=C\nD"] {
        let show = "import os; print([name for name in ['A', 'B', 'C', 'D'] if name in os.environ])";
        let spec = ExecSpec { env: [(name.to_owned(), "x".to_owned())].into(), ..python(show) };
        if let Ok(ran) = run(&*inside.sandbox, spec, 1 << 16).await {
            assert_eq!(String::from_utf8_lossy(&ran.stdout.head).trim(), "[]", "{name:?} is one name");
        }
    }
    inside.end().await;
}

/// CVE-2021-43784: a length of 16 bits, and what follows is read as the next setting.
#[tokio::test]
async fn arguments_beyond_16_bit_lengths_arrive_whole() {
    let inside = Inside::new().await;
    let show = "import os, sys
(word, value), whole = (sys.argv[1], os.environ['LONG']), '0123456789abcdef' * 20000
print(len(word), word == whole[:len(word)], value == word[1:], os.getuid(), os.getcwd())";
    for length in [65_534, 65_535, 65_536, 65_537, 65_536 + 1000, 131_000] {
        let text: String = "0123456789abcdef".chars().cycle().take(length).collect();
        let mut spec = ExecSpec::argv(["/usr/bin/python3", "-c", show, &text], path("/tmp"));
        spec.env = [("LONG".to_owned(), text[1..].to_owned())].into();
        assert_eq!(inside.command("user", spec).await.ok(), format!("{length} True True 1000 /tmp"));
    }
    let many: Vec<String> = (0..70_000).map(|number| number.to_string()).collect();
    let count = ["/usr/bin/python3", "-c", "import sys; print(len(sys.argv), sys.argv[-1])"].map(str::to_owned);
    let said = inside.command("user", ExecSpec::argv(count.into_iter().chain(many), SandboxPath::root())).await.ok();
    assert_eq!(said, "70001 69999", "more words than 16 bits can count");
    let long = "x".repeat(300_000);
    let refused = run(&*inside.sandbox, ExecSpec::argv(["/bin/echo", &long], SandboxPath::root()), 100).await;
    assert!(refused.is_err(), "what the kernel takes from nobody is refused");
    inside.still_works().await;
    inside.end().await;
}

/// CVE-2021-43860: what stands behind a NUL is seen by one reader and not by the other.
#[tokio::test]
async fn nul_bytes_are_refused() {
    let inside = Inside::new().await;
    let specs = [
        ExecSpec::argv(["/bin/id\0x"], SandboxPath::root()),
        ExecSpec::argv(["/bin/id", "-u\0x"], SandboxPath::root()),
        shell("id -u\0; id"),
        ExecSpec { env: [("A\0B".to_owned(), "x".to_owned())].into(), ..shell("id") },
        ExecSpec { env: [("A".to_owned(), "x\0PATH=/tmp".to_owned())].into(), ..shell("id") },
    ];
    for spec in specs {
        let what = format!("{:?}", spec.command);
        assert!(run(&*inside.sandbox, spec, 100).await.is_err(), "{what}");
    }
    for text in ["/tmp/a\0b", "/tmp\0", "\0/tmp"] {
        assert!(text.parse::<SandboxPath>().is_err(), "{text:?}");
    }
    assert!(cabana_sandbox::User::new("root\0x").is_err() && cabana_sandbox::User::new("user\0").is_err());
    // In an archive, where a name of a hundred bytes may hold one: it ends there, and what is behind it is not looked at.
    let tar = tar_of(&[("plain\0/../../../tmp/behind", "x")]);
    inside.user("mkdir -p /home/user/into").await.ok();
    let _ = crate::archives::unpack(&inside, "user", tar).await;
    assert_eq!(inside.root("ls /tmp/behind /home/user/into/behind 2>/dev/null; true").await.ok(), "");
    assert_eq!(inside.command("user", ExecSpec::argv(["/bin/id", "-u"], SandboxPath::root())).await.ok(), "1000");
    inside.end().await;
}
