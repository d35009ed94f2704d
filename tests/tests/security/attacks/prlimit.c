// Sets limits of another process: how much it may open, write, and run. Each to as little as can be.
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

static void limit(int pid, const char *what, enum __rlimit_resource resource) {
    struct rlimit none = {0, 0};
    printf("%s %s\n", what, prlimit(pid, resource, &none, NULL) ? strerrorname_np(errno) : "done");
}

int main(int count, char **arguments) {
    int pid = count > 1 ? atoi(arguments[1]) : fork();
    if (!pid) {
        for (;;)
            pause();
    }
    limit(pid, "open files", RLIMIT_NOFILE);
    limit(pid, "file size", RLIMIT_FSIZE);
    limit(pid, "processes", RLIMIT_NPROC);
    limit(pid, "pending signals", RLIMIT_SIGPENDING);
    if (count < 2)
        kill(pid, SIGKILL);
}
