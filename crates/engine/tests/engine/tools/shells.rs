//! The shell, its small tools, and terminals.

use cabana_sandbox::{ExecSpec, Stdio, TermSize};

use super::work;
use crate::inside::{Inside, command, path};

#[tokio::test]
async fn bash_has_jobs_substitution_here_documents_and_coprocesses() {
    let script = r#"
        sleep 1000 & jobs -r | grep -c sleep; kill %1; wait %1 || echo "ended with $?"
        { diff <(printf 'a\nb\n') <(printf 'a\nc\n') || true; } | grep '^[<>]' | tr '\n' ' '; echo
        name=world; cat <<END | tee >(wc -c >count) ; while [ ! -s count ]; do sleep 0.01; done; cat count
hello $name
END
        coproc BC { while read -r line; do echo $((line)); done; }
        echo '6 * 7' >&"${BC[1]}"; read -r answer <&"${BC[0]}"; echo "$answer"
        trap 'echo cleaned' EXIT; mapfile -t lines < <(seq 3); echo "${#lines[@]} ${lines[*]}"
    "#;
    let said = work(script).await;
    assert_eq!(said, "1\nended with 143\n< b > c \nhello world\n12\n42\n3 1 2 3\ncleaned");
}

#[tokio::test]
async fn a_job_is_stopped_and_taken_up_again_in_a_terminal() {
    let inside = Inside::new().await;
    let script = "sh -c 'kill -STOP $$; echo resumed'; jobs; fg; tty; stty size";
    let mut spec = ExecSpec::argv(["bash", "--norc", "-i", "-c", script], path("/home/user"));
    spec.stdio = Stdio::Terminal(TermSize { cols: 80, rows: 24 });
    let said = command(&*inside.sandbox, "user", spec).await.ok();
    for part in ["Stopped", "resumed", "/dev/pts/", "24 80"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    inside.end().await;
}

#[tokio::test]
async fn the_small_tools_of_a_system_work() {
    let script = r#"
        perl -MPOSIX -e 'my $pid = fork; exit 3 unless $pid; waitpid $pid, 0; print "perl ", WEXITSTATUS($?), "\n"'
        seq 10 | awk '{ s += $1 } END { print "awk", s }'
        mkdir -p a/b; echo one >a/b/f; ln -s f a/b/l; mkfifo a/p; touch -d 2001-02-03 a/b/f
        tar -czf t.tgz a; mkdir out; tar -xzf t.tgz -C out
        echo "tar $(readlink out/a/b/l) $(date -r out/a/b/f +%F)"
        rsync -a a/ copy/; echo two >copy/b/f; rsync -ai a/ copy/ | awk '{ print "rsync", $2 }'
        ssh-keygen -q -t ed25519 -N '' -f key; ssh-keygen -lf key.pub | awk '{ print "ssh-keygen", $1, $4 }'
        openssl ecparam -genkey -name prime256v1 -out k.pem
        openssl req -x509 -new -key k.pem -subj /CN=inside -days 1 -out c.pem
        openssl verify -CAfile c.pem c.pem | tail -1
        busybox sh -c 'echo busybox $(echo text | busybox md5sum | busybox cut -c1-8)'
        (flock 9; until [ -e told ]; do sleep 0.01; done; echo first >>order) 9>lock &
        until ! flock -n lock true; do sleep 0.01; done
        flock lock sh -c 'echo second >>order' & touch told; wait; echo "flock $(xargs <order)"
        timeout 0.1 sleep 1000 || echo "timeout $?"
        nohup sh -c 'echo nohup' </dev/null 2>/dev/null | cat
        setsid sh -c 'ps -o pid=,sid= -p $$' | awk '{ print "setsid", $1 == $2 }'
        /usr/bin/time -f 'time %x' true 2>&1
        seq 8 | xargs -P4 -I{} sh -c 'echo {}' | sort -n | xargs echo xargs
        script -qc 'test -t 0 && echo script' /dev/null </dev/null | tr -d '\r'
        nice -n 5 sh -c 'echo nice $(nice)'; ionice -c3 echo ionice; taskset -c 0 nproc; setarch -R true
        find . -name f -newermt 2001-01-01 -exec sha256sum {} + | wc -l
        dd if=/dev/urandom of=blob bs=64k count=16 status=none; cp --reflink=auto blob blob2; cmp blob blob2
        truncate -s 1G sparse; fallocate -l 1M solid; df . >/dev/null; du -h solid | cut -f1; sync solid
    "#;
    let expected = [
        "perl 3",
        "awk 55",
        "tar f 2001-02-03",
        "rsync b/f",
        "ssh-keygen 256 (ED25519)",
        "c.pem: OK",
        "busybox e1cbb0c3",
        "flock first second",
        "timeout 124",
        "nohup",
        "setsid 1",
        "time 0",
        "xargs 1 2 3 4 5 6 7 8",
        "script",
        "nice 0",
        "ionice",
        "1",
        "3",
        "1.0M",
    ];
    assert_eq!(work(script).await.lines().collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn tmux_keeps_a_session_that_is_typed_into() {
    let script = r#"
        tmux -f /dev/null new-session -d -x 60 -y 10 'exec bash --norc'
        tmux send-keys 'echo $((6 * 7)) in $(tty); tmux wait-for -S done' Enter
        tmux wait-for done
        tmux split-window -d 'sleep 1000'
        tmux capture-pane -p -t 0.0; tmux list-panes -F 'pane #{pane_index}'; tmux kill-server
    "#;
    let said = work(script).await;
    assert!(said.contains("42 in /dev/pts/") && said.ends_with("pane 0\npane 1"), "{said}");
}
