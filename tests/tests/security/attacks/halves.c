// Calls that the filter knows by an argument, with something in the upper half of the register, which the kernel does not
// look at. What they ask for can do no harm where nothing stops them.
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define UPPER (1ul << 32)
#define TRY(what, name, ...)                                                                                           \
    do {                                                                                                               \
        errno = 0;                                                                                                     \
        printf("%s %s\n", what, syscall(SYS_##name, __VA_ARGS__) >= 0 ? "done" : strerrorname_np(errno));               \
    } while (0)

int main(void) {
    TRY("typing into a terminal", ioctl, -1, UPPER | 0x5412, "x");
    TRY("a line discipline", ioctl, -1, UPPER | 0x5423, 0);
    TRY("the limits of process 1", prlimit64, UPPER | 1, 7, 0, 0);
    TRY("the processors of process 1", sched_setaffinity, UPPER | 1, 8, (void *)1);
    TRY("the disk priority of process 1", ioprio_set, UPPER | 1, UPPER | 1, 7 << 13);
    TRY("a protocol above TCP", setsockopt, -1, UPPER | IPPROTO_TCP, UPPER | 31, "tls", 3);
    TRY("memory that is all executable", personality, UPPER | 0x0400000);
    TRY("a core of its own", prctl, UPPER | 62, 99, 0, 0, 0);
    TRY("a part that no kernel knows", unshare, UPPER | CLONE_FILES);
    fflush(stdout);
    errno = 0;
    long child = syscall(SYS_clone, UPPER | CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0);
    if (!child)
        _exit(0);
    if (child > 0)
        waitpid(child, NULL, 0);
    printf("a namespace of users %s\n", child > 0 ? "done" : strerrorname_np(errno));
}
