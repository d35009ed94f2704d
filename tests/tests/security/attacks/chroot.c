// Leaves a jail in the classic way: go into a second one and walk up from a directory that was left outside of it. The
// arguments are a file beside the first jail, which must be found, and one of the host, which must not.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void look(const char *what, const char *file) {
    printf("%s %s\n", what, access(file, F_OK) ? strerrorname_np(errno) : "done");
}

int main(int count, char **arguments) {
    if (count != 4)
        return 2;
    mkdir(arguments[1], 0755);
    if (chroot(arguments[1]) || chdir("/"))
        return 3;
    look("beside the jail, from within", arguments[2]);
    int outside = open(".", O_RDONLY | O_DIRECTORY);
    mkdir("second", 0755);
    if (chroot("second") || fchdir(outside))
        return 4;
    for (int level = 0; level < 1000; level++)
        if (chdir(".."))
            return 5;
    if (chroot("."))
        return 6;
    look("beside the jail, from without", arguments[2]);
    look("on the host", arguments[3]);
}
