//! Debuggers on one's own processes.

use super::work;

const PROGRAM: &str = r#"
cat >prog.c <<'END'
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>
volatile int go_on = 0;
static int inner(int x) { return x * 2; }
int outer(int x) { return inner(x) + 1; }
int main(int argc, char **argv) {
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0); /* hosts with Yama ask for it, here as anywhere */
    printf("%d\n", outer(20)); fflush(stdout);
    while (argc > 1 && !go_on) usleep(1000);
    return 5;
}
END
gcc -g -O0 -o prog prog.c
"#;

#[tokio::test]
async fn gdb_breaks_walks_the_stack_and_attaches() {
    let script = format!(
        r#"{PROGRAM}
        gdb -nx --batch -ex 'break inner' -ex run -ex backtrace -ex 'print x' -ex continue ./prog >first 2>&1
        ./prog wait >out & until [ -s out ]; do sleep 0.01; done
        gdb -nx --batch -p $! -ex 'print go_on' -ex 'set var go_on = 1' -ex detach >second 2>&1
        wait $! || echo "ended with $?"; cat first second"#
    );
    let said = work(&script).await;
    for part in [
        "ended with 5",
        "#0  inner (x=20)",
        "in outer (x=20)",
        "in main (",
        "$1 = 20",
        "exited with code 05",
        "$1 = 0",
        "detached]",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!said.contains("not permitted") && !said.contains("disabling address space"), "{said}");
}

#[tokio::test]
async fn strace_follows_children_and_attaches() {
    let script = format!(
        r#"{PROGRAM}
        strace -f -o log -e trace=execve,exit_group sh -c '/bin/true; /bin/false; exit 4' || echo "ended with $?"
        grep -c 'execve(.* = 0' log; grep -o 'exited with [0-9]' log | sort -u | xargs
        ./prog wait >out & traced=$!; until [ -s out ]; do sleep 0.01; done
        strace -p $traced -o attached & tracer=$!; until grep -qs nanosleep attached; do sleep 0.01; done
        kill $tracer; wait $tracer || kill $traced; echo attached
        strace -c -o counts true; tail -1 counts | grep -o total"#
    );
    let said = work(&script).await;
    assert_eq!(said, "ended with 4\n3\nexited with 0 exited with 1 exited with 4\nattached\ntotal");
}
