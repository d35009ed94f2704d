// Sends nothing by every call that sends signals, changes priorities or opens a process, to the pids that it is told.
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TRY(what, call)                                                                                                \
    do {                                                                                                               \
        errno = 0;                                                                                                     \
        printf("%s %s\n", what, (call) >= 0 ? "done" : strerrorname_np(errno));                                        \
    } while (0)

int main(int count, char **words) {
    for (int at = 1; at < count; at++) {
        int pid = atoi(words[at]);
        struct rlimit limits;
        cpu_set_t processors;
        siginfo_t info = {.si_code = SI_QUEUE};
        TRY("kill", kill(pid, 0));
        TRY("tgkill", syscall(SYS_tgkill, pid, pid, 0));
        TRY("tkill", syscall(SYS_tkill, pid, 0));
        TRY("queue", syscall(SYS_rt_sigqueueinfo, pid, 0, &info));
        TRY("pidfd", syscall(SYS_pidfd_open, pid, 0));
        TRY("priority", syscall(SYS_getpriority, PRIO_PROCESS, pid));
        TRY("limits", prlimit(pid, RLIMIT_NOFILE, NULL, &limits));
        TRY("processors", sched_getaffinity(pid, sizeof processors, &processors));
        TRY("group", getpgid(pid));
        TRY("session", getsid(pid));
    }
}
