// Looks for brokers and does to each what may not work: reads its memory, its descriptors, traces it, and as root stops it.
// Arguments: a file, and `stop` or `look`. Prints what came of a call meanwhile, and what was got from brokers.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_int ended, seen, stopped, got;
static int stops;

static void meet(int pid) {
    char path[64], text[64] = "";
    snprintf(path, sizeof path, "/proc/%d/comm", pid);
    int fd = open(path, O_RDONLY);
    if (fd < 0)
        return;
    if (read(fd, text, sizeof text - 1) < 0)
        text[0] = 0;
    close(fd);
    if (strcmp(text, "cabana-broker\n"))
        return;
    seen++;
    if (stops && kill(pid, SIGSTOP) == 0)
        stopped++;
    const char *files[] = {"mem", "environ", "maps", "syscall", "fd/3"};
    for (unsigned i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "/proc/%d/%s", pid, files[i]);
        if ((fd = open(path, O_RDONLY)) >= 0) {
            // Of one that ended meanwhile there is nothing to read.
            if (read(fd, text, 1) > 0)
                got++;
            close(fd);
        }
    }
    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    DIR *dir = opendir(path);
    if (dir && readdir(dir))
        got++;
    if (dir)
        closedir(dir);
    if (ptrace(PTRACE_SEIZE, pid, 0, 0) == 0)
        got++;
    int pidfd = syscall(SYS_pidfd_open, pid, 0);
    for (int n = 0; pidfd >= 0 && n < 8; n++)
        if ((fd = syscall(SYS_pidfd_getfd, pidfd, n, 0)) >= 0) {
            got++;
            close(fd);
        }
    close(pidfd);
}

static void *look(void *nothing) {
    int last = getpid();
    while (!ended)
        for (int pid = last + 1; pid < last + 3000 && !ended; pid++)
            meet(pid);
    return nothing;
}

int main(int argc, char **argv) {
    (void)argc;
    stops = !strcmp(argv[2], "stop");
    pthread_t thread;
    pthread_create(&thread, NULL, look, NULL);
    int done = 0, refused = 0;
    for (int i = 0; i < 100000 && (stops ? !refused : seen < 20); i++) {
        if (chmod(argv[1], 04755) == 0)
            done++;
        else if (errno == EPERM)
            refused++;
        else
            perror("chmod");
    }
    ended = 1;
    pthread_join(thread, NULL);
    printf("done %s\nrefused %s\nseen %s\nstopped %s\ngot %s\n", done ? "some" : "none", refused ? "some" : "none",
           seen ? "some" : "none", stopped ? "some" : "none", got ? "some" : "none");
}
