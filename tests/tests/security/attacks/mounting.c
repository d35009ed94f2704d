// Mounts, really: a file system of memory, a directory a second time, what is read-only for writing, nothing over /proc.
// The control has a mount namespace of its own.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static long memory(void) { return mount("none", "/tmp", "tmpfs", 0, NULL); }
static long again(void) { return mount("/usr", "/tmp", NULL, MS_BIND, NULL); }
static long kernel(void) { return mount("none", "/tmp", "proc", 0, NULL); }
static long remount(void) { return mount(NULL, "/proc", NULL, MS_REMOUNT | MS_BIND, NULL); }
static long share(void) { return mount(NULL, "/", NULL, MS_SHARED, NULL); }
static long take_off(void) { return umount2("/proc", MNT_DETACH); }
static long tree(void) { return syscall(SYS_open_tree, AT_FDCWD, "/usr", 1 /* OPEN_TREE_CLONE */); }
static long context(void) { return syscall(SYS_fsopen, "tmpfs", 0); }
static long attributes(void) {
    struct mount_attr_like { unsigned long set, clear, propagation, ids; } none = {0, 1, 0, 0};
    return syscall(SYS_mount_setattr, AT_FDCWD, "/proc", 0, &none, sizeof none);
}
static long moved(void) {
    long fd = syscall(SYS_open_tree, AT_FDCWD, "/usr", 1);
    return fd < 0 ? fd : syscall(SYS_move_mount, fd, "", AT_FDCWD, "/tmp", 4);
}

int main(void) {
    const struct {
        const char *name;
        long (*act)(void);
    } all[] = {
        {"memory", memory},     {"a directory again", again}, {"files of the kernel", kernel}, {"for writing", remount},
        {"shared", share},      {"other flags", attributes},  {"a tree", tree},                {"a context", context},
        {"a tree that is moved", moved}, {"taking off", take_off},
    };
    for (unsigned at = 0; at < sizeof all / sizeof *all; at++) {
        errno = 0;
        printf("%s %s\n", all[at].name, all[at].act() >= 0 ? "done" : strerrorname_np(errno));
    }
}
