// Asks the kernel for namespaces by descriptors: the mount namespaces before and after one's own, and those of another
// process.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

struct mount_namespace {
    unsigned size, mounts;
    unsigned long id;
};

static void say(const char *what, int number, long done) {
    printf("%s %d %s\n", what, number, done >= 0 ? "done" : strerrorname_np(errno));
}

int main(int count, char **arguments) {
    int pid = count > 1 ? atoi(arguments[1]) : getpid();
    if (count < 3) {
        int own = open("/proc/self/ns/mnt", O_RDONLY);
        for (int which = 11; which <= 12; which++) {
            struct mount_namespace other = {sizeof other, 0, 0};
            say("another mount namespace", which, ioctl(own, _IOR(0xb7, which, struct mount_namespace), &other));
        }
    }
    int process = syscall(SYS_pidfd_open, pid, 0);
    for (int which = 1; which <= 10; which++)
        if (which != 7 && which != 8) // of time, which not every kernel has
            say("a namespace of the process", which, ioctl(process, _IO(0xff, which), 0));
}
