// Asks for the namespaces of one process by its pidfd. Without a number the process is a child of its own.
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int count, char **arguments) {
    if (count != 2)
        return 2;
    int pid = atoi(arguments[1]), child = 0;
    if (!pid && !(pid = child = fork())) {
        for (;;)
            pause();
    }
    int pidfd = syscall(SYS_pidfd_open, pid, 0);
    // In the order of their numbers, from 1.
    const char *names[] = {"cgroup", "ipc", "mnt", "net", "pid", "pid for children", "time", "time for children", "user", "uts"};
    for (unsigned at = 0; at < sizeof names / sizeof *names; at++) {
        int fd = ioctl(pidfd, _IO(0xff, at + 1), 0);
        printf("%s %s\n", names[at], fd >= 0 ? "done" : strerrorname_np(errno));
    }
    if (child)
        kill(child, SIGKILL);
}
