// Tries to get around the filter with what a process may do with filters and tracers of its own. The call that should not
// get through is fsopen("tmpfs"): harmless, and it needs rights that only the host has.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef PTRACE_O_SUSPEND_SECCOMP
#define PTRACE_O_SUSPEND_SECCOMP (1 << 21)
#endif

static const char *came(long done) { return done >= 0 ? "done" : strerrorname_np(errno); }
static void say(const char *what, const char *how) { printf("%s %s\n", what, how); }
static long forbidden(void) { return syscall(SYS_fsopen, "tmpfs", 0); }

static long install(unsigned verdict, unsigned flags) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fsopen, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, verdict),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = 4, .filter = code};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
}

// A filter of one's own that says yes, on all threads.
static void allow(void) {
    say("a filter that allows", came(install(SECCOMP_RET_ALLOW, SECCOMP_FILTER_FLAG_TSYNC)));
    say("the call after it", came(forbidden()));
    say("filters off", came(prctl(PR_SET_SECCOMP, 0, 0, 0, 0)));
    say("the call in the end", came(forbidden()));
}

// A supervisor of one's own that says «go on» to whatever it is asked about.
static void notify(void) {
    int listener = install(SECCOMP_RET_USER_NOTIF, SECCOMP_FILTER_FLAG_NEW_LISTENER);
    say("a supervisor", came(listener));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        say("the call that it lets go on", came(forbidden()));
        fflush(stdout);
        _exit(0);
    }
    // The outer filter may answer before the supervisor is asked: then there is nothing to answer, and the child ends.
    for (int status; waitpid(child, &status, WNOHANG) == 0;) {
        struct seccomp_notif asked = {0};
        struct seccomp_notif_resp answer = {0};
        struct pollfd_like { int fd; short events, revents; } ready = {listener, 1, 0};
        struct timespec_like { long seconds, nanos; } wait = {0, 10000000};
        if (syscall(SYS_ppoll, &ready, 1, &wait, 0, 0) != 1 || ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &asked))
            continue;
        answer.id = asked.id;
        answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
        ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
    }
}

#ifdef __x86_64__
// A tracer that turns a harmless call of its child into another at the moment when it is made.
static void rewrite(void) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        long done = syscall(SYS_getpgid, "tmpfs", 0);
        say("a call that a tracer changed", done >= 0 ? "done" : strerrorname_np(errno));
        fflush(stdout);
        _exit(0);
    }
    int status, entering = 1;
    waitpid(child, &status, 0);
    ptrace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACESYSGOOD);
    while (!ptrace(PTRACE_SYSCALL, child, 0, 0) && waitpid(child, &status, 0) == child && !WIFEXITED(status)) {
        if (!WIFSTOPPED(status) || WSTOPSIG(status) != (SIGTRAP | 0x80))
            continue;
        struct user_regs_struct registers;
        ptrace(PTRACE_GETREGS, child, 0, &registers);
        if (entering && registers.orig_rax == SYS_getpgid) {
            registers.orig_rax = SYS_fsopen;
            ptrace(PTRACE_SETREGS, child, 0, &registers);
        }
        entering = !entering;
    }
}
#endif

// What only checkpointing may: to suspend the filter of a child, and to read it.
static void checkpoint(void) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        for (;;)
            pause();
    }
    say("a tracer that suspends the filter", came(ptrace(PTRACE_SEIZE, child, 0, PTRACE_O_SUSPEND_SECCOMP)));
    ptrace(PTRACE_SEIZE, child, 0, 0);
    ptrace(PTRACE_INTERRUPT, child, 0, 0);
    waitpid(child, NULL, 0);
    say("a tracer that reads the filter", came(ptrace(PTRACE_SECCOMP_GET_FILTER, child, 0, 0)));
    kill(child, SIGKILL);
}

int main(int count, char **arguments) {
    const char *what = count > 1 ? arguments[1] : "";
    if (!strcmp(what, "allow"))
        allow();
    if (!strcmp(what, "notify"))
        notify();
#ifdef __x86_64__
    if (!strcmp(what, "rewrite"))
        rewrite();
#endif
    if (!strcmp(what, "checkpoint"))
        checkpoint();
}
