// Makes every kind of namespace in each way there is, enters those of another process, and asks for their parents.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/nsfs.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct {
    const char *name, *file;
    unsigned long flag;
} KINDS[] = {
    {"user", "user", 0x10000000}, {"mount", "mnt", 0x00020000}, {"pid", "pid", 0x20000000}, {"network", "net", 0x40000000},
    {"ipc", "ipc", 0x08000000},   {"uts", "uts", 0x04000000},   {"time", "time", 0x80},     {"cgroup", "cgroup", 0x02000000},
};
#define COUNT (sizeof KINDS / sizeof *KINDS)

static const char *came(long done) { return done >= 0 ? "done" : strerrorname_np(errno); }

// In a child: whoever succeeds here goes on as somebody else.
static void unshares(unsigned long flag, const char *what) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        printf("unshare %s %s\n", what, came(syscall(SYS_unshare, flag)));
        fflush(stdout);
        _exit(0);
    }
    waitpid(child, NULL, 0);
}

static void reap(const char *how, const char *what, long child) {
    if (child == 0)
        _exit(0);
    printf("%s %s %s\n", how, what, came(child));
    if (child > 0)
        waitpid(child, NULL, __WALL);
}

static void enters(const char *what, const char *pid, const char *file) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%s/ns/%s", pid, file);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    printf("setns %s of %s %s\n", what, pid, fd < 0 ? strerrorname_np(errno) : came(syscall(SYS_setns, fd, 0)));
    if (fd >= 0)
        close(fd);
}

static void asks(const char *pid, const char *file, unsigned long request, const char *what) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%s/ns/%s", pid, file);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    printf("%s of %s %s\n", what, file, fd < 0 ? strerrorname_np(errno) : came(ioctl(fd, request)));
    if (fd >= 0)
        close(fd);
}

int main(int count, char **arguments) {
    const char *what = count > 1 ? arguments[1] : "";
    for (size_t at = 0; at < COUNT; at++) {
        unsigned long flag = KINDS[at].flag;
        const char *name = KINDS[at].name;
        fflush(stdout);
        if (!strcmp(what, "unshare"))
            unshares(flag, name);
        else if (!strcmp(what, "clone") && flag != 0x80) // clone reads this one as a signal
            reap("clone", name, syscall(SYS_clone, flag | SIGCHLD, 0, 0, 0, 0));
        else if (!strcmp(what, "clone3")) {
            struct clone_args args = {.flags = flag, .exit_signal = SIGCHLD};
            reap("clone3", name, syscall(SYS_clone3, &args, sizeof args, 0, 0, 0, 0));
        } else if (!strcmp(what, "enter"))
            enters(name, count > 2 ? arguments[2] : "self", KINDS[at].file);
    }
    if (!strcmp(what, "unshare")) {
        unshares(0x100000000ul, "a flag that does not exist yet"); // a namespace of a later kernel
        unshares(0x10000000ul | 0x00020000ul, "user with mount");
    }
    if (!strcmp(what, "parents")) {
        const char *pid = count > 2 ? arguments[2] : "self";
        asks(pid, "user", NS_GET_PARENT, "parent");
        asks(pid, "pid", NS_GET_PARENT, "parent");
        asks(pid, "user", NS_GET_USERNS, "owner");
    }
}
