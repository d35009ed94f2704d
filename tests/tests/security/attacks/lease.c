// Takes a lease on a file and never gives it back: whoever opens the file waits, until the kernel loses patience. Says `asked`
// when somebody does.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void asked(int signal) {
    (void)signal;
    if (write(1, "asked\n", 6) != 6)
        _exit(1);
}

int main(int count, char **names) {
    if (count < 2)
        return 2;
    signal(SIGIO, asked);
    for (int at = 1; at < count; at++) {
        int fd = open(names[at], O_RDWR);
        if (fd < 0)
            fd = open(names[at], O_RDONLY);
        if (fd < 0 || (fcntl(fd, F_SETLEASE, F_WRLCK) && fcntl(fd, F_SETLEASE, F_RDLCK))) {
            printf("%s %s\n", names[at], strerrorname_np(errno));
            return 1;
        }
    }
    puts("held");
    fflush(stdout);
    for (;;)
        pause();
}
