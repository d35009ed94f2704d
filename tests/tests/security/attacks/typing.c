// Types into the terminal that it was given, or into one of its own: as who sits there would.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pty.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static void types(const char *what, int fd) {
    long plain = ioctl(fd, TIOCSTI, "x");
    printf("typing into %s %s\n", what, plain ? strerrorname_np(errno) : "done");
    long high = syscall(SYS_ioctl, fd, TIOCSTI | 1ul << 32, "x");
    printf("typing with a high half into %s %s\n", what, high ? strerrorname_np(errno) : "done");
    long console = ioctl(fd, TIOCLINUX, "\2");
    printf("the console's requests to %s %s\n", what, console ? strerrorname_np(errno) : "done");
}

int main(void) {
    int master, own;
    if (openpty(&master, &own, NULL, NULL, NULL))
        return 3;
    if (isatty(0))
        types("the one it has", 0);
    types("one of its own", own);
}
