// Sends one command to terminals, with every high half that a filter could overlook: to standard input, where that is a
// terminal, and to a terminal of its own in a session of its own. The second argument is the number that it is given,
// or `all` for each that there may be.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pty.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static unsigned long request;
static int first, last;

static void try(const char *whose, int fd) {
    const unsigned long highs[] = {0, 1, 0x7fffffff, 0x80000000, 0xffffffff};
    for (unsigned at = 0; at < sizeof highs / sizeof *highs; at++) {
        for (int value = first; value <= last; value++) {
            int copy = value;
            long done = syscall(SYS_ioctl, fd, request | highs[at] << 32, &copy);
            printf("%s %lx %d %s\n", whose, highs[at], value, done >= 0 ? "done" : strerrorname_np(errno));
        }
    }
    fflush(stdout);
}

int main(int count, char **arguments) {
    if (count != 3)
        return 2;
    const struct {
        const char *name;
        unsigned long request;
    } all[] = {{"TIOCSTI", TIOCSTI}, {"TIOCLINUX", TIOCLINUX}, {"TIOCSETD", TIOCSETD}};
    for (unsigned at = 0; at < sizeof all / sizeof *all; at++)
        if (!strcmp(all[at].name, arguments[1]))
            request = all[at].request;
    if (!request)
        return 3;
    first = atoi(arguments[2]);
    last = strcmp(arguments[2], "all") ? first : 31;
    if (isatty(0))
        try("given", 0);
    int master, slave;
    if (openpty(&master, &slave, NULL, NULL, NULL))
        return 4;
    if (!fork()) {
        setsid();
        ioctl(slave, TIOCSCTTY, 0);
        try("own", slave);
        _exit(0);
    }
    wait(NULL);
}
