// Makes a look at what is open long: as many descriptors as there may be, in a table that many processes share. Then writes as many
// MiB as are asked for.
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv) {
    enum { SHARERS = 120 };
    (void)argc;
    static char part[1 << 20];
    memset(part, 'x', sizeof part);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max < 20000 ? files.rlim_max : 20000;
    setrlimit(RLIMIT_NOFILE, &files);
    int out = open("/home/user/out", O_CREAT | O_WRONLY | O_TRUNC, 0644);
    while (dup(out) >= 0) {
    }
    for (int sharer = 0; sharer < SHARERS; sharer++) {
        if (syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0) == 0) {
            for (;;) pause();
        }
    }
    printf("begun\n");
    fflush(stdout);
    // Until a look is under way that began when there was nothing.
    sleep(1);
    for (long mib = 0; mib < atol(argv[1]); mib++) {
        if (write(out, part, sizeof part) < 0) break;
    }
    printf("written\n");
    fflush(stdout);
    sleep(300);
}
