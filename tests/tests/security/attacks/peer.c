// Attacks one process by everything that debuggers, profilers and /proc offer. Without an argument, the process is a child
// of its own: then nearly all of it must work.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *came(long done) { return done >= 0 ? "done" : strerrorname_np(errno); }
static void say(const char *what, const char *how) { printf("%s %s\n", what, how); }
static int pid;

static const char *path(const char *file) {
    static char text[96];
    snprintf(text, sizeof text, "/proc/%d/%s", pid, file);
    return text;
}

static void opens(const char *what, const char *file, int flags) {
    int fd = open(path(file), flags | O_CLOEXEC | O_NONBLOCK);
    char byte;
    // Some of them judge at the first read.
    long done = fd >= 0 && flags == O_RDONLY ? read(fd, &byte, 1) : fd;
    if (fd >= 0 && done < 0 && (errno == EIO || errno == EISDIR))
        done = 0;
    say(what, came(done));
    if (fd >= 0)
        close(fd);
}

static void lists(const char *what, const char *file) {
    DIR *dir = opendir(path(file));
    int entries = 0;
    while (dir && readdir(dir))
        entries++;
    say(what, entries > 2 ? "done" : errno ? strerrorname_np(errno) : "EMPTY");
    if (dir)
        closedir(dir);
}

static void reads_link(const char *what, const char *file) {
    char text[4096];
    say(what, came(readlink(path(file), text, sizeof text)));
}

int main(int count, char **arguments) {
    static char memory[64] = "secret";
    if (count > 1)
        pid = atoi(arguments[1]);
    else if (!(pid = fork())) {
        for (;;)
            pause();
    }
    char copy[64];
    struct iovec here = {copy, sizeof copy}, there = {memory, sizeof memory};
    say("reading its memory", came(process_vm_readv(pid, &here, 1, &there, 1, 0)));
    say("writing its memory", came(process_vm_writev(pid, &here, 1, &there, 1, 0)));
    int pidfd = syscall(SYS_pidfd_open, pid, 0);
    say("taking its descriptor", came(syscall(SYS_pidfd_getfd, pidfd, 0, 0)));
    say("advising its memory", came(syscall(SYS_process_madvise, pidfd, &there, 1, MADV_WILLNEED, 0)));
    say("its robust list", came(syscall(SYS_get_robust_list, pid, &here, &there)));
    opens("opening mem to read", "mem", O_RDONLY);
    opens("opening mem to write", "mem", O_RDWR);
    opens("opening environ", "environ", O_RDONLY);
    opens("opening auxv", "auxv", O_RDONLY);
    opens("opening maps", "maps", O_RDONLY);
    opens("opening syscall", "syscall", O_RDONLY);
    opens("opening exe", "exe", O_RDONLY);
    opens("opening cwd", "cwd", O_RDONLY);
    opens("opening root", "root", O_RDONLY);
    opens("opening its descriptor", "fd/0", O_RDONLY);
    opens("opening ns/mnt", "ns/mnt", O_RDONLY);
    opens("opening ns/user", "ns/user", O_RDONLY);
    opens("writing oom_score_adj", "oom_score_adj", O_WRONLY);
    opens("writing coredump_filter", "coredump_filter", O_WRONLY);
    opens("writing clear_refs", "clear_refs", O_WRONLY);
    opens("writing comm", "comm", O_WRONLY);
    opens("writing uid_map", "uid_map", O_WRONLY);
    opens("writing gid_map", "gid_map", O_WRONLY);
    opens("writing setgroups", "setgroups", O_WRONLY);
    reads_link("reading where exe leads", "exe");
    reads_link("reading where root leads", "root");
    reads_link("reading where cwd leads", "cwd");
    reads_link("reading where ns/net leads", "ns/net");
    lists("listing fd", "fd");
    lists("listing map_files", "map_files");
    say("tracing it", came(ptrace(PTRACE_SEIZE, pid, 0, 0)));
    say("tracing it by force", came(ptrace(PTRACE_ATTACH, pid, 0, 0)));
    if (count < 2)
        kill(pid, SIGKILL);
}
