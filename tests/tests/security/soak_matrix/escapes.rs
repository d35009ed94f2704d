//! Out of the sandbox through what is open between clone and exec: every path that is looked up for a command before it is
//! one (its working directory, its program, the interpreter of that) can lead through `/proc/self/fd`, and whatever the
//! process that will become the command has open then is a door. As with CVE-2024-21626.

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf};

use cabana_sandbox::{ExecSpec, SandboxPath};
use cabana_tests::remote::{Answer, Origin, Refusal, Request};

use super::{Target, command, in_terminal, path, sources, stage, together};
use crate::{
    attacks::{LINKED, OUTSIDE, PLANT, Ran, SAY},
    inside::{named, unique},
};

/// Beyond what any process before its exec has been seen to hold, and in a soak far beyond.
fn descriptors() -> std::ops::Range<u32> {
    3..if super::rounds().is_some() { 65 } else { 33 }
}

/// For the second and third way to the same place.
const FEWER: std::ops::Range<u32> = 3..17;
/// Where each takes commands of its own to prepare: what init holds at rest, and a few more.
const FEWEST: std::ops::Range<u32> = 3..14;

const UP: &str = "../../../../../../../../../../../../../../../../";

/// A file of users with somebody in it whom no sandbox has.
const USERS: &str = "outsider:x:0:0::/:/bin/sh\n";

/// Things of the host that everybody there may use: a file, a directory to write to, a program, a file of users.
struct Outside {
    dir: tempfile::TempDir,
    word: String,
}

impl Outside {
    fn new() -> Self {
        let (dir, word) = (tempfile::tempdir().unwrap(), unique("outside"));
        let mode = |path: PathBuf, mode| fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        mode(dir.path().to_owned(), 0o755);
        fs::write(dir.path().join("canary"), &word).unwrap();
        fs::create_dir(dir.path().join("open")).unwrap();
        mode(dir.path().join("open"), 0o777);
        let mut program = SAY.program();
        let place = program.windows(2).position(|bytes| bytes == b"@@").expect("a place for the word");
        program[place..=place + word.len()].copy_from_slice(format!("{word}\0").as_bytes());
        // By this name it is found by a search of PATH, and by no other.
        fs::write(dir.path().join(&word), program).unwrap();
        mode(dir.path().join(&word), 0o755);
        fs::write(dir.path().join("passwd"), USERS).unwrap();
        Self { dir, word }
    }

    /// Seen from the root of the host.
    fn relative(&self, name: &str) -> String {
        self.dir.path().join(name).strip_prefix("/").unwrap().to_str().unwrap().to_owned()
    }

    /// What leads there from any directory of the host.
    fn up_to(&self, name: &str) -> String {
        format!("{UP}{}", self.relative(name))
    }

    fn up_to_program(&self) -> String {
        self.up_to(&self.word)
    }

    /// What [`OUTSIDE`] is told.
    fn arguments(&self) -> [String; 3] {
        [self.relative("canary"), self.word.clone(), self.relative("open")]
    }

    /// A command that looks for it from where it is started.
    fn look(&self, user: &str, program: &str, from: &str) -> ExecSpec {
        let arguments = self.arguments();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        ExecSpec { cwd: path(from), ..command(user, program, &arguments) }
    }

    /// None of the commands that looked found anything.
    #[track_caller]
    fn is_not_found(&self, tried: Vec<Result<Ran, Refusal>>) {
        for (number, ran) in tried.into_iter().enumerate() {
            if let Ok(ran) = ran {
                let report = ran.report();
                assert!(report.is_without("done"), "command {number} found it: {report:?}");
            }
        }
        let made = fs::read_dir(self.dir.path().join("open")).unwrap().count();
        assert_eq!(made, 0, "files were made outside");
    }

    /// None of the commands was the program of the host.
    #[track_caller]
    fn is_not_heard(&self, tried: Vec<Result<Ran, Refusal>>) {
        for (number, ran) in tried.into_iter().enumerate() {
            let Ok(ran) = ran else { continue };
            assert!(!ran.out.contains(&self.word), "command {number} started a program of the host: {ran:?}");
        }
    }
}

fn descriptor(number: u32) -> String {
    format!("/proc/self/fd/{number}")
}

/// With a directory of the host open, which is what a wall that is off looks like, each way leads there.
#[test]
fn a_descriptor_of_the_host_is_a_door_where_it_is_left_open() {
    let (outside, group) = (Outside::new(), TestGroup::new());
    let from = |program: &str, arguments: &[&str]| {
        let words = [&["from", group.0.to_str().unwrap(), program], arguments].concat();
        OUTSIDE.run_on_host(&words)
    };
    let looking = OUTSIDE.on_host();
    let arguments = outside.arguments();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let report = from(looking.to_str().unwrap(), &arguments).report();
    for way in ["reading it", "writing beside it", "joining a group"] {
        assert_eq!(report.of(&format!("{way} from the working directory")), "done");
    }
    // By the program's own name, by the first line of a script, and by the interpreter in a program's file.
    let work = tempfile::tempdir().unwrap();
    let (scripts, programs) = (work.path().join("scripts"), work.path().join("programs"));
    let (scripts, programs) = (scripts.to_str().unwrap(), programs.to_str().unwrap());
    let (tail, linked) = (outside.up_to_program(), LINKED.on_host());
    PLANT.run_on_host(&["scripts", scripts, "8", &tail]).ok();
    PLANT.run_on_host(&["programs", programs, "8", &tail, linked.to_str().unwrap()]).ok();
    for program in [format!("/proc/self/fd/7/{tail}"), format!("{scripts}/7"), format!("{programs}/7")] {
        let heard = from(&program, &[]).ok();
        assert_eq!(heard, outside.word, "{program}");
    }
}

/// A control group of the test's own.
struct TestGroup(PathBuf);

impl TestGroup {
    fn new() -> Self {
        let path = stage::unified().join(unique("cabana-control"));
        fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for TestGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

together! {
    paths_of_a_command_behind_descriptors {
        a_working_directory_behind_a_descriptor(target) {
            let outside = Outside::new();
            let program = target.install(&OUTSIDE);
            let mut commands = Vec::new();
            for user in target.users() {
                commands.extend(descriptors().map(|number| outside.look(user, &program, &descriptor(number))));
                commands.extend(FEWER.map(|number| in_terminal(outside.look(user, &program, &descriptor(number)))));
                // As threads and processes see themselves otherwise, and by what /dev has of it.
                for number in FEWER {
                    for door in ["/proc/thread-self/fd", "/proc/1/fd", "/dev/fd"] {
                        commands.push(outside.look(user, &program, &format!("{door}/{number}")));
                    }
                }
            }
            outside.is_not_found(target.exec(commands));
            target.still_works();
        }

        a_program_behind_a_descriptor(target) {
            let (outside, users) = (Outside::new(), target.users());
            let tail = outside.up_to_program();
            let words = descriptors().map(|number| format!("{}/{tail}", descriptor(number)));
            let commands = words.flat_map(|word| {
                let plain = users.iter().map(|user| command(user, &word, &[])).collect::<Vec<_>>();
                let shell = ExecSpec { user: Some(named(users[0])), ..ExecSpec::shell(&word, SandboxPath::root()) };
                plain.into_iter().chain([shell])
            });
            outside.is_not_heard(target.exec(commands.collect()));
            target.still_works();
        }

        a_search_path_that_leads_through_descriptors(target) {
            let outside = Outside::new();
            let directories = |door: &str| {
                let all = descriptors().map(|number| format!("{door}/{number}/{}", outside.up_to("")));
                all.collect::<Vec<_>>().join(":")
            };
            let mut commands = Vec::new();
            for user in target.users() {
                for door in ["/proc/self/fd", "/proc/thread-self/fd", "/dev/fd", "fd"] {
                    let mut spec = command(user, &outside.word, &[]);
                    spec.env.insert("PATH".to_owned(), directories(door));
                    commands.extend([spec.clone(), in_terminal(spec)]);
                }
            }
            outside.is_not_heard(target.exec(commands.into_iter().map(anew).collect()));
            target.still_works();
        }

        an_interpreter_of_a_script_behind_a_descriptor(target) {
            let (outside, users) = (Outside::new(), target.users());
            target.attack("root", &PLANT, &["scripts", "/tmp/scripts", "62", &outside.up_to_program()]).ok();
            let scripts = descriptors().flat_map(|number| {
                users.iter().map(move |user| command(user, &format!("/tmp/scripts/{number}"), &[]))
            });
            let terminal = FEWER.map(|number| in_terminal(command("root", &format!("/tmp/scripts/{number}"), &[])));
            let commands = scripts.chain(terminal).collect();
            outside.is_not_heard(target.exec(commands));
            target.still_works();
        }

        an_interpreter_of_a_program_behind_a_descriptor(target) {
            let (outside, users) = (Outside::new(), target.users());
            let linked = target.install(&LINKED);
            target.attack("root", &PLANT, &["programs", "/tmp/programs", "62", &outside.up_to_program(), &linked]).ok();
            let commands = descriptors().flat_map(|number| {
                users.iter().map(move |user| command(user, &format!("/tmp/programs/{number}"), &[]))
            });
            outside.is_not_heard(target.exec(commands.collect()));
            target.still_works();
        }

        a_link_at_the_working_directory_that_the_caller_names(target) {
            let outside = Outside::new();
            let program = target.install(&OUTSIDE);
            target.attack("root", &PLANT, &["links", "/tmp/links", "62", ""]).ok();
            // A link of a link, and one that leads on from there.
            target.attack("root", &PLANT, &["links", "/tmp/further", "62", UP]).ok();
            let mut commands = Vec::new();
            for user in target.users() {
                for (dir, numbers) in [("/tmp/links", descriptors()), ("/tmp/further", FEWER)] {
                    commands.extend(numbers.map(|number| outside.look(user, &program, &format!("{dir}/{number}"))));
                }
            }
            outside.is_not_found(target.exec(commands));
            target.still_works();
        }
    }

    /// Each of these replaces something that the others do without.
    places_of_the_sandbox_replaced_by_what_leads_behind_descriptors {
        a_link_where_the_default_working_directory_is(target) {
            let outside = Outside::new();
            let (program, plant) = (target.install(&OUTSIDE), target.install(&PLANT));
            for place in ["/home/user", "/workspace"] {
                for number in FEWEST {
                    let planted = target.run(command("root", &plant, &["link", &descriptor(number), place]));
                    let planted = planted.report().of("link") == "done";
                    assert!(planted || target.combination.read_only_root, "{place} can be replaced");
                    let commands = target.users().iter().map(|user| outside.look(user, &program, place)).collect();
                    outside.is_not_found(target.exec(commands));
                }
            }
        }

        a_shell_that_is_a_script_with_such_an_interpreter(target) {
            let (outside, users) = (Outside::new(), target.users());
            let (plant, tail) = (target.install(&PLANT), outside.up_to_program());
            for number in FEWEST {
                let interpreter = format!("{}/{tail}", descriptor(number));
                for shell in ["/bin/sh", "/bin/bash", "/usr/bin/busybox"] {
                    target.run(command("root", &plant, &["script", &interpreter, shell]));
                }
                let shell = |user| ExecSpec { user: Some(named(user)), ..ExecSpec::shell("exit 3", SandboxPath::root()) };
                outside.is_not_heard(target.exec(users.iter().map(|user| shell(user)).collect()));
            }
        }

        a_file_of_users_that_is_a_link_to_one_of_the_host(target) {
            let outside = Outside::new();
            let plant = target.install(&PLANT);
            let (sandbox, at) = (target.number, path("/tmp/users"));
            target.expect_done(&Request::Write { sandbox, user: named("root"), at, content: USERS.to_owned() });
            let doors = FEWEST.map(|number| format!("{}/{}", descriptor(number), outside.up_to("passwd")));
            let plain = [outside.up_to("passwd"), format!("/proc/self/root/{}", outside.relative("passwd"))];
            for text in doors.chain(plain) {
                let planted = target.run(command("0", &plant, &["link", &text, "/etc/passwd"]));
                let planted = planted.report().of("link") == "done";
                assert!(planted || target.combination.read_only_root, "it can be replaced");
                let tried = target.exec(vec![command("outsider", &plant, &[])]).remove(0);
                assert!(tried.is_err(), "somebody whom only the host knows ran a command by {text}: {tried:?}");
                if !planted {
                    return;
                }
            }
            // A link that leads to a file inside is followed: so would the others be, if they led anywhere.
            target.run(command("0", &plant, &["link", "/tmp/users", "/etc/passwd"])).report().all_done();
            target.exec(vec![command("outsider", &plant, &[])]).remove(0).expect("somebody whom the sandbox knows");
        }
    }

    templates_that_lead_behind_descriptors {
        a_template_that_suggests_such_a_working_directory(target) {
            let (outside, combination) = (Outside::new(), target.combination);
            let origin = match combination.origin {
                Origin::Image | Origin::Archive => Origin::Image,
                _ => Origin::Template,
            };
            for number in sources::DESCRIPTORS {
                let (sandbox, limited) = (target.number + 1, combination.is_limited());
                let spec = Box::new(combination.spec());
                let answer = target.ask(&Request::CreateInDescriptor { sandbox, origin, limited, number, spec });
                let Answer::Done = answer else { continue }; // refused, which is as good
                let mut made = Target::made(&mut *target.remote, combination, sandbox);
                let program = made.install(&OUTSIDE);
                let commands = made.users().iter().map(|user| outside.look(user, &program, &descriptor(number))).collect();
                outside.is_not_found(made.exec(commands));
                made.destroy();
            }
        }
    }
}

/// A command is known by its id: a copy is another command.
fn anew(spec: ExecSpec) -> ExecSpec {
    ExecSpec { id: cabana_sandbox::ExecId::now(), ..spec }
}
