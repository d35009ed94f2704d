// A library that is loaded into a program of the host which was made to start inside (by `#!/proc/self/exe`), and tries to
// write to the file that this program runs from.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void say(const char *what, long done) { printf("%s %s\n", what, done >= 0 ? "done" : strerrorname_np(errno)); }

__attribute__((constructor)) static void attack(void) {
    char name[4096];
    long length = readlink("/proc/self/exe", name, sizeof name - 1);
    name[length > 0 ? length : 0] = 0;
    for (char *at = name; *at; at++)
        if (*at == ' ')
            *at = '_';
    printf("runs %s\n", name);
    int fd = open("/proc/self/exe", O_RDONLY);
    say("opening it to write", open("/proc/self/exe", O_WRONLY));
    say("opening it to write both ways", open("/proc/self/exe", O_RDWR));
    say("cutting it off", truncate("/proc/self/exe", 0));
    say("changing its mode", fchmod(fd, 0777));
    say("giving it away", fchown(fd, 0, 0));
    say("taking its seals off", fcntl(fd, F_ADD_SEALS, 0));
    fflush(stdout);
    _exit(0);
}
